r"""Modified Bessel functions of the first kind at the high orders that spheres need.

Everything derives from the entire function

.. math:: F_v(k) = {}_0F_1(; v + 1; k^2/4) = \Gamma(v + 1)\,(2/k)^v\,I_v(k),

which is 1 at k = 0, so that no value here has a singularity, and from the ratio
:math:`r_v = I_{v+1}/I_v = (\log F_v)'`.

The order is raised to at least 24, where Debye's uniform expansion (NIST Digital Library of
Mathematical Functions, section 10.41) with 12 terms is exact to rounding for *every* k, and
brought down again by the recurrence

.. math:: r_v = k\,/\,(2 (v + 1) + k\,r_{v+1}),

which is stable downward and, started from the expansion, needs no more steps for a larger k.
Values are computed in float64 and returned in the dtype of k: 1e-12 relative in float64 for
:math:`\log F_v`, :math:`r_v` and :math:`1 - r_v` over orders 0 to 2047 and k from 0 to infinity.
The cost is at most 24 steps per value, none from order 24 (dimension 50) on.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.sphere import _debye as debye


def log_bessel_i(order: float, k: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""Log of the modified Bessel function, :math:`\log I_v(k)`; -inf at k = 0 for v > 0.

    Examples
    --------
    >>> log_bessel_i(511.0, torch.tensor(100.0, dtype=torch.float64))
    tensor(-675.9185, dtype=torch.float64)
    """
    k64 = k.double()
    power = torch.special.xlogy(torch.full_like(k64, order), k64 / 2) - math.lgamma(order + 1)
    return (power + log_hyp0f1(order, k64)).to(k.dtype)


