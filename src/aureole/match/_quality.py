"""Thresholds, their precision and recall on labelled queries, and what is guaranteed for new queries.

Guarantees come from Learn-then-Test (Angelopoulos et al., 2021): for each threshold, test on held-out queries the
hypothesis that its risk is too high, in a fixed order that does not depend on these queries, and stop at the first test
that does not reject. The thresholds before it are safe, all of them together with the stated confidence. The test is a
bet against the hypothesis (Waudby-Smith and Ramdas, 2023), valid for any number of queries and any bounded loss.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from aureole.errors import AureoleWarning

_GRID = 200  # thresholds that are tested
_MOST_AT_STAKE = 0.75  # of the wealth: a larger bet could lose all of it in one query


@dataclass(frozen=True)
class MatchQuality:
    """Precision and recall of a threshold on the held-out queries; intervals hold 90 % of bootstrap samples."""

    threshold: float
    precision: float
    precision_interval: tuple[float, float]
    recall: float
    recall_interval: tuple[float, float]
    results: float  # per query, of its candidates
    queries: int


@dataclass(frozen=True)
class Scored:
    """The scores of labelled queries, of their candidates and of all their matches, and their best wrong cosine."""

    candidates: Float[np.ndarray, "n k"]
    labels: Bool[np.ndarray, "n k"]
    matches: Float[np.ndarray, " all"]
    owners: np.ndarray  # the query of each match
    best_wrong: Float[np.ndarray, " n"]
    levels: Float[np.ndarray, " n"]


def precision_score(
    fitted: Scored, held_out: Scored, precision: float, *, limit: int, confidence: float
) -> float:
    """The lowest score whose results are shown to be precise, starting where the fitted queries show it best."""
    bounds = {"most": precision * limit, "least": -(1 - precision) * limit}
    first, second = _best(fitted, limit), _best(held_out, limit)
    grid = np.quantile(fitted.matches, np.linspace(1, 0, _GRID))
    margins = [_margin(_precision_losses(*first, score, precision)) for score in grid]
    start = int(np.argmax(margins))
    losses = (_precision_losses(*second, score, precision) for score in grid[start:])
    last = last_safe(losses, 0.0, error=1 - confidence, **bounds)
    if last is None:
        _warn_of_too_few(held_out, confidence, f"precision {precision:g}", "no result is returned")
        return math.inf
    return float(grid[start + last])


def recall_score(fitted: Scored, held_out: Scored, recall: float, *, confidence: float) -> float:
    """The highest score that is shown to keep this share of matches."""
    grid = np.quantile(fitted.matches, np.linspace(0, 1, _GRID))
    losses = 1 - recalls(held_out, grid)
    last = last_safe(losses, 1 - recall, most=1.0, error=1 - confidence)
    if last is None:
        _warn_of_too_few(held_out, confidence, f"recall {recall:g}", "every result is returned")
        return -math.inf
    return float(grid[last])


def quality_at(
    held: Scored, score: float, threshold: float, *, bootstrap: int, seed: int
) -> MatchQuality:
    """What a score gives as the threshold."""
    kept = held.candidates >= score
    right, returned = (kept & held.labels).sum(1), kept.sum(1)
    found = recalls(held, np.array([score]))[0]
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(right), size=(bootstrap, len(right)))
    with np.errstate(invalid="ignore"):
        precisions = right[draws].sum(1) / returned[draws].sum(1)
    shares = found[rng.integers(len(found), size=(bootstrap, len(found)))].mean(1)
    return MatchQuality(
        threshold=float(threshold),
        precision=float(right.sum() / returned.sum()) if returned.any() else math.nan,
        precision_interval=_interval(precisions),
        recall=float(found.mean()),
        recall_interval=_interval(shares),
        results=float(returned.mean()),
        queries=len(right),
    )


def reliability_bins(
    probabilities: np.ndarray, labels: np.ndarray, bins: int
) -> list[tuple[float, float, int]]:
    """(Mean probability, share of matches, count) of each bin of equal width that is not empty."""
    part = np.minimum((probabilities.ravel() * bins).astype(int), bins - 1)
    sums = [np.bincount(part, x.ravel(), minlength=bins) for x in (probabilities, labels)]
    counts = np.bincount(part, minlength=bins)
    return [
        (float(p / n), float(right / n), int(n))
        for p, right, n in zip(*sums, counts, strict=True)
        if n
    ]


def _warn_of_too_few(held_out: Scored, confidence: float, aim: str, outcome: str) -> None:
    warnings.warn(
        f"{len(held_out.levels)} held-out queries do not show {aim} at any threshold with confidence "
        f"{confidence:g}: {outcome}. Ask for less, or label more queries.",
        AureoleWarning,
        stacklevel=4,
    )


def _best(scored: Scored, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """(Scores, labels) of the ``limit`` best candidates of each query."""
    order = np.argsort(-scored.candidates, axis=1, kind="stable")[:, :limit]
    return (
        np.take_along_axis(scored.candidates, order, 1),
        np.take_along_axis(scored.labels, order, 1),
    )


def _precision_losses(
    scores: np.ndarray, labels: np.ndarray, score: float, precision: float
) -> Float[np.ndarray, " n"]:
    """Per query, wrong results minus (1 - precision) times all results: the mean is below 0 if precision is kept."""
    kept = scores >= score
    right, returned = (kept & labels).sum(1), kept.sum(1)
    return returned - right - (1 - precision) * returned


def _margin(losses: Float[np.ndarray, " n"]) -> float:
    """How many standard deviations the mean loss is below 0; -inf if nothing is returned."""
    if not losses.any():
        return -math.inf
    spread = float(losses.std())
    return -float(losses.mean()) / spread if spread else math.copysign(math.inf, -losses.mean())


def recalls(scored: Scored, grid: np.ndarray) -> Float[np.ndarray, "scores n"]:
    """For each score, the share of each query's matches at or above it, for the queries that have any."""
    total = np.bincount(scored.owners, minlength=len(scored.levels))
    with_match = total > 0
    shares = []
    for score in grid:
        hit = np.bincount(scored.owners[scored.matches >= score], minlength=len(total))
        shares.append(hit[with_match] / total[with_match])
    return np.array(shares)


