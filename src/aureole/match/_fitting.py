"""What ``MatchCalibrator.fit`` learns: exact neighbours, the weights of a score, a curve to log odds, a query map."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch.nn import functional

from aureole.errors import InvalidInputError

BLOCK = 1024  # rows whose cosines are in memory at a time
# The curve:
_BIN = 200  # smallest number of candidates per bin of the curve, before bins are merged
_SURE = 8.0  # log odds of 0.9997
_PRIOR = 1.0  # standard deviation of a standardised weight around that of CSLS
# The query map:
_STEPS, _CHECK, _PATIENCE = 600, 20, 3  # checks without improvement that end the training
_BATCH, _NEGATIVES = 256, 1024
_MOST_CHECKED = 1000  # queries of the check
_RATE = 5e-4
_SPREADS = 3.0  # logits are so many cosines per standard deviation of random ones


def nearest(queries: Any, gallery: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and rows of the k items nearest to each query, in descending order, by brute force."""
    queries, gallery = unit_rows(queries, "queries"), unit_rows(gallery, "gallery")
    k = min(k, len(gallery))
    cosines = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), BLOCK):
        part = slice(start, start + BLOCK)
        products = queries[part] @ gallery.T
        best = np.argpartition(products, products.shape[1] - k, axis=1)[:, -k:]
        values = np.take_along_axis(products, best, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows[part] = np.take_along_axis(best, order, 1)
        cosines[part] = np.take_along_axis(values, order, 1)
    return cosines, rows


def unit_rows(vectors: Any, name: str) -> Float[np.ndarray, "n dim"]:
    """Return the rows as float32 of length 1; raise if a row is zero or not finite."""
    array = np.asarray(vectors.detach().cpu() if hasattr(vectors, "detach") else vectors)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"{name} must be numbers of shape (n, dim), but has shape {array.shape} and type {array.dtype}."
        )
    length = np.linalg.norm(array.astype(np.float64), axis=1)
    wrong = ~(np.isfinite(length) & (length > 0))
    if wrong.any():
        raise InvalidInputError(f"row {int(wrong.argmax())} of {name} is zero or not finite.")
    return (array / length[:, None]).astype(np.float32)


def labels_of(
    rows: Int[np.ndarray, "n k"], matches: Sequence[np.ndarray]
) -> Bool[np.ndarray, "n k"]:
    """Return for each candidate of each query whether it is one of its matches."""
    return np.stack([np.isin(own, group) for own, group in zip(rows, matches, strict=True)])


def mean_of_best(cosines: Float[np.ndarray, "*batch k"], count: int) -> Float[np.ndarray, "*batch"]:
    """Return the mean of the ``count`` highest finite values of the last axis: a query's level, an item's hubness."""
    best = np.sort(cosines, axis=-1)[..., -count:]
    finite = np.isfinite(best)
    total = np.where(finite, best, 0.0).sum(-1, dtype=np.float64)
    return np.asarray(total / np.maximum(finite.sum(-1), 1))


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
    # The best bins matter most, so the bins are cut from the top.
    order = np.argsort(scores.ravel(), kind="stable")[::-1]
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


def fit_query_map(
    queries: Float[np.ndarray, "n dim"],
    gallery: Float[np.ndarray, "m dim"],
    matches: Sequence[np.ndarray],
    seed: int,
) -> Float[np.ndarray, "dim dim"] | None:
    """Return the W with which ``query + query @ W`` is closest to its matches; None if it does not help held-out ones.

    The gallery and its index stay as they are. InfoNCE in both directions, starting at W = 0; a quarter of the queries
    decides when to stop. Logits are three cosines per standard deviation of random ones, which differs by encoder.
    """
    rng = np.random.default_rng(seed)
    labelled = rng.permutation([i for i, group in enumerate(matches) if len(group)])
    check, train = np.split(labelled, [min(len(labelled) // 4, _MOST_CHECKED)])
    if not len(check):
        return None
    some, others = (rows[rng.integers(len(rows), size=1000)] for rows in (queries, gallery))
    scale = _SPREADS / float((some @ others.T).std())
    data = (torch.from_numpy(queries), torch.from_numpy(gallery), matches)
    judge = _query_batch(check, *data, rng)
    weight = torch.zeros(gallery.shape[1], gallery.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([weight], lr=_RATE)
    with torch.no_grad():
        lowest, best, since = float(_map_loss(weight, judge, scale)), None, 0
    for step in range(1, _STEPS + 1):
        chosen = rng.choice(train, min(_BATCH, len(train)), replace=False)
        optimiser.zero_grad()
        _map_loss(weight, _query_batch(chosen, *data, rng), scale).backward()
        optimiser.step()
        if step % _CHECK:
            continue
        with torch.no_grad():
            loss = float(_map_loss(weight, judge, scale))
        since += 1
        if loss < lowest:
            lowest, best, since = loss, weight.detach().clone(), 0
        if since == _PATIENCE:
            break
    return None if best is None else best.numpy()


def apply_query_map(
    queries: Float[np.ndarray, "n dim"], weight: Float[np.ndarray, "dim dim"] | None
) -> Float[np.ndarray, "n dim"]:
    """Return the mapped queries, of length 1."""
    if weight is None:
        return queries
    mapped = queries + queries @ weight
    return (mapped / np.linalg.norm(mapped, axis=1, keepdims=True)).astype(np.float32)


def _query_batch(
    chosen: np.ndarray,
    queries: torch.Tensor,
    gallery: torch.Tensor,
    matches: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, one match of each followed by random items, and which of these are other matches of a query."""
    groups = [matches[i] for i in chosen]
    picks = rng.random(len(groups))
    right = np.array([g[int(p * len(g))] for g, p in zip(groups, picks, strict=True)])
    rows = np.concatenate([right, rng.integers(len(gallery), size=_NEGATIVES)])
    known = labels_of(np.broadcast_to(rows, (len(groups), len(rows))), groups)
    np.fill_diagonal(known, False)
    return queries[chosen], gallery[rows], torch.from_numpy(known)


def _map_loss(
    weight: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scale: float
) -> torch.Tensor:
    """Return InfoNCE in both directions; matches that are not the target are no negatives."""
    queries, items, known = batch
    mapped = functional.normalize(queries + queries @ weight, dim=1)
    logits = (scale * mapped @ items.T).masked_fill(known, -torch.inf)
    target = torch.arange(len(mapped))
    backward = logits[:, : len(mapped)].T
    return (
        functional.cross_entropy(logits, target) + functional.cross_entropy(backward, target)
    ) / 2
