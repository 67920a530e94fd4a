"""Match probabilities in a gallery: the likely matches of a query, or none and the reason, for commands and service."""

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aureole.caps._hits import Hits, pick_hits
from aureole.caps._index import CredibleIndex
from aureole.caps._search_options import SearchOptions
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.engines._schema import Origin
from aureole.errors import AureoleWarning, EncoderError, InvalidInputError, MissingInputError
from aureole.match._calibrator import MatchCalibrator
from aureole.match._filter import LevelWindow, choose

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
        for name in ("threshold", "abstain"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InvalidInputError(f"{name} must be between 0 and 1, but is {value!r}.")
        if self.limit is not None and (isinstance(self.limit, bool) or self.limit < 1):
            raise InvalidInputError(f"limit must be at least 1, but is {self.limit!r}.")


@dataclass(frozen=True)
class GalleryMatches:
    """The likely matches of a query in a gallery, the most probable first.

    ``hits`` and ``probabilities`` are in the same order. ``p_value`` is that of
    :meth:`MatchCalibrator.no_match_p_value`, ``level`` that of :meth:`MatchCalibrator.level`. ``reason`` says why there
    are no results; None if there are. ``note`` says why the precision or recall that was asked for is not guaranteed.
    """

    hits: Hits
    probabilities: Float[np.ndarray, " n"]
    threshold: float
    p_value: float
    level: float
    abstained: bool = False
    reason: str | None = None
    note: str | None = None

    def __len__(self) -> int:
        return len(self.hits)


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
    name
        Of the calibrator, in errors (default "the calibrator").

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

    def __init__(
        self, calibrator: MatchCalibrator, index: CredibleIndex, *, name: str = "the calibrator"
    ) -> None:
        self.calibrator, self.index, self._name = calibrator, index, name
        _check_same(calibrator, index.schema.dim, index.origin, name)
        ids = calibrator.ids_
        self._names: dict[str, Any] | None = None
        if ids is not None:
            self._names = {str(one): one for one in ids}
            self._names |= {one: one for one in ids if isinstance(one, str)}
        self._thresholds: dict[tuple[float | None, float | None], tuple[float, str | None]] = {}
        self._window = LevelWindow(calibrator)
        self._lock = threading.Lock()

    def about(self) -> dict[str, Any]:
        """The default threshold and limit, and the number of held-out queries of the calibrator."""
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
        """The likely matches of one query.

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
        """The direction to search with, as a posterior with kappa 0; mapped if the calibrator has a query map."""
        if isinstance(query, MixtureVMF):
            raise InvalidInputError(
                "match probabilities need one direction per query, but the model returns a mixture."
            )
        vector = query.mu.numpy() if isinstance(query, VonMisesFisher) else np.asarray(query)
        mapped = self.calibrator.map_queries(vector.reshape(1, -1))[0]
        return VonMisesFisher(torch.from_numpy(mapped), torch.zeros(()), validate_args=False)

    def candidates(self, options: MatchOptions) -> int:
        """How many of the nearest items to retrieve for :meth:`select`."""
        calibrator = self.calibrator
        return max(calibrator.candidates, calibrator.neighbours, self._limit(options))

    def level(self, hits: Hits) -> float:
        """The level of a query, from the hits of an unfiltered search; the mean of all in a smaller gallery."""
        cosines = -np.sort(-hits.cosine.numpy())[: self.calibrator.neighbours]
        return float(cosines.mean()) if len(cosines) else 0.0

    def select(
        self,
        hits: Hits,
        options: MatchOptions,
        *,
        level: float | None = None,
        item: str | None = None,
    ) -> GalleryMatches:
        """The matches among the nearest items, without the ``item`` that is the query.

        ``level`` is needed if the search was filtered.
        """
        threshold, note = self.threshold(options)
        hits = without_item(hits, item)
        if not len(hits):
            reason = "the search found no items."
            return GalleryMatches(hits, np.zeros(0), threshold, 1.0, 0.0, reason=reason, note=note)
        names = self._known(hits.ids)
        level = self.level(hits) if level is None else level
        if item is None:
            with self._lock:  # a warning must not become the note of a threshold
                self._window.add(level)
        cosines, limit = hits.cosine.numpy(), self._limit(options)
        cuts = {"threshold": threshold, "limit": limit, "abstain": options.abstain}
        chosen = choose(self.calibrator, cosines, names, level, **cuts)
        if options.recall is not None and len(chosen) == limit:
            few = "match is" if limit == 1 else "matches are"
            note = f"only the {limit:,} most probable {few} returned, so recall is not guaranteed."
        reason = None
        if chosen.abstained:
            reason = (
                f"abstained: the highest cosine, {cosines.max():.3f}, is reached by a share of {chosen.p_value:.3g} of "
                f"queries without a match (the p-value), which is above {options.abstain:g}."
            )
        elif not len(chosen):
            best = self.calibrator.pair_probability(cosines, names, np.array(level)).max()
            reason = f"no item reaches the probability {threshold:.3g}; the highest is {best:.3g}."
        places = {name: place for place, name in enumerate(names)}
        return GalleryMatches(
            pick_hits(hits, [places[name] for name in chosen.ids]),
            chosen.probabilities,
            threshold,
            chosen.p_value,
            level,
            chosen.abstained,
            reason,
            note,
        )

    def probabilities(
        self, cosines: Float[np.ndarray, " n"], ids: Sequence[Any], *, level: float
    ) -> Float[np.ndarray, " n"]:
        """The match probability of each item, from its cosine and the level of the query."""
        return self.calibrator.probability(cosines, self._known(ids), level=level)

    def threshold(self, options: MatchOptions) -> tuple[float, str | None]:
        """(The smallest probability of a match, a note if its guarantee does not hold); cached."""
        if options.threshold is not None:
            return options.threshold, None
        most = self.calibrator.limit
        if options.precision is not None and (options.limit or 0) > most:
            raise InvalidInputError(
                f"the calibrator guarantees precision for at most {most} results, but limit is {options.limit}."
            )
        key = (options.precision, options.recall)
        with self._lock:  # also because catching warnings is not thread-safe
            if key not in self._thresholds:
                if len(self._thresholds) >= _MOST_CACHED:
                    self._thresholds.clear()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", AureoleWarning)
                    value = self.calibrator.threshold(
                        precision=key[0], recall=key[1], f1=key == (None, None)
                    )
                note = next((str(w.message) for w in caught), None)
                self._thresholds[key] = (value, note)
            return self._thresholds[key]

    def check_known(self, ids: Iterable[Any]) -> None:
        """Raise if the calibrator does not know an item."""
        self._known(list(ids))

    def _known(self, ids: Sequence[Any]) -> np.ndarray:
        """Return the calibrator's ids of items; raises for an unknown one."""
        names = np.empty(len(ids), dtype=object)
        names[:] = [self._name_of(one) for one in ids]
        unknown = [one for one, name in zip(ids, names, strict=True) if name is None]
        if unknown:
            raise UnknownItemError(
                f"{self._name} has no entry for {len(unknown):,} of these items of the gallery, such as "
                f"{str(unknown[0])[:60]!r}. Add them with MatchCalibrator.append, or calibrate again."
            )
        return names

    def _limit(self, options: MatchOptions) -> int:
        if options.limit is not None:
            return options.limit
        return self.calibrator.limit if options.recall is None else _MOST_FOR_RECALL

    def _name_of(self, item: Any) -> Any:
        """The calibrator's id of an item; None if it has none."""
        text = str(item)
        if self._names is not None:
            return self._names.get(text)
        row = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        known = 0 <= row < len(self.calibrator.hubness_) and str(row) == text
        return row if known else None

    def _search(self, direction: VonMisesFisher, limit: int, **options: Any) -> Hits:
        hits = self.index.search(direction, 1.0, limit=limit, options=_EVERYTHING, **options)
        assert isinstance(hits, Hits)  # of one query
        return hits


class UnknownItemError(MissingInputError):
    """An item of the gallery was added after the calibrator was fitted."""


def without_item(hits: Hits, item: Any) -> Hits:
    """The hits without an item; all of them for None."""
    if item is None or item not in hits.ids:
        return hits
    return pick_hits(hits, [place for place, name in enumerate(hits.ids) if name != item])


def _check_same(calibrator: MatchCalibrator, dim: int, origin: Origin, name: str) -> None:
    """Raise if the calibrator was not fitted on the directions of the gallery, as far as is known."""
    remedy = "Fit it on the mu of queries and gallery, with encoder=index.origin.fingerprint."
    own, theirs = calibrator.encoder_, origin.fingerprint
    if None not in (own, theirs) and own != theirs:
        if origin.weights is not None and own == origin.encoder:
            raise EncoderError(
                f"{name} was fitted on vectors of the encoder, but this gallery holds the directions of a head. "
                + remedy
            )
        raise EncoderError(
            f"{name} was fitted on vectors of another model than this gallery's (their fingerprints differ). {remedy}"
        )
    if calibrator.dim_ != dim:
        raise EncoderError(
            f"{name} was fitted on vectors of dimension {calibrator.dim_}, but the gallery has dimension {dim}. "
            + remedy
        )
