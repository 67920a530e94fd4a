r"""Zonal series: sums over the Gegenbauer polynomials :math:`G_l(c) = C_l^\lambda(c)/C_l^\lambda(1)`.

With :math:`\lambda = D/2 - 1` (the Chebyshev polynomials for D = 2). A zonal function of two points of the sphere
depends on their cosine c alone and has such a series; convolving zonal functions multiplies their coefficients. The
derivative stays in the family, two dimensions up:

.. math:: G_l'(c) = \frac{l (l + 2\lambda)}{2\lambda + 1}\,G_{l-1}^{(\lambda+1)}(c).

Everything runs on the recurrence of these polynomials as they are, which are at most 1 in size: with
:math:`r_n = n/(n + D - 2)`,

.. math:: G_{n+1} = (1 + r_n)\,c\,G_n - r_n\,G_{n-1}.

Rescaling it would save a multiplication per term, but in high dimension the factors leave the range of float32.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 2**18  # pairs at a time on a CPU: the recurrence's few arrays stay in the cache


def log_zonal_weights(
    dim: int, n_terms: int, device: torch.device | None = None
) -> Float[Tensor, " terms"]:
    r"""Logs of :math:`w_l = \frac{l+\lambda}{\lambda}\,C_l^\lambda(1)`, the dimensions of the spaces of harmonics.

    Examples
    --------
    >>> log_zonal_weights(3, 4).exp()  # 2 l + 1
    tensor([1.0000, 3.0000, 5.0000, 7.0000], dtype=torch.float64)
    """
    terms = torch.arange(n_terms, dtype=torch.float64, device=device)
    if dim == 2:
        return math.log(2) * (terms > 0).to(terms.dtype)
    # log C_l(1) by summing the logs of C_l(1)/C_(l-1)(1) = (l + D - 3)/l: no difference of large log-gammas
    growth = torch.log1p((dim - 3) / terms[1:])
    log_c = torch.cat([terms[:1], growth.cumsum(0)])
    return log_c + torch.log1p(terms / (dim / 2 - 1))


def zonal_basis(
    cosine: Float[Tensor, "*batch"], dim: int, n_terms: int
) -> Float[Tensor, "*batch terms"]:
    r"""The polynomials :math:`G_0(c), \dots, G_{n-1}(c)`; differentiable any number of times.

    Examples
    --------
    >>> zonal_basis(torch.tensor(0.5), 3, 3)  # Legendre: 1, c, (3 c^2 - 1) / 2
    tensor([ 1.0000,  0.5000, -0.1250])
    """
    return _ZonalBasis.apply(cosine, dim, n_terms)


@torch.no_grad()
def zonal_sum(
    cosine: Float[Tensor, "n m"],
    left: Float[Tensor, "n terms"],
    right: Float[Tensor, "m terms"],
    dim: int,
) -> Float[Tensor, "n m"]:
    r"""Return the pairwise sums :math:`\sum_l a_{il}\,b_{jl}\,G_l(c_{ij})`; not differentiable.

    Cost n m terms, memory n m. The rounding error of a sum is about a rounding of
    :math:`\sum_l |a_{il}\,b_{jl}\,G_l(c_{ij})|`.

    Examples
    --------
    >>> zonal_sum(torch.tensor([[0.5]]), torch.ones(1, 3), torch.ones(1, 3), 3)
    tensor([[1.3750]])
    """
    n_terms = left.shape[-1]
    if n_terms == 0:
        return torch.zeros_like(cosine)
    ratios = _ratios(dim, n_terms)
    columns, rows = left.T.contiguous(), right.T.contiguous()
    total = torch.empty_like(cosine)
    for block in _blocks(cosine):
        # Clenshaw's summation b_l = a_l + (1 + r_l) c b_(l+1) - r_(l+1) b_(l+2), a_l the outer product of two columns
        c, column = cosine[block].contiguous(), columns[:, block]
        after, now = torch.zeros_like(c), torch.outer(column[-1], rows[-1])  # b_(l+2), b_(l+1)
        for l in range(n_terms - 2, -1, -1):  # noqa: E741
            after.addr_(column[l], rows[l], beta=-ratios[l + 1])
            after.addcmul_(c, now, value=1 + ratios[l])
            after, now = now, after
        total[block] = now
    return total


class _ZonalBasis(torch.autograd.Function):
    @staticmethod
    def forward(cosine: Tensor, dim: int, n_terms: int) -> Tensor:
        before, now = torch.zeros_like(cosine), torch.ones_like(cosine)
        basis = [now]
        for ratio in _ratios(dim, n_terms)[: n_terms - 1]:
            before, now = now, (1 + ratio) * cosine * now - ratio * before
            basis.append(now)
        return torch.stack(basis, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        cosine, ctx.dim, ctx.n_terms = inputs
        ctx.save_for_backward(cosine)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (cosine,) = ctx.saved_tensors
        if ctx.n_terms == 1:
            return torch.zeros_like(cosine), None, None
        factors = _derivative_factors(ctx.dim, ctx.n_terms, cosine.device).to(cosine)
        slopes = factors * _ZonalBasis.apply(cosine, ctx.dim + 2, ctx.n_terms - 1)
        return (grads[0][..., 1:] * slopes).sum(-1), None, None


def _derivative_factors(dim: int, n_terms: int, device: torch.device) -> Tensor:
    """The factors l (l + 2 lambda) / (2 lambda + 1) for l = 1, 2, ..."""
    terms = torch.arange(1, n_terms, dtype=torch.float64, device=device)
    return terms * (terms + (dim - 2)) / (dim - 1)


def _ratios(dim: int, n_terms: int) -> list[float]:
    """The recurrence's coefficients r_n for n = 0, ..., n_terms."""
    return [0.0, *(n / (n + dim - 2) for n in range(1, n_terms + 1))]


def _blocks(cosine: Tensor) -> Iterator[slice]:
    """Yield blocks of rows whose arrays fit the cache of a CPU."""
    rows, columns = cosine.shape
    step = max(1, _BLOCK // max(1, columns)) if cosine.device.type == "cpu" else max(1, rows)
    for start in range(0, max(rows, 1), step):
        yield slice(start, start + step)
