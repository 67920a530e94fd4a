"""The sizes of result sets with the same recall by three rules, which show whether a radius per query pays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from aureole.errors import InvalidInputError
from aureole.match._brute_force import unit_rows
from aureole.match._calibrator import MatchCalibrator

_RECALLS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_BLOCK = 256  # queries whose cosines with the gallery are in memory at a time


@dataclass(frozen=True)
class RuleSizes:
    """Mean number of results per query and precision of a rule, at each recall."""

    results: tuple[float, ...]
    precision: tuple[float, ...]


@dataclass(frozen=True)
class SetSizes:
    """Result sets of three rules that find the same share of a query's matches, on average over queries."""

    recalls: tuple[float, ...]
    one_cosine: RuleSizes  # items above one cosine for all queries
    query_radius: RuleSizes  # items above a cosine that depends on the query alone
    match_score: RuleSizes  # items above one match probability, which also depends on the item
    queries: int  # held-out queries with a match
    items: int


def compare_set_sizes(
    calibrator: MatchCalibrator,
    queries: Any,
    gallery: Any,
    matches: Sequence[Sequence[Any]],
    *,
    recalls: Sequence[float] = _RECALLS,
) -> SetSizes:
    """The sizes of result sets with the same recall: one cosine for all queries, a radius per query, the probability.

    Each rule gets the cutoff that reaches the recall on these queries, so the comparison has no guarantee. Cost: six
    products of the queries with the gallery.

    Parameters
    ----------
    calibrator
        Fitted on this gallery.
    queries
        Vectors of queries that the calibrator was not fitted on, one per row.
    gallery
        Vectors of the gallery, in the order of ``fit``.
    matches
        For each query, the rows of the gallery that match it.
    recalls
        To compare at (default: from 0.1 to 0.95).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gallery = rng.standard_normal((300, 16))
    >>> right = rng.integers(300, size=400)
    >>> queries = gallery[right] + rng.uniform(0.2, 1.5, (400, 1)) * rng.standard_normal((400, 16))
    >>> matches = [[row] for row in right]
    >>> calibrator = MatchCalibrator().fit(queries[:200], gallery, matches[:200])
    >>> sizes = compare_set_sizes(calibrator, queries[200:], gallery, matches[200:], recalls=[0.9])
    >>> sizes.match_score.results[0] < sizes.one_cosine.results[0]
    True
    """
    labelled = [row for row, group in enumerate(matches) if len(group)]
    if not labelled or len(queries) != len(matches):
        raise InvalidInputError(
            f"compare_set_sizes needs a list of matches per query, and one that is not empty, but there are "
            f"{len(queries)} queries and {len(matches)} lists, {len(labelled)} of them not empty."
        )
    mapped = calibrator.map_queries(np.asarray(queries)[labelled])
    items = unit_rows(gallery, "gallery")
    groups = [np.asarray(matches[row], dtype=np.int64) for row in labelled]
    rows = np.concatenate(groups)
    if len(items) != len(calibrator.hubness_) or rows.min() < 0 or rows.max() >= len(items):
        raise InvalidInputError(
            f"the gallery has {len(items)} items and the calibrator {len(calibrator.hubness_)}: pass the gallery of "
            "fit, and matches as its rows."
        )
    weights, hubness = calibrator.weights_, calibrator.hubness_
    rules: list[Callable[[np.ndarray, np.ndarray], np.ndarray]] = [
        lambda cosines, _: cosines,
        lambda cosines, level: cosines - (weights.level / weights.cosine) * level,
        lambda cosines, level: weights.score(cosines, level, hubness).astype(np.float32),
    ]
    measured = []
    for rule in rules:
        own: list[np.ndarray] = []
        for scores, block in _blocks(calibrator, mapped, items, rule):
            own += [row[group] for row, group in zip(scores, groups[block], strict=True)]
        cutoffs, returned = _cutoffs(own, recalls), np.zeros(len(recalls))
        for scores, _ in _blocks(calibrator, mapped, items, rule):
            returned += [np.count_nonzero(scores >= cutoff) for cutoff in cutoffs]
        right = np.array([(np.concatenate(own) >= cutoff).sum() for cutoff in cutoffs])
        results, precision = returned / len(groups), right / returned
        measured.append(RuleSizes(tuple(results.tolist()), tuple(precision.tolist())))
    return SetSizes(tuple(recalls), *measured, queries=len(groups), items=len(items))


def _blocks(
    calibrator: MatchCalibrator, queries: np.ndarray, items: np.ndarray, rule: Any
) -> Iterator[tuple[Float[np.ndarray, "n m"], slice]]:
    """Yield the scores of pairs by a rule for some queries at a time, and which queries these are."""
    best = min(calibrator.neighbours, len(items))
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines = queries[block] @ items.T
        highest = np.partition(cosines, cosines.shape[1] - best, axis=1)[:, -best:]
        yield rule(cosines, calibrator.level(highest)[:, None].astype(np.float32)), block


def _cutoffs(scores: Sequence[np.ndarray], recalls: Sequence[float]) -> np.ndarray:
    """Return the highest score at or above which queries have a mean recall of at least each given one."""
    values = np.concatenate(scores)
    shares = np.concatenate([np.full(len(group), 1 / len(group)) for group in scores])
    order = np.argsort(-values, kind="stable")
    reached = np.cumsum(shares[order]) / len(scores)
    places = np.searchsorted(reached, np.asarray(recalls) - 1e-9)
    return values[order][np.minimum(places, len(values) - 1)]
