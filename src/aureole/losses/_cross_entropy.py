"""Cross-entropies of matrices of log scores: InfoNCE of separate negatives, of one column, and of pairs among items."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.losses._positivity_sums import distinct_pairs, log_others, partners

_BLOCK = 1 << 17  # entries of a matrix at a time, so that they stay in the cache


def cross_entropy(
    positive: Float[Tensor, "*batch"], negative: Float[Tensor, "*batch m"]
) -> Float[Tensor, "*batch"]:
    r"""The InfoNCE loss :math:`-\log\frac{e^p}{e^p + \sum_m e^{n_m}}` of log scores; log(M + 1) at chance."""
    return log1p_exp(torch.logsumexp(negative, -1) - positive)


def cross_entropy_of_column(
    scores: Float[Tensor, "n m"], column: Int[Tensor, " n"], scale: Tensor | float = 1.0
) -> Float[Tensor, " n"]:
    """``cross_entropy`` of one score of each row against all others of the row, all of them times a positive scale.

    One pass over the matrix forward and one backward, in blocks that fit the cache.
    """
    if isinstance(scale, Tensor) and scale.requires_grad:
        scores, scale = scale * scores, 1.0
    if torch.compiler.is_compiling():
        return _plain_cross_entropy_of_column(scores, column, scale)
    return _CrossEntropyOfColumn.apply(scores, column, scale)


def _plain_cross_entropy_of_column(scores: Tensor, column: Tensor, scale: Tensor | float) -> Tensor:
    index = column.unsqueeze(1)
    scores = scale * scores
    return cross_entropy(scores.gather(1, index).squeeze(1), scores.scatter(1, index, -torch.inf))


class _CrossEntropyOfColumn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, column: Tensor, scale: Tensor | float) -> Tensor:
        index = column.unsqueeze(1)
        top, total = (scores.new_empty(len(scores), 1) for _ in range(2))
        blocks = _row_blocks(scores)
        buffer = torch.empty_like(scores[blocks[0]])
        for rows in blocks:
            part = buffer[: rows.stop - rows.start].copy_(scores[rows])
            part.scatter_(1, index[rows], -torch.inf)
            # a row of -inf alone has a sum of 0, not NaN
            highest = part.amax(1, keepdim=True).clamp_(min=torch.finfo(part.dtype).min)
            top[rows] = highest
            total[rows] = part.sub_(highest).mul_(scale).exp_().sum(1, keepdim=True)
        excess = total.log() + scale * (top - scores.gather(1, index))
        ctx.save_for_backward(scores, column, top, total, excess)
        ctx.scale = scale
        return log1p_exp(excess.squeeze(1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        scores, column, top, total, excess = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            with torch.enable_grad():
                value = _plain_cross_entropy_of_column(scores, column, ctx.scale)
                grad = torch.autograd.grad(value, scores, grads[0], create_graph=True)[0]
            return grad, None, None
        weight = ctx.scale * grads[0].unsqueeze(1) * torch.sigmoid(excess)
        share = weight / total.clamp(min=torch.finfo(total.dtype).tiny)
        index = column.unsqueeze(1)
        into = torch.empty_like(scores, memory_format=torch.contiguous_format)
        for rows in _row_blocks(scores):
            part = torch.sub(scores[rows], top[rows], out=into[rows]).mul_(ctx.scale)
            part.exp_().mul_(share[rows])
            part.scatter_(1, index[rows], -weight[rows])
        return into, None, None


def _row_blocks(matrix: Tensor) -> list[slice]:
    n, m = matrix.shape
    height = max(1, _BLOCK // m)
    return [slice(first, min(first + height, n)) for first in range(0, n, height)]


def log1p_exp(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """log(1 + e^x) to rounding for every x: ``softplus`` drops 2e-9 from its threshold on."""
    return torch.logaddexp(x, torch.zeros_like(x))


def cross_entropy_among(
    scores: Float[Tensor, "n n"], pairs: Int[Tensor, "p 2"]
) -> Float[Tensor, " p"]:
    r"""The InfoNCE loss :math:`-\log\frac{e^{s_{ij}}}{\sum_{k \ne i} e^{s_{ik}}}` of pairs (i, j) among n items."""
    pairs, listed = distinct_pairs(pairs, len(scores))
    own = scores[pairs[:, 0], pairs[:, 1]]
    rest = scores.masked_fill(partners(pairs, (len(scores), len(scores))), -torch.inf)
    return log1p_exp(log_others(torch.logsumexp(rest, -1), own, pairs) - own)[listed]
