"""Match probabilities in front of any database: search, keep the likely matches, or abstain."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from aureole.errors import InvalidInputError
from aureole.retrieval._match import MatchCalibrator

Search = Callable[[Float[np.ndarray, " dim"], int], tuple[Any, Any]]


@dataclass(frozen=True)
class Matches:
    """The likely matches of a query, the most probable first."""

    ids: list[Any]
    probabilities: Float[np.ndarray, " n"]
    cosines: Float[np.ndarray, " n"]
    p_value: float  # that no item of the gallery matches, see MatchCalibrator.no_match_p_value
    abstained: bool

    def __len__(self) -> int:
        return len(self.ids)


class MatchFilter:
    """The results of a search that are likely matches, with any database.

    Parameters
    ----------
    calibrator
        Fitted on the vectors of the database.
    search
        Takes a vector of length 1 and k, and returns the cosines and ids of the k nearest items, without a filter.
    threshold
        The smallest probability, for instance from :meth:`MatchCalibrator.threshold`.
    k
        Items that are retrieved (default 100).
    limit
        Most results (default: ``calibrator.limit``, for which thresholds of precision hold).
    abstain
        Largest p-value with which a query gets results (default: all queries do).

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
        search: Search,
        *,
        threshold: float,
        k: int = 100,
        limit: int | None = None,
        abstain: float | None = None,
    ) -> None:
        for name, value in (("threshold", threshold), ("abstain", abstain)):
            if value is not None and not 0 <= value <= 1:
                raise InvalidInputError(f"{name} must be between 0 and 1, but is {value!r}.")
        if k < calibrator.neighbours:
            raise InvalidInputError(
                f"k must be at least {calibrator.neighbours}, the neighbours of the calibrator, but is {k}."
            )
        self.calibrator, self.search, self.threshold = calibrator, search, threshold
        self.k, self.abstain = k, abstain
        self.limit = calibrator.limit if limit is None else limit

    def __call__(self, vector: Any) -> Matches:
        """Search for one query, a vector of the calibrator's encoder."""
        query = self.calibrator.map_queries(np.asarray(vector)[None])[0]
        cosines, ids = self.search(query, self.k)
        return self.select(cosines, ids)

    def select(self, cosines: Any, ids: Any) -> Matches:
        """The matches among the results of an unfiltered search, with their cosines."""
        cosines, ids = np.asarray(cosines, dtype=np.float64), _as_array(ids)
        probabilities = self.calibrator.probability(cosines, ids)
        p_value = float(self.calibrator.no_match_p_value(cosines))
        abstained = self.abstain is not None and p_value > self.abstain
        order = np.argsort(-probabilities, kind="stable")
        kept = order[probabilities[order] >= self.threshold][: self.limit]
        kept = kept[:0] if abstained else kept
        return Matches(ids[kept].tolist(), probabilities[kept], cosines[kept], p_value, abstained)


def _as_array(ids: Any) -> np.ndarray:
    """The ids as an array that keeps what they are."""
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        array = np.empty(len(ids), dtype=object)
        array[:] = list(ids)
    return array
