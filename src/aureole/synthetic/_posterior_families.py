"""Families of posteriors around mu(x) with concentration kappa(x): sampling, zonal coefficients and spread."""

import functools
import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.data._pairs import Rng
from aureole.distributions import VonMisesFisher
from aureole.sphere import normalize
from aureole.sphere._angle import gauss_legendre
from aureole.sphere._bessel import bessel_ratios
from aureole.sphere._normalizer import mean_resultant_complement
from aureole.sphere._zonal import zonal_basis


@runtime_checkable
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


class _NamedFamily:
    """A ``repr`` for the families, which have no parameters of their own."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class VMF(_NamedFamily):
    """von Mises-Fisher posteriors."""

    name = "vmf"

    def sample(self, mu: Tensor, kappa: Tensor, *, n: int, generator: Rng = None) -> Tensor:
        """Samples of the latent."""
        return VonMisesFisher(mu, kappa, validate_args=False).sample((n,), generator=generator)

    def coefficients(self, kappa: Tensor, dim: int, *, count: int) -> Tensor | None:
        """The ratios A_l(kappa) of Bessel functions."""
        return bessel_ratios(dim / 2 - 1, kappa.double(), count)

    def spread(self, mu: Tensor, kappa: Tensor) -> Tensor:
        """1 - A(kappa)."""
        return mean_resultant_complement(kappa, mu.shape[-1])


class Dirac(_NamedFamily):
    """Point masses: the latent is mu(x) itself, the injective process."""

    name = "dirac"

    def sample(self, mu: Tensor, kappa: Tensor, *, n: int, generator: Rng = None) -> Tensor:
        """The latent mu, n times."""
        return mu.expand(n, *mu.shape)

    def coefficients(self, kappa: Tensor, dim: int, *, count: int) -> Tensor | None:
        """All 1."""
        return torch.ones(*kappa.shape, count, dtype=torch.float64)

    def spread(self, mu: Tensor, kappa: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(kappa)


class Gaussian(_NamedFamily):
    r"""Gaussians pushed to the sphere, :math:`z = (\mu + \sigma\epsilon)/|\mu + \sigma\epsilon|`, sigma^2 = 1/kappa."""

    name = "gaussian"

    def sample(self, mu: Tensor, kappa: Tensor, *, n: int, generator: Rng = None) -> Tensor:
        """Samples of the latent."""
        noise = torch.randn(n, *mu.shape, generator=generator)
        return normalize(mu + noise / kappa.sqrt().unsqueeze(-1))

    def coefficients(self, kappa: Tensor, dim: int, *, count: int) -> Tensor | None:
        """E[G_l] by quadrature at Chebyshev nodes in log kappa, interpolated: to 1e-9 for kappa in [2, 4096]."""
        return _interpolate(_gaussian_table(dim, count), kappa.double())

    def spread(self, mu: Tensor, kappa: Tensor) -> Tensor:
        """1 - E[G_1]."""
        dim = mu.shape[-1]
        return (1 - _interpolate(_gaussian_table(dim, 2), kappa.double())[..., 1]).to(kappa.dtype)


class Laplace(_NamedFamily):
    """Laplace noise of scale b = 1/kappa on each coordinate of mu, pushed to the sphere: not zonal."""

    name = "laplace"

    def sample(self, mu: Tensor, kappa: Tensor, *, n: int, generator: Rng = None) -> Tensor:
        """Samples of the latent."""
        uniform = torch.rand(n, *mu.shape, generator=generator, dtype=torch.float64) - 0.5
        noise = -uniform.sign() * torch.log1p(-2 * uniform.abs())
        return normalize((mu + noise / kappa.unsqueeze(-1)).to(mu.dtype))

    def coefficients(self, kappa: Tensor, dim: int, *, count: int) -> Tensor | None:
        """None: the family is not zonal."""
        return None

    def spread(self, mu: Tensor, kappa: Tensor) -> Tensor:
        """The mean over 4,096 samples with a fixed seed: its standard error is below 2 % of the spread."""
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros_like(kappa)
        for _ in range(64):
            z = self.sample(mu, kappa, n=64, generator=generator)
            total += (1 - (z * mu).sum(-1)).abs().mean(0) / 64
        return total


_LOW, _HIGH, _NODES = math.log(2.0), math.log(4096.0), 48


@functools.lru_cache(maxsize=8)
def _gaussian_table(dim: int, count: int) -> Tensor:
    """E[G_l(mu.z)] at the Chebyshev nodes in log kappa, [nodes, count].

    With g = sqrt(kappa), the part along mu is g + N(0, 1) and the part across a chi variable of D - 1 degrees.
    """
    nodes, weights = gauss_legendre(96, torch.device("cpu"))
    along = -9 + 18 * nodes
    top = math.sqrt(dim - 1) + 9
    across = top * nodes
    log_weight = -along.square() / 2
    log_weight = log_weight.unsqueeze(1) + (dim - 2) * across.log() - across.square() / 2
    weight = torch.softmax((log_weight + weights.log().unsqueeze(1) + weights.log()).flatten(), 0)
    rows = []
    for log_kappa in _chebyshev_nodes():
        x = torch.exp(log_kappa / 2) + along.unsqueeze(1)
        cosine = (x / torch.sqrt(x.square() + across.square())).flatten()
        rows.append(weight @ zonal_basis(cosine, dim, count))
    return torch.stack(rows)


def _chebyshev_nodes() -> Tensor:
    k = torch.arange(_NODES, dtype=torch.float64)
    return (_LOW + _HIGH) / 2 + (_HIGH - _LOW) / 2 * torch.cos(math.pi * (2 * k + 1) / (2 * _NODES))


def _interpolate(table: Tensor, kappa: Tensor) -> Tensor:
    """The table's rows at other kappa: barycentric interpolation in log kappa."""
    k = torch.arange(_NODES, dtype=torch.float64)
    weights = (-1) ** k * torch.sin(math.pi * (2 * k + 1) / (2 * _NODES))
    gap = kappa.log().unsqueeze(-1) - _chebyshev_nodes()
    share = weights / torch.where(gap == 0, 1.0, gap)
    on_node = gap == 0
    share = torch.where(on_node.any(-1, keepdim=True), on_node.double(), share)
    return (share @ table) / share.sum(-1, keepdim=True)
