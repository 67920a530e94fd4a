r"""Rejection curves and selective-prediction metrics, from the uncertainty and the correctness of each item.

All metrics depend on the order of the uncertainties alone. With :math:`C_k` the number of correct items among the k
most certain of n, and :math:`E_k = k - C_k` that of the wrong ones,

- the rejection curve is :math:`C_k / k` over the rejected share :math:`1 - k/n`,
- its area is the mean of :math:`C_k / k` over k = 1 ... n, and AURC the mean of :math:`E_k / k`.

Items with the same uncertainty form a block, within which :math:`C_k` grows linearly: its expected value over random
orders of the block. No metric depends on the order of the input.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole._rank_correlation import average_ranks
from aureole._validation import first_index
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation._retrieval_metrics import nearest_label_matches

SAMPLED = 2000  # items that callers pass to ``kappa_rejection``; the cost grows with their square


def rejection_curve(
    uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."], *, points: int = 101
) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
    r"""Rejected shares from 0 to 1, evenly spaced, and the accuracy :math:`C_k / k` of the items kept at each share.

    Shares between two items are interpolated linearly in :math:`C_k`. At share 1, where no item is kept, the curve has
    its limit: the accuracy of the most certain item or block.

    Examples
    --------
    >>> uncertainty = torch.tensor([0.1, 0.2, 0.3, 0.3])
    >>> rejected, kept = rejection_curve(uncertainty, torch.tensor([True, False, True, False]), points=5)
    >>> rejected.tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> kept.tolist()
    [0.5, 0.5, 0.5, 1.0, 1.0]
    """
    check_outcomes(uncertainty, correct)
    if points < 2:
        raise InvalidInputError(f"points must be at least 2, but is {points}.")
    rejected = torch.linspace(0, 1, points, dtype=torch.float64, device=uncertainty.device)
    # below one item the mean is that of the first block, as it is at one
    k = (len(correct) * (1 - rejected)).clamp(min=1)
    return rejected, kept_correct(uncertainty, correct, k) / k


def area_under_rejection(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The area under the rejection curve, :math:`\frac1n \sum_{k=1}^n C_k / k`: 1 - AURC, higher is better.

    A random uncertainty has the share of correct items as its expected area; the best order has :func:`oracle_area`.

    Examples
    --------
    >>> area_under_rejection(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([True, True, True, False]))
    0.9375
    """
    check_outcomes(uncertainty, correct)
    k = torch.arange(1, len(correct) + 1, dtype=torch.float64, device=uncertainty.device)
    return (kept_correct(uncertainty, correct, k) / k).mean().item()


def oracle_area(correct: Bool[Tensor, " n"]) -> float:
    r"""The largest possible area under the rejection curve: every wrong item is less certain than every correct one.

    With c correct items it is :math:`\frac1n \sum_{k=1}^n \min(k, c) / k`.

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
    check_outcomes(uncertainty, correct)
    return area_under_rejection(uncertainty, ~correct)


def r_auroc(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The probability that a wrong item is more uncertain than a correct one, :math:`P(u_w > u_c) + P(u_w = u_c)/2`.

    It is the AUROC of certainty for correctness; with the matches of :func:`nearest_label_matches` it is the R-AUROC of
    Kirchhof et al. (2023). Computed exactly from ranks, at cost n log n. NaN if all items are correct or all are
    wrong.

    Examples
    --------
    >>> r_auroc(torch.tensor([0.1, 0.2, 0.2, 0.4]), torch.tensor([True, True, False, False]))
    0.875
    """
    check_outcomes(uncertainty, correct)
    wrong = (~correct).sum().item()
    pairs = wrong * (len(correct) - wrong)
    if pairs == 0:
        return float("nan")
    ranks = average_ranks(uncertainty)[~correct].sum().item()
    return (ranks - wrong * (wrong + 1) / 2) / pairs


def kappa_rejection(
    posterior: VonMisesFisher, labels: list[Any], *, points: int = 51
) -> list[dict[str, float]]:
    """The rejection curve of a gallery by kappa: for each share kept, the kappa threshold and the Recall@1 ("score").

    Neighbours are searched among all items, kept or rejected. Cost: n^2 D products.

    Examples
    --------
    >>> mu = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 1.0]])
    >>> kappa_rejection(VonMisesFisher(mu / mu.norm(dim=-1, keepdim=True), torch.tensor([9.0, 8, 2, 1])), ["a", "a", "b", "c"], points=3)
    [{'threshold': 1.0, 'kept': 1.0, 'score': 0.5}, {'threshold': 8.0, 'kept': 0.5, 'score': 1.0}]
    """  # noqa: E501
    code = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    codes = torch.tensor([code[label] for label in labels])
    correct = nearest_label_matches(posterior.mu, codes)
    kappa = posterior.kappa.double()
    rejected, score = rejection_curve(-kappa, correct, points=points)
    falling = np.sort(kappa.numpy())[::-1]
    curve = []
    for share, value in zip((1 - rejected).tolist(), score.tolist(), strict=True):
        kept = round(share * len(falling))
        if kept:
            threshold = float(falling[kept - 1])
            curve.append({"threshold": threshold, "kept": share, "score": value})
    return curve


def kept_correct(uncertainty: Tensor, correct: Tensor, k: Tensor) -> Tensor:
    """The expected number of correct items among the k most certain, for k in [0, n], in float64."""
    values, place, count = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    right = torch.zeros(len(values), dtype=torch.float64, device=k.device)
    right = right.index_add(0, place, correct.double())
    end = count.cumsum(0)
    block = torch.searchsorted(end.double(), k).clamp(max=len(end) - 1)
    start, before = (end - count)[block], (right.cumsum(0) - right)[block]
    return before + right[block] * ((k - start) / count[block])


def check_outcomes(uncertainty: Tensor, correct: Tensor) -> None:
    if uncertainty.shape != correct.shape or uncertainty.dim() != 1 or len(uncertainty) == 0:
        raise InvalidInputError(
            "uncertainty and correct must be vectors of the same length, at least 1, but have shapes "
            f"{tuple(uncertainty.shape)} and {tuple(correct.shape)}."
        )
    if correct.dtype != torch.bool:
        raise InvalidInputError(
            f"correct must be boolean, but is {correct.dtype}. Pass a comparison such as predicted == label."
        )
    missing = torch.isnan(uncertainty)
    if bool(missing.any()):
        raise InvalidInputError(
            f"uncertainty{first_index(missing)} is NaN, which has no rank ({int(missing.sum())} of {len(missing)} "
            "are). Drop these items first."
        )
