"""Spearman's rank correlation. By hand, since scipy is no dependency of the library."""

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.errors import InvalidInputError


def average_ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Ranks from 1 to n in float64; ties share the mean of their ranks. Cost n log n.

    Examples
    --------
    >>> average_ranks(torch.tensor([10.0, 30.0, 10.0, 20.0]))
    tensor([1.5000, 4.0000, 1.5000, 3.0000], dtype=torch.float64)
    """
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[place]


def spearman(first: Float[Tensor, " n"], second: Float[Tensor, "..."]) -> float:
    """Spearman's rank correlation, with ties; NaN if one side is constant.

    Examples
    --------
    >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0]))
    1.0
    """
    if first.shape != second.shape or first.dim() != 1 or len(first) < 2:
        raise InvalidInputError(
            "a rank correlation needs two vectors of the same length, at least 2, but got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}."
        )
    for name, values in (("first", first), ("second", second)):
        if bool(torch.isnan(values).any()):
            raise InvalidInputError(
                f"the {name} vector contains NaN, which has no rank. Drop these items first."
            )
    a, b = (average_ranks(values) for values in (first, second))
    a, b = a - a.mean(), b - b.mean()
    scale = torch.sqrt(a.square().sum() * b.square().sum())
    return ((a * b).sum() / scale).item() if scale > 0 else float("nan")
