r"""The law of a partner's direction: where :math:`\mu^+` falls, seen from :math:`\mu`, and the caps that hold it.

Under a uniform marginal the angle :math:`\theta` between mu and a partner's mu+ has the density

.. math:: g(\theta) = \frac{\sin^{D-2}\theta}{B(\frac{D-1}{2}, \frac12)}\, S\,h(\cos\theta, \kappa, \kappa^+),

wider than the posterior of the latent by the partner's own posterior and by kappa_pos. On real data no latent is known,
so this is the law that can be checked. Its mass within an angle has a series as well, for each polynomial solves
:math:`((1-c^2)^{\lambda+1/2} G_l')' = -l(l+2\lambda)(1-c^2)^{\lambda-1/2} G_l`, and :math:`G_l'` stays in the family:

.. math:: P(\theta' \le \theta) = P_0(\theta) + \frac{\sin^{D-1}\theta}{(D-1)\,B(\frac{D-1}{2}, \frac12)}
          \sum_{l \ge 1} w_l\,A_l(\kappa)\,A_l(\kappa^+)\,A_l(\kappa_\mathrm{pos})\,G_{l-1}^{(\lambda+1)}(\cos\theta),

with the uniform law's :math:`P_0`. Where its terms cancel too much (D above 64 with all three concentrations large), or
one of them is infinite, the mass is a sum over 384 nodes instead.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from aureole._validation import check_dim
from aureole.sphere._angle import gauss_legendre, log_area_ratio
from aureole.sphere._cosine import cap_angle
from aureole.sphere._normalizer import inverse_mean_resultant_length, mean_resultant_length
from aureole.sphere._positivity import (
    check_concentrations,
    log_positivity,
    n_terms,
    positive_terms,
)
from aureole.sphere._zonal import zonal_basis

_PANELS, _STEPS = 24, 50
_DEEPEST = 6  # halvings of a bisection whose middles are all looked at together: a series costs its calls, not its size
_TAIL = 1e-13  # of the vMF with the same mean cosine; the law's own tail is about as light
_NODES, _WEIGHTS = gauss_legendre(16)
_MAX_TERMS = 1024  # beyond, the nodes are cheaper
_LARGEST_SUM = 1e4  # of the terms' sizes: they cancel to a mass, with 1e-14 of this as error
_ENTRIES = 2**21  # entries times terms at a time


def predictive_log_pdf(
    angle: Float[Tensor, "..."],
    kappa: Float[Tensor, "..."],
    kappa_other: Float[Tensor, "..."],
    kappa_pos: Float[Tensor, "..."] | float,
    dim: int,
) -> Float[Tensor, "..."]:
    r"""The log density :math:`\log g(\theta)` of the angle to a partner's mu, in float64; arguments broadcast.

    Angles are clamped to [0, pi], since float32's pi is larger than pi. A negative or NaN concentration raises an
    error that names it.

    Examples
    --------
    >>> angle, kappa = torch.tensor([0.5, 1.0]), torch.tensor(24.0)
    >>> predictive_log_pdf(angle, kappa, kappa, 20.0, dim=10)
    tensor([-1.7002,  0.5065], dtype=torch.float64)
    """
    dim = check_dim(dim)
    angle = angle.double().clamp(0, math.pi)
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
    """The probability that a partner's mu lies within an angle, to 1e-10 up to D = 4096.

    Cost: one series, or 384 positivities. A negative or NaN concentration raises an error that names it; a NaN angle
    gives NaN.

    Examples
    --------
    >>> predictive_mass(torch.tensor(1.0), torch.tensor(24.0), torch.tensor(24.0), 20.0, dim=10)
    tensor(0.5527, dtype=torch.float64)
    """
    dim = check_dim(dim)
    shape, (angle, *kappas) = _flat(angle, kappa, kappa_other, kappa_pos)
    angle = angle.clamp(0, math.pi)  # float32's pi is larger than pi
    parts = [
        _mass(part[0], list(part[1:]), dim)
        for part in zip(*(x.split(_chunk(kappas, dim)) for x in (angle, *kappas)), strict=True)
    ]
    return torch.cat(parts).reshape(shape)


def predictive_angle(
    mass: Float[Tensor, "..."] | float,
    kappa: Float[Tensor, "..."],
    kappa_other: Float[Tensor, "..."],
    kappa_pos: Float[Tensor, "..."] | float,
    dim: int,
) -> Float[Tensor, "..."]:
    r"""The angle of the cap around mu that holds a partner's mu with probability ``mass``, to 1e-10 of mass.

    Bisection, so that nothing can diverge. Differentiable once in all arguments: the gradients are the implicit ones,
    :math:`d\theta/d\,\mathrm{mass} = 1/g(\theta)` and
    :math:`d\theta/d\kappa = -\int_0^\theta \partial_\kappa g / g(\theta)`. A negative or NaN concentration raises an
    error that names it; a NaN mass gives NaN. Cost: 9 series of 63 entries, or 384 positivities, and 384 more for
    gradients in the concentrations.

    Examples
    --------
    >>> kappa = torch.tensor(24.0)
    >>> torch.cos(predictive_angle(torch.tensor([0.5, 0.9]), kappa, kappa, 20.0, dim=10))
    tensor([0.5665, 0.2817], dtype=torch.float64)
    """
    dim = check_dim(dim)
    shape, (level, *kappas) = _flat(mass, kappa, kappa_other, kappa_pos)
    parts = [
        _PredictiveAngle.apply(a, b, c, d, dim)
        for a, b, c, d in zip(
            *(x.split(_chunk(kappas, dim)) for x in (level, *kappas)), strict=True
        )
    ]
    angle = torch.cat(parts)
    return torch.where(torch.isnan(level), level, angle).reshape(shape)


class _PredictiveAngle(torch.autograd.Function):
    """The angle of a predictive cap, with the implicit gradients of the equation mass(angle) = level."""

    @staticmethod
    def forward(
        ctx: Any, level: Tensor, kappa: Tensor, other: Tensor, pos: Tensor, dim: int
    ) -> Tensor:
        angle = _angle(level, [kappa, other, pos], dim)
        ctx.dim = dim
        ctx.save_for_backward(level, kappa, other, pos, angle)
        return angle

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        level, kappa, other, pos, angle = ctx.saved_tensors
        kappas = [kappa, other, pos]
        inside = (level > 0) & (level < 1) & (angle > 0) & (angle < math.pi)
        safe = torch.where(inside, angle, 1.0)
        # grad / density, in logs: neither leaves the range of floats before the other
        log_density = predictive_log_pdf(safe, kappa, other, pos, ctx.dim)
        rate = torch.where(inside, torch.exp(-log_density), 0.0)
        found: list[Tensor | None] = [grads[0] * rate if ctx.needs_input_grad[0] else None]
        wanted = ctx.needs_input_grad[1:4]
        if not any(wanted):
            return (*found, None, None, None, None)
        with torch.enable_grad():
            leaves = [k.detach().requires_grad_(w) for k, w in zip(kappas, wanted, strict=True)]
            mass = _mass_by_nodes(safe, leaves, ctx.dim, clamped=False)
            asked = [k for k in leaves if k.requires_grad]
            slopes = iter(torch.autograd.grad(mass, asked, -grads[0] * rate))
        return (*found, *(next(slopes) if w else None for w in wanted), None)


def _flat(
    first: Tensor | float, kappa: Tensor, kappa_other: Tensor | float, kappa_pos: Tensor | float
) -> tuple[torch.Size, list[Tensor]]:
    """(Common shape, the values in it, flattened, in float64 on kappa's device), with concentrations checked."""
    first, kappa, other, pos = (
        torch.as_tensor(v, dtype=torch.float64, device=kappa.device)
        for v in (first, kappa, kappa_other, kappa_pos)
    )
    check_concentrations(kappa=kappa, kappa_other=other, kappa_pos=pos)
    wide = torch.broadcast_tensors(first, kappa, other, pos)
    return wide[0].shape, [v.reshape(-1) for v in wide]


def _chunk(kappas: list[Tensor], dim: int) -> int:
    """How many entries to take at a time, so that memory stays bounded."""
    return max(1, _ENTRIES // min(_count(kappas, dim), _MAX_TERMS))


def _count(kappas: list[Tensor], dim: int) -> int:
    bounds = [k.max().item() if k.numel() else 0.0 for k in kappas]
    return _MAX_TERMS + 1 if math.isinf(max(bounds)) else n_terms(bounds, dim, tolerance=1e-17)


def _mass(angle: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    count = _count(kappas, dim)
    if count > _MAX_TERMS:
        return _mass_by_nodes(angle, kappas, dim)
    value, trusted = _mass_by_series(angle, _terms(kappas, dim, count), dim)
    rest = (~trusted).nonzero()[:, 0]
    if len(rest):
        exact = _mass_by_nodes(angle[rest], [k[rest] for k in kappas], dim)
        value = torch.where(trusted, value, 0.0).index_put((rest,), exact)
    return value


def _terms(kappas: list[Tensor], dim: int, count: int) -> Tensor:
    """The terms of positivity at c = 1; a concentration that all entries share is looked at once."""
    return positive_terms(dim, count, *(k[:1] if bool((k == k[:1]).all()) else k for k in kappas))


def _mass_by_series(angle: Tensor, terms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(Mass, whether to trust it), from the terms of positivity at c = 1."""
    inside = (angle > 0) & (angle < math.pi)
    sine = torch.sin(torch.where(inside, angle, 1.0))
    front = torch.exp((dim - 1) * torch.log(sine) + log_area_ratio(dim)) / (dim - 1)
    waves = terms[..., 1:] * zonal_basis(torch.cos(angle), dim + 2, terms.shape[-1] - 1)
    trusted = ~inside | (front * waves.abs().sum(-1) < _LARGEST_SUM)
    added = torch.where(inside & trusted, front * waves.sum(-1), 0.0)
    return (_uniform_mass(angle, dim) + added).clamp(0, 1), trusted


def _uniform_mass(angle: Tensor, dim: int) -> Tensor:
    r"""The uniform law's mass within an angle, by the recurrence of :math:`\int \sin^n` two dimensions at a time."""
    sine, cosine = torch.sin(angle), torch.cos(angle)
    mass = angle / math.pi if dim % 2 == 0 else torch.sin(angle / 2).square()
    power = cosine * sine ** (1 + dim % 2)
    for higher in range(4 + dim % 2, dim + 1, 2):
        mass = mass - power * (math.exp(log_area_ratio(higher)) / (higher - 2))
        power = power * sine.square()
    return mass


def _mass_by_nodes(
    angle: Tensor, kappas: list[Tensor], dim: int, *, clamped: bool = True
) -> Tensor:
    start = torch.minimum(_bulk(kappas, dim)[0], angle)
    mass = _panel_masses(_edges(start, angle), kappas, dim).sum(-1)
    return mass.clamp(max=1) if clamped else mass


def _angle(level: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    count = _count(kappas, dim)
    if count > _MAX_TERMS:
        return _angle_by_nodes(level, kappas, dim)
    terms = _terms(kappas, dim, count)
    low, high = torch.zeros_like(level), torch.full_like(level, math.pi)
    trusted = torch.ones_like(level, dtype=torch.bool)
    deepest = max(1, min(_DEEPEST, (_ENTRIES // max(1, len(level) * count)).bit_length() - 1))
    for done in range(0, _STEPS, deepest):
        edges = _halved(low, high, min(deepest, _STEPS - done))
        value, reliable = _mass_by_series(edges[:, 1:-1], terms.unsqueeze(-2), dim)
        short = value < level.unsqueeze(-1)
        place = torch.zeros(len(level), 1, dtype=torch.long, device=level.device)
        step = (edges.shape[-1] - 1) // 2
        # the path of the bisection; entries off the path do not count
        while step:
            trusted &= reliable.gather(-1, place + step - 1)[:, 0]
            place = place + step * short.gather(-1, place + step - 1)
            step //= 2
        low, high = edges.gather(-1, place)[:, 0], edges.gather(-1, place + 1)[:, 0]
    angle, rest = (low + high) / 2, (~trusted).nonzero()[:, 0]
    if len(rest):
        angle[rest] = _angle_by_nodes(level[rest], [k[rest] for k in kappas], dim)
    return angle


def _halved(low: Tensor, high: Tensor, depth: int) -> Tensor:
    """The edges [n, 2^depth + 1] of the parts that intervals are halved into, each by the mean of its ends."""
    edges = torch.stack([low, high], -1)
    for _ in range(depth):
        middle = (edges[:, :-1] + edges[:, 1:]) / 2
        inner = torch.stack([edges[:, :-1], middle], -1).flatten(1)
        edges = torch.cat([inner, edges[:, -1:]], -1)
    return edges


def _angle_by_nodes(level: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    """The angle by bisection in the panel of a table of the mass, on the polynomial through its densities."""
    edges = _edges(*_bulk(kappas, dim))
    density = _densities(edges, kappas, dim)
    width = edges.diff(dim=-1)
    table = ((density * _WEIGHTS.to(level.device)).sum(-1) * width).cumsum(-1)
    panel = (table < level.unsqueeze(-1)).sum(-1).clamp(max=_PANELS - 1)
    rows = torch.arange(len(level), device=level.device)
    below = torch.where(panel > 0, table[rows, (panel - 1).clamp(min=0)], 0.0)
    integral = (
        density[rows, panel] @ _ANTIDERIVATIVE.to(level.device).T
    )  # its Legendre series over the panel
    wanted = (level - below) / width[rows, panel]
    low, high = torch.zeros_like(level), torch.ones_like(level)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        short = (integral * _legendre(2 * middle - 1, integral.shape[-1])).sum(-1) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return edges[rows, panel] + width[rows, panel] * (low + high) / 2


@torch.no_grad()
def _bulk(kappas: list[Tensor], dim: int) -> tuple[Tensor, Tensor]:
    """Angles between which the law lies: those of the vMF with the same mean cosine, with a margin on both sides.

    At D = 4096 the law spans a tenth of the angles from 0, for which panels that start at 0 would be too coarse.
    """
    cosine = torch.ones_like(kappas[0])
    for kappa in kappas:
        cosine = cosine * mean_resultant_length(kappa, dim)
    matched = inverse_mean_resultant_length(cosine, dim)
    tails = torch.tensor([_TAIL, 0.5, 1 - _TAIL], dtype=matched.dtype, device=matched.device)
    low, middle, high = cap_angle(tails.unsqueeze(-1), matched, dim)
    return (middle - 1.5 * (middle - low)).clamp(min=0), (1.3 * high).clamp(max=math.pi)


def _edges(start: Tensor, end: Tensor) -> Tensor:
    """The edges of even panels from start to end."""
    return start.unsqueeze(-1) + (end - start).unsqueeze(-1) * _even(end.device)


def _even(device: torch.device) -> Tensor:
    """The panels' edges on [0, 1]."""
    return torch.linspace(0, 1, _PANELS + 1, dtype=torch.float64, device=device)


def _panel_masses(edges: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    """The mass between neighbouring edges [..., panels + 1], by 16-point Gauss-Legendre sums."""
    weights = _WEIGHTS.to(edges.device)
    return (_densities(edges, kappas, dim) * weights).sum(-1) * edges.diff(dim=-1)


def _densities(edges: Tensor, kappas: list[Tensor], dim: int) -> Tensor:
    """The density [..., panels, 16] at the Gauss-Legendre nodes between neighbouring edges."""
    width = edges.diff(dim=-1).unsqueeze(-1)
    angle = edges[..., :-1].unsqueeze(-1) + width * _NODES.to(edges.device)
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
