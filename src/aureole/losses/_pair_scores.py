r"""Log expected likelihoods of very many pairs in float32, from a fit of one function per dimension.

The score of a pair is :math:`\log F(|\kappa_1\mu_1 + \kappa_2\mu_2|) - \log F(\kappa_1) - \log F(\kappa_2)`. With
:math:`s = (D-1)/2`, :math:`\sigma = s + 2`, :math:`w = \sqrt{r^2 + \sigma^2}` and :math:`p = \sigma / w`,

.. math::
    \log F(r) = (w - \sigma) - s \log\frac{\sigma + w}{2\sigma} + (1 - p)\,P(p), \qquad
    \frac{(\log F)'(r)}{r} = \frac{1 - p\,S(p)}{w},

where P and S are smooth on [0, 1], that is for every r: Chebyshev fits of degree 8 to 18 give both to 1e-8. For the
pairs the fits run in float32 and everything else in float64, where large terms cancel.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial import chebyshev
from torch import Tensor

from aureole.sphere import (
    log_hyp0f1_scaled,
    log_pair_likelihood,
    mean_resultant_complement,
)

_MANY = 4096  # pairs from which on the fit is worth its overhead
_LARGEST = 1e7  # kappa up to which rounding in float64 does not show in the lengths
_BLOCK = 1 << 17  # pairs at a time: the temporaries stay in the cache
_DEGREES = range(8, 23, 2)
_TOLERANCE = 1e-8


def pair_scores(
    cosine: Float[Tensor, "n m"],
    kappa1: Float[Tensor, " n"],
    kappa2: Float[Tensor, " m"],
    dim: int,
) -> Float[Tensor, "n m"]:
    """``sphere.log_pair_likelihood`` of all pairs, for finite concentrations; cosines are clamped to [-1, 1].

    Many pairs in float32 are computed from the fit: absolute error 1e-7, plus the rounding of the result. Gradients
    agree with the exact ones to 1e-6 of the largest. Second derivatives run on ``log_pair_likelihood``, and so do
    float64, few pairs and concentrations above 1e7. Differentiable in all arguments.

    Examples
    --------
    >>> pair_scores(torch.eye(64), torch.full((64,), 20.0), torch.full((64,), 20.0), dim=10)[0, :2]
    tensor([ 5.9360, -4.3040])
    """
    fits = cosine.dtype == torch.float32 and cosine.numel() >= _MANY
    fits = fits and not torch.compiler.is_compiling()
    if not fits or max(float(k.detach().max()) for k in (kappa1, kappa2)) > _LARGEST:
        return _exact(cosine, kappa1.unsqueeze(1), kappa2, dim)
    return _PairScores.apply(cosine, kappa1, kappa2, dim)


def _exact(cosine: Tensor, kappa1: Tensor, kappa2: Tensor, dim: int) -> Tensor:
    # the clamp only removes rounding, so the gradient passes through it
    inside = cosine + (cosine.clamp(-1, 1) - cosine).detach()
    return log_pair_likelihood(inside, kappa1, kappa2, dim)


class _Fit(NamedTuple):
    """Coefficients of P and S in powers of 1 - 2 p, from the highest on."""

    value: list[float]
    slope: list[float]


@lru_cache(maxsize=64)
def _fit(dim: int) -> _Fit:
    """The fits of a dimension, of the lowest degree that reaches the tolerance between the nodes."""
    return _Fit(*(_fitted(dim, part) for part in range(2)))


def _fitted(dim: int, part: int) -> list[float]:
    between = _nodes(199)
    truth = _targets(between, dim)[part]
    for degree in _DEGREES:
        nodes = _nodes(degree + 1)
        fitted = chebyshev.chebfit(nodes, _targets(nodes, dim)[part], degree)
        if np.abs(chebyshev.chebval(between, fitted) - truth).max() < _TOLERANCE:
            return chebyshev.cheb2poly(fitted)[::-1].tolist()
    raise ArithmeticError(f"no polynomial of log F reaches {_TOLERANCE:g} at D = {dim}.")


def _nodes(count: int) -> np.ndarray:
    return np.cos(np.pi * (np.arange(count) + 0.5) / count)


def _targets(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """P and S at x = 1 - 2 p, by the exact functions, arranged so that nothing large cancels."""
    s, width = _constants(dim)
    p = torch.from_numpy((1 - x) / 2)
    w = width / p
    r = w * torch.sqrt((1 - p) * (1 + p))
    scaled = log_hyp0f1_scaled(dim / 2 - 1, r) + 2 * width * r / (w + width + r)
    value = (scaled + s * torch.log1p(r * r / (2 * width * (w + width)))) / (1 - p)
    # 1 - p S = w A / r, with w - r = width^2 / (w + r)
    slope = (mean_resultant_complement(r, dim) * w - width**2 / (w + r)) / (r * p)
    return value.numpy(), slope.numpy()


def _constants(dim: int) -> tuple[float, float]:
    s = (dim - 1) / 2
    return s, s + 2.0


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cosine: Tensor, kappa1: Tensor, kappa2: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(cosine, kappa1, kappa2)
        ctx.dim = dim
        a, b = kappa1.double(), kappa2.double()
        s, width = _constants(dim)
        fit = cosine.new_tensor(_fit(dim).value)
        scores = torch.empty_like(cosine, memory_format=torch.contiguous_format)
        log_a, log_b = (_log_f(k, dim) for k in (a, b))
        constant = log_a.unsqueeze(1) + (width - s * math.log(2 * width))
        for rows, singles, doubles in _blocks(cosine, 2, 2):
            (gap, total), (w, rest), score = singles, doubles, scores[rows]
            _lengths(cosine[rows], a[rows], b, width, out=(rest, w, gap))
            gap.copy_(torch.sub(w, width, out=rest).div_(w))  # 1 - p
            _polynomial(fit, torch.mul(gap, 2, out=score).sub_(1), out=total).mul_(gap)
            torch.add(w, width, out=rest).log_()
            w.sub_(rest, alpha=s).sub_(constant[rows]).sub_(log_b)
            score.copy_(w).add_(total)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, kappa1, kappa2 = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            return (*_exact_gradients(cosine, kappa1, kappa2, grads[0], ctx.dim), None)
        a, b = kappa1.double(), kappa2.double()
        _, width = _constants(ctx.dim)
        fit = cosine.new_tensor(_fit(ctx.dim).slope)
        into_cosine = torch.empty_like(cosine, memory_format=torch.contiguous_format)
        into_a, into_b = torch.empty_like(a), torch.zeros_like(b)
        slope_a, slope_b = (_slope(k, ctx.dim) for k in (a, b))
        for rows, singles, doubles in _blocks(cosine, 2, 3):
            (p, total), (c, w, half) = singles, doubles
            own = a[rows]
            _lengths(cosine[rows], own, b, width, out=(c, w, p))
            p.copy_(torch.reciprocal(w, out=w)).mul_(width)
            x = torch.mul(p, -2, out=into_cosine[rows]).add_(1)
            half.copy_(_polynomial(fit, x, out=total).mul_(p))
            torch.addcmul(w, half, w, value=-1, out=half)  # (1 - p S) / w
            grad = w.copy_(grads[0][rows])
            # the gradient in half the squared length, r^2 / 2 = (a^2 + b^2) / 2 + a b c
            half.mul_(grad)
            turned = c.mul_(half)
            into_a[rows] = own * half.sum(1) + turned @ b - slope_a[rows] * grad.sum(1)
            into_b += b * half.sum(0) + own @ turned - slope_b * grad.sum(0)
            into_cosine[rows] = half.mul_(own.unsqueeze(1)).mul_(b)
        return into_cosine, into_a.to(kappa1.dtype), into_b.to(kappa2.dtype), None


def _log_f(kappa: Tensor, dim: int) -> Tensor:
    """Log F in float64, from the fit."""
    s, width = _constants(dim)
    w = torch.sqrt(kappa.square() + width**2)
    gap = (w - width) / w
    fitted = _polynomial(kappa.new_tensor(_fit(dim).value), 2 * gap - 1, out=torch.empty_like(w))
    return (w - width) - s * torch.log1p((w - width) / (2 * width)) + gap * fitted


def _slope(kappa: Tensor, dim: int) -> Tensor:
    """The derivative of log F in float64, from the fit."""
    _, width = _constants(dim)
    w = torch.sqrt(kappa.square() + width**2)
    p = width / w
    fitted = _polynomial(kappa.new_tensor(_fit(dim).slope), 1 - 2 * p, out=torch.empty_like(w))
    return kappa * (1 - p * fitted) / w


def _blocks(
    matrix: Tensor, n_singles: int, n_doubles: int
) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
    """Slices of rows, each with buffers of its size in float32 and float64, which are reused."""
    n, m = matrix.shape
    height = min(n, max(1, _BLOCK // m))
    singles, doubles = (
        [torch.empty(height, m, dtype=dtype, device=matrix.device) for _ in range(count)]
        for dtype, count in ((torch.float32, n_singles), (torch.float64, n_doubles))
    )
    for first in range(0, n, height):
        size = min(height, n - first)
        yield slice(first, first + size), [x[:size] for x in singles], [x[:size] for x in doubles]


def _lengths(
    cosine: Tensor, a: Tensor, b: Tensor, width: float, *, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Write (cosines in float64, w) to the first two of ``out``; the third is a float32 buffer."""
    c, w, single = out
    c.copy_(torch.clamp(cosine, -1, 1, out=single))
    torch.mul(c, (2 * a).unsqueeze(1), out=w)
    torch.addcmul((a.square() + width**2).unsqueeze(1), w, b, out=w).add_(b.square()).sqrt_()


def _polynomial(coefficients: Tensor, x: Tensor, *, out: Tensor) -> Tensor:
    """The polynomial at x by Horner's rule."""
    first, *rest = coefficients
    out.fill_(first)
    for coefficient in rest:
        torch.addcmul(coefficient, out, x, out=out)
    return out


def _exact_gradients(
    cosine: Tensor, kappa1: Tensor, kappa2: Tensor, grad: Tensor, dim: int
) -> list[Tensor | None]:
    """Differentiable gradients in the cosines and both kappas."""
    inputs = [cosine, kappa1, kappa2]
    wanted = [x for x in inputs if x.requires_grad]
    with torch.enable_grad():
        scores = _exact(cosine.double(), kappa1.double().unsqueeze(1), kappa2.double(), dim)
        found = iter(torch.autograd.grad(scores, wanted, grad.double(), create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]
