"""A process whose posteriors have two modes: each input could be one of two things (the paper's future work)."""

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.data._generators import Generator, draw_generator
from aureole.data._pairs import PairBatch, poisson_pairs
from aureole.distributions import MixtureVMF
from aureole.sphere import bessel_ratios, n_terms, pairwise_from_ratios, positive_terms


@dataclass(frozen=True, eq=False)
class BimodalProcess:
    r"""Inputs x ~ U[0, 1]^d with posteriors :math:`w\,Q(\mu_1, \kappa_1) + (1 - w)\,Q(\mu_2, \kappa_2)`, Q the vMF.

    Both components come from generators of their own (whitened, so that modes are mostly far apart), and w(x) from a
    random network, the sigmoid of twice a standardised output: about half of the inputs have a w between 0.2 and
    0.8 and are torn between two modes, the others are mostly one thing. Pairs follow the exact rule of
    ``ControlledProcess``.
    """

    first: Generator
    second: Generator
    weigher: nn.Module
    kappa_pos: float = 20.0

    @classmethod
    def draw(
        cls, dim: int, kappa_range: tuple[float, float], *, kappa_pos: float = 20.0, seed: int
    ) -> "BimodalProcess":
        """The process of a seed."""
        first, second = (
            draw_generator(dim, kappa_range, kind="whitened", seed=2 * seed + k) for k in (0, 1)
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            weigher = nn.Sequential(nn.Linear(dim, 10), nn.LeakyReLU(), nn.Linear(10, 1))
            with torch.no_grad():
                raw = weigher(torch.rand(1000, dim))
                last = weigher[-1]
                assert isinstance(last, nn.Linear)
                last.weight.div_(raw.std())
                last.bias.sub_(raw.mean()).div_(raw.std())
        return cls(first, second, weigher.requires_grad_(False), kappa_pos)

    @property
    def dim(self) -> int:
        """The ambient dimension D of the latents."""
        return self.first.dim

    def inputs(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Inputs of the marginal P(x)."""
        return self.first.inputs(n, generator)

    def posterior(self, x: Float[Tensor, "n d"]) -> MixtureVMF:
        """The true posteriors."""
        (mu1, kappa1), (mu2, kappa2) = self.first(x), self.second(x)
        mu, kappa = torch.stack([mu1, mu2], -2), torch.stack([kappa1, kappa2], -1)
        weight = torch.sigmoid(2 * self.weigher(x))
        return MixtureVMF(torch.cat([weight, 1 - weight], -1), mu, kappa, validate_args=False)

    def intensity(
        self, first: Float[Tensor, "n d"], second: Float[Tensor, "m d"]
    ) -> Float[Tensor, "n m"]:
        """S h(x, x') for all pairs."""
        left, right = self.posterior(first), self.posterior(second)
        highest = max(left.kappa.max().item(), right.kappa.max().item())
        count = n_terms([highest, highest, self.kappa_pos], self.dim, tolerance=1e-8)
        terms = positive_terms(self.dim, count, torch.tensor(self.kappa_pos, dtype=torch.float64))
        own, rest = (
            bessel_ratios(self.dim / 2 - 1, q.kappa.double().flatten(), count)
            * q.weights.double().view(-1, 1)
            for q in (left, right)
        )
        cosine = (left.mu.flatten(0, 1) @ right.mu.flatten(0, 1).T).clamp(-1, 1)
        values, scale = pairwise_from_ratios(cosine, own, rest, terms, self.dim)
        values = values.view(len(first), 2, len(second), 2).sum((1, 3))
        return values.clamp(min=0) * math.exp(scale)  # cancelling terms can round below 0

    def batch(
        self, n: int, n_pairs: float | int, generator: torch.Generator | None = None
    ) -> PairBatch:
        """N inputs and, on average, ``n_pairs`` pairs among them, each seen a Poisson number of times."""
        x = self.inputs(n, generator)
        rate = self.intensity(x, x) / self._mean_intensity
        return PairBatch(x, poisson_pairs(rate, n_pairs, generator), float(n_pairs))

    @functools.cached_property
    def _mean_intensity(self) -> float:
        x = self.inputs(1024, torch.Generator().manual_seed(2))
        return (self.intensity(x, x).fill_diagonal_(0).sum() / (1024 * 1023)).item()
