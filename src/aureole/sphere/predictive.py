r"""The law of a partner's direction: where :math:`\mu^+` falls, seen from :math:`\mu`, and the caps that hold it.

Under a uniform marginal the angle :math:`\theta` between mu and a partner's mu+ has the density

.. math:: g(\theta) = \frac{\sin^{D-2}\theta}{B(\frac{D-1}{2}, \frac12)}\, S\,h(\cos\theta, \kappa, \kappa^+),

wider than the posterior of the latent by the partner's own posterior and by kappa_pos. On real data no latent is known,
so this is the law that can be checked.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole.shapes import check_dim
from aureole.sphere.angle import gauss_legendre, log_area_ratio
from aureole.sphere.cosine import cap_angle
from aureole.sphere.normalizer import inverse_mean_resultant_length, mean_resultant_length
from aureole.sphere.positivity import log_positivity

__all__ = ["predictive_angle", "predictive_log_pdf", "predictive_mass"]

_PANELS, _STEPS = 24, 50
_TAIL = 1e-13  # of the vMF with the same mean cosine; the law's own tail is about as light
_NODES, _WEIGHTS = gauss_legendre(16)


def predictive_log_pdf(
    angle: Float[Tensor, "..."],
    kappa: Float[Tensor, "..."],
    kappa_other: Float[Tensor, "..."],
    kappa_pos: Float[Tensor, "..."] | float,
    dim: int,
) -> Float[Tensor, "..."]:
    r"""The log density :math:`\log g(\theta)` of the angle to a partner's mu, in float64; arguments broadcast.

    Examples
    --------
    >>> angle, kappa = torch.tensor([0.5, 1.0]), torch.tensor(24.0)
    >>> predictive_log_pdf(angle, kappa, kappa, 20.0, dim=10)
    tensor([-1.7002,  0.5065], dtype=torch.float64)
    """
    dim = check_dim(dim)
    angle = angle.double()
    log_uniform = (dim - 2) * torch.log(torch.sin(angle)) if dim > 2 else torch.zeros_like(angle)
    positivity = log_positivity(torch.cos(angle), kappa, kappa_other, kappa_pos, dim)
    return log_uniform + log_area_ratio(dim) + positivity


def predictive_mass(
    angle: Float[Tensor, "..."],
    kappa: Float[Tensor, "..."],
    kappa_other: Float[Tensor, "..."],
    kappa_pos: Float[Tensor, "..."] | float,
    dim: int,
) -> Float[Tensor, "..."]:
    """The probability that a partner's mu lies within an angle, to 1e-10. Cost: 384 positivities an entry.

    Examples
    --------
    >>> predictive_mass(torch.tensor(1.0), torch.tensor(24.0), torch.tensor(24.0), 20.0, dim=10)
    tensor(0.5527, dtype=torch.float64)
    """
    pos = torch.as_tensor(kappa_pos, dtype=torch.float64)
    angle, *kappas = torch.broadcast_tensors(angle.double(), kappa, kappa_other, pos)
    edges = angle.unsqueeze(-1) * torch.linspace(0, 1, _PANELS + 1, dtype=torch.float64)
    return _panel_masses(edges, kappas, dim).sum(-1).clamp(max=1)


def predictive_angle(
    mass: Float[Tensor, "..."] | float,
    kappa: Float[Tensor, "..."],
    kappa_other: Float[Tensor, "..."],
    kappa_pos: Float[Tensor, "..."] | float,
    dim: int,
) -> Float[Tensor, "..."]:
    """The angle of the cap around mu that holds a partner's mu with probability ``mass``, to 1e-9 of mass.

    Bisection in the panel of a table of the mass, on the polynomial through the density at the panel's nodes, so that
    nothing can diverge. Cost: 384 positivities an entry.

    Examples
    --------
    >>> kappa = torch.tensor(24.0)
    >>> torch.cos(predictive_angle(torch.tensor([0.5, 0.9]), kappa, kappa, 20.0, dim=10))
    tensor([0.5665, 0.2817], dtype=torch.float64)
    """
    pos = torch.as_tensor(kappa_pos, dtype=torch.float64)
    level = torch.as_tensor(mass, dtype=torch.float64)
    level, *kappas = torch.broadcast_tensors(level, kappa, kappa_other, pos)
    shape = level.shape
    level, kappas = level.reshape(-1), [k.reshape(-1).double() for k in kappas]
    edges = _edges(kappas, dim)
    density = _densities(edges, kappas, dim)
    width = edges.diff(dim=-1)
    table = ((density * _WEIGHTS).sum(-1) * width).cumsum(-1)
    panel = (table < level.unsqueeze(-1)).sum(-1).clamp(max=_PANELS - 1)
    rows = torch.arange(len(level))
    below = torch.where(panel > 0, table[rows, (panel - 1).clamp(min=0)], 0.0)
    integral = density[rows, panel] @ _ANTIDERIVATIVE.T  # its Legendre series over the panel
    wanted = (level - below) / width[rows, panel]
    low, high = torch.zeros_like(level), torch.ones_like(level)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        short = (integral * _legendre(2 * middle - 1, integral.shape[-1])).sum(-1) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    found = edges[rows, panel] + width[rows, panel] * (low + high) / 2
    return found.reshape(shape)


def _edges(kappas: list[Tensor], dim: int) -> Tensor:
    """Panels from 0 to where the law has ended: the cap of the vMF with the same mean cosine, with room to spare."""
    cosine = torch.ones_like(kappas[0])
    for kappa in kappas:
        cosine = cosine * mean_resultant_length(kappa, dim)
    matched = inverse_mean_resultant_length(cosine, dim)
    tail = torch.full_like(matched, 1 - _TAIL)
    end = (1.3 * cap_angle(tail, matched, dim)).clamp(max=math.pi)
    return end.unsqueeze(-1) * torch.linspace(0, 1, _PANELS + 1, dtype=torch.float64)


def _panel_masses(edges: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    """The mass between neighbouring edges [..., panels + 1], by 16-point Gauss-Legendre sums."""
    return (_densities(edges, kappas, dim) * _WEIGHTS).sum(-1) * edges.diff(dim=-1)


def _densities(edges: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    """The density [..., panels, 16] at the Gauss-Legendre nodes between neighbouring edges."""
    width = edges.diff(dim=-1).unsqueeze(-1)
    angle = edges[..., :-1].unsqueeze(-1) + width * _NODES
    kappa, other, pos = (k[..., None, None] for k in kappas)
    return torch.exp(predictive_log_pdf(angle, kappa, other, pos, dim))


def _antiderivative() -> Tensor:
    """The matrix from values at the nodes to the Legendre coefficients of the integral from the panel's start."""
    nodes, weights = _NODES.numpy(), _WEIGHTS.numpy()
    n = len(nodes)
    degrees = 2 * np.arange(n)[:, None] + 1
    series = degrees * weights * np.polynomial.legendre.legvander(2 * nodes - 1, n - 1).T
    return torch.from_numpy(np.polynomial.legendre.legint(series, lbnd=-1, axis=0) / 2)


def _legendre(x: Tensor, count: int) -> Tensor:
    """The Legendre polynomials P_0(x), ... along a new last dimension."""
    basis = [torch.ones_like(x), x]
    for n in range(1, count - 1):
        basis.append(((2 * n + 1) * x * basis[n] - n * basis[n - 1]) / (n + 1))
    return torch.stack(basis[:count], -1)


_ANTIDERIVATIVE = _antiderivative()
