r"""The controlled process: inputs with known posteriors, and positive pairs that follow from them.

The density of a partner relative to chance is the expected positivity, :math:`P(x^+|x) \propto P(x^+)\,S\,h(x, x^+)`.
Instead of rejection sampling, ``batch`` takes N inputs and includes every ordered pair (i, j) a Poisson number of
times, with mean proportional to S h(x_i, x_j). The pairs then follow P(x+|x) exactly for any kappa and dimension, with
no envelope and no pool of candidates, and the other inputs of the batch are independent negatives (their distribution
does not depend on the pairs). Where the latents cannot be integrated out, the mean uses samples of them: its
expectation over the samples is the same, so the pairs still follow P(x+|x) exactly. A factor that depends only on the
anchor is free, because InfoNCE learns the partner's distribution given the anchor; ``reference`` uses that to sample
all anchors about equally often where the density of mu varies a lot (high dimensions).
"""

import functools
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from aureole.data._pairs import PairBatch, Rng, poisson_pairs
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere import log_normalizer, normalize
from aureole.sphere._bessel import bessel_ratios
from aureole.sphere._normalizer import mean_resultant_complement
from aureole.sphere._positivity import n_terms, pairwise_from_ratios, positive_terms

Kind = Literal["paper", "whitened"]
Rule = Literal["exact", "paper"]

_COLLAPSED = 0.5  # a generator is redrawn while all of 1000 mu(x) lie within this cosine
_WIDTH = 10  # of the hidden layers in the paper, whose inputs and latents have ten dimensions
_SHAPING_STEPS = 5000
_TAIL = 1e-8  # relative size of the series terms that are dropped: below the rounding of float32
_DRAWS = 4  # samples per latent that cannot be integrated out; all 16 pairs of them are averaged


class Family(Protocol):
    """A family of posteriors with parameters mu and kappa."""

    name: str

    def sample(
        self, mu: Tensor, kappa: Tensor, *, n: int, generator: Rng = None
    ) -> Float[Tensor, "n *batch dim"]:
        """Samples of the latent."""
        ...

    def coefficients(self, kappa: Tensor, dim: int, *, count: int) -> Tensor | None:
        """The coefficients E[G_l(mu.z)], ``count`` of them, if the family is zonal; otherwise None."""
        ...

    def spread(self, mu: Tensor, kappa: Tensor) -> Float[Tensor, "*batch"]:
        """The mean cosine distance E|1 - mu.z| from the mode."""
        ...


