"""Row sums of zonal series in compiled code, where the package ``aureole-native`` is installed."""

from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole.sphere import zonal_sum

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


@lru_cache(maxsize=1)
def native_library() -> Any:
    """The compiled library, or None."""
    try:
        from aureole_native import library
    except ImportError:
        return None
    return library


def has_native(cosine: Tensor) -> bool:
    """Whether ``native_row_sums`` can be used for these cosines."""
    usable = cosine.device.type == "cpu" and cosine.dtype in _SUFFIX
    return usable and not torch.compiler.is_compiling() and native_library() is not None


def native_row_sums(
    cosine: Float[Tensor, "n m"],
    left: Float[Tensor, "n terms"],
    right: Float[Tensor, "m terms"],
    dim: int,
    excluded: Bool[Tensor, "n m"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    r"""(:math:`\sum_{jl} a_{il}\,b_{jl}\,G_l(c_{ij})` over the columns that are not excluded, the sums of sizes).

    Both are in float64; ``right`` must not be negative. A rounding of the second is the error of the first, which is
    differentiable any number of times: second derivatives run on ``zonal_sum``.
    """
    total, sizes = _NativeRowSums.apply(cosine, left, right, dim, excluded)
    return total, sizes


class _NativeRowSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cosine: Tensor, left: Tensor, right: Tensor, dim: int, excluded: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        cosine, left, right = (x.contiguous() for x in (cosine, left, right))
        excluded = None if excluded is None else excluded.contiguous()
        (n, m), terms = cosine.shape, left.shape[-1]
        moments = torch.empty(n, terms, dtype=torch.float64)
        sizes = torch.empty(n, dtype=torch.float64)
        _call("rows", [cosine, left, right, excluded], (n, m, terms, dim), [moments, sizes])
        ctx.save_for_backward(cosine, left, right, excluded, moments)
        ctx.dim = dim
        ctx.mark_non_differentiable(sizes)
        return (left.double() * moments).sum(-1), sizes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, left, right, excluded, moments = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            with torch.enable_grad():
                values = zonal_sum(cosine, left, right, ctx.dim)
                if excluded is not None:
                    values = values.masked_fill(excluded, 0.0)
                inputs = [x for x in (cosine, left, right) if x.requires_grad]
                found = iter(
                    torch.autograd.grad(
                        values.sum(-1).double(), inputs, grads[0], create_graph=True
                    )
                )
            return (
                *(next(found) if x.requires_grad else None for x in (cosine, left, right)),
                None,
                None,
            )
        (n, m), terms = cosine.shape, left.shape[-1]
        grad = grads[0].to(cosine.dtype).contiguous()
        into_cosine, into_right = torch.empty_like(cosine), torch.empty_like(right)
        inputs = [cosine, left, right, excluded, grad]
        _call("rows_backward", inputs, (n, m, terms, ctx.dim), [into_cosine, into_right])
        into_left = (moments * grads[0].unsqueeze(-1)).to(left.dtype)
        return into_cosine, into_left, into_right, None, None


def _call(
    name: str, inputs: list[Tensor | None], sizes: tuple[int, ...], outputs: list[Tensor]
) -> None:
    assert inputs[0] is not None
    function = getattr(native_library(), f"aureole_{name}_{_SUFFIX[inputs[0].dtype]}")
    pointers = [None if x is None else x.data_ptr() for x in inputs]
    status = function(*pointers, *sizes, torch.get_num_threads(), *(x.data_ptr() for x in outputs))
    if status:
        raise RuntimeError(f"{name} of aureole-native refused the sizes {sizes}.")
