r"""Functions of the concentration kappa alone: normaliser, mean resultant length, entropy.

The density of vMF(mu, kappa) on the unit sphere in R^D is :math:`C_D(\kappa) e^{\kappa \mu^T z}` with

.. math::
    C_D(\kappa) = \frac{\kappa^{D/2-1}}{(2\pi)^{D/2} I_{D/2-1}(\kappa)}
                = \frac{1}{S_{D}\,F_{D/2-1}(\kappa)},

where :math:`S_D` is the sphere's surface area and F the function of :mod:`aureole.sphere._bessel`.
Relative accuracy (absolute near a zero) is 1e-12 in float64, 1e-7 in float32, for D from 2 to 4096 and
kappa from 0 to infinity; all functions compute in float64 and return the dtype of kappa.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole._validation import check_dim
from aureole.sphere import _bessel as bessel


def log_sphere_area(dim: int) -> float:
    r"""Log of the surface area :math:`S_D = 2 \pi^{D/2} / \Gamma(D/2)` of the unit sphere in R^D.

    Examples
    --------
    >>> round(log_sphere_area(3), 6)  # log(4 pi)
    2.531024
    """
    return math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)


def log_normalizer(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""Log of the normaliser :math:`C_D(\kappa)`: minus the log area at kappa = 0, -inf at infinity.

    Examples
    --------
    >>> log_normalizer(torch.tensor([0.0, 100.0]), dim=512)
    tensor([867.9681, 858.3793])
    """
    value = bessel.log_hyp0f1(check_dim(dim) / 2 - 1, kappa.double())
    return (-log_sphere_area(dim) - value).to(kappa.dtype)


