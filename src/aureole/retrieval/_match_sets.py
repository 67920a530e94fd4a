"""Does a radius per query pay? The sizes of result sets with the same recall, by three rules for what to return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from aureole.errors import InvalidInputError
from aureole.retrieval._brute_force import unit_rows
from aureole.retrieval._match import MatchCalibrator

_RECALLS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_BLOCK = 256  # queries whose cosines with the gallery are in memory at a time


@dataclass(frozen=True)
class RuleSizes:
    """Mean number of results per query and precision of a rule, at each recall."""

    results: tuple[float, ...]
    precision: tuple[float, ...]


@dataclass(frozen=True)
class SetSizes:
    """Result sets of three rules that find the same share of the matches, from the whole gallery.

    Attributes
    ----------
    recalls
        Shares of a query's matches that are found, on average over queries.
    one_cosine
        Items above one cosine for all queries.
    query_radius
        Items above a cosine that depends on the query alone.
    match_score
        Items above one match probability, which also depends on the item.
    queries, items
        Held-out queries with a match, and items of the gallery.
    """

    recalls: tuple[float, ...]
    one_cosine: RuleSizes
    query_radius: RuleSizes
    match_score: RuleSizes
    queries: int
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

    Each rule gets the cutoff that reaches the recall on these queries, so the comparison has no guarantee. Cost: two
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
    rules = _scores(calibrator)
    own = [[] for _ in rules]
    for cosines, level, block in _blocks(calibrator, mapped, items):
        for scores, rule in zip(own, rules, strict=True):
            values = rule(cosines, level)
            scores += [row[group] for row, group in zip(values, groups[block], strict=True)]
    cutoffs = [_cutoffs(scores, recalls) for scores in own]
    returned = np.zeros((len(rules), len(recalls)))
    for cosines, level, _ in _blocks(calibrator, mapped, items):
        for place, (rule, levels) in enumerate(zip(rules, cutoffs, strict=True)):
            scores = rule(cosines, level)
            returned[place] += [np.count_nonzero(scores >= cutoff) for cutoff in levels]
    measured = [
        _rule(total, np.concatenate(scores), levels, len(groups))
        for total, scores, levels in zip(returned, own, cutoffs, strict=True)
    ]
    return SetSizes(tuple(recalls), *measured, queries=len(groups), items=len(items))


def _scores(
    calibrator: MatchCalibrator,
) -> list[Callable[[np.ndarray, np.ndarray], Float[np.ndarray, "n m"]]]:
    """The scores of pairs by the three rules, from cosines [n, m] and levels [n, 1]."""
    weights, hubness = calibrator.weights_, calibrator.hubness_
    return [
        lambda cosines, _: cosines,
        lambda cosines, level: cosines - (weights.level / weights.cosine) * level,
        lambda cosines, level: weights.score(cosines, level, hubness).astype(np.float32),
    ]


def _blocks(calibrator: MatchCalibrator, queries: np.ndarray, items: np.ndarray) -> Any:
    """(Cosines [n, m], levels [n, 1], slice) of some queries at a time."""
    best = min(calibrator.neighbours, len(items))
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines = queries[block] @ items.T
        highest = np.partition(cosines, cosines.shape[1] - best, axis=1)[:, -best:]
        yield cosines, calibrator.level(highest)[:, None].astype(np.float32), block


def _cutoffs(scores: Sequence[np.ndarray], recalls: Sequence[float]) -> np.ndarray:
    """The highest score at or above which queries have a mean recall of at least each given one."""
    values = np.concatenate(scores)
    shares = np.concatenate([np.full(len(group), 1 / len(group)) for group in scores])
    order = np.argsort(-values, kind="stable")
    reached = np.cumsum(shares[order]) / len(scores)
    places = np.searchsorted(reached, np.asarray(recalls) - 1e-9)
    return values[order][np.minimum(places, len(values) - 1)]


def _rule(returned: np.ndarray, scores: np.ndarray, cutoffs: np.ndarray, queries: int) -> RuleSizes:
    right = np.array([(scores >= cutoff).sum() for cutoff in cutoffs])
    return RuleSizes(tuple((returned / queries).tolist()), tuple((right / returned).tolist()))
