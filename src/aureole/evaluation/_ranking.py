"""Ranking: whether the nearest other item has the same label, and how well whole rankings are ordered."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.sphere import normalize

_BLOCK = 2**22  # cosines held at a time: 32 MB
_TIE = 1e-12  # rounding in float64: the same direction at another length differs by some 1e-16


def nearest_label_matches(
    mu: Float[Tensor, "n dim"],
    labels: Integer[Tensor, "..."],
    *,
    queries: Integer[Tensor, " q"] | None = None,
) -> Bool[Tensor, " q"]:
    r"""Whether the nearest other item, :math:`\operatorname{argmax}_{j \ne i} \mu_i^T\mu_j`, has the label of item i.

    For all items i, or those whose numbers are given as ``queries``; any other item can be the nearest.

    mu need not have norm 1. Cosines are taken in float64; those within 1e-12 of the largest are ties, which the item of
    the lowest index wins. Cost: q n dim products, over blocks of rows, so that memory grows with n alone.

    Examples
    --------
    >>> mu = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 1.0]])
    >>> nearest_label_matches(mu, torch.tensor([7, 7, 8, 7]))
    tensor([ True,  True, False, False])
    """
    if labels.shape != mu.shape[:1] or len(mu) < 2:
        raise InvalidInputError(
            "nearest others need two items or more with a label each, but got mu of shape "
            f"{tuple(mu.shape)} and labels of shape {tuple(labels.shape)}."
        )
    unit = normalize(mu.detach().double())
    asked = torch.arange(len(unit), device=unit.device) if queries is None else queries
    matches = []
    for rows in asked.split(max(1, _BLOCK // len(unit))):
        cosine = unit[rows] @ unit.T
        cosine.scatter_(1, rows.unsqueeze(1), -torch.inf)  # not itself
        tied = cosine >= cosine.amax(1, keepdim=True) - _TIE
        nearest = tied.to(torch.uint8).argmax(1)  # the first of the largest
        matches.append(labels[nearest] == labels[rows])
    return torch.cat(matches)


def recall_at_1(mu: Float[Tensor, "n dim"], labels: Integer[Tensor, "..."]) -> float:
    """Recall@1: the share of items whose nearest other item has their label, see :func:`nearest_label_matches`.

    Examples
    --------
    >>> mu = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 1.0]])
    >>> recall_at_1(mu, torch.tensor([7, 7, 8, 7]))
    0.5
    """
    return nearest_label_matches(mu, labels).double().mean().item()


def average_precision(
    score: Float[Tensor, "*batch n"], relevant: Bool[Tensor, "*batch n"]
) -> Float[Tensor, "*batch"]:
    r"""The average precision of each ranking: the mean, over its relevant items, of the precision down to each.

    Items go by falling score, those of equal score in their order. NaN where nothing is relevant. In float64; its mean
    over queries is mAP.

    Examples
    --------
    >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
    tensor(0.8333, dtype=torch.float64)
    """
    ranked = relevant.gather(-1, _places(score, relevant)).double()
    rank = torch.arange(1, ranked.shape[-1] + 1, dtype=torch.float64, device=ranked.device)
    return (ranked * ranked.cumsum(-1) / rank).sum(-1) / ranked.sum(-1)


def normalised_gain(
    score: Float[Tensor, "*batch n"], gain: Float[Tensor, "*batch n"], *, depth: int | None = None
) -> Float[Tensor, "*batch"]:
    r"""nDCG: :math:`\sum_r g_r / \log_2(1 + r)` over the first ``depth`` ranks, relative to the best ranking's.

    The gains are not negative, and count as they are (no powers of two). Items go by falling score, those of equal
    score in their order. NaN where no item has a gain. In float64.

    Examples
    --------
    >>> gain = torch.tensor([1.0, 0.5, 0.0])
    >>> normalised_gain(torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]), gain.expand(2, 3))
    tensor([1.0000, 0.6199], dtype=torch.float64)
    """
    if bool((~(gain >= 0)).any()):
        raise InvalidInputError("gains must be at least 0, but one is below it or NaN.")
    if depth is not None and depth < 1:
        raise InvalidInputError(f"depth must be at least 1, but is {depth}.")
    gain = gain.double()
    found = gain.gather(-1, _places(score, gain))[..., :depth]
    best = gain.sort(-1, descending=True).values[..., :depth]
    rank = torch.arange(1, found.shape[-1] + 1, dtype=torch.float64, device=gain.device)
    discount = 1 / torch.log2(1 + rank)
    return (found * discount).sum(-1) / (best * discount).sum(-1)


def _places(score: Tensor, other: Tensor) -> Tensor:
    """The items by falling score; an error where there is not one score for each item."""
    if score.shape != other.shape or score.dim() == 0:
        raise InvalidInputError(
            f"a ranking needs a score for each item, but got shapes {tuple(score.shape)} and {tuple(other.shape)}."
        )
    if bool(torch.isnan(score).any()):
        raise InvalidInputError("a score is NaN, which has no rank.")
    return torch.sort(score, dim=-1, descending=True, stable=True).indices