def log_scaled_normalizer(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r""":math:`\log C_D(\kappa) + \kappa`, the log density at the mode; inf at infinity.

    Examples
    --------
    >>> log_scaled_normalizer(torch.tensor(1e6), dim=3)  # log(1e6 / 2 pi)
    tensor(11.9776)
    """
    value = bessel.log_hyp0f1_scaled(check_dim(dim) / 2 - 1, kappa.double())
    return (-log_sphere_area(dim) - value).to(kappa.dtype)


def mean_resultant_length(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""Mean resultant length :math:`A(\kappa) = E[\mu^T z] = I_{D/2}(\kappa)/I_{D/2-1}(\kappa)`.

    Examples
    --------
    >>> mean_resultant_length(torch.tensor([0.0, 16.0, torch.inf]), dim=64)
    tensor([0.0000, 0.2364, 1.0000])
    """
    return bessel.bessel_ratio(check_dim(dim) / 2 - 1, kappa)


def mean_resultant_complement(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r""":math:`1 - A(\kappa)`, with all its digits where A rounds to 1.

    Examples
    --------
    >>> mean_resultant_complement(torch.tensor(1e9), dim=3)
    tensor(1.0000e-09)
    """
    return bessel.bessel_ratio_complement(check_dim(dim) / 2 - 1, kappa)


def mean_resultant_slope(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""The derivative :math:`A'(\kappa) = \mathrm{Var}[\mu^T z]`: 1/D at kappa = 0.

    Examples
    --------
    >>> mean_resultant_slope(torch.tensor([0.0, 1e6]), dim=4)
    tensor([2.5000e-01, 1.5000e-12])
    """
    return bessel.bessel_ratio_slope(check_dim(dim) / 2 - 1, kappa)


def transverse_variance(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""Variance :math:`A(\kappa)/\kappa` of a coordinate of z orthogonal to mu: 1/D at kappa = 0.

    Examples
    --------
    >>> transverse_variance(torch.tensor([0.0, 1e6]), dim=4)
    tensor([2.5000e-01, 1.0000e-06])
    """
    # A/kappa = 1 / (D + kappa r) with r the ratio of the next order: no 0/0 at kappa = 0
    infinite, safe = bessel.split_infinite(kappa)
    value = 1 / (dim + safe * bessel.bessel_ratio(check_dim(dim) / 2, safe))
    return torch.where(infinite, 0.0, value).to(kappa.dtype)


def inverse_mean_resultant_length(
    length: Float[Tensor, "*batch"], dim: int, *, complement: bool = False
) -> Float[Tensor, "*batch"]:
    r"""The kappa with :math:`A(\kappa)` = ``length``: 0 at 0, inf at 1. Differentiable.

    Newton's method from :math:`r (D - r^2)/(1 - r^2)`, five steps to 1e-12 relative. With ``complement``
    the first argument is 1 - length, which keeps its digits for large kappa. The gradient is set to 0
    above kappa = 1e100. Outside [0, 1] the result is NaN, but lengths that rounding has moved there count as 0 or 1.

    Examples
    --------
    >>> inverse_mean_resultant_length(torch.tensor([0.0, 0.2364, 1.0]), dim=64)
    tensor([ 0.0000, 15.9993,     inf])
    >>> inverse_mean_resultant_length(torch.tensor(1e-9), dim=3, complement=True)
    tensor(1.0000e+09)
    """
    value, rounding = length.double(), 32 * torch.finfo(length.dtype).eps
    valid = (value >= -rounding) & (value <= 1 + rounding)
    value = torch.where(valid, value.clamp(0, 1), torch.nan)
    return _InverseRatio.apply(value, check_dim(dim), complement).to(length.dtype)


def entropy(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""Differential entropy :math:`-\log C_D(\kappa) - \kappa A(\kappa)` in nats; -inf at infinity.

    Examples
    --------
    >>> entropy(torch.tensor([0.0, 10.0, 1e6]), dim=3)
    tensor([  2.5310,   0.5353, -10.9776])
    """
    infinite, safe = bessel.split_infinite(kappa)
    # log F - kappa A = (log F - kappa) + kappa (1 - A): both moderate for large kappa
    order = check_dim(dim) / 2 - 1
    log_f = bessel.log_hyp0f1_scaled(order, safe)
    value = log_sphere_area(dim) + log_f + safe * bessel.bessel_ratio_complement(order, safe)
    return torch.where(infinite, -torch.inf, value).to(kappa.dtype)


def information(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""Divergence from the uniform law, :math:`\kappa A(\kappa) - \log F(\kappa)` in nats; inf at infinity.

    It keeps its relative accuracy for small kappa, where the difference of two entropies would not.

    Examples
    --------
    >>> information(torch.tensor([0.0, 1e-3, 10.0]), dim=3)
    tensor([0.0000e+00, 1.6667e-07, 1.9957e+00])
    """
    infinite, safe = bessel.split_infinite(kappa)
    order = check_dim(dim) / 2 - 1
    small = safe * bessel.bessel_ratio(order, safe) - bessel.log_hyp0f1(order, safe)
    large = -safe * bessel.bessel_ratio_complement(order, safe) - bessel.log_hyp0f1_scaled(
        order, safe
    )
    value = torch.where(safe < 1, small, large)
    return torch.where(infinite, torch.inf, value).to(kappa.dtype)


class _InverseRatio(torch.autograd.Function):
    """kappa from A(kappa) or from 1 - A(kappa), with d kappa / d A = 1 / A'(kappa)."""

    @staticmethod
    def forward(value: Tensor, dim: int, complement: bool) -> Tensor:
        order = dim / 2 - 1
        length, gap = (1 - value, value) if complement else (value, 1 - value)
        at_one = gap == 0
        safe_gap = torch.where(at_one, 0.5, gap)
        safe_length = torch.where(at_one, 0.5, length)
        guess = safe_length * (dim - safe_length**2) / (safe_gap * (1 + safe_length))
        huge = guess > 1e100  # there the guess is exact, and Newton's slope would underflow
        kappa = torch.where(huge, 1.0, guess)
        for _ in range(5):
            excess = torch.where(
                safe_gap < 0.5,
                safe_gap - bessel.bessel_ratio_complement(order, kappa),
                bessel.bessel_ratio(order, kappa) - safe_length,
            )
            kappa = kappa - excess / bessel.bessel_ratio_slope(order, kappa)
        return torch.where(at_one, torch.inf, torch.where(huge, guess, kappa))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.dim, ctx.complement = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        infinite = kappa > 1e100
        safe = torch.where(infinite, 1.0, kappa)
        sign = -1.0 if ctx.complement else 1.0
        grad = sign * grads[0] / bessel.bessel_ratio_slope(ctx.dim / 2 - 1, safe)
        return torch.where(infinite, 0.0, grad), None, None
