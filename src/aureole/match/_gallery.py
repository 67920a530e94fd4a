"""Match probabilities in a gallery: the likely matches of a query, or none and the reason, for commands and service."""

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from aureole.caps._hits import Hits, pick_hits
from aureole.caps._index import CredibleIndex
from aureole.caps._search_options import SearchOptions
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.engines._schema import Origin
from aureole.errors import AureoleWarning, EncoderError, InvalidInputError, MissingInputError
from aureole.match._calibrator import MatchCalibrator
from aureole.match._filter import LevelWindow, Matches, check_cuts, choose
from aureole.match._fitting import mean_of_best

_EVERYTHING = SearchOptions(kind="credible")  # with mass 1, the cap is the sphere
_MOST_CACHED = 1000  # thresholds
_MOST_FOR_RECALL = 1000  # results


@dataclass(frozen=True)
class MatchOptions:
    """Which items are matches, at most one of threshold, precision and recall.

    Parameters
    ----------
    threshold
        The smallest probability (default: the best F1 score on the calibrator's held-out queries).
    precision, recall
        Use the threshold of :meth:`MatchCalibrator.threshold` for this aim.
    limit
        Most results (default: ``calibrator.limit``, up to which precision is guaranteed; 1,000 with ``recall``, which
        counts every item above the threshold).
    abstain
        Largest p-value with which a query gets results (default: all queries do).
    """

    threshold: float | None = None
    precision: float | None = None
    recall: float | None = None
    limit: int | None = None
    abstain: float | None = None

    def __post_init__(self) -> None:
        aims = (self.threshold, self.precision, self.recall)
        if sum(aim is not None for aim in aims) > 1:
            raise InvalidInputError("use at most one of threshold, precision and recall.")
        check_cuts(self.threshold, self.limit, self.abstain)


@dataclass(frozen=True)
class GalleryMatches(Matches):
    """Matches with their rows of the gallery, and a note if the precision or recall asked for is not guaranteed."""

    hits: Hits
    note: str | None


