r"""The controlled process: inputs with known posteriors, and positive pairs that follow from them.

The density of a partner relative to chance is the expected positivity, :math:`P(x^+|x) \propto P(x^+)\,S\,h(x, x^+)`.
Instead of rejecting candidates one by one, ``batch`` takes N inputs and sees every ordered pair (i, j) a Poisson
number of times, with mean proportional to S h(x_i, x_j). The pairs then follow P(x+|x) exactly for any kappa and
dimension, with no envelope and no pool of candidates, and the other inputs of the batch are fresh negatives (their law
does not depend on which pairs were seen). Where the latents cannot be integrated out, the mean uses draws of them: its
expectation over the draws is the same, so the pairs still follow P(x+|x) exactly. A factor that depends on the anchor
alone is free, because InfoNCE learns the partner's law given the anchor; ``reference`` uses that to see all anchors
about equally often where the density of mu varies a lot (high dimensions).
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.data._families import VMF, Family
from aureole.data._generators import Generator
from aureole.data._pairs import PairBatch, poisson_pairs
from aureole.errors import InvalidInputError
from aureole.sphere import log_normalizer, n_terms, pairwise_from_ratios, positive_terms

Rule = Literal["exact", "paper"]

_TAIL = 1e-8
_DRAWS = (
    4  # latents per input where they cannot be integrated out; all 16 pairs of draws are averaged
)


@dataclass(frozen=True, eq=False)
class ControlledProcess:
    r"""Inputs x ~ U[0, 1]^d with posteriors of a family at (mu(x), kappa(x)), and their positive pairs.

    Parameters
    ----------
    generator
        The networks mu(x), kappa(x).
    family
        The posteriors' family.
    kappa_pos
        Concentration of a partner's latent around its anchor's.
    rule
        "exact": pairs follow the paper's Formulas 1-3. "paper": its rejection rule, which keeps a pair with the chance
        :math:`C(\kappa_{pos})e^{\kappa_{pos}z^Tz^+} / (C(\kappa_{pos})e^{\kappa_{pos}z^Tz^+} + C(0))`; that
        saturates for close latents, so such pairs do not follow those formulas.
    reference
        How many fixed inputs to estimate an anchor's density from, to see all anchors equally often; 0 for not at all.
    """

    generator: Generator
    family: Family = field(default_factory=VMF)
    kappa_pos: float = 20.0
    rule: Rule = "exact"
    reference: int = 0

    @property
    def dim(self) -> int:
        """The ambient dimension D of the latents."""
        return self.generator.dim

    def inputs(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Inputs of the marginal P(x)."""
        return self.generator.inputs(n, generator)

    def batch(
        self, n: int, n_pairs: float | int, generator: torch.Generator | None = None
    ) -> PairBatch:
        """N inputs and, on average, ``n_pairs`` pairs among them. Cost n^2 terms of the series.

        Examples
        --------
        >>> from aureole.data import draw_generator
        >>> process = ControlledProcess(draw_generator(10, (16.0, 32.0), kind="whitened", seed=4))
        >>> batch = process.batch(256, 500, torch.Generator().manual_seed(0))
        >>> batch.inputs.shape, batch.pairs.shape[-1], 300 < len(batch.pairs) < 700
        (torch.Size([256, 10]), 2, True)
        """
        x = self.inputs(n, generator)
        rate = self.intensity(x, x, generator)
        if self.reference:
            rate = rate / self._anchor_density(x).unsqueeze(1)
        pairs = poisson_pairs(rate / self._mean_intensity, n_pairs, generator)
        return PairBatch(x, pairs, float(n_pairs))

    def pairs(
        self, n: int, generator: torch.Generator | None = None, *, pool: int = 4096
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        """(Anchors, partners), one partner for each of n inputs of the marginal.

        By the exact rule a partner is taken from ``pool`` fresh candidates with weights S h: the relative bias is
        about Var(S h) / pool. By the paper's rule both anchor and partner are drawn until kept.
        """
        if self.rule == "paper":
            return self._kept_pairs(n, generator)
        x, candidates = self.inputs(n, generator), self.inputs(pool, generator)
        weights = self.intensity(x, candidates, generator)
        chosen = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        return x, candidates[chosen]

    def intensity(
        self,
        first: Float[Tensor, "n d"],
        second: Float[Tensor, "m d"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n m"]:
        """S h(x, x') for all pairs, or an unbiased estimate of it; by the paper's rule the chance to be kept."""
        if self.rule == "exact":
            values = self._integrated(first, second)
            if values is not None:
                return values
        draws = [self.latents(x, _DRAWS, generator).flatten(0, 1) for x in (first, second)]
        rate = self._match(draws[0] @ draws[1].T)
        return rate.view(_DRAWS, len(first), _DRAWS, len(second)).mean((0, 2))

    def latents(
        self, x: Float[Tensor, "n d"], n: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "k n d"]:
        """Draws [n, N, D] of the inputs' latents."""
        mu, kappa = self.generator(x)
        return self.family.sample(mu, kappa, n, generator)

    def information(self, n: int = 4096, generator: torch.Generator | None = None) -> float:
        """The mutual information of a pair, E[log P(x+|x)/P(x+)] in nats, estimated from n inputs."""
        x = self.inputs(n, generator)
        share = self.intensity(x, x, generator).double().fill_diagonal_(0)
        share = share / share.sum(-1, keepdim=True)
        return (torch.special.xlogy(share, share).sum(-1).mean() + math.log(n - 1)).item()

    def _integrated(self, first: Tensor, second: Tensor) -> Tensor | None:
        """S h with the latents integrated out, or None where the family is not zonal."""
        (mu1, kappa1), (mu2, kappa2) = self.generator(first), self.generator(second)
        count = n_terms([math.inf, math.inf, self.kappa_pos], self.dim, tolerance=_TAIL)
        left, right = (self.family.coefficients(k, self.dim, count) for k in (kappa1, kappa2))
        if left is None or right is None:
            return None
        kappa_pos = torch.tensor(self.kappa_pos, dtype=torch.float64)
        terms = positive_terms(self.dim, count, kappa_pos)
        bound = (left.amax(0) * right.amax(0) * terms).flip(0).cumsum(0).flip(0)
        count = int(
            (bound > _TAIL * bound[0]).sum()
        )  # what follows is below the rounding of float32
        left, right, terms = left[:, :count], right[:, :count], terms[:count]
        values, scale = pairwise_from_ratios(
            (mu1 @ mu2.T).clamp(-1, 1), left, right, terms, self.dim
        )
        return values.clamp(min=0) * math.exp(scale)  # cancelling terms can round below 0

    def _match(self, cosine: Tensor) -> Tensor:
        """S vMF(z'; z, kappa_pos) of latents; by the paper's rule that, v, becomes the chance v / (1 + v)."""
        log_ratio = self.kappa_pos * cosine + self._log_constant
        return torch.sigmoid(log_ratio) if self.rule == "paper" else torch.exp(log_ratio)

    @functools.cached_property
    def _log_constant(self) -> float:
        both = torch.tensor([self.kappa_pos, 0.0], dtype=torch.float64)
        log_c = log_normalizer(both, self.dim)
        return (log_c[0] - log_c[1]).item()

    def _kept_pairs(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        kept: list[tuple[Tensor, Tensor]] = []
        found = 0
        for _ in range(10_000):
            x, partner = self.inputs(8 * n, generator), self.inputs(8 * n, generator)
            z, z_partner = (self.latents(y, 1, generator)[0] for y in (x, partner))
            chance = self._match((z * z_partner).sum(-1))
            accepted = torch.rand(len(x), generator=generator) < chance
            kept.append((x[accepted], partner[accepted]))
            found += int(accepted.sum())
            if found >= n:
                anchors, partners = (torch.cat(part)[:n] for part in zip(*kept, strict=True))
                return anchors, partners
        raise InvalidInputError(
            f"the paper's rule kept only {found} of {80_000 * n} pairs: kappa_pos = {self.kappa_pos} is too high for "
            f"dimension {self.dim}; use rule='exact'."
        )

    def _anchor_density(self, x: Tensor) -> Tensor:
        """An estimate of E[S h(x, x')] from the reference inputs: a function of x alone."""
        return self.intensity(x, self._reference_inputs, torch.Generator().manual_seed(1)).mean(-1)

    @functools.cached_property
    def _reference_inputs(self) -> Tensor:
        return self.inputs(self.reference, torch.Generator().manual_seed(0))

    @functools.cached_property
    def _mean_intensity(self) -> float:
        """The mean intensity over pairs of inputs, so that ``n_pairs`` is what it says."""
        if self.reference:
            return 1.0
        rng = torch.Generator().manual_seed(2)
        x = self.inputs(1024, rng)
        return (self.intensity(x, x, rng).fill_diagonal_(0).sum() / (1024 * 1023)).item()
