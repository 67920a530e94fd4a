"""Match probabilities in front of any database: search, keep the likely matches, or abstain."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from aureole.errors import InvalidInputError
from aureole.match._calibrator import MatchCalibrator

Search = Callable[[Float[np.ndarray, " dim"], int], tuple[Any, Any]]
RangeSearch = Callable[[Float[np.ndarray, " dim"], float], tuple[Any, Any]]
Scores = str | Callable[[Any], Any]

_TO_COSINE: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda score: score,
    "cosine_distance": lambda score: 1 - score,
    "squared_l2": lambda score: 1 - score / 2,
}
# The levels of the last queries are compared with those of the calibrator, once in so many queries.
_WINDOW, _CHECK_EVERY = 300, 30


@dataclass(frozen=True)
class Matches:
    """The likely matches of a query, the most probable first.

    ``p_value`` is that of :meth:`MatchCalibrator.no_match_p_value`, ``level`` that of :meth:`MatchCalibrator.level`.
    ``reason`` explains why there are no matches; None if there are.
    """

    ids: list[Any]
    probabilities: Float[np.ndarray, " n"]
    cosines: Float[np.ndarray, " n"]
    threshold: float
    p_value: float
    level: float
    abstained: bool
    reason: str | None

    def __len__(self) -> int:
        return len(self.ids)


def choose(
    calibrator: MatchCalibrator,
    cosines: Float[np.ndarray, " n"],
    ids: np.ndarray,
    rows: np.ndarray,
    level: float,
    *,
    threshold: float,
    limit: int,
    abstain: float | None = None,
) -> Matches:
    """Return the matches among items with these ids and rows of the calibrator; everything passed was checked."""
    if not len(cosines):
        abstained = abstain is not None and abstain < 1
        reason = "the search found no items."
        return Matches([], cosines, cosines, threshold, 1.0, level, abstained, reason)
    probabilities = calibrator._pair_probability(cosines, rows, np.array(level))
    p_value = float(calibrator.no_match_p_value(cosines))
    abstained = abstain is not None and p_value > abstain
    likely = np.flatnonzero(probabilities >= threshold)
    kept = likely[(-probabilities[likely]).argsort(kind="stable")][: 0 if abstained else limit]
    reason = None
    if abstained:
        reason = (
            f"abstained: the highest cosine, {cosines.max():.3f}, is reached by a share of {p_value:.3g} of queries "
            f"without a match (the p-value), which is above {abstain:g}."
        )
    elif not len(kept):
        best = probabilities.max()
        reason = f"no item reaches the probability {threshold:.3g}; the highest is {best:.3g}."
    found = ids[kept].tolist(), probabilities[kept], cosines[kept]
    return Matches(*found, threshold, p_value, level, abstained, reason)


def check_cuts(threshold: float | None, limit: int | None, abstain: float | None) -> None:
    """Raise unless the values that are given are in range."""
    for name, value in (("threshold", threshold), ("abstain", abstain)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInputError(f"{name} must be between 0 and 1, but is {value!r}.")
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise InvalidInputError(f"limit must be at least 1, but is {limit!r}.")


class LevelWindow:
    """The levels of recent queries; warns once if they differ from those of the calibrator. Not thread-safe."""

    def __init__(self, calibrator: MatchCalibrator) -> None:
        self._calibrator = calibrator
        self._levels: deque[float] = deque(maxlen=_WINDOW)
        self._queries, self._warned = 0, False

    def add(self, level: float) -> None:
        """Add the level of a query; every 30 queries, compare the recent ones with the calibrator's."""
        self._levels.append(level)
        self._queries += 1
        if not self._warned and self._queries % _CHECK_EVERY == 0:
            self._warned = self._calibrator._warn_of_drift(np.array(self._levels))


