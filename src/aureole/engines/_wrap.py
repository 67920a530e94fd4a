"""Wrapped indexes: credible search in an index, table or collection that exists already, without copying its vectors.

An adapter (``Source``) per engine reads rows; ``WrappedStore`` turns them into a read-only ``Store``. It adds kappa,
from a column, by id, or one for all, applies filters, and checks the vectors: engines that compare cosines take any
length but 0, while inner products and distances rank by cosine only if all vectors have length 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from aureole.engines._filters import Condition, matches
from aureole.engines._schema import POINT, Rows, Schema, no_rows, pick_rows
from aureole.engines._store import Names, Selection
from aureole.errors import InvalidInputError

UNIT_TOLERANCE = 1e-3  # of the length of vectors that are compared by inner product or distance
_SAMPLE = 1000  # rows that are checked when an index is wrapped
_TYPES = {str: "text", int: "integer", float: "number", bool: "boolean"}


@runtime_checkable
class Source(Protocol):
    """What an adapter must provide. Rows have their vectors as mu, kappa 0, and columns as payload.

    - ``unit``: the engine compares inner products or distances, so that vectors must have length 1.
    - ``check_all``: whether to check all vectors when it is wrapped, or only the first 1,000.
    - The methods are those of ``Searcher``; a selection has no conditions.
    """

    engine: str
    dim: int
    unit: bool
    check_all: bool

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]: ...

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]: ...

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows: ...

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]: ...

    def count(self) -> int: ...

    def approximate(self) -> dict[str, Any] | None: ...

    def close(self) -> None: ...


class WrappedStore:
    """A ``Searcher`` around a source; it is read-only, and notes are kept in memory."""

    schema: Schema

    def __init__(self, source: Source, names: Names, kappa: Any) -> None:
        self._source, self._kappa = source, kappa
        self._notes: dict[str, str] = {}
        self.engine = self.where = source.engine
        self._column = kappa if isinstance(kappa, str) else None
        wanted = self._with_kappa(names.columns)
        values: dict[str, list[Any]] = {name: [] for name in wanted}
        for rows in _first(
            source.scan(wanted, vectors=True), None if source.check_all else _SAMPLE
        ):
            self._complete(rows, ())
            for name in wanted:
                values[name] += rows.payload[name].tolist()[: _SAMPLE - len(values[name])]
        typical = self._typical_kappa(values.get(self._column or ""))
        columns = {name: _type_of(values[name], name) for name in names.columns}
        self.schema = Schema(source.dim, columns, min(typical, POINT))

    def count(self) -> int:
        """The number of rows."""
        return self._source.count()

    def version(self) -> str:
        """The number of rows: what else changes is not noticed."""
        return str(self._source.count())

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids; mu has length 1."""
        rows = self._complete(self._source.fetch(ids, self._with_kappa(columns)), columns)
        length = np.linalg.norm(rows.mu.astype(np.float64), axis=-1, keepdims=True)
        return replace(rows, mu=(rows.mu / length).astype(np.float32))

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows."""
        for rows in self._source.scan(self._with_kappa(columns), vectors=vectors):
            yield self._complete(rows, columns, checked=False)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound; the filter is applied to what the engine returns."""
        filtered = [condition.column for condition in selection.conditions]
        columns = self._with_kappa(dict.fromkeys([*selection.columns, *filtered]))
        margin = 2 * UNIT_TOLERANCE if self._source.unit else 0.0
        own = Selection((), columns, selection.exact)
        for rows in self._source.candidates(mu, bounds - margin, own):
            if selection.conditions:
                rows = pick_rows(rows, _selected(rows, selection.conditions))
            yield self._complete(rows, selection.columns)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query; none with a filter, which engines apply before or after in many ways."""
        k = min(k, self.count())
        if selection.conditions or k == 0:
            yield from (no_rows(selection.columns, self._source.dim) for _ in mu)
            return
        own = Selection((), self._with_kappa(selection.columns), selection.exact)
        for rows in self._source.nearest(mu, k, own):
            yield self._complete(rows, selection.columns)

    def approximate(self) -> dict[str, Any] | None:
        """The approximate index that the engine has, or None."""
        return self._source.approximate()

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        return self._notes.get(name)

    def write_note(self, name: str, text: str) -> None:
        """Keep a note in memory."""
        self._notes[name] = text

    def close(self) -> None:
        """Close what was opened; your own index or client stays open."""
        self._source.close()

    def _with_kappa(self, columns: Sequence[str] | dict[str, None]) -> list[str]:
        """The columns to read, with that of kappa."""
        return list(dict.fromkeys([*columns, *([self._column] if self._column else [])]))

    def _complete(self, rows: Rows, columns: Sequence[str], *, checked: bool = True) -> Rows:
        """Rows with kappa, and with these columns alone."""
        if checked:
            rows = self._check(rows)
        kappa = self._kappas(rows)
        bad = np.flatnonzero(~(kappa >= 0))
        if len(bad):
            raise InvalidInputError(
                f"id {rows.ids[bad[0]]!r} has kappa {kappa[bad[0]]:g} in the wrapped index; kappa must be at least 0."
            )
        payload = {name: rows.payload[name] for name in columns}
        return Rows(rows.ids, rows.mu, kappa, payload)

    def _check(self, rows: Rows) -> Rows:
        """Rows whose vectors have a direction; raise if their length is not what the engine's metric needs."""
        if rows.mu.shape[1:] != (self._source.dim,):
            raise InvalidInputError(
                f"the wrapped index has vectors of {self._source.dim} dimensions, but returned {rows.mu.shape[1:]}."
            )
        length = np.linalg.norm(rows.mu.astype(np.float64), axis=-1)
        wrong = ~np.isfinite(length)
        if self._source.unit:
            wrong = ~(np.abs(length - 1) <= UNIT_TOLERANCE)
        if wrong.any():
            first = int(wrong.argmax())
            raise InvalidInputError(
                f"id {rows.ids[first]!r} has a vector of length {length[first]:.4g}, but {self.engine} compares inner "
                "products or distances here, which rank by cosine only if all lengths are 1. Normalise the vectors, or "
                "use the engine's cosine metric."
            )
        return rows if length.all() else pick_rows(rows, length > 0)

    def _kappas(self, rows: Rows) -> np.ndarray:
        if self._column is not None:
            values = rows.payload[self._column]
        elif self._kappa is None:
            return np.full(len(rows), np.inf, np.float32)
        elif isinstance(self._kappa, Mapping | np.ndarray):
            values = [_entry(self._kappa, name) for name in rows.ids]
            if any(value is None for value in values):
                missing = rows.ids[next(i for i, value in enumerate(values) if value is None)]
                raise InvalidInputError(
                    f"kappa has no entry for id {missing!r}. Give one for each id of the wrapped index."
                )
        else:
            return np.full(len(rows), self._kappa, np.float32)
        try:
            return np.array([np.nan if v is None else v for v in values], np.float32)
        except (TypeError, ValueError) as error:
            source = "the given kappa" if self._column is None else f"column {self._column!r}"
            raise InvalidInputError(
                f"kappa must be numbers, but {source} holds other values: {error}."
            ) from error

    def _typical_kappa(self, stored: list[Any] | None) -> float:
        """The median of a sample: of the column's first rows, or of all given values."""
        if self._kappa is None:
            return POINT
        if isinstance(self._kappa, float):
            return self._kappa
        values = stored
        if isinstance(self._kappa, Mapping):
            values = list(self._kappa.values())
        elif isinstance(self._kappa, np.ndarray):
            values = self._kappa.tolist()
        known = [v for v in values or [] if isinstance(v, int | float) and v >= 0]
        return float(np.median(known)) if known else 1.0