def log_hyp0f1(order: float, k: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""Log of :math:`F_v(k) = {}_0F_1(; v+1; k^2/4)`: relative accuracy down to k = 0, inf at inf.

    Examples
    --------
    >>> log_hyp0f1(0.5, torch.tensor(2.0, dtype=torch.float64))  # log(sinh(2) / 2)
    tensor(0.5952, dtype=torch.float64)
    """
    infinite, safe = split_infinite(k)
    value, _ = _LogHyp0F1.apply(safe, float(order), False)
    return torch.where(infinite, torch.inf, value).to(k.dtype)


def log_hyp0f1_scaled(order: float, k: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r""":math:`\log F_v(k) - k`, which grows like :math:`\log k` only; -inf at inf.

    Examples
    --------
    >>> log_hyp0f1_scaled(0.5, torch.tensor(1e6, dtype=torch.float64))  # -log(2e6)
    tensor(-14.5087, dtype=torch.float64)
    """
    infinite, safe = split_infinite(k)
    value, _ = _LogHyp0F1.apply(safe, float(order), True)
    return torch.where(infinite, -torch.inf, value).to(k.dtype)


def bessel_ratio(order: float, k: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""The ratio :math:`r_v(k) = I_{v+1}(k)/I_v(k)`, from 0 at k = 0 to 1 at infinity.

    Examples
    --------
    >>> bessel_ratio(0.5, torch.tensor(2.0, dtype=torch.float64))  # coth(2) - 1/2
    tensor(0.5373, dtype=torch.float64)
    """
    infinite, safe = split_infinite(k)
    _, ratio = _LogHyp0F1.apply(safe, float(order), False)
    return torch.where(infinite, 1.0, ratio).to(k.dtype)


def bessel_ratio_complement(order: float, k: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r""":math:`1 - r_v(k)`, with all its digits where :math:`r_v` rounds to 1.

    Examples
    --------
    >>> bessel_ratio_complement(0.5, torch.tensor(1e12, dtype=torch.float64))
    tensor(1.0000e-12, dtype=torch.float64)
    """
    infinite, safe = split_infinite(k)
    _, minus_complement = _LogHyp0F1.apply(safe, float(order), True)
    return torch.where(infinite, 0.0, -minus_complement).to(k.dtype)


def bessel_ratio_slope(order: float, k: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""Derivative :math:`r_v'(k)`, by the differentiated recurrence (no cancellation at large k).

    Examples
    --------
    >>> bessel_ratio_slope(0.5, torch.tensor(0.0, dtype=torch.float64))  # 1 / (2v + 2)
    tensor(0.3333, dtype=torch.float64)
    """
    infinite, safe = split_infinite(k)
    return torch.where(infinite, 0.0, _slopes(float(order), safe, 0)[-1]).to(k.dtype)


def bessel_ratios(
    order: float, k: Float[Tensor, "*batch"], n_terms: int
) -> Float[Tensor, "*batch terms"]:
    r"""The ratios :math:`A_l(k) = I_{v+l}(k)/I_v(k)` for l = 0, ..., ``n_terms`` - 1.

    Examples
    --------
    >>> bessel_ratios(0.5, torch.tensor([0.0, 2.0, torch.inf], dtype=torch.float64), 3)
    tensor([[1.0000, 0.0000, 0.0000],
            [1.0000, 0.5373, 0.1940],
            [1.0000, 1.0000, 1.0000]], dtype=torch.float64)
    """
    steps = bessel_steps(order, k.double(), n_terms - 1)
    first = torch.ones_like(k, dtype=torch.float64).unsqueeze(-1)
    return torch.cat([first, steps.cumprod(-1)], -1).to(k.dtype)


def bessel_steps(
    order: float, k: Float[Tensor, "*batch"], n_steps: int
) -> Float[Tensor, "*batch steps"]:
    r"""The consecutive ratios :math:`r_{v+l}(k) = I_{v+l+1}(k)/I_{v+l}(k)` for l = 0, ..., ``n_steps`` - 1.

    Examples
    --------
    >>> bessel_steps(0.5, torch.tensor(2.0, dtype=torch.float64), 2)
    tensor([0.5373, 0.3611], dtype=torch.float64)
    """
    infinite, safe = split_infinite(k)
    steps = _BesselSteps.apply(safe, float(order), int(n_steps))
    return torch.where(infinite.unsqueeze(-1), 1.0, steps).to(k.dtype)


def log_hyp0f1_of_square(order: float, square: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r""":math:`\log F_v(\sqrt{q})`, which is smooth in q, at q = 0 too, where the root is not.

    Differentiable any number of times.

    Examples
    --------
    >>> q = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    >>> torch.autograd.grad(log_hyp0f1_of_square(0.5, q), q)  # 1 / (4 (v + 1))
    (tensor(0.1667, dtype=torch.float64),)
    """
    return _LogHyp0F1OfSquare.apply(square.double(), float(order)).to(square.dtype)


class _LogHyp0F1(torch.autograd.Function):
    """(log F, its derivative), both less k and 1 respectively when scaled."""

    @staticmethod
    def forward(k: Tensor, order: float, scaled: bool) -> tuple[Tensor, Tensor]:
        rhos, top_rho = _rhos(order, k, 0)
        top = order + len(rhos)
        value = debye.log_f_debye(top, k, scaled)
        below = top_rho
        for j, rho in zip(range(len(rhos) - 1, -1, -1), rhos, strict=True):
            # F_v / F_(v+1) = 1 / (2 (v+1) rho_v) = 1 + k^2 rho_(v+1) / (2 (v+1)): keeps small k's digits
            value = value + torch.log1p(k * (k * below) / (2 * (order + j + 1)))
            below = rho
        slope = -_complement(order, k, rhos) if scaled else k * below
        return value, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        k, order, _ = inputs
        ctx.order = order
        ctx.save_for_backward(k, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        k, slope = ctx.saved_tensors
        grad_value, grad_slope = grads
        return grad_value * slope + grad_slope * _slopes(ctx.order, k, 0)[-1], None, None


class _BesselSteps(torch.autograd.Function):
    """All r_(v+l) at once, from one run down the recurrence; the slopes by another."""

    @staticmethod
    def forward(k: Tensor, order: float, n_steps: int) -> Tensor:
        if n_steps == 0:
            return k.new_empty(*k.shape, 0)
        rhos, top_rho = _rhos(order, k, n_steps)
        return torch.stack([*reversed(rhos), top_rho][:n_steps], -1) * k.unsqueeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        k, ctx.order, ctx.n_steps = inputs
        ctx.save_for_backward(k)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (k,) = ctx.saved_tensors
        if ctx.n_steps == 0:
            return torch.zeros_like(k), None, None
        slopes = torch.stack(_slopes(ctx.order, k, ctx.n_steps)[::-1][: ctx.n_steps], -1)
        return (grads[0] * slopes).sum(-1), None, None


class _LogHyp0F1OfSquare(torch.autograd.Function):
    """log F as a function of the square of its argument, whose derivative is rho / 2."""

    @staticmethod
    def forward(square: Tensor, order: float) -> Tensor:
        return _LogHyp0F1.forward(torch.sqrt(square), order, False)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        square, ctx.order = inputs
        ctx.save_for_backward(square)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (square,) = ctx.saved_tensors
        return grads[0] * _RhoOfSquare.apply(square, ctx.order) / 2, None


class _RhoOfSquare(torch.autograd.Function):
    """rho_v as a function of the square, whose derivative is rho_v (rho_(v+1) - rho_v) / 2."""

    @staticmethod
    def forward(square: Tensor, order: float) -> Tensor:
        rhos, top_rho = _rhos(order, torch.sqrt(square), 0)
        return rhos[-1] if rhos else top_rho

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        square, ctx.order = inputs
        ctx.save_for_backward(square)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (square,) = ctx.saved_tensors
        rho, above = (_RhoOfSquare.apply(square, ctx.order + i) for i in (0, 1))
        return grads[0] * rho * (above - rho) / 2, None


def split_infinite(k: Tensor) -> tuple[Tensor, Tensor]:
    """(where k is infinite, k in float64 with 1 there), so that no inf meets the recurrences."""
    infinite = torch.isinf(k)
    return infinite, torch.where(infinite, 1.0, k.double())


def top_ratio(order: float, k: Tensor, n_terms: int) -> tuple[int, Tensor, Tensor]:
    """(Steps up to the order where recurrences start, rho and r' of that order); not differentiable."""
    n_steps = max(math.ceil(debye.LOWEST_ORDER - order), n_terms, 0)
    return n_steps, debye.rho_debye(order + n_steps, k), debye.slope_debye(order + n_steps, k)


def _rhos(order: float, k: Tensor, n_terms: int) -> tuple[list[Tensor], Tensor]:
    r"""([rho_(top-1), ..., rho_order], rho_top) with rho_v = r_v / k, finite at k = 0.

    The top order is at least 24 and at least ``order + n_terms``.
    """
    n_steps = max(math.ceil(debye.LOWEST_ORDER - order), n_terms, 0)
    top_rho = rho = debye.rho_debye(order + n_steps, k)
    rhos = []
    for step in range(n_steps - 1, -1, -1):
        rho = (k * (k * rho)).add_(2 * (order + step + 1)).reciprocal_()
        rhos.append(rho)
    return rhos, top_rho


def _complement(order: float, k: Tensor, rhos: list[Tensor]) -> Tensor:
    """1 - r_v by its own recurrence: errors grow by 2 * 24 at most on the way down."""
    complement = debye.complement_debye(order + len(rhos), k)
    for step, rho in zip(range(len(rhos) - 1, -1, -1), rhos, strict=True):
        complement = (2 * (order + step + 1) - k * complement) * rho
    return complement


def _slopes(order: float, k: Tensor, n_terms: int) -> list[Tensor]:
    """[r'_top, ..., r'_order], by r_v' = 2 (v+1) rho_v^2 - r_v^2 r'_(v+1); plain differentiable ops."""
    rhos, _ = _rhos(order, k, n_terms)
    slope = debye.slope_debye(order + len(rhos), k)
    slopes = [slope]
    for step, rho in zip(range(len(rhos) - 1, -1, -1), rhos, strict=True):
        slope = rho * rho * (2 * (order + step + 1)) - (k * rho) ** 2 * slope
        slopes.append(slope)
    return slopes
