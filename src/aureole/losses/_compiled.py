"""The closed-form loss as one operator for torch.compile, which calls it and does not look inside."""

import torch
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.losses._closed_form import closed_form_infonce
from aureole.losses._negatives import Negatives


@torch.library.custom_op("aureole::closed_form_infonce", mutates_args=())
def operator(posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None) -> Tensor:
    """``closed_form_infonce`` of mu and kappa of anchors, partners and negatives."""
    return _loss(posteriors, kappa_pos, excluded)


@operator.register_fake
def _(posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None) -> Tensor:  # noqa: ARG001
    return posteriors[0].new_empty(posteriors[0].shape[0])


@torch.library.custom_op("aureole::closed_form_infonce_backward", mutates_args=())
def _backward(
    grad: Tensor, posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None
) -> list[Tensor]:
    key = torch._C.DispatchKey.AutogradFunctionality  # off inside an operator, and needed here
    with torch._C._SetExcludeDispatchKeyGuard(key, False), torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() for x in (*posteriors, kappa_pos)]
        value = _loss(leaves[:-1], leaves[-1], excluded)
        return [x.clone() for x in torch.autograd.grad(value, leaves, grad)]


@_backward.register_fake
def _(
    grad: Tensor,  # noqa: ARG001
    posteriors: list[Tensor],
    kappa_pos: Tensor,
    excluded: Tensor | None,  # noqa: ARG001
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (*posteriors, kappa_pos)]


def _save(ctx, inputs, output) -> None:  # noqa: ARG001
    posteriors, kappa_pos, excluded = inputs
    ctx.save_for_backward(*posteriors, kappa_pos, excluded)


def _gradients(ctx, grad: Tensor) -> tuple[list[Tensor], Tensor, None]:
    *posteriors, kappa_pos, excluded = ctx.saved_tensors
    *found, last = _backward(grad, posteriors, kappa_pos, excluded)
    return found, last, None


operator.register_autograd(_gradients, setup_context=_save)


def _loss(posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None) -> Tensor:
    anchor, positive, rest = (
        VonMisesFisher(mu, kappa, validate_args=False)
        for mu, kappa in zip(posteriors[::2], posteriors[1::2], strict=True)
    )
    return closed_form_infonce(anchor, positive, Negatives(rest, excluded), kappa_pos=kappa_pos)