class GalleryMatcher:
    """Match probabilities for the items of a gallery.

    The calibrator must have been fitted on what the gallery stores. A gallery built with a head holds the directions mu
    of the head, not the vectors of the encoder, so fit on the mu of queries and items, and pass
    ``encoder=index.origin.fingerprint``. A calibrator of another dimension or fingerprint is refused. Ids are compared
    as text; without ids, the calibrator's items are row numbers.

    Searches are not thread-safe, as for the index; :meth:`select` is. It warns once if the highest cosines of queries
    drift from those of the labelled queries; items as queries do not count.

    Parameters
    ----------
    calibrator
        Fitted on the directions of the gallery.
    index
        The gallery.

    Examples
    --------
    >>> from aureole.sphere import normalize
    >>> rng = np.random.default_rng(0)
    >>> mu = normalize(torch.from_numpy(rng.standard_normal((300, 16)))).float()
    >>> ids = [f"item {i}" for i in range(300)]
    >>> index = CredibleIndex.create("faiss://", VonMisesFisher(mu, torch.full((300,), 50.0)), ids)
    >>> right = rng.integers(300, size=400)
    >>> queries = mu[right].numpy() + 0.1 * rng.standard_normal((400, 16))
    >>> matches = [[ids[row]] for row in right]
    >>> calibrator = MatchCalibrator().fit(queries, mu.numpy(), matches, ids=ids)
    >>> matcher = GalleryMatcher(calibrator, index)
    >>> found = matcher.match(queries[0], MatchOptions(threshold=0.5, abstain=0.05))
    >>> found.hits.ids[:1] == matches[0], found.reason
    (True, None)
    >>> found = matcher.match(-mu.mean(0).numpy(), MatchOptions(threshold=0.5, abstain=0.05))
    >>> found.abstained, len(found)
    (True, 0)
    """

    def __init__(self, calibrator: MatchCalibrator, index: CredibleIndex) -> None:
        self.calibrator, self.index = calibrator, index
        _check_same(calibrator, index.schema.dim, index.origin)
        ids = calibrator.ids_
        self._rows = None if ids is None else {str(one): row for row, one in enumerate(ids)}
        self._thresholds = lru_cache(_MOST_CACHED)(self._find_threshold)
        self._window = LevelWindow(calibrator)
        self._lock = threading.Lock()  # also because catching warnings is not thread-safe

    def about(self) -> dict[str, Any]:
        """Return the default threshold and limit, and the number of held-out queries of the calibrator."""
        return {
            "threshold": self.threshold(MatchOptions())[0],
            "limit": self.calibrator.limit,
            "queries": len(self.calibrator.held_out_.levels),
        }

    def match(
        self,
        query: Any,
        options: MatchOptions | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        columns: Sequence[str] = (),
        exact: bool = False,
    ) -> GalleryMatches:
        """Return the likely matches of one query, with their rows in ``hits``.

        ``note`` of the result reports if the precision or recall that you asked for is not guaranteed.

        Parameters
        ----------
        query
            A posterior, a vector in the space of the gallery, or the id of an item, which is excluded from its own
            results.
        options
            Which items are matches (default: those above the threshold of the best F1 score).
        filter, columns, exact
            As for :meth:`CredibleIndex.search`. The level of the query always comes from an unfiltered search.
        """
        options = options or MatchOptions()
        item = query if isinstance(query, str) else None
        direction = self.direction(query if item is None else self.index.fetch([item])[0][0])
        asked = {"filter": filter, "columns": columns, "exact": exact}
        hits = self._search(direction, self.candidates(options) + 1, **asked)
        level = None
        if filter:
            near = self._search(direction, self.calibrator.neighbours + 1, exact=exact)
            level = self.level(without_item(near, item))
        return self.select(hits, options, level=level, item=item)

    def direction(self, query: Any) -> VonMisesFisher:
        """Return the direction to search with, mapped if there is a query map, as a posterior with kappa 0."""
        if isinstance(query, MixtureVMF):
            raise InvalidInputError(
                "match probabilities need one direction per query, but the model returns a mixture."
            )
        vector = query.mu.numpy() if isinstance(query, VonMisesFisher) else np.asarray(query)
        mapped = self.calibrator.map_queries(vector.reshape(1, -1))[0]
        return VonMisesFisher(torch.from_numpy(mapped), torch.zeros(()), validate_args=False)

    def candidates(self, options: MatchOptions) -> int:
        """Return how many of the nearest items to retrieve for :meth:`select`."""
        calibrator = self.calibrator
        return max(calibrator.candidates, calibrator.neighbours, self._limit(options))

    def level(self, hits: Hits) -> float:
        """Return the level of a query, from the hits of an unfiltered search; the mean of all in a smaller gallery."""
        return float(mean_of_best(hits.cosine.numpy(), self.calibrator.neighbours))

    def select(
        self,
        hits: Hits,
        options: MatchOptions,
        *,
        level: float | None = None,
        item: str | None = None,
    ) -> GalleryMatches:
        """Return the matches among the nearest items, without the ``item`` that is the query.

        ``level`` is needed if the search was filtered.
        """
        threshold, note = self.threshold(options)
        hits = without_item(hits, item)
        rows, cosines, limit = self.rows_of(hits.ids), hits.cosine.numpy(), self._limit(options)
        level = self.level(hits) if level is None else level
        if item is None and len(hits):
            with self._lock:  # a warning must not become the note of a threshold
                self._window.add(level)
        cuts = {"threshold": threshold, "limit": limit, "abstain": options.abstain}
        chosen = choose(self.calibrator, cosines, np.arange(len(hits)), rows, level, **cuts)
        if options.recall is not None and len(chosen) == limit:
            few = "match is" if limit == 1 else "matches are"
            note = f"only the {limit:,} most probable {few} returned, so recall is not guaranteed."
        kept = pick_hits(hits, chosen.ids)
        parts: dict[str, Any] = vars(chosen) | {"ids": kept.ids}
        return GalleryMatches(**parts, hits=kept, note=note)

    def probabilities(
        self, cosines: Float[np.ndarray, " n"], ids: Sequence[Any], *, level: float
    ) -> Float[np.ndarray, " n"]:
        """Return the match probability of each item, from its cosine and the level of the query."""
        return self.calibrator._pair_probability(cosines, self.rows_of(ids), np.array(level))

    def threshold(self, options: MatchOptions) -> tuple[float, str | None]:
        """Return the smallest probability of a match, and a note if its guarantee does not hold; cached."""
        if options.threshold is not None:
            return options.threshold, None
        most = self.calibrator.limit
        if options.precision is not None and (options.limit or 0) > most:
            raise InvalidInputError(
                f"the calibrator guarantees precision for at most {most} results, but limit is {options.limit}."
            )
        with self._lock:
            return self._thresholds(options.precision, options.recall)

    def rows_of(self, ids: Sequence[Any]) -> Int[np.ndarray, " n"]:
        """Return the calibrator's rows of items; raises ``UnknownItemError`` if it does not have one."""
        rows = [self._row_of(one) for one in ids]
        unknown = [one for one, row in zip(ids, rows, strict=True) if row is None]
        if unknown:
            raise UnknownItemError(
                f"the calibrator has no entry for {len(unknown):,} of these items of the gallery, such as "
                f"{str(unknown[0])[:60]!r}. Add them with MatchCalibrator.append, or calibrate again."
            )
        return np.array(rows, dtype=np.int64)

    def _row_of(self, item: Any) -> int | None:
        text = str(item)
        if self._rows is not None:
            return self._rows.get(text)
        row = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        known = 0 <= row < len(self.calibrator.hubness_) and str(row) == text
        return row if known else None

    def _find_threshold(
        self, precision: float | None, recall: float | None
    ) -> tuple[float, str | None]:
        f1 = precision is None and recall is None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AureoleWarning)
            value = self.calibrator.threshold(precision=precision, recall=recall, f1=f1)
        return value, next((str(one.message) for one in caught), None)

    def _limit(self, options: MatchOptions) -> int:
        if options.limit is not None:
            return options.limit
        return self.calibrator.limit if options.recall is None else _MOST_FOR_RECALL

    def _search(self, direction: VonMisesFisher, limit: int, **options: Any) -> Hits:
        hits = self.index.search(direction, 1.0, limit=limit, options=_EVERYTHING, **options)
        assert isinstance(hits, Hits)  # of one query
        return hits


class UnknownItemError(MissingInputError):
    """An item of the gallery was added after the calibrator was fitted."""


def without_item(hits: Hits, item: Any) -> Hits:
    """Return the hits without an item; all of them for None."""
    if item is None or item not in hits.ids:
        return hits
    return pick_hits(hits, [place for place, name in enumerate(hits.ids) if name != item])


def _check_same(calibrator: MatchCalibrator, dim: int, origin: Origin) -> None:
    """Raise if the calibrator was not fitted on the directions of the gallery, as far as is known."""
    own, theirs = calibrator.encoder_, origin.fingerprint
    if None not in (own, theirs) and own != theirs:
        fault = "another model than this gallery's (their fingerprints differ)"
        if origin.weights is not None and own == origin.encoder:
            fault = "the encoder, but this gallery holds the directions of a head"
    elif calibrator.dim_ != dim:
        fault = f"dimension {calibrator.dim_}, but the gallery has dimension {dim}"
    else:
        return
    raise EncoderError(
        f"the calibrator was fitted on vectors of {fault}. Fit it on the mu of queries and gallery, with "
        "encoder=index.origin.fingerprint."
    )
