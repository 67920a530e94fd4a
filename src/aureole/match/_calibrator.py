"""Match probabilities: which results are good enough, for the vectors you already have.

A cosine means something else for every query and every item: a vague query is close to many items, and some items are
close to every query. ``MatchCalibrator`` corrects for both and learns, from queries with known matches, the probability
that an item matches a query. Vectors and database stay as they are; the calibrator keeps one number per item.
"""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from safetensors.numpy import load_file, save

from aureole._io import atomic_file, atomic_write, check_local
from aureole._validation import check_size
from aureole.errors import AureoleWarning, InvalidInputError, MissingInputError
from aureole.match._fitting import (
    BLOCK,
    Weights,
    apply_query_map,
    fit_query_map,
    fit_weights,
    increasing_curve,
    interpolate,
    labels_of,
    mean_of_best,
    nearest,
    sigmoid,
    soften,
    unit_rows,
    unsoften,
)
from aureole.match._quality import (
    MatchQuality,
    Scored,
    best_f1_score,
    precision_score,
    quality_at,
    recall_score,
    reliability_bins,
)

_FORMAT = "aureole-match-1"
_OPTIONS = ("neighbours", "candidates", "limit", "confidence", "seed", "query_map")
_ARRAYS = ("hubness", "reference", "curve", "held_out_rows")
_FEWEST = 20  # labelled queries
_MOST_FITTED = 4000  # labelled queries in the regression; the hubness uses all of them
_MOST_HELD_OUT = 2000
# New queries are reported as drift from so many on, if levels differ by so many standard errors and deviations.
_DRIFT_QUERIES, _DRIFT, _SHIFT = 30, 4.0, 0.5


