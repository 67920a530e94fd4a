"""Row sums of zonal series by the compiled kernels of ``aureole-native``."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole.sphere import _native
from aureole.sphere._zonal import zonal_sum


def has_row_sums(cosine: Float[Tensor, "..."]) -> bool:
    """Return True if the compiled kernels take these cosines."""
    return _native.has_native(cosine)


def row_sums(
    cosine: Float[Tensor, "n m"],
    left: Float[Tensor, "n terms"],
    right: Float[Tensor, "m terms"],
    dim: int,
    excluded: Bool[Tensor, "n m"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    r"""(:math:`\sum_{jl} a_{il}\,b_{jl}\,G_l(c_{ij})` over the columns that are not excluded, the sums of sizes).

    Both are in float64; neither ``left`` nor ``right`` may be negative. A rounding of the second is the error of the
    first. Second derivatives run on ``zonal_sum``, which gives the same to rounding. Cost n m terms; memory n m for the
    gradient of the cosines.
    """
    total, sizes = _RowSums.apply(cosine, left, right, dim, excluded)
    return total, sizes


class _RowSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cosine: Tensor,
        left: Tensor,
        right: Tensor,
        dim: int,
        excluded: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        cosine, left, right = (x.contiguous() for x in (cosine, left, right))
        excluded = None if excluded is None else excluded.contiguous()
        moments, sizes = _native.row_moments(cosine, left, right, dim, excluded)
        ctx.save_for_backward(cosine, left, right, excluded, moments)
        ctx.dim = dim
        ctx.mark_non_differentiable(sizes)
        return (left.double() * moments).sum(-1), sizes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, left, right, excluded, moments = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            found = _gradients_with_graph([cosine, left, right], ctx.dim, excluded, grads[0])
            return (*found, None, None)
        grad = grads[0].to(cosine.dtype).contiguous()
        into_cosine, into_right = _native.row_gradients(
            cosine, left, right, ctx.dim, excluded, grad
        )
        into_left = (moments * grads[0].unsqueeze(-1)).to(left.dtype)
        return into_cosine, into_left, into_right, None, None


def _gradients_with_graph(
    inputs: Sequence[Tensor], dim: int, excluded: Tensor | None, grad: Tensor
) -> list[Tensor | None]:
    def twin(cosine: Tensor, left: Tensor, right: Tensor) -> Tensor:
        values = zonal_sum(cosine, left, right, dim)
        values = values if excluded is None else values.masked_fill(excluded, 0.0)
        return values.sum(-1).double()

    return _native.gradients_of_twin(twin, inputs, grad)
