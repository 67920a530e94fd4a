r"""The law of the cosine t = mu^T z for z ~ vMF(mu, kappa): one law for sampling, gradients and caps.

.. math:: f(t; \kappa) = S_{D-1}\,C_D(\kappa)\,(1 - t^2)^{(D-3)/2}\,e^{\kappa t}

For large kappa t crowds at 1, so the primary variable is the height h = 1 - t of the cap
:math:`\{z : \mu^T z \ge 1 - h\}`: ``cap_mass`` and its inverse ``cap_height`` keep their digits for
every kappa, and ``cosine_cdf`` and ``cosine_quantile`` are the same in t.

The absolute error of a mass, given or enclosed, is below 1e-9 in float64 for D from 2 to 4096 and kappa from 0 to
infinity (of ``cosine_cdf`` with one exception, stated there). The cost is fixed: 64 evaluations of the density per
mass, and for the inverse 65 per kappa and 7 per mass (see :mod:`aureole.sphere._angle`).
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole._validation import check_dim
from aureole.sphere import _angle as angle
from aureole.sphere._bessel import split_infinite

_ROWS = 1024  # kappas inverted at a time on a CPU: their tables fit the cache


def cosine_log_pdf(
    cosine: Float[Tensor, "*#batch"], kappa: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "*#batch"]:
    r"""Log density of the cosine, :math:`\log f(t; \kappa)`.

    At t = -1 and 1 it is inf for D = 2 and -inf for D > 3. For kappa = inf, a point mass at t = 1,
    it is inf there and -inf elsewhere. Beyond [-1, 1], where a rounded product of unit vectors may lie, it is -inf with
    a gradient of 0.

    Examples
    --------
    >>> cosine_log_pdf(torch.tensor([0.0, 0.9]), torch.tensor(20.0), dim=10)
    tensor([-10.9963,   1.1911])
    """
    return _log_pdf(1 - cosine.double(), kappa, dim).to(cosine.dtype)


def cosine_cdf(
    cosine: Float[Tensor, "*#batch"], kappa: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "*#batch"]:
    r"""Probability :math:`P(\mu^T z \le t)`: one minus the mass of the cap beyond t. Differentiable.

    For D = 2 the error is up to 5e-9 within 1e-15 of t = -1, where 1 - t rounds to 2.

    Examples
    --------
    >>> cosine_cdf(torch.tensor([-1.0, 0.8, 1.0]), torch.tensor(20.0), dim=10)
    tensor([0.0000, 0.4568, 1.0000])
    """
    mass = cap_mass(1 - cosine.double(), kappa, dim)
    return (1 - mass).to(cosine.dtype)


def cosine_quantile(
    mass: Float[Tensor, "*#batch"], kappa: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "*#batch"]:
    r"""The t with :math:`P(\mu^T z \le t)` = ``mass``. Differentiable in both.

    Examples
    --------
    >>> cosine_quantile(torch.tensor([0.0, 0.05, 0.5, 1.0]), torch.tensor(20.0), dim=10)
    tensor([-1.0000,  0.6170,  0.8101,  1.0000])
    """
    return torch.cos(cap_angle(1 - mass.double(), kappa, dim)).to(mass.dtype)


def cap_mass(
    height: Float[Tensor, "*#batch"], kappa: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "*#batch"]:
    r"""Probability :math:`P(\mu^T z \ge 1 - h)` of the cap of height h around mu. Differentiable.

    Examples
    --------
    >>> cap_mass(torch.tensor([0.0, 1e-6, 2.0]), torch.tensor(1e6), dim=3)  # 1 - exp(-1) in the middle
    tensor([0.0000, 0.6321, 1.0000])
    """
    height64, kappa64 = torch.broadcast_tensors(height.double(), kappa.double())
    infinite, safe = split_infinite(kappa64)
    mass = _CapMass.apply(height64, safe, check_dim(dim))
    point = torch.where(torch.isnan(height64), height64, (height64 >= 0).double())
    return torch.where(infinite, point, mass).to(height.dtype)


def cap_mass_slope(
    height: Float[Tensor, "*#batch"], kappa: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "*#batch"]:
    r"""Derivative of the cap's mass in kappa, :math:`\int_{1-h}^1 (t - A(\kappa)) f(t; \kappa)\,dt`.

    Examples
    --------
    >>> cap_mass_slope(torch.tensor(1.0), torch.tensor(0.0), dim=3)  # 1/4
    tensor(0.2500)
    """
    height64, kappa64 = torch.broadcast_tensors(height.double(), kappa.double())
    infinite, safe = split_infinite(kappa64)
    _, slope = angle.integrate(height64, safe, check_dim(dim))
    return torch.where(infinite, 0.0, slope).to(height.dtype)


def cap_height(
    mass: Float[Tensor, "*#batch"], kappa: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "*#batch"]:
    r"""Height h = 1 - t of the cap around mu that holds ``mass``: from 0 for 0 to 2 for 1. Differentiable.

    Examples
    --------
    >>> cap_height(torch.tensor([0.0, 0.95, 1.0]), torch.tensor(1e6), dim=3)  # -log(0.05) / 1e6
    tensor([0.0000e+00, 2.9957e-06, 2.0000e+00])
    """
    return (2 * torch.sin(cap_angle(mass.double(), kappa, dim) / 2).square()).to(mass.dtype)


def cap_angle(
    mass: Float[Tensor, "..."], kappa: Float[Tensor, "..."], dim: int
) -> Float[Tensor, "..."]:
    r"""Angle theta in [0, pi] of the cap around mu that holds ``mass``. Differentiable.

    The gradients are the implicit ones, :math:`d\theta/d\,\mathrm{mass} = 1/g(\theta)` and
    :math:`d\theta/d\kappa = -\partial_\kappa G(\theta; \kappa) / g(\theta)` with density g and
    distribution function G of the angle: the exact pathwise gradient of a draw. Leading dimensions that
    only ``mass`` has share one table per kappa. For kappa = inf the angle is 0.

    Examples
    --------
    >>> cap_angle(torch.tensor([0.5, 0.95]), torch.tensor(0.0), dim=2)  # pi * mass
    tensor([1.5708, 2.9845])
    """
    dim = check_dim(dim)
    mass64 = mass.double()
    infinite, safe = split_infinite(kappa.double())
    with_slope = torch.is_grad_enabled() and kappa.requires_grad
    theta, _ = _CapAngle.apply(mass64, safe, dim, with_slope)
    return torch.where(infinite, 0.0, theta).to(mass.dtype)


class _CapMass(torch.autograd.Function):
    """Mass of a cap; its derivatives are the density and ``cap_mass_slope``."""

    @staticmethod
    def forward(height: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return angle.integrate(height, kappa, dim)[0].clamp(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        height, kappa, ctx.dim = inputs
        ctx.save_for_backward(height, kappa)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        height, kappa = ctx.saved_tensors
        grad_height = grad_kappa = None
        if ctx.needs_input_grad[0]:
            grad_height = grads[0] * _log_pdf(height, kappa, ctx.dim).exp()
        if ctx.needs_input_grad[1]:
            grad_kappa = grads[0] * cap_mass_slope(height, kappa, ctx.dim)
        return grad_height, grad_kappa, None


class _CapAngle(torch.autograd.Function):
    """(angle, d angle / d kappa) of the cap that holds a mass; the second output is not differentiable."""

    @staticmethod
    def forward(mass: Tensor, kappa: Tensor, dim: int, with_slope: bool) -> tuple[Tensor, Tensor]:
        shape = torch.broadcast_tensors(mass, kappa)[0].shape
        lead = len(shape) - kappa.dim()
        rows = kappa.expand(shape[lead:]).reshape(-1)
        columns = mass.expand(shape).reshape(math.prod(shape[:lead]), rows.numel())
        theta = torch.empty_like(columns)
        slope = torch.empty_like(columns) if with_slope else columns.new_zeros(())
        step = _ROWS if rows.device.type == "cpu" else max(rows.numel(), 1)
        for start in range(0, rows.numel(), step):
            block = slice(start, start + step)
            found = angle.invert(columns[:, block].T.contiguous(), rows[block], dim, with_slope)
            theta[:, block] = found[0].T
            if found[1] is not None:
                slope[:, block] = found[1].T
        return theta.reshape(shape), slope.reshape(shape) if with_slope else slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        mass, kappa, ctx.dim, ctx.with_slope = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(mass, kappa, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        mass, kappa, theta, slope = ctx.saved_tensors
        grad_mass = grad_kappa = None
        # second derivatives need the slope in differentiable operations
        plain = torch.is_grad_enabled() or not ctx.with_slope
        if ctx.needs_input_grad[0] or plain:
            rate = _angle_rate(mass, kappa, theta, ctx.dim)
            grad_mass = _sum_to(grads[0] * rate, mass.shape) if ctx.needs_input_grad[0] else None
            slope = _angle_slope(theta, kappa, rate, ctx.dim) if plain else slope
        if ctx.needs_input_grad[1]:
            grad_kappa = _sum_to(grads[0] * slope, kappa.shape)
        return grad_mass, grad_kappa, None, None


def _angle_rate(mass: Tensor, kappa: Tensor, theta: Tensor, dim: int) -> Tensor:
    """The derivative of a cap's angle in its mass, in differentiable operations: 1 / g, and 0 at the ends."""
    interior = (mass > 0) & (mass < 1)
    wide = kappa.expand(theta.shape)
    height = angle.height_of(torch.where(interior, theta, 1.0))
    log_density = angle.log_density(height, wide, dim, angle.log_scale(wide, dim))
    return torch.where(interior, torch.exp(-log_density), 0.0)