class MatchCalibrator:
    r"""The probability that an item matches a query, learned from queries with known matches.

    .. math:: \log\frac{P}{1 - P} = g\big(w_1 \cos(q, x) - w_2\, r(q) - w_3\, h(x)\big)

    r(q), the level of a query, is the mean of its ten highest cosines in the gallery; h(x), the hubness of an item, is
    the mean of its ten highest cosines with queries that it does not match. With :math:`w = (2, 1, 1)` this is CSLS
    (Conneau et al., 2018); with few labelled queries the weights stay near it. g is increasing, so the probability
    increases with the cosine.

    Half of the labelled queries, at most 2,000, are held out of the regression and of the hubness. They shape g, and
    thresholds get their guarantee from them.

    Cost of ``fit``: two products of all queries with the gallery, n m dim. It keeps one number per item.

    Parameters
    ----------
    neighbours
        Cosines that are averaged in the level and the hubness (default 10).
    candidates
        Items per query in the regression (default 100).
    limit
        Largest number of results per query that a precision threshold is made for (default 10).
    confidence
        Of the guarantees (default 0.9).
    seed
        Of the split into fitted and held-out queries (default 0).
    query_map
        Learn a linear map of the queries too (default False). The gallery and its index stay as they are; search with
        :meth:`map_queries`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gallery = rng.standard_normal((500, 16))
    >>> right = rng.integers(500, size=600)
    >>> noise = rng.uniform(0.2, 1.2, (600, 1)) * rng.standard_normal((600, 16))
    >>> queries = gallery[right] + noise
    >>> calibrator = MatchCalibrator().fit(queries[:500], gallery, [[row] for row in right[:500]])
    >>> threshold = calibrator.threshold(precision=0.8)
    >>> cosines, items = nearest(queries[500:], gallery, 100)  # or what your database returns
    >>> kept = calibrator.probability(cosines, items) >= threshold
    >>> bool((items == right[500:, None])[kept].mean() > 0.8)
    True
    """

    def __init__(
        self,
        *,
        neighbours: int = 10,
        candidates: int = 100,
        limit: int = 10,
        confidence: float = 0.9,
        seed: int = 0,
        query_map: bool = False,
    ) -> None:
        self.neighbours, self.candidates, self.limit = neighbours, candidates, limit
        self.confidence, self.seed, self.query_map = confidence, seed, query_map

    def fit(
        self,
        queries: Any,
        gallery: Any,
        matches: Sequence[Sequence[Any]],
        *,
        ids: Sequence[Any] | None = None,
        other_queries: Any = None,
        encoder: str | None = None,
    ) -> "MatchCalibrator":
        """Learn from labelled queries.

        Parameters
        ----------
        queries, gallery
            Vectors, one per row; they are normalised here.
        matches
            For each query, the ids of the items that match it.
        ids
            Of the items (default: their row numbers).
        other_queries
            Vectors of queries without labels, which improve the hubness.
        encoder
            Fingerprint of the encoder. It is stored, and compared by the commands.
        """
        self._check_options()
        queries, gallery = unit_rows(queries, "queries"), unit_rows(gallery, "gallery")
        others = gallery[:0] if other_queries is None else unit_rows(other_queries, "other_queries")
        _check_sizes(queries, gallery, matches, others)
        self.ids_ = None if ids is None else list(ids)
        self._row_of = _rows_by_id(self.ids_, len(gallery))
        rows = [np.array([self._row(item) for item in group], dtype=np.int64) for group in matches]
        order = np.random.default_rng(self.seed).permutation(len(queries))
        held, fitted = np.split(order, [min(len(order) // 2, _MOST_HELD_OUT)])
        self.held_out_rows_ = held  # of the queries
        self.map_ = None
        if self.query_map:
            groups = [rows[i] for i in fitted]
            self.map_ = fit_query_map(queries[fitted], gallery, groups, self.seed)
        self.dim_ = gallery.shape[1]
        queries = apply_query_map(queries, self.map_)
        self.reference_ = np.concatenate([queries[fitted], apply_query_map(others, self.map_)])
        best = self._item_cosines(gallery, self.reference_, [rows[i] for i in fitted])
        self.hubness_ = mean_of_best(best, self.neighbours).astype(np.float32)
        self.encoder_ = encoder
        chosen = fitted[:_MOST_FITTED]
        part = queries[chosen], gallery, [rows[i] for i in chosen]
        self.weights_ = self._regression(*part, best)
        self.fitted_ = self._scored(*part)
        self.held_out_ = self._scored(queries[held], gallery, [rows[i] for i in held])
        self.curve_ = increasing_curve(self.held_out_.candidates, self.held_out_.labels)
        self._null = np.sort(self.held_out_.best_wrong)
        return self

    def map_queries(self, queries: Any) -> Float[np.ndarray, "n dim"]:
        """Return the vectors to search with: of length 1, and mapped if the calibrator has a query map."""
        queries = unit_rows(queries, "queries")
        if queries.shape[1] != self.dim_:
            raise InvalidInputError(
                f"queries have dimension {queries.shape[1]}, but the calibrator was fitted on {self.dim_}."
            )
        return apply_query_map(queries, self.map_)

    def probability(
        self, cosines: Any, items: Any, *, level: Any = None
    ) -> Float[np.ndarray, "..."]:
        """Return the probability that each item matches its query.

        Parameters
        ----------
        cosines
            The highest cosines of one query, shape (k,), or of several, (n, k). At least ``neighbours`` of them, from
            an unfiltered search, unless ``level`` is given.
        items
            The ids of these items, of the same shape.
        level
            The level of each query, from :meth:`level` (default: that of ``cosines``). Pass it if the search was
            filtered or returned few results.
        """
        cosines, items = _cosines(cosines), np.asarray(items)
        if items.shape != cosines.shape:
            raise InvalidInputError(
                f"cosines and items must have the same shape, but have {cosines.shape} and {items.shape}."
            )
        level = self.level(cosines) if level is None else np.asarray(level, dtype=np.float64)
        self._warn_of_drift(level)
        return self._pair_probability(cosines, self._rows_of(items), level)

    def _pair_probability(
        self, cosines: np.ndarray, rows: np.ndarray, level: np.ndarray
    ) -> Float[np.ndarray, "..."]:
        """Return :meth:`probability` from the rows of the items, for inputs that were checked."""
        score = self.weights_.score(cosines, level[..., None], self.hubness_[rows])
        return self._to_probability(score)

    def level(self, cosines: Any) -> Float[np.ndarray, "..."]:
        """Return the mean of the ``neighbours`` highest cosines of each query, from an unfiltered search."""
        cosines = _cosines(cosines)
        needed = min(self.neighbours, len(self.hubness_))
        if cosines.shape[-1] < needed:
            raise InvalidInputError(
                f"the level of a query needs its {needed} highest cosines, but got {cosines.shape[-1]}. Retrieve more, "
                "or pass level."
            )
        return mean_of_best(cosines, needed)

    def radius(self, threshold: float, level: Any) -> Float[np.ndarray, "..."]:
        """Return the smallest cosine with which any item can reach a probability, for a database's range search.

        It is a lower bound for the items with the lowest hubness: the range holds every item at or above the threshold
        and others, so apply :meth:`probability` to what the search returns.
        """
        level = np.asarray(level, dtype=np.float64)
        score = self._to_score(threshold)
        hubness = self.hubness_.min() if self.weights_.hubness >= 0 else self.hubness_.max()
        rest = self.weights_.score(np.zeros_like(level), level, float(hubness))
        return np.asarray(np.clip((score - rest) / self.weights_.cosine, -1.0, 1.0))

    def threshold(
        self, *, precision: float | None = None, recall: float | None = None, f1: bool = False
    ) -> float:
        """Return the probability at which to cut results, by exactly one of three aims.

        - ``precision``: of all results with at least this probability, at most ``limit`` per query, this share matches.
        - ``recall``: of the matches of a query, this share has at least this probability, on average over queries.
        - ``f1``: the best balance of the two on the held-out queries, without a guarantee.

        Precision and recall are controlled by Learn-then-Test: with probability ``confidence`` over the held-out
        queries, the expected precision or recall for new queries of the same kind is at least the one asked for. If
        there are too few held-out queries to show this for any threshold, it warns and returns 1 (no results) for
        precision and 0 (all results) for recall.
        """
        if (precision is not None) + (recall is not None) + f1 != 1:
            raise InvalidInputError("threshold takes exactly one of precision, recall and f1.")
        if precision is not None:
            share = _share(precision, "precision")
            limits = {"limit": self.limit, "confidence": self.confidence}
            score = precision_score(self.fitted_, self.held_out_, share, **limits)
        elif recall is not None:
            share = _share(recall, "recall")
            score = recall_score(self.fitted_, self.held_out_, share, confidence=self.confidence)
        else:
            score = best_f1_score(self.held_out_)
        return float(self._to_probability(np.array(score)))

    def quality(self, threshold: float, *, bootstrap: int = 200) -> MatchQuality:
        """Return precision, recall and number of results on the held-out queries."""
        score = self._to_score(threshold)
        return quality_at(self.held_out_, score, threshold, bootstrap=bootstrap, seed=self.seed)

    def reliability(self, bins: int = 10) -> list[tuple[float, float, int]]:
        """Return mean probability, share of matches and number of the held-out candidates, in bins of equal width.

        These candidates also shaped the curve from scores to probabilities, so new queries agree a little less.
        """
        held = self.held_out_
        return reliability_bins(self._to_probability(held.candidates), held.labels, bins)

    def no_match_p_value(self, cosines: Any) -> Float[np.ndarray, "..."]:
        """Return the share of queries without a match in the gallery whose highest cosine is at least as high.

        From the held-out queries with their matches removed. Return no results where it exceeds 0.05, and at most one
        query in twenty without a match gets some. Many queries with a match exceed it too if wrong items are often as
        close, so choose the cut on your own queries. The highest cosine is used because it separates such queries
        better than the probability does, which is corrected for the level of the query. It describes the gallery,
        unlike kappa, which describes the query alone.
        """
        highest = _cosines(cosines).max(axis=-1).astype(np.float32)
        null = self._null
        above = len(null) - null.searchsorted(highest, side="left")
        return np.asarray((1 + above) / (len(null) + 1))

    def append(self, vectors: Any, ids: Sequence[Any] | None = None) -> None:
        """Add items to the gallery: their hubness is computed, and nothing else changes."""
        vectors = unit_rows(vectors, "vectors")
        if (ids is None) != (self.ids_ is None) or (ids is not None and len(ids) != len(vectors)):
            raise InvalidInputError(
                "append needs one id for each vector if fit had ids, and none otherwise."
            )
        best = self._item_cosines(vectors, self.reference_, [])
        hubness = mean_of_best(best, self.neighbours).astype(np.float32)
        if ids is not None and self.ids_ is not None:
            merged = [*self.ids_, *ids]
            self._row_of, self.ids_ = _rows_by_id(merged, len(merged)), merged
        self.hubness_ = np.concatenate([self.hubness_, hubness])

    def save(self, folder: str | Path) -> None:
        """Write ``match.json`` and ``match.safetensors``."""
        folder = Path(folder)
        check_local(folder)
        described = {
            "format": _FORMAT,
            "options": {name: getattr(self, name) for name in _OPTIONS},
            "weights": asdict(self.weights_),
            "encoder": self.encoder_,
            "ids": self.ids_,
        }
        arrays = {name: getattr(self, f"{name}_") for name in _ARRAYS}
        arrays |= {} if self.map_ is None else {"map": self.map_}
        for part in ("fitted", "held_out"):
            scored = asdict(getattr(self, f"{part}_"))
            arrays |= {f"{part}.{name}": value for name, value in scored.items()}
        plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        with atomic_file(folder / "match.safetensors") as file:
            file.write(save(plain))
        atomic_write(folder / "match.json", json.dumps(described))

    @classmethod
    def load(cls, folder: str | Path) -> "MatchCalibrator":
        """Read a saved calibrator; the files may be untrusted."""
        folder = Path(folder)
        if not (folder / "match.json").is_file():
            raise MissingInputError(f"{folder} holds no calibrator: match.json not found.")
        try:
            described = json.loads((folder / "match.json").read_text())
            if described["format"] != _FORMAT:
                raise ValueError(described["format"])
            arrays = load_file(folder / "match.safetensors")
            self = cls(**{name: described["options"][name] for name in _OPTIONS})
            self._check_options()
            self.weights_ = Weights(**{k: float(v) for k, v in described["weights"].items()})
            self.encoder_, self.ids_ = described["encoder"], described["ids"]
            for name in _ARRAYS:
                setattr(self, f"{name}_", arrays[name])
            self.map_ = arrays.get("map")
            self.dim_ = self.reference_.shape[1]
            if self.map_ is not None and self.map_.shape != (self.dim_, self.dim_):
                raise ValueError(f"map of shape {self.map_.shape}")
            self.fitted_, self.held_out_ = (
                Scored(**{name: arrays[f"{part}.{name}"] for name in Scored.__annotations__})
                for part in ("fitted", "held_out")
            )
            self._row_of = _rows_by_id(self.ids_, len(self.hubness_))
            self._null = np.sort(self.held_out_.best_wrong)
        except Exception as error:
            raise InvalidInputError(f"{folder} holds no valid calibrator: {error!r}.") from error
        return self

    def _check_options(self) -> None:
        """Raise unless the options are in range."""
        for name in ("neighbours", "candidates", "limit"):
            check_size(name, getattr(self, name), 1)
        _share(self.confidence, "confidence")

    def _item_cosines(
        self, items: np.ndarray, queries: np.ndarray, matches: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return the ``neighbours`` + 1 highest cosines of each item with queries that it does not match."""
        count = min(self.neighbours + 1, len(queries))
        owners = np.repeat(np.arange(len(matches)), [len(group) for group in matches])
        matched = np.concatenate(matches) if matches else np.zeros(0, np.int64)
        order = np.argsort(matched, kind="stable")
        owners, matched = owners[order], matched[order]
        parts = []
        for start in range(0, len(items), BLOCK):
            cosines = items[start : start + BLOCK] @ queries.T
            low, high = np.searchsorted(matched, [start, start + len(cosines)])
            cosines[matched[low:high] - start, owners[low:high]] = -np.inf
            best = np.partition(cosines, cosines.shape[1] - count, axis=1)[:, -count:]
            parts.append(-np.sort(-best, axis=1))
        return np.concatenate(parts)

    def _regression(
        self,
        queries: np.ndarray,
        gallery: np.ndarray,
        matches: Sequence[np.ndarray],
        best: np.ndarray,
    ) -> Weights:
        """Logistic regression on candidates, with a prior around CSLS.

        A query of the regression is also one of the hubness: its own cosine is left out of that of its candidates.
        """
        cosines, rows = nearest(queries, gallery, self.candidates)
        labels = labels_of(rows, matches)
        around = best[rows]
        own = cosines >= around[..., -1]
        hubness = mean_of_best(around, self.neighbours)
        without = (np.where(np.isfinite(around), around, 0.0).sum(-1) - cosines) / self.neighbours
        if best.shape[1] == self.neighbours + 1:
            hubness = np.where(own & ~labels, without, hubness)
        level = np.broadcast_to(mean_of_best(cosines, self.neighbours)[:, None], cosines.shape)
        features = np.stack([cosines, -level, -hubness], axis=-1)
        return fit_weights(features[np.isfinite(hubness)], labels[np.isfinite(hubness)])

    def _scored(
        self, queries: np.ndarray, gallery: np.ndarray, matches: Sequence[np.ndarray]
    ) -> Scored:
        cosines, rows = nearest(queries, gallery, self.candidates)
        labels = labels_of(rows, matches)
        level = mean_of_best(cosines, self.neighbours)
        scores = self.weights_.score(cosines, level[:, None], self.hubness_[rows])
        owners = np.repeat(np.arange(len(matches)), [len(group) for group in matches])
        matched = np.concatenate(matches) if len(owners) else np.zeros(0, np.int64)
        own = np.einsum("nd,nd->n", queries[owners], gallery[matched])
        return Scored(
            candidates=scores.astype(np.float32),
            labels=labels,
            matches=self.weights_.score(own, level[owners], self.hubness_[matched]).astype("f4"),
            owners=owners,
            best_wrong=np.where(labels, -1.0, cosines).max(1).astype(np.float32),
            levels=level.astype(np.float32),
        )

    def _warn_of_drift(self, level: np.ndarray) -> bool:
        """Warn, and return True, if levels of new queries differ from those of the held-out queries."""
        known = self.held_out_.levels
        if level.size < _DRIFT_QUERIES:
            return False
        error = math.sqrt(1 / level.size + 1 / len(known))
        drifted = bool(abs(level.mean() - known.mean()) > max(_DRIFT * error, _SHIFT) * known.std())
        if drifted:
            warnings.warn(
                f"the highest cosines of these queries average {level.mean():.3f}, but {known.mean():.3f} when the "
                "calibrator was fitted: they may be of another kind or another encoder. Fit again on such queries.",
                AureoleWarning,
                stacklevel=3,
            )
        return drifted

    def _to_probability(self, score: np.ndarray) -> np.ndarray:
        return sigmoid(soften(interpolate(self.curve_[0], self.curve_[1], score)))

    def _to_score(self, probability: float) -> float:
        if not 0 <= probability <= 1:
            raise InvalidInputError(f"threshold must be between 0 and 1, but is {probability!r}.")
        if probability in (0, 1):
            return -math.inf if probability == 0 else math.inf
        odds = unsoften(np.array(math.log(probability) - math.log1p(-probability)))
        return float(interpolate(self.curve_[1], self.curve_[0], odds))

    def _rows_of(self, items: np.ndarray) -> Int[np.ndarray, "..."]:
        """Return the row of each item; raises for one that the calibrator does not have."""
        plain = self.ids_ is None and items.dtype.kind in "iu" and items.size
        if plain and items.min() >= 0 and items.max() < len(self.hubness_):
            return items
        names, known = items.ravel().tolist(), self._row_of
        try:
            rows = [known[name] for name in names]  # type: ignore[index]
        except (KeyError, TypeError):
            rows = [self._row(name) for name in names]  # integers, or an id to report
        return np.array(rows, dtype=np.int64).reshape(items.shape)

    def _row(self, item: Any) -> int:
        known, row = self._row_of, None
        if isinstance(known, dict):
            row = known.get(item)
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            row = int(item) if 0 <= item < known else None
        if row is None:
            raise InvalidInputError(
                f"item {str(item)[:60]!r} is not in the gallery of the calibrator. Call append for new items."
            )
        return row


def _check_sizes(
    queries: np.ndarray, gallery: np.ndarray, matches: Sequence[Any], others: np.ndarray
) -> None:
    if len(queries) != len(matches):
        raise InvalidInputError(
            f"matches must have one list of ids per query, but there are {len(matches)} lists and {len(queries)} "
            "queries."
        )
    if len(queries) < _FEWEST:
        raise InvalidInputError(
            f"fit needs at least {_FEWEST} labelled queries, but got {len(queries)}."
        )
    for name, array in (("queries", queries), ("other_queries", others)):
        if array.shape[1] != gallery.shape[1]:
            raise InvalidInputError(
                f"{name} have dimension {array.shape[1]}, but the gallery has {gallery.shape[1]}."
            )


def _rows_by_id(ids: Sequence[Any] | None, count: int) -> dict[Any, int] | int:
    """Return the row of each id; without ids, the number of rows."""
    if ids is None:
        return count
    rows = {name: row for row, name in enumerate(ids)}
    if len(ids) != count or len(rows) != count:
        raise InvalidInputError(
            f"the gallery has {count} items, but there are {len(ids)} ids, {len(rows)} of them distinct."
        )
    return rows


def _cosines(cosines: Any) -> np.ndarray:
    array = np.asarray(cosines, dtype=np.float64)
    if array.ndim not in (1, 2) or not array.shape[-1] or not (np.abs(array) <= 1.001).all():
        raise InvalidInputError(
            f"cosines must lie between -1 and 1 and have shape (k,) or (n, k), but have shape {array.shape}. Convert "
            "distances first: 1 - distance for cosine distances."
        )
    return array


def _share(value: float, name: str) -> float:
    if not 0 < value < 1:
        raise InvalidInputError(f"{name} must lie between 0 and 1, but is {value!r}.")
    return float(value)
