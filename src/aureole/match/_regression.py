"""The regression behind match probabilities: weights of a pair's score, and an increasing curve to log odds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from aureole.errors import InvalidInputError

_BIN = 200  # smallest number of candidates per bin of the curve, before bins are merged
_SURE = 8.0  # log odds of 0.9997
_PRIOR = 1.0  # standard deviation of a standardised weight around that of CSLS


@dataclass(frozen=True)
class Weights:
    """Of the score of a pair: offset + cosine * c - level * r(query) - hubness * h(item)."""

    offset: float
    cosine: float
    level: float
    hubness: float

    def score(
        self, cosines: np.ndarray, level: np.ndarray | float, hubness: np.ndarray | float
    ) -> np.ndarray:
        """The score, broadcast over all three."""
        corrected = self.cosine * cosines - self.level * level - self.hubness * hubness
        return np.asarray(corrected + self.offset)


def fit_weights(features: np.ndarray, labels: np.ndarray) -> Weights:
    """Penalised maximum likelihood: first the scale of CSLS, then weights with a Gaussian prior around it."""
    if not labels.any() or labels.all():
        raise InvalidInputError(
            "none of the candidates of the fitted queries is a match: check that matches name items of this gallery."
        )
    csls = features @ np.array([2.0, 1.0, 1.0])
    scale, offset = _newton(csls[:, None], labels, np.zeros(1), np.full(1, 1e-9))
    spread = features.std(axis=0)
    centre = scale[0] * np.array([2.0, 1.0, 1.0])
    weights, offset = _newton(features, labels, centre, (spread / _PRIOR) ** 2, offset)
    if weights[0] <= 0:
        raise InvalidInputError("matches have lower cosines than other items: check the labels.")
    return Weights(float(offset), *(float(w) for w in weights))


def _newton(
    x: np.ndarray, labels: np.ndarray, centre: np.ndarray, penalty: np.ndarray, offset: float = 0.0
) -> tuple[np.ndarray, float]:
    """(Weights, offset) of a logistic regression with the penalty ``penalty * (w - centre)^2 / 2``."""
    design = np.concatenate([np.ones((len(x), 1)), x.astype(np.float64)], axis=1)
    target = labels.astype(np.float64)
    centre, penalty = np.concatenate([[0.0], centre]), np.concatenate([[0.0], penalty])
    w = np.concatenate([[offset], centre[1:]])

    def objective(w: np.ndarray) -> float:
        z = design @ w
        return float(np.logaddexp(0, z).sum() - target @ z + 0.5 * penalty @ (w - centre) ** 2)

    value = objective(w)
    for _ in range(100):
        p = sigmoid(design @ w)
        gradient = design.T @ (p - target) + penalty * (w - centre)
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while objective(w - size * step) > value and size > 1e-6:
            size /= 2
        w = w - size * step
        previous, value = value, objective(w)
        if previous - value < 1e-9 * max(1.0, abs(value)):
            break
    return w[1:], float(w[0])


def increasing_curve(scores: np.ndarray, labels: np.ndarray) -> Float[np.ndarray, "2 points"]:
    """Scores and log odds of an increasing curve: bins of equal size, merged until their shares of matches increase.

    A bin counts half a match and half a wrong item more than it has, so that its log odds are finite.
    """
    order = np.argsort(scores.ravel(), kind="stable")[
        ::-1
    ]  # the best bins matter most: cut from the top
    bins: list[list[float]] = []  # sum of scores, matches, size; from the best down
    matched = np.cumsum(labels.ravel()[order])
    start = 0
    while start < len(order):
        end = min(start + max(_BIN, start // 4), len(order))
        right = matched[end - 1] - (matched[start - 1] if start else 0)
        bins.append(
            [float(scores.ravel()[order[start:end]].sum()), float(right), float(end - start)]
        )
        while len(bins) > 1 and _log_odds(bins[-1]) >= _log_odds(bins[-2]):
            last = bins.pop()
            bins[-1] = [a + b for a, b in zip(bins[-1], last, strict=True)]
        start = end
    points = [(total / size, _log_odds([total, right, size])) for total, right, size in bins[::-1]]
    if len(points) == 1:
        points = [(points[0][0] - 1, points[0][1] - 1), *points]
    return np.array(points, dtype=np.float64).T


def _log_odds(group: Sequence[float]) -> float:
    return math.log(group[1] + 0.5) - math.log(group[2] - group[1] + 0.5)


def interpolate(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear interpolation, with slope 1 outside the points."""
    below, above = np.minimum(at - x[0], 0), np.maximum(at - x[-1], 0)
    return np.asarray(np.interp(at, x, y) + below + above)


def soften(log_odds: np.ndarray) -> np.ndarray:
    """The log odds, growing slowly from 8 on, so that no score rounds to a probability of 1."""
    above = np.log1p(np.maximum(log_odds - _SURE, 0.0))
    return np.asarray(np.minimum(log_odds, _SURE) + above)


def unsoften(log_odds: np.ndarray) -> np.ndarray:
    """The inverse of ``soften``."""
    above = np.expm1(np.maximum(log_odds - _SURE, 0.0))
    return np.asarray(np.minimum(log_odds, _SURE) + above)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))
