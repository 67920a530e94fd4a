"""The correctness of nearest neighbours, whose mean is Recall@1."""

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
    r"""Return True where the nearest other item has the same label.

    That is item :math:`\operatorname{argmax}_{j \ne i} \mu_i^T\mu_j`, for all items i, or those with the indices
    ``queries``; it is searched among all others.

    mu need not have norm 1. Cosines are computed in float64; of those within 1e-12 of the largest, the item with the
    lowest index wins. Cost: q n dim products, in blocks of rows, so that memory grows with n alone.

    Examples
    --------
    >>> mu = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 1.0]])
    >>> nearest_label_matches(mu, torch.tensor([7, 7, 8, 7]))
    tensor([ True,  True, False, False])
    """
    if labels.shape != mu.shape[:1] or len(mu) < 2:
        raise InvalidInputError(
            "nearest neighbours need at least two items and one label per item, but got mu of shape "
            f"{tuple(mu.shape)} and labels of shape {tuple(labels.shape)}."
        )
    unit = normalize(mu.detach().double())
    indices = torch.arange(len(unit), device=unit.device) if queries is None else queries
    matches = []
    for rows in indices.split(max(1, _BLOCK // len(unit))):
        cosine = unit[rows] @ unit.T
        cosine.scatter_(1, rows.unsqueeze(1), -torch.inf)  # not itself
        tied = cosine >= cosine.amax(1, keepdim=True) - _TIE
        nearest = tied.to(torch.uint8).argmax(1)  # the first of the largest
        matches.append(labels[nearest] == labels[rows])
    return torch.cat(matches)