def best_f1_score(scored: Scored) -> float:
    """The score with the highest F1 over all pairs of the held-out queries."""
    scores, labels = scored.candidates.ravel(), scored.labels.ravel()
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(labels[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + len(scored.matches))
    return float(scores[order[int(np.argmax(f1))]])


def _interval(values: np.ndarray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    return (
        tuple(np.quantile(values, [0.05, 0.95]).tolist()) if len(values) else (math.nan, math.nan)
    )


def mean_is_below(
    losses: Float[np.ndarray, " n"], bound: float, *, most: float, least: float = 0.0, error: float
) -> bool:
    """Whether independent losses between ``least`` and ``most`` show that their expectation is at most ``bound``.

    If it is not, the answer is True with probability at most ``error``, for every n and every distribution. The stakes
    follow the variance of the losses seen before, so the order of the losses matters and must be random.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> losses = rng.random(500)
    >>> [mean_is_below(losses, bound, most=1.0, error=0.1) for bound in (0.5, 0.53, 0.56)]
    [False, False, True]
    """
    if not least < bound < most:
        return bound >= most
    if not len(losses):
        return False
    loss = (np.asarray(losses, dtype=np.float64) - least) / (most - least)
    bound = (bound - least) / (most - least)
    before = np.arange(1, len(loss) + 1)
    mean = (0.5 + np.cumsum(loss)) / (before + 1)
    variance = (0.25 + np.cumsum((loss - mean) ** 2)) / (before + 1)
    variance = np.concatenate([[0.25], variance[:-1]])
    stake = np.sqrt(2 * math.log(1 / error) / (len(loss) * variance))
    stake = np.minimum(stake, _MOST_AT_STAKE / (1 - bound))
    wealth = np.cumsum(np.log1p(-stake * (loss - bound)))
    return bool(wealth.max() >= math.log(1 / error))


def last_safe(
    losses: Iterable[Float[np.ndarray, " n"]],
    bound: float,
    *,
    most: float,
    least: float = 0.0,
    error: float,
) -> int | None:
    """How many of a sequence of losses, one array per threshold, are shown to be safe before the first that is not.

    Returns the index of the last safe one, or None. With probability at least 1 - ``error`` all up to it are safe.
    """
    last = None
    for index, values in enumerate(losses):
        if not mean_is_below(values, bound, most=most, least=least, error=error):
            break
        last = index
    return last
