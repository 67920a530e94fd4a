"""Rank correlation."""

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
    """Spearman's rank correlation, with ties; NaN where one side is constant, since no ranking exists.

    Examples
    --------
    >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0]))
    1.0
    """
    if first.shape != second.shape or first.dim() != 1 or len(first) < 2:
        raise InvalidInputError(
            "a rank correlation needs two lists of the same length, two or more, but got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}."
        )
    for name, values in (("first", first), ("second", second)):
        if bool(torch.isnan(values).any()):
            raise InvalidInputError(f"the {name} list holds NaN, which has no rank.")
    a, b = (average_ranks(values) for values in (first, second))
    a, b = a - a.mean(), b - b.mean()
    scale = torch.sqrt(a.square().sum() * b.square().sum())
    return ((a * b).sum() / scale).item() if scale > 0 else float("nan")


def partial_spearman(
    first: Float[Tensor, " n"], second: Float[Tensor, "..."], given: Float[Tensor, "..."]
) -> float:
    r"""The rank correlation of two lists once that of each with a third is taken out.

    :math:`(r_{12} - r_{13} r_{23}) / \sqrt{(1 - r_{13}^2)(1 - r_{23}^2)}` of the three rank correlations.

    Examples
    --------
    >>> length = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> a, b = length + torch.tensor([0, 2, 0, 2, 0, 2]), length + torch.tensor([2.5, 0, 2.5, 0, 2.5, 0])
    >>> spearman(a, b) > 0.3, partial_spearman(a, b, length) < -0.3
    (True, True)
    """
    one, two, both = spearman(first, given), spearman(second, given), spearman(first, second)
    rest = (1 - one**2) * (1 - two**2)
    return (both - one * two) / rest**0.5 if rest > 0 else float("nan")
