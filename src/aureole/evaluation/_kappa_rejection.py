"""The rejection curve of a gallery: how right the nearest neighbour is, as less certain items are left out."""

from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.evaluation._ranking import nearest_label_matches
from aureole.evaluation._rejection import rejection_curve

SAMPLED = 2000  # items; the cost grows with their square


def kappa_rejection(
    posterior: VonMisesFisher, labels: list[Any], points: int = 51
) -> list[dict[str, float]]:
    """For shares kept from 1 downward: the kappa from which on items are kept, and their score.

    The score is the share of the kept whose nearest other item of the sample has their label. Neighbours are looked
    for among all of the sample, kept or not; n^2 D products.

    Examples
    --------
    >>> mu = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 1.0]])
    >>> kappa_rejection(VonMisesFisher(mu / mu.norm(dim=-1, keepdim=True), torch.tensor([9.0, 8, 2, 1])), ["a", "a", "b", "c"], 3)
    [{'threshold': 1.0, 'kept': 1.0, 'score': 0.5}, {'threshold': 8.0, 'kept': 0.5, 'score': 1.0}]
    """  # noqa: E501
    place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    codes = torch.tensor([place[label] for label in labels])
    correct = nearest_label_matches(posterior.mu, codes)
    kappa = posterior.kappa.double()
    rejected, score = rejection_curve(-kappa, correct, points)
    falling = np.sort(kappa.numpy())[::-1]
    curve = []
    for share, value in zip((1 - rejected).tolist(), score.tolist(), strict=True):
        kept = round(share * len(falling))
        if kept:
            threshold = float(falling[kept - 1])
            curve.append({"threshold": threshold, "kept": share, "score": value})
    return curve