def check_kappa(kappa: Any) -> Any:
    """Kappa as a column name, a number, a mapping by id, an array by id, or None."""
    if kappa is None or isinstance(kappa, str | Mapping):
        return kappa
    values = np.asarray(kappa.detach().cpu() if isinstance(kappa, torch.Tensor) else kappa)
    if values.dtype.kind not in "fiu" or values.ndim > 1:
        raise InvalidInputError(
            "kappa must be the name of a column, one number, a mapping from id to kappa, or an array [n] whose i-th "
            f"entry belongs to the id i, but is {type(kappa).__name__} of shape {values.shape}."
        )
    if not (values >= 0).all():
        raise InvalidInputError("kappa must be at least 0 everywhere, and not NaN.")
    return values if values.ndim else float(values)


def _first(batches: Iterator[Rows], most: int | None) -> Iterator[Rows]:
    """Batches until they have ``most`` rows; all of them if it is None."""
    seen = 0
    for rows in batches:
        yield rows
        seen += len(rows)
        if most is not None and seen >= most:
            break


def _type_of(values: list[Any], name: str) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        kinds = {float}
    if not kinds:
        return "text"
    (kind, *more) = kinds
    if more or kind not in _TYPES:
        got = ", ".join(sorted(k.__name__ for k in kinds))
        raise InvalidInputError(
            f"column {name!r} holds {got}, but payload columns hold one of str, int, float or bool. Leave it out, and "
            "look it up by id."
        )
    return _TYPES[kind]


def _selected(rows: Rows, conditions: Sequence[Condition]) -> np.ndarray:
    """Which rows meet all conditions; a missing value meets none."""
    kept = np.ones(len(rows), bool)
    for condition in conditions:
        kept &= np.array([value is not None for value in rows.payload[condition.column]], bool)
    places = np.flatnonzero(kept)
    payload = {c.column: rows.payload[c.column][places] for c in conditions}
    kept[places] = matches(conditions, payload, len(places))
    return kept


def _entry(kappa: Any, name: Any) -> Any:
    """The kappa of an id; None if it has none."""
    if isinstance(kappa, Mapping):
        return kappa.get(name)
    return kappa[name] if isinstance(name, int) and 0 <= name < len(kappa) else None
