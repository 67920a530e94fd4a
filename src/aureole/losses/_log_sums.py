"""Log-sums over rows of a matrix of logs, with the bookkeeping of listed pairs."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_LEAST = -50.0  # the log of a share of a row below which it is 0: its gradients would be subnormal


class _LogRowSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logs: Tensor) -> Tensor:
        found = torch.logsumexp(logs, -1)
        ctx.save_for_backward(logs, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        logs, found = ctx.saved_tensors
        top = torch.where(torch.isfinite(found), found, 0.0)  # an empty row has no gradient
        share = logs - top.unsqueeze(-1)
        share = share.masked_fill_(share < _LEAST, -torch.inf).exp_()
        return share.mul_(grads[0].unsqueeze(-1))


def log_row_sums(logs: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch"]:
    """Return the logs of the sums of exponentials of the rows; shares below e^-50 have no gradient.

    Examples
    --------
    >>> log_row_sums(torch.tensor([[0.0, 0.0], [-torch.inf, 1.0]]))
    tensor([0.6931, 1.0000])
    """
    return _LogRowSums.apply(logs)


def log_weighted_sum(
    logs: Float[Tensor, "n m"], weights: Float[Tensor, "#n m"]
) -> Float[Tensor, " n"]:
    """The logs of the weighted sums of exponentials, linear in the weights: a weight of 0 has its gradient."""
    absent = (weights == 0).expand(logs.shape)
    top = logs.detach().masked_fill(absent, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    shifted = torch.where(absent, (logs - top).clamp(max=80.0), logs - top)
    total = (weights * torch.exp(shifted)).sum(-1)
    some = total.detach() > 0
    log_total = torch.log(torch.where(some, total, 1.0)) + top.squeeze(-1)
    return torch.where(some, log_total, -torch.inf)


def log_others(
    log_rows: Float[Tensor, " n"],
    log_pairs: Float[Tensor, " p"],
    pairs: Int[Tensor, "p 2"],
) -> Float[Tensor, " p"]:
    """The log of the sum over all items that are neither of a pair, for distinct pairs (i, j).

    ``log_rows`` holds the sums over items that are not partners of i; i's other partners are added.
    """
    i = pairs[:, 0]
    same = torch.bincount(i, minlength=len(log_rows))
    most = int(same.max())
    if most <= 1:
        return log_rows[i]
    order = torch.argsort(i, stable=True)
    start = same.cumsum(0) - same
    place = torch.empty_like(order)
    place[order] = torch.arange(len(i), device=i.device) - start[i[order]]
    table = torch.full((len(log_rows), most), -torch.inf, dtype=log_pairs.dtype, device=i.device)
    table = table.index_put((i, place), log_pairs)[i]
    table = table.scatter(1, place.unsqueeze(1), -torch.inf)
    return torch.logsumexp(torch.cat([table, log_rows[i].unsqueeze(1)], 1), 1)


def distinct_pairs(
    pairs: Int[Tensor, "p 2"], n: int
) -> tuple[Int[Tensor, "d 2"], Int[Tensor, " p"]]:
    """(The distinct pairs among n items, in order; the place of each pair in them): ``unique`` by rows is slow."""
    row, column = pairs.long().unbind(-1)
    flat, place = torch.unique(row * n + column, return_inverse=True)
    return torch.stack([flat // n, flat % n], -1), place


def partners(pairs: Int[Tensor, "p 2"], shape: tuple[int, int], first: int = 0) -> Tensor:
    """The matrix [a, n] of pairs (row, item) and of each row with its own item, row 0 being item ``first``."""
    mask = torch.zeros(shape, dtype=torch.bool, device=pairs.device)
    rows = torch.arange(shape[0], device=pairs.device)
    mask[rows, rows + first] = True
    mask[pairs[:, 0], pairs[:, 1]] = True
    return mask


def log_sum_by_row(logs: Float[Tensor, " p"], row: Int[Tensor, " p"], n: int) -> Tensor:
    """The log of the sum of exponentials per row, -inf for rows without any."""
    top = torch.full((n,), -torch.inf, dtype=logs.dtype, device=logs.device)
    top = top.scatter_reduce(0, row, logs.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, row, torch.exp(logs - top[row]))
    some = total > 0
    return torch.where(some, torch.log(torch.where(some, total, 1.0)) + top, -torch.inf)
