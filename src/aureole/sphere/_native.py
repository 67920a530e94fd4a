"""Zonal series in compiled code, where the package ``aureole-native`` is installed.

Each function has a twin in torch, ``zonal_sum``, ``bessel_steps`` or ``zonal_basis``, which gives the same to rounding,
and second derivatives.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.sphere._bessel import bessel_steps, top_ratio
from aureole.sphere._zonal import zonal_basis

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


@lru_cache(maxsize=1)
def native_library() -> Any:
    """The compiled library, or None."""
    try:
        from aureole_native import library
    except ImportError:
        return None
    return library


def native_instructions() -> str | None:
    """The processor instructions that the compiled library uses here, or None where it is not installed."""
    library = native_library()
    return None if library is None else library.aureole_instructions().decode()


def has_native(tensor: Tensor) -> bool:
    """Return True if the compiled library is installed and takes this tensor: on a CPU, outside torch.compile."""
    usable = tensor.device.type == "cpu" and tensor.dtype in _SUFFIX
    return usable and not torch.compiler.is_compiling() and native_library() is not None


def row_moments(
    cosine: Tensor, left: Tensor, right: Tensor, dim: int, excluded: Tensor | None
) -> tuple[Tensor, Tensor]:
    r"""(The sums :math:`\sum_j b_{jl}\,G_l(c_{ij})` [n, terms], the rows' sums of sizes [n]), in float64."""
    (n, m), terms = cosine.shape, left.shape[-1]
    moments, sizes = (torch.empty(*s, dtype=torch.float64) for s in ((n, terms), (n,)))
    arguments = (n, m, terms, dim, torch.get_num_threads())
    name = f"rows_{_SUFFIX[cosine.dtype]}"
    _call(name, [cosine, left, right, excluded], arguments, [moments, sizes])
    return moments, sizes


def row_gradients(
    cosine: Tensor, left: Tensor, right: Tensor, dim: int, excluded: Tensor | None, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of row sums in ``cosine`` and ``right``, given those of the sums [n]."""
    (n, m), terms = cosine.shape, left.shape[-1]
    into_cosine, into_right = torch.empty_like(cosine), torch.empty_like(right)
    arguments = (n, m, terms, dim, torch.get_num_threads())
    name = f"rows_backward_{_SUFFIX[cosine.dtype]}"
    inputs = [cosine, left, right, excluded, grad]
    _call(name, inputs, arguments, [into_cosine, into_right])
    return into_cosine, into_right


def native_log_ratios(
    order: float, kappa: Float[Tensor, "*batch"], count: int
) -> Float[Tensor, "*batch terms"]:
    r"""The logs of :math:`I_{v+l}(\kappa)/I_v(\kappa)` for l < ``count``; kappa in float64, positive or inf."""
    return _LogRatios.apply(kappa, order, count)


def native_series(
    cosine: Float[Tensor, "*batch"], logs: Float[Tensor, "*batch terms"], dim: int
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""(Sums :math:`\sum_l e^{t_l - s} G_l(c)`, sums of sizes, scales s, the largest logs t), all in float64."""
    total, sizes, scales = _Series.apply(cosine, logs, dim)
    return total, sizes, scales


class _LogRatios(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, order: float, count: int) -> Tensor:
        kappa = kappa.contiguous()
        steps, rho, slope = top_ratio(order, kappa, count - 1)
        logs, slopes = (kappa.new_empty(*kappa.shape, count) for _ in range(2))
        inputs = [kappa, rho.contiguous(), slope.contiguous()]
        _call("log_ratios", inputs, (kappa.numel(), order, steps, count), [logs, slopes])
        ctx.save_for_backward(kappa, slopes)
        ctx.order = order
        return logs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kappa, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():

            def twin(kappa: Tensor) -> Tensor:
                steps = bessel_steps(ctx.order, kappa, slopes.shape[-1] - 1)
                return torch.nn.functional.pad(torch.log(steps).cumsum(-1), (1, 0))

            return (*gradients_of_twin(twin, [kappa], grads[0]), None, None)
        return (grads[0] * slopes).sum(-1), None, None


class _Series(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cosine: Tensor, logs: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        cosine, logs = cosine.contiguous(), logs.contiguous()
        parts = torch.empty_like(logs)
        total, sizes, slopes, scales = (torch.empty_like(cosine) for _ in range(4))
        sides = (cosine.numel(), logs.shape[-1], dim)
        _call("series", [cosine, logs], sides, [parts, total, sizes, slopes, scales])
        ctx.save_for_backward(cosine, logs, parts, slopes, scales)
        ctx.dim = dim
        ctx.mark_non_differentiable(sizes, scales)
        return total, sizes, scales

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, logs, parts, slopes, scales = ctx.saved_tensors
        if torch.is_grad_enabled():

            def twin(cosine: Tensor, logs: Tensor) -> Tensor:
                terms = torch.exp(logs - scales.unsqueeze(-1))
                return (terms * zonal_basis(cosine, ctx.dim, logs.shape[-1])).sum(-1)

            return (*gradients_of_twin(twin, [cosine, logs], grads[0]), None)
        return grads[0] * slopes, grads[0].unsqueeze(-1) * parts, None


def gradients_of_twin(
    twin: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of a twin in torch, with their graph; None for inputs that need none."""
    wanted = [x for x in inputs if x.requires_grad]
    with torch.enable_grad():
        found = iter(torch.autograd.grad(twin(*inputs), wanted, grad, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _call(
    name: str,
    inputs: Sequence[Tensor | None],
    arguments: tuple[int | float, ...],
    outputs: Sequence[Tensor],
) -> None:
    pointers = [None if x is None else x.data_ptr() for x in inputs]
    function = getattr(native_library(), f"aureole_{name}")
    if function(*pointers, *arguments, *(x.data_ptr() for x in outputs)):
        raise RuntimeError(f"{name} of aureole-native refused the sizes {arguments}.")