def _angle_slope(theta: Tensor, kappa: Tensor, rate: Tensor, dim: int) -> Tensor:
    """The derivative of a cap's angle in kappa, given its derivative in the mass."""
    height = angle.height_of(torch.where(rate > 0, theta, 1.0))
    return -angle.integrate(height, kappa.expand(theta.shape), dim)[1] * rate


def _sum_to(grad: Tensor, shape: torch.Size) -> Tensor:
    return grad.sum_to_size(shape) if grad.shape != shape else grad


def _log_pdf(height: Tensor, kappa: Tensor, dim: int) -> Tensor:
    height, kappa = torch.broadcast_tensors(height, kappa.double())
    infinite, safe = split_infinite(kappa)
    outside = (height < 0) | (height > 2)
    point = torch.where(
        height == 0, torch.inf, torch.where(torch.isnan(height), height, -torch.inf)
    )
    height = torch.where(outside, 1.0, height)  # before the logarithm; NaN stays NaN
    value = angle.log_scale(safe, check_dim(dim)) - safe * height
    if dim != 3:  # 0 * log(0) at the poles would be NaN, and the factor is 1
        value = value + (dim - 3) / 2 * torch.log(height * (2 - height))
    return torch.where(infinite, point, torch.where(outside, -torch.inf, value))