class VMF:
    """von Mises-Fisher posteriors."""

    name = "vmf"

    def __repr__(self) -> str:
        return "VMF()"

    def sample(self, mu: Tensor, kappa: Tensor, *, n: int, generator: Rng = None) -> Tensor:
        """Samples of the latent."""
        return VonMisesFisher(mu, kappa, validate_args=False).sample((n,), generator=generator)

    def coefficients(self, kappa: Tensor, dim: int, *, count: int) -> Tensor | None:
        """The ratios A_l(kappa) of Bessel functions."""
        return bessel_ratios(dim / 2 - 1, kappa.double(), count)

    def spread(self, mu: Tensor, kappa: Tensor) -> Tensor:
        """1 - A(kappa)."""
        return mean_resultant_complement(kappa, mu.shape[-1])


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, with leaky ReLUs between them."""
    layers = [nn.Linear(n_in, n_out) for n_in, n_out in pairwise(widths)]
    activated = [module for layer in layers for module in (layer, nn.LeakyReLU())]
    return nn.Sequential(*activated[:-1])


class Generator(nn.Module):
    r"""Networks :math:`\mu(x) = f(x)/|f(x)|` and :math:`\kappa(x)`, log-affine in softplus g(x), for x in [0, 1]^d.

    f has three linear layers and g two, with leaky ReLUs. kappa spans [kappa_min, kappa_max] on 1000 inputs; on others
    it may leave the range a little. An infinite range gives point masses. With ``shared``, g is a head on f(x) instead
    (the paper's B.8). The parameters are frozen, since they are the ground truth.
    """

    low: Tensor
    gain: Tensor

    def __init__(self, dim: int, kappa_range: tuple[float, float], *, shared: bool = False) -> None:
        super().__init__()
        width = max(_WIDTH, dim)
        self.dim, self.kappa_range, self.shared = dim, kappa_range, shared
        self.location = mlp(dim, width, width, dim)
        self.certainty = mlp(dim, width, 1)
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("gain", torch.tensor(1.0))
        self.span_range(torch.rand(1000, dim))

    @torch.no_grad()
    def span_range(self, x: Float[Tensor, "n d"]) -> None:
        """Scale kappa to span its range on these inputs."""
        raw = softplus(self.certainty(self.location(x) if self.shared else x))
        self.low.copy_(raw.min())
        self.gain.copy_(1 / (raw.max() - raw.min()))

    def inputs(self, n: int, generator: Rng = None) -> Float[Tensor, "n d"]:
        """Inputs, uniform on the cube [0, 1]^d."""
        return torch.rand(n, self.dim, generator=generator)

    @torch.no_grad()
    def forward(
        self, x: Float[Tensor, "*batch d"]
    ) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch"]]:
        """(mu, kappa) of inputs."""
        embedding = self.location(x)
        mu = normalize(embedding)
        low, high = self.kappa_range
        if math.isinf(low):
            return mu, torch.full_like(mu[..., 0], math.inf)
        raw = softplus(self.certainty(embedding if self.shared else x)).squeeze(-1)
        share = (raw - self.low) * self.gain
        return mu, low * (high / low) ** share


def draw_generator(
    dim: int,
    kappa_range: tuple[float, float],
    *,
    kind: Kind = "paper",
    shared: bool = False,
    seed: int,
) -> Generator:
    """The generator of a seed, redrawn while all its mu lie close together or, if whitened, in a plane.

    ``kind="paper"`` follows the paper's reference code: mu(x) is first trained for 5,000 small steps to preserve
    distances, because random networks map all inputs to nearly one point. Most of these generators still have a
    collapsed direction (smallest eigenvalue of E[mu mu^T] below 1e-3 / D). ``kind="whitened"`` instead scales the last
    layer of a random network so that f(x) has mean 0 and identity covariance: mu fills the sphere, as the theorem
    assumes. The result depends only on the seed, and torch's global random state is left alone.
    """
    low, high = kappa_range
    if not 0 < low <= high or (math.isinf(high) and not math.isinf(low)):
        raise InvalidInputError(
            f"kappa_range must be 0 < low <= high, both finite or both inf, but is {kappa_range}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(100):
            generator = Generator(dim, kappa_range, shared=shared)
            if kind == "paper":
                _preserve_distances(generator)
            elif not _whiten(generator):
                continue
            if shared:  # its head was scaled on another f
                generator.span_range(generator.inputs(1000))
            generator.requires_grad_(False)
            mu, _ = generator(generator.inputs(1000))
            if (mu @ mu.T).min() < _COLLAPSED:
                return generator
    raise InvalidInputError(f"100 generators of dimension {dim} collapsed; try kind='whitened'.")


def _preserve_distances(generator: Generator) -> None:
    """Train mu(x) so that cosines follow the distances of inputs, weighted towards close ones."""
    optimiser = torch.optim.Adam(generator.location.parameters(), lr=0.01)
    i, j = torch.tril_indices(64, 64)
    for _ in range(_SHAPING_STEPS):
        x = generator.inputs(64)
        mu = normalize(generator.location(x))
        target = torch.cdist(x, x)[i, j]
        distance = 1 - (mu @ mu.T)[i, j] / 2
        loss = ((target - distance).square() * (math.sqrt(2) - distance.detach()) ** 4).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def _whiten(generator: Generator) -> bool:
    """Scale the last layer to outputs of mean 0 and identity covariance; False if they lack full rank."""
    last = generator.location[-1]
    assert isinstance(last, nn.Linear)
    outputs = generator.location(generator.inputs(10_000))
    mean = outputs.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(outputs.T).double())
    if values[0] < 1e-12 * values[-1]:
        return False
    scale = ((vectors * values.rsqrt()) @ vectors.T).float()
    last.weight.copy_(scale @ last.weight)
    last.bias.copy_(scale @ (last.bias - mean))
    return True


@dataclass(frozen=True, eq=False)
class ControlledProcess:
    r"""Inputs x ~ U[0, 1]^d with posteriors of a family at (mu(x), kappa(x)), and their positive pairs.

    Parameters
    ----------
    generator
        The networks mu(x) and kappa(x).
    family
        Family of the posteriors (default: vMF).
    kappa_pos
        Concentration of a partner's latent around its anchor's.
    rule
        "exact": pairs follow the paper's Formulas 1-3. "paper": its rejection rule, which keeps a pair with the chance
        :math:`C(\kappa_{pos})e^{\kappa_{pos}z^Tz^+} / (C(\kappa_{pos})e^{\kappa_{pos}z^Tz^+} + C(0))`; that
        saturates for close latents, so such pairs do not follow those formulas.
    reference
        Number of fixed inputs from which an anchor's density is estimated, to sample all anchors equally often
        (default 0: off).
    """

    generator: Generator
    family: Family = field(default_factory=VMF)
    kappa_pos: float = 20.0
    rule: Rule = "exact"
    reference: int = 0

    def __repr__(self) -> str:
        return (
            f"ControlledProcess(dim={self.dim}, family={self.family.name!r}, "
            f"kappa_range={self.generator.kappa_range}, kappa_pos={self.kappa_pos:g}, "
            f"rule={self.rule!r}, reference={self.reference})"
        )

    @property
    def dim(self) -> int:
        """The ambient dimension D of the latents."""
        return self.generator.dim

    def inputs(self, n: int, generator: Rng = None) -> Float[Tensor, "n d"]:
        """Inputs of the marginal P(x)."""
        return self.generator.inputs(n, generator)

    def batch(
        self,
        n: int,
        n_pairs: float | int,
        *,
        self_weight: float = 0.0,
        trials: int = 0,
        generator: Rng = None,
    ) -> PairBatch:
        r"""N inputs and, on average, ``n_pairs`` pairs among them, for the cost of n^2 series evaluations.

        Parameters
        ----------
        n
            Number of inputs.
        n_pairs
            Expected number of pairs of different inputs.
        self_weight
            The weight w of self-pairs (i, i): two draws of the latent of one input (default 0: none). A self-pair
            occurs w S h(x, x) times for every S h(x, x') times of a pair, as if each anchor had w copies of itself
            among its candidates. A good w makes half of the pairs self-pairs, ``balanced_self_weight(n)``.
        trials
            Number of pairs of draws per input that are tested for a match, with the chance
            :math:`e^{\kappa_{pos}(z^T z' - 1)}`; the share that matches is the ``agreement`` of the batch (default 0:
            none). Needs ``rule="exact"``. In high dimensions matches are too rare to be of use.

        Examples
        --------
        >>> from aureole.synthetic import draw_generator
        >>> process = ControlledProcess(draw_generator(10, (16.0, 32.0), kind="whitened", seed=4))
        >>> batch = process.batch(256, 500, generator=torch.Generator().manual_seed(0))
        >>> batch.inputs.shape, batch.pairs.shape[-1], 300 < len(batch.pairs) < 700
        (torch.Size([256, 10]), 2, True)
        >>> batch = process.batch(256, 500, self_weight=2.0, generator=torch.Generator().manual_seed(0))
        >>> own = batch.pairs[:, 0] == batch.pairs[:, 1]
        >>> 120 < own.sum().item() < 260
        True
        """
        self._check_batch(self_weight, trials)
        x = self.inputs(n, generator)
        rate = self.intensity(x, x, generator=generator)
        density = self._mean_intensity
        if self.reference:
            density = self._anchor_density(x).unsqueeze(1)
        pairs = poisson_pairs(rate / density, n_pairs, generator=generator)
        expected, agreement = float(n_pairs), None
        if self_weight:
            each = self_weight * n_pairs / (n * (n - 1))
            own = self.self_intensity(x, generator=generator).unsqueeze(1) / density
            counts = torch.poisson(each * own.squeeze(1).float(), generator=generator).long()
            items = torch.arange(n).repeat_interleave(counts)
            pairs = torch.cat([pairs, torch.stack([items, items], 1)])
            expected += each * n * self._mean_self_intensity
        if trials:
            chance = self.match_probability(x, generator=generator).float().expand(trials, n)
            agreement = torch.bernoulli(chance, generator=generator).mean(0)
        return PairBatch(x, pairs, expected, self_weight=self_weight, agreement=agreement)

    def balanced_self_weight(self, n: int) -> float:
        """The weight with which, on average, half of the pairs in a batch of n inputs are self-pairs.

        An anchor's self-pairs and its pairs with others are then equally likely, which gives the most information
        about the ratio of the two, and so about kappa.

        Examples
        --------
        >>> from aureole.synthetic import draw_generator
        >>> for dim in (10, 64):
        ...     process = ControlledProcess(draw_generator(dim, (16.0, 32.0), kind="whitened", seed=4))
        ...     print(dim, round(process.balanced_self_weight(512)))
        10 11
        64 85
        """
        return (n - 1) / self._mean_self_intensity

    def pairs(
        self, n: int, generator: Rng = None, *, pool: int = 4096
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        """(Anchors, partners), one partner for each of n inputs of the marginal.

        By the exact rule a partner is chosen from ``pool`` new candidates with weights S h; the relative bias is about
        Var(S h) / pool. By the paper's rule, anchor and partner are sampled until accepted.
        """
        if self.rule == "paper":
            return self._kept_pairs(n, generator)
        x, candidates = self.inputs(n, generator), self.inputs(pool, generator)
        weights = self.intensity(x, candidates, generator=generator)
        chosen = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        return x, candidates[chosen]

    def intensity(
        self,
        first: Float[Tensor, "n d"],
        second: Float[Tensor, "m d"],
        *,
        generator: Rng = None,
    ) -> Float[Tensor, "n m"]:
        """S h(x, x') for all pairs, or an unbiased estimate of it; by the paper's rule the acceptance probability."""
        if self.rule == "exact":
            values = self._integrated(first, second)
            if values is not None:
                return values
        left, right = (self.latents(x, _DRAWS, generator=generator) for x in (first, second))
        rate = self._match(left.flatten(0, 1) @ right.flatten(0, 1).T)
        return rate.view(_DRAWS, len(first), _DRAWS, len(second)).mean((0, 2))

    def self_intensity(
        self, x: Float[Tensor, "n d"], *, generator: Rng = None
    ) -> Float[Tensor, " n"]:
        r"""S h(x, x), the rate of self-pairs: how much likelier than by chance two draws of one input are a pair.

        In closed form :math:`\sum_l w_l A_l(\kappa_{pos}) A_l(\kappa)^2`, which does not depend on mu; otherwise an
        unbiased estimate from independent draws.
        """
        if self.rule == "exact":
            count = n_terms([math.inf, math.inf, self.kappa_pos], self.dim, tolerance=_TAIL)
            _, kappa = self.generator(x)
            own = self.family.coefficients(kappa, self.dim, count=count)
            if own is not None:
                kappa_pos = torch.tensor(self.kappa_pos, dtype=torch.float64)
                return (own.square() * positive_terms(self.dim, count, kappa_pos)).sum(-1)
        left, right = (self.latents(x, _DRAWS, generator=generator) for _ in range(2))
        return self._match(torch.einsum("rnd,snd->rsn", left, right)).mean((0, 1))

    def match_probability(
        self, x: Float[Tensor, "n d"], *, generator: Rng = None
    ) -> Float[Tensor, " n"]:
        r"""The probability :math:`E[e^{\kappa_{pos}(z^T z' - 1)}]` that two draws of an input match in a test.

        It is S h(x, x) relative to its value for kappa = inf, so 1 for an input without ambiguity.
        """
        log_peak = self.kappa_pos + self._log_constant
        return (self.self_intensity(x, generator=generator) * math.exp(-log_peak)).clamp(max=1.0)

    def latents(
        self, x: Float[Tensor, "n d"], n: int, *, generator: Rng = None
    ) -> Float[Tensor, "k n d"]:
        """Samples [n, N, D] of the inputs' latents."""
        mu, kappa = self.generator(x)
        return self.family.sample(mu, kappa, n=n, generator=generator)

    def information(self, n: int = 4096, generator: Rng = None) -> float:
        """The mutual information of a pair, E[log P(x+|x)/P(x+)] in nats, estimated from n inputs."""
        x = self.inputs(n, generator)
        share = self.intensity(x, x, generator=generator).double().fill_diagonal_(0)
        share = share / share.sum(-1, keepdim=True)
        return (torch.special.xlogy(share, share).sum(-1).mean() + math.log(n - 1)).item()

    def _integrated(self, first: Tensor, second: Tensor) -> Tensor | None:
        """S h with the latents integrated out, or None if the family is not zonal."""
        (mu1, kappa1), (mu2, kappa2) = self.generator(first), self.generator(second)
        count = n_terms([math.inf, math.inf, self.kappa_pos], self.dim, tolerance=_TAIL)
        left, right = (self.family.coefficients(k, self.dim, count=count) for k in (kappa1, kappa2))
        if left is None or right is None:
            return None
        kappa_pos = torch.tensor(self.kappa_pos, dtype=torch.float64)
        terms = positive_terms(self.dim, count, kappa_pos)
        bound = (left.amax(0) * right.amax(0) * terms).flip(0).cumsum(0).flip(0)
        count = int((bound > _TAIL * bound[0]).sum())
        left, right, terms = left[:, :count], right[:, :count], terms[:count]
        cosine = (mu1 @ mu2.T).clamp(-1, 1)
        values, scale = pairwise_from_ratios(cosine, left, right, terms, self.dim)
        return values.clamp(min=0) * math.exp(scale)  # cancelling terms can round below 0

    def _match(self, cosine: Tensor) -> Tensor:
        """V = S vMF(z'; z, kappa_pos) of latents; by the paper's rule the probability v / (1 + v)."""
        log_ratio = self.kappa_pos * cosine + self._log_constant
        return torch.sigmoid(log_ratio) if self.rule == "paper" else torch.exp(log_ratio)

    @functools.cached_property
    def _log_constant(self) -> float:
        both = torch.tensor([self.kappa_pos, 0.0], dtype=torch.float64)
        log_c = log_normalizer(both, self.dim)
        return (log_c[0] - log_c[1]).item()

    def _kept_pairs(self, n: int, generator: Rng) -> tuple[Tensor, Tensor]:
        kept: list[tuple[Tensor, Tensor]] = []
        count = 0
        for _ in range(10_000):
            x, partner = self.inputs(8 * n, generator), self.inputs(8 * n, generator)
            z, z_partner = (self.latents(y, 1, generator=generator)[0] for y in (x, partner))
            chance = self._match((z * z_partner).sum(-1))
            accepted = torch.rand(len(x), generator=generator) < chance
            kept.append((x[accepted], partner[accepted]))
            count += int(accepted.sum())
            if count >= n:
                anchors, partners = (torch.cat(part)[:n] for part in zip(*kept, strict=True))
                return anchors, partners
        raise InvalidInputError(
            f"the paper's rule accepted only {count} of {80_000 * n} pairs: kappa_pos = {self.kappa_pos} is too high "
            f"for dimension {self.dim}; use rule='exact'."
        )

    def _anchor_density(self, x: Tensor) -> Tensor:
        """An estimate of E[S h(x, x')] from the reference inputs: a function of x alone."""
        rng = torch.Generator().manual_seed(1)
        return self.intensity(x, self._reference_inputs, generator=rng).mean(-1)

    @functools.cached_property
    def _reference_inputs(self) -> Tensor:
        return self.inputs(self.reference, torch.Generator().manual_seed(0))

    @functools.cached_property
    def _mean_intensity(self) -> float:
        """The mean intensity over pairs of inputs, which makes ``n_pairs`` the expected number of pairs."""
        if self.reference:
            return 1.0
        rng = torch.Generator().manual_seed(2)
        x = self.inputs(1024, rng)
        return (self.intensity(x, x, generator=rng).fill_diagonal_(0).sum() / (1024 * 1023)).item()

    @functools.cached_property
    def _mean_self_intensity(self) -> float:
        """The mean intensity of self-pairs, relative to that of pairs of different inputs."""
        rng = torch.Generator().manual_seed(3)
        x = self.inputs(4096, rng)
        density = self._anchor_density(x) if self.reference else self._mean_intensity
        return (self.self_intensity(x, generator=rng) / density).mean().item()

    def _check_batch(self, self_weight: float, trials: int) -> None:
        if not 0 <= self_weight < math.inf:
            raise InvalidInputError(
                f"self_weight must be at least 0 and finite, but is {self_weight!r}."
            )
        if trials < 0:
            raise InvalidInputError(f"trials must be 0 or more, but is {trials!r}.")
        if trials and self.rule != "exact":
            raise InvalidInputError(f"trials need rule='exact', but the rule is {self.rule!r}.")
