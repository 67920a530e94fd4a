"""Functions that branch on values, for the transforms of ``torch.func``, which cannot follow such branches."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aureole.sphere._geometry import batches_first

Function = Callable[..., Tensor]


def in_transform() -> bool:
    """Whether a transform of torch.func is running, under which no branch can depend on a value."""
    stack = torch._C._functorch.peek_interpreter_stack()  # pyright: ignore[reportAttributeAccessIssue]
    return stack is not None


def opaque(function: Function, inputs: Sequence[Tensor]) -> Tensor:
    """``function(*inputs)`` entry by entry, twice differentiable under any transform; third derivatives raise an error.

    The inputs have one shape, which is that of the result.
    """
    return _Value.apply(function, *inputs)


class _Saved(torch.autograd.Function):
    """What the two differentiable functions below share: they keep the function and their inputs."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.function = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])


class _Value(_Saved):
    @staticmethod
    def forward(function: Function, *inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (
            None,
            *(grads[0] * slope for slope in _Slopes.apply(ctx.function, *ctx.saved_tensors)),
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return (_Slopes.apply(ctx.function, *ctx.saved_tensors) * torch.stack(tangents[1:])).sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _Value.apply(inputs[0], *batches_first(info, in_dims[1:], inputs[1:])), 0


class _Slopes(_Saved):
    """The slopes [n_inputs, ...] in each input."""

    @staticmethod
    def forward(function: Function, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            return torch.stack(_slopes(function(*leaves).sum(), leaves))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_Curvature.apply(ctx.function, grads[0], *ctx.saved_tensors))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _Curvature.apply(ctx.function, torch.stack(tangents[1:]), *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _Slopes.apply(inputs[0], *batches_first(info, in_dims[1:], inputs[1:])), 1


class _Curvature(torch.autograd.Function):
    """The second derivatives times a vector [n_inputs, ...]."""

    @staticmethod
    def forward(function: Function, vector: Tensor, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            slopes = _slopes(function(*leaves).sum(), leaves, create_graph=True)
            product = sum(s * v for s, v in zip(slopes, vector.detach(), strict=True))
            return torch.stack(_slopes(torch.as_tensor(product).sum(), leaves))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        vector, *leaves = batches_first(info, in_dims[1:], inputs[1:])
        return _Curvature.apply(inputs[0], vector.movedim(0, 1), *leaves), 1


def _slopes(
    total: Tensor, leaves: Sequence[Tensor], *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    if not total.requires_grad:  # no entries
        return tuple(torch.zeros_like(x) for x in leaves)
    return torch.autograd.grad(total, leaves, create_graph=create_graph, materialize_grads=True)
