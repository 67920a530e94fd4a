r"""Rejection: how right the most certain items are, as functions of an uncertainty and what was correct.

All depend on the order of the uncertainties alone. With :math:`C_k` the number of correct items among the k most
certain of n, and :math:`E_k = k - C_k` that of the wrong ones,

- the rejection curve is :math:`C_k / k` over the rejected share :math:`1 - k/n`,
- its area is the mean of :math:`C_k / k` over k = 1 ... n, and AURC the mean of :math:`E_k / k`,
- AUGRC is the area under :math:`E_k / n` over the coverage :math:`k/n`.

Items of the same uncertainty are one block, in which :math:`C_k` grows by the block's mean: its expected value over
random orders of the block. No figure depends on the order of the input.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError
from aureole.evaluation._ranks import average_ranks


def rejection_curve(
    uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."], points: int = 101
) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
    r"""Rejected shares from 0 to 1, evenly spaced, and the mean correctness :math:`C_k / k` of what is kept of each.

    Shares between two items are interpolated linearly in :math:`C_k`. Nothing is kept of the last share, 1: there the
    curve has its limit, the mean correctness of the most certain item or block.

    Examples
    --------
    >>> uncertainty = torch.tensor([0.1, 0.2, 0.3, 0.3])
    >>> rejected, kept = rejection_curve(uncertainty, torch.tensor([True, False, True, False]), points=5)
    >>> rejected.tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> kept.tolist()
    [0.5, 0.5, 0.5, 1.0, 1.0]
    """
    _check(uncertainty, correct)
    if points < 2:
        raise InvalidInputError(f"a curve from 0 to 1 needs two points or more, but got {points}.")
    rejected = torch.linspace(0, 1, points, dtype=torch.float64, device=uncertainty.device)
    # below one item the mean is that of the first block, as it is at one
    k = (len(correct) * (1 - rejected)).clamp(min=1)
    return rejected, _kept(uncertainty, correct, k) / k


def area_under_rejection(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The area under the rejection curve, :math:`\frac1n \sum_{k=1}^n C_k / k`: 1 - AURC, higher is better.

    An uncertainty that knows nothing has the share of correct items; the best order has :func:`oracle_area`.

    Examples
    --------
    >>> area_under_rejection(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([True, True, True, False]))
    0.9375
    """
    _check(uncertainty, correct)
    k = torch.arange(1, len(correct) + 1, dtype=torch.float64, device=uncertainty.device)
    return (_kept(uncertainty, correct, k) / k).mean().item()


def oracle_area(correct: Bool[Tensor, " n"]) -> float:
    r"""The area under the rejection curve where every wrong item is less certain than every correct one.

    With c correct items it is :math:`\frac1n \sum_{k=1}^n \min(k, c) / k`, the largest there is.

    Examples
    --------
    >>> oracle_area(torch.tensor([False, True, True, True]))
    0.9375
    """
    return area_under_rejection((~correct).double(), correct)


def aurc(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The area under the risk-coverage curve, :math:`\frac1n \sum_{k=1}^n E_k / k`; lower is better.

    The risk of the k most certain, averaged over k (Geifman, Uziel and El-Yaniv 2019); a trapezoid rule on the same
    points differs by terms of order 1/n.

    Examples
    --------
    >>> aurc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([True, True, True, False]))
    0.0625
    """
    _check(uncertainty, correct)
    return area_under_rejection(uncertainty, ~correct)


def augrc(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The area under the generalised risk-coverage curve of Traub et al. (2024); lower is better, at most 1/2.

    The generalised risk :math:`E_k / n` is the joint chance that an item is kept and wrong. Its area over the coverage
    k/n, from (0, 0) and straight between items, is

    .. math:: \frac1n \sum_{k=1}^n \frac{E_{k-1} + E_k}{2n} = (1 - a)\, r\, (1 - r) + \tfrac12 (1 - r)^2

    with r the share of correct items and a their AUROC, :func:`r_auroc`. The mean of :math:`E_k / n` over k, without
    the curve's start, is larger by :math:`(1 - r) / 2n`.

    Examples
    --------
    >>> augrc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([True, True, True, False]))
    0.03125
    """
    _check(uncertainty, correct)
    n = len(correct)
    k = torch.arange(1, n + 1, dtype=torch.float64, device=uncertainty.device)
    wrong = _kept(uncertainty, ~correct, k)
    return ((wrong.sum() - wrong[-1] / 2) / n**2).item()


def r_auroc(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The chance that a wrong item is more uncertain than a correct one, :math:`P(u_w > u_c) + P(u_w = u_c)/2`.

    It is the AUROC of certainty for correctness; with the matches of :func:`nearest_label_matches` it is the R-AUROC of
    Kirchhof et al. (2023). Exact, from ranks, at cost n log n. NaN where all are correct or none is, since no pair
    exists.

    Examples
    --------
    >>> r_auroc(torch.tensor([0.1, 0.2, 0.2, 0.4]), torch.tensor([True, True, False, False]))
    0.875
    """
    _check(uncertainty, correct)
    wrong = (~correct).sum().item()
    pairs = wrong * (len(correct) - wrong)
    if pairs == 0:
        return float("nan")
    ranks = average_ranks(uncertainty)[~correct].sum().item()
    return (ranks - wrong * (wrong + 1) / 2) / pairs


def _kept(uncertainty: Tensor, correct: Tensor, k: Tensor) -> Tensor:
    """The expected number of correct items among the k most certain, for k in [0, n], in float64."""
    values, place, count = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    right = torch.zeros(len(values), dtype=torch.float64, device=k.device)
    right = right.index_add(0, place, correct.double())
    end = count.cumsum(0)
    block = torch.searchsorted(end.double(), k).clamp(max=len(end) - 1)
    start, before = (end - count)[block], (right.cumsum(0) - right)[block]
    return before + right[block] * ((k - start) / count[block])


def _check(uncertainty: Tensor, correct: Tensor) -> None:
    if uncertainty.shape != correct.shape or uncertainty.dim() != 1 or len(uncertainty) == 0:
        raise InvalidInputError(
            "rejection needs an uncertainty and a correctness of each item, one item or more, but got shapes "
            f"{tuple(uncertainty.shape)} and {tuple(correct.shape)}."
        )
    if correct.dtype != torch.bool:
        raise InvalidInputError(
            f"correct must be boolean, but is {correct.dtype}: give a comparison, such as predicted == label."
        )
    missing = torch.isnan(uncertainty)
    if bool(missing.any()):
        raise InvalidInputError(
            f"uncertainty{first_index(missing)} is NaN, which has no rank ({int(missing.sum())} of {len(missing)} "
            "are): drop these items or mend what produced them."
        )