class MatchFilter:
    """The results of a search that are likely matches, with any database.

    It warns once if the highest cosines of its queries drift from those of the labelled queries.

    Parameters
    ----------
    calibrator
        Fitted on the vectors of the database.
    search
        Takes a vector of length 1 and k, and returns the scores and ids of the k nearest items, without a filter. You
        can omit it if you search yourself and call :meth:`select`.
    threshold
        The smallest probability, for instance from :meth:`MatchCalibrator.threshold`.
    k
        Items that are retrieved (default 100).
    limit
        Most results (default: ``calibrator.limit``, for which thresholds of precision hold).
    abstain
        Largest p-value with which a query gets results (default: all queries do).
    scores
        What the search returns: "cosine" (default), "cosine_distance" (1 - cosine), "squared_l2" (2 - 2 cosine, for
        vectors of length 1), or a function from its scores to cosines.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gallery = rng.standard_normal((500, 16))
    >>> gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    >>> right = rng.integers(500, size=400)
    >>> queries = gallery[right] + 0.1 * rng.standard_normal((400, 16))
    >>> calibrator = MatchCalibrator().fit(queries, gallery, [[row] for row in right])
    >>> def search(vector, k):  # your database
    ...     cosines = gallery @ vector
    ...     nearest = np.argsort(-cosines)[:k]
    ...     return cosines[nearest], nearest
    >>> matches = MatchFilter(calibrator, search, threshold=0.5)(queries[0])
    >>> matches.ids == [right[0]]
    True
    """

    def __init__(
        self,
        calibrator: MatchCalibrator,
        search: Search | None = None,
        *,
        threshold: float,
        k: int = 100,
        limit: int | None = None,
        abstain: float | None = None,
        scores: Scores = "cosine",
    ) -> None:
        check_cuts(threshold, limit, abstain)
        if k < calibrator.neighbours:
            raise InvalidInputError(
                f"k must be at least {calibrator.neighbours}, the neighbours of the calibrator, but is {k}."
            )
        if not callable(scores) and scores not in _TO_COSINE:
            raise InvalidInputError(
                f"scores must be one of {', '.join(_TO_COSINE)} or a function, but is {str(scores)[:60]!r}."
            )
        self.calibrator, self.search, self.threshold = calibrator, search, threshold
        self.k, self.abstain, self.scores = k, abstain, scores
        self.limit = calibrator.limit if limit is None else limit
        self._window = LevelWindow(calibrator)

    def __call__(self, vector: Any) -> Matches:
        """Search for one query, a vector of the calibrator's encoder."""
        return self.select(*self._nearest(self.query_vector(vector), self.k))

    def search_range(self, vector: Any, range_search: RangeSearch) -> Matches:
        """Return the matches among all items within the radius of this query, instead of the k nearest.

        Parameters
        ----------
        vector
            A vector of the calibrator's encoder.
        range_search
            Takes a vector of length 1 and a cosine, and returns the scores and ids of all items with at least this
            cosine, of the same kind as those of ``search``.
        """
        query = self.query_vector(vector)
        level = self.level(self._nearest(query, self.calibrator.neighbours)[0])
        return self.select(*range_search(query, self.radius(level)), level=level)

    def query_vector(self, vector: Any) -> Float[np.ndarray, " dim"]:
        """Return the vector to search with: of length 1, and mapped if the calibrator has a query map."""
        array = np.asarray(vector.detach().cpu() if hasattr(vector, "detach") else vector)
        return self.calibrator.map_queries(array[None])[0]

    def level(self, scores: Any) -> float:
        """Return the level of a query, from its best scores in a search without a filter, the best first."""
        cosines = self.cosines(scores)
        if len(cosines) > 2 and cosines[-1] > cosines[0] and (np.diff(cosines) >= 0).all():
            raise InvalidInputError(
                "the cosines increase from the first result to the last, so the search returns distances. Pass "
                "scores='cosine_distance' or 'squared_l2'."
            )
        return float(self.calibrator.level(cosines))

    def radius(self, level: float) -> float:
        """Return the smallest cosine with which any item can reach the threshold, for a range search."""
        return float(self.calibrator.radius(self.threshold, level))

    def select(self, scores: Any, ids: Any, *, level: float | None = None) -> Matches:
        """Return the matches among the results of a search.

        Parameters
        ----------
        scores, ids
            Of the items that the search returned.
        level
            From :meth:`level` (default: that of ``scores``). Pass it if the search has a filter or a radius.
        """
        cosines, ids = self.cosines(scores), _as_array(ids)
        if cosines.shape != ids.shape:
            raise InvalidInputError(
                f"scores and ids must have the same shape, but have {cosines.shape} and {ids.shape}."
            )
        if level is None:
            level = self.level(scores) if len(cosines) else 0.0
        self._window.add(level)
        cuts = {"threshold": self.threshold, "limit": self.limit, "abstain": self.abstain}
        rows = self.calibrator._rows_of(ids) if len(ids) else ids
        return choose(self.calibrator, cosines, ids, rows, level, **cuts)

    def cosines(self, scores: Any) -> Float[np.ndarray, " n"]:
        """Return the cosines of the scores of one query."""
        convert = self.scores if callable(self.scores) else _TO_COSINE[self.scores]
        cosines = np.asarray(convert(np.asarray(scores, dtype=np.float64)), dtype=np.float64)
        if cosines.ndim != 1 or not (np.abs(cosines) <= 1.001).all():
            raise InvalidInputError(
                "the search must return one row of cosines between -1 and 1. If it returns distances, pass "
                "scores='cosine_distance', 'squared_l2' or a function."
            )
        return cosines

    def _nearest(self, query: np.ndarray, k: int) -> tuple[Any, Any]:
        if self.search is None:
            raise InvalidInputError(
                "this MatchFilter has no search function. Pass search, or call select with the results of your search."
            )
        return self.search(query, k)


def select_items(
    matches: MatchFilter, results: Sequence[tuple[Any, Any, Any]], level: float | None
) -> list[tuple[Any, float, float]]:
    """Return item, probability and cosine of the matches among results of item, id and score."""
    items = {name: item for item, name, _ in results}
    if len(items) < len(results):
        raise InvalidInputError(
            f"the search returned {len(results)} results with {len(items)} different ids. Each item needs its own id."
        )
    chosen = matches.select([score for *_, score in results], list(items), level=level)
    names = [items[name] for name in chosen.ids]
    return list(zip(names, chosen.probabilities.tolist(), chosen.cosines.tolist(), strict=True))


def item_id(name: Any, metadata: dict[str, Any], id_key: str | None) -> Any:
    """Return the calibrator's id of an item: its own, or an entry of its metadata."""
    found = name if id_key is None else metadata.get(id_key)
    if found is None:
        place = "an id" if id_key is None else f"the key {id_key[:60]!r} in its metadata"
        raise InvalidInputError(
            f"the search returned an item without {place}. Set id_key to the metadata key with the calibrator's ids."
        )
    return found


def _as_array(ids: Any) -> np.ndarray:
    """Return the ids as an array that keeps their types."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return ids
    array = np.empty(len(ids), dtype=object)
    array[:] = list(ids)
    return array
