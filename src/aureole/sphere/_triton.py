"""Row sums of zonal series on CUDA devices, where ``triton`` is installed.

The kernels are tested with Triton's interpreter on a CPU. Their speed has not been measured on a GPU.
"""

import importlib.util
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole.sphere._native import row_sum_graph

_TILE = {"tile_rows": 16, "tile_columns": 64}


@lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_triton(cosine: Tensor) -> bool:
    """Whether ``triton_row_sums`` can be used for these cosines."""
    usable = cosine.is_cuda and cosine.dtype in (torch.float32, torch.float64)
    return usable and not torch.compiler.is_compiling() and _installed()


def triton_row_sums(
    cosine: Float[Tensor, "n m"],
    left: Float[Tensor, "n terms"],
    right: Float[Tensor, "m terms"],
    dim: int,
    excluded: Bool[Tensor, "n m"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    r"""(:math:`\sum_{jl} a_{il}\,b_{jl}\,G_l(c_{ij})` over the columns that are not excluded, the sums of sizes).

    As ``native_row_sums``: both are in float64, ``right`` must not be negative, a rounding of the second is the error
    of the first, and second derivatives run on ``zonal_sum``. The speed on a GPU has not been measured.
    """
    total, sizes = _TritonRowSums.apply(cosine, left, right, dim, excluded)
    return total, sizes


class _TritonRowSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cosine: Tensor, left: Tensor, right: Tensor, dim: int, excluded: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        cosine, left, right = (x.contiguous() for x in (cosine, left, right))
        excluded = None if excluded is None else excluded.contiguous()
        (n, m), terms = cosine.shape, left.shape[-1]
        moments = torch.zeros(n, terms, dtype=torch.float64, device=cosine.device)
        sizes = torch.zeros(n, dtype=torch.float64, device=cosine.device)
        _kernels().forward_kernel[(_tiles(n, "tile_rows"),)](
            *(cosine, left, right, _bytes(excluded, cosine), _ratios(dim, cosine, terms)),
            *(moments, sizes, n, m, terms),
            masked=excluded is not None,
            **_TILE,
        )
        ctx.save_for_backward(cosine, left, right, excluded, moments)
        ctx.dim = dim
        ctx.mark_non_differentiable(sizes)
        return (left.double() * moments).sum(-1), sizes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, left, right, excluded, moments = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            return row_sum_graph([cosine, left, right], ctx.dim, excluded, grads[0])
        (n, m), terms = cosine.shape, left.shape[-1]
        grad = grads[0].to(cosine.dtype).contiguous()
        into_cosine = torch.empty_like(cosine)
        into_right = torch.zeros(m, terms, dtype=torch.float64, device=cosine.device)
        l = torch.arange(terms, dtype=torch.float64, device=cosine.device)  # noqa: E741
        factors = (l * (l + ctx.dim - 2) / (ctx.dim - 1)).to(cosine.dtype)
        _kernels().backward_kernel[(_tiles(m, "tile_columns"),)](
            *(cosine, left, right, _bytes(excluded, cosine), grad, _ratios(ctx.dim, cosine, terms)),
            *(_ratios(ctx.dim + 2, cosine, terms), factors, into_cosine, into_right, n, m, terms),
            masked=excluded is not None,
            **_TILE,
        )
        into_left = (moments * grads[0].unsqueeze(-1)).to(left.dtype)
        return into_cosine, into_left, into_right.to(right.dtype), None, None


def _kernels() -> Any:
    """The module of the kernels, which imports triton."""
    from aureole.sphere import _triton_kernels

    return _triton_kernels


def _tiles(count: int, side: str) -> int:
    return -(-count // _TILE[side])


def _bytes(excluded: Tensor | None, cosine: Tensor) -> Tensor:
    """The mask as bytes; the cosines, which are not read as one, where there is no mask."""
    return cosine if excluded is None else excluded.view(torch.uint8)


def _ratios(dim: int, like: Tensor, terms: int) -> Tensor:
    """r_l = l / (l + D - 2) of the recurrence, 0 for l = 0."""
    l = torch.arange(terms, dtype=torch.float64, device=like.device)  # noqa: E741
    return (l / (l + dim - 2).clamp(min=1)).to(like.dtype)
