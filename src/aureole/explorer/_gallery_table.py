"""GalleryTable: the rows of a gallery in the order of kappa, as Arrow columns, with a search for text."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aureole.caps import CredibleIndex
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingPackageError
from aureole.explorer._gallery_map import GalleryMap, map_stamp, read_map

Order = Literal["ambiguous", "certain"]
Batch = tuple[Sequence[Any], np.ndarray, Mapping[str, Sequence[Any]]]
MAX_HITS = 200_000  # rows that a text search returns
_MAX_CATEGORIES = 10_000
_FEW = 50  # so many distinct values are always a category
_SEARCHED = 1000  # characters of each text that are searched
_NAMED = 100  # classes that are listed with their sizes
NO_MAP = "this gallery has no map. Make one with: aureole index map GALLERY"


def _arrow() -> tuple[Any, Any]:
    """Return pyarrow and its functions."""
    try:
        import pyarrow
        from pyarrow import compute
    except ImportError as error:
        raise MissingPackageError(
            "the explorer needs pyarrow: pip install 'aureole[explore]'."
        ) from error
    return pyarrow, compute


@dataclass(frozen=True)
class Column:
    """A column in row order: float32 numbers (missing: NaN), or codes of ``values``; a text has no data.

    Codes are uint16; the largest one stands for a missing value.
    """

    name: str
    kind: Literal["number", "category", "text"]
    data: np.ndarray | None = None
    values: list[Any] | None = None

    @property
    def type(self) -> str:
        """The type of the data, as in ``X-Aureole-Type``: f4 or u2."""
        return "" if self.data is None else f"{self.data.dtype.kind}{self.data.itemsize}"

    def content(self) -> bytes:
        """Return the data, little endian."""
        assert self.data is not None
        return self.data.astype(self.data.dtype.newbyteorder("<"), copy=False).tobytes()

    def describe(self) -> dict[str, Any]:
        """Return the entry of the column in ``GET /v1/table``."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind == "category":
            return found | {"values": self.values}
        if self.kind == "number":
            assert self.data is not None
            finite = self.data[np.isfinite(self.data)]
            low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
            return found | {"low": low, "high": high}
        return found

    def part(self, rows: np.ndarray) -> dict[str, Any]:
        """Return ``describe()`` of some rows with their data in base64, and only the values that occur."""
        if self.data is None:
            return self.describe()
        values, data = self.values, self.data[rows]
        if values is not None:
            used, codes = np.unique(data, return_inverse=True)
            values, data = [values[code] for code in used.tolist()], codes.astype(data.dtype)
        part = Column(self.name, self.kind, data, values)
        packed = base64.b64encode(part.content()).decode()
        return part.describe() | {"type": part.type, "data": packed}


class GalleryTable:
    """The rows of a gallery, numbered by kappa from the least certain on, ties by id.

    What the map, the selections, the lists and the filters of the explorer work on: columns of 4 or 2 bytes per row,
    ids by number and back, and a search for text. A snapshot in memory: about 50 bytes per row, the ids, and the texts
    once (without case, 1,000 characters each).

    Parameters
    ----------
    batches
        (Ids, kappa, payload) of all rows, as ``CredibleIndex.scan`` yields them.
    columns
        The types of the payload columns, as in a gallery's schema.
    label_column
        The column of classes; always a category unless it has more than 10,000 values.
    text_column
        The column of texts; never a category.
    version
        A text that changes with the rows.

    Examples
    --------
    >>> rows = [(["ant", "bee", "cat"], np.array([5.0, 1.0, 3.0]), {"shop": ["a", "b", "a"]})]
    >>> table = GalleryTable(rows, {"shop": "text"}, label_column="shop")
    >>> table.ids([0, 1, 2]), table.numbers(["ant", "dog"])
    (['bee', 'cat', 'ant'], [2, None])
    >>> kappa, shop = table.columns.values()
    >>> kappa.data.tolist(), shop.data.tolist(), shop.values
    ([1.0, 3.0, 5.0], [1, 0, 0], ['a', 'b'])
    >>> table.find("A")  # "ant", "cat", and the shop "a"
    (array([1, 2], dtype=uint32), False)
    >>> table.page("ambiguous", 0, 9, label="a"), table.rank(3.0)
    ((['cat', 'ant'], 2), 0.3333333333333333)
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        columns: Mapping[str, str],
        *,
        label_column: str | None = None,
        text_column: str | None = None,
        version: str = "",
    ) -> None:
        pa, compute = _arrow()
        names: list[Any] = []
        kappas = [np.zeros(0, np.float32)]
        payload: dict[str, list[Any]] = {name: [] for name in columns}
        texts: dict[str, list[Any]] = {name: [] for name, kind in columns.items() if kind == "text"}
        texts = {"id": [], **texts}
        for ids, kappa, values in batches:
            names.append(pa.array([str(name) for name in ids], pa.large_string()))
            kappas.append(np.asarray(kappa, np.float32))
            for name, kind in columns.items():
                payload[name].append(_payload_array(pa, kind, values[name]))
            for name in texts:
                folded = _folded(pa, names[-1].to_pylist() if name == "id" else values[name])
                texts[name].append(folded)
        kappa, ids = np.concatenate(kappas), pa.chunked_array(names, pa.large_string())
        keys = [("kappa", "ascending"), ("id", "ascending")]
        order = compute.sort_indices(pa.table({"kappa": kappa, "id": ids}), sort_keys=keys)
        self._order = order.to_numpy().astype(np.uint32)
        self._row_of = np.empty_like(self._order)
        self._row_of[self._order] = np.arange(len(self._order), dtype=np.uint32)
        self._ids, self.kappa = ids.take(order).combine_chunks(), kappa[self._order]
        self._found = {
            name: pa.chunked_array(parts, pa.large_binary()) for name, parts in texts.items()
        }
        self._label, self._text = label_column, text_column
        self._label_codes: np.ndarray | None = None
        self._label_values: list[Any] = []
        self.classes: list[tuple[Any, int]] = []
        self.columns = {"kappa": Column("kappa", "number", self.kappa)}
        for name, kind in columns.items():
            self.columns[name] = self._column(name, kind, payload.pop(name))
        self.map: dict[str, Any] = {"available": False, "method": None, "reason": NO_MAP}
        self.version = ""
        self._digest(f"{version}\0{len(self)}\0{label_column}\0{text_column}".encode())

    @classmethod
    def read(
        cls, index: CredibleIndex, label_column: str | None = None, text_column: str | None = None
    ) -> "GalleryTable":
        """Return the table of all rows of an index, from one pass over ids, kappas and payload."""
        version, columns = table_version(index), index.schema.columns
        batches = index.scan(columns=list(columns))
        given = {"label_column": label_column, "text_column": text_column, "version": version}
        table = cls(batches, columns, **given)
        try:
            found = read_map(index)
        except DamagedGalleryError as error:
            table.map = table.map | {"reason": f"the map cannot be read: {error}"}
            return table
        if found is not None:
            table.add_map(found)
        return table

    def add_map(self, found: GalleryMap) -> None:
        """Add the columns ``map.x`` and ``map.y``; NaN for rows that are not on the map."""
        rows = self._rows_of(found.ids)
        xy = np.full((len(self), 2), np.nan, np.float32)
        xy[rows[rows >= 0]] = found.xy[rows >= 0]
        for axis, name in enumerate(("map.x", "map.y")):
            self.columns[name] = Column(name, "number", np.ascontiguousarray(xy[:, axis]))
        missing, reason = int(np.isnan(xy[:, 0]).sum()), None
        if missing:
            reason = (
                f"{missing:,} rows are not on the map yet. Add them with: aureole index map GALLERY"
            )
        self.map = {"available": True, "method": found.note.method, "reason": reason}
        self._digest(found.xy.tobytes())

    def add_numbers(self, numbers: Mapping[str, np.ndarray], *, stamp: str = "") -> None:
        """Add columns of numbers in row order; a stamp changes the version."""
        added = {
            name: Column(name, "number", np.asarray(values, np.float32))
            for name, values in numbers.items()
        }
        self.columns = self.columns | added  # other threads may iterate over the former
        if stamp:
            self._digest(stamp.encode())

    def __len__(self) -> int:
        return len(self._order)

    def describe(self) -> dict[str, Any]:
        """Return the version, the number of rows, the columns and the state of the map: ``GET /v1/table``."""
        return {
            "version": self.version,
            "rows": len(self),
            "columns": [column.describe() for column in self.columns.values()],
            "map": self.map,
        }

    def embed(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return ``describe()`` of some rows only, each column with its data in base64."""
        chosen = np.asarray(rows, np.int64)
        columns = [column.part(chosen) for column in self.columns.values()]
        return self.describe() | {"rows": len(chosen), "columns": columns}

    def ids(self, rows: Iterable[int]) -> list[str]:
        """Return the ids of rows; raise if a number is not that of a row."""
        chosen, n = list(rows), len(self)
        for row in chosen:
            if not 0 <= row < n:
                raise InvalidInputError(f"row {row} does not exist; the gallery has {n} rows.")
        return self._ids.take(np.array(chosen, np.int64)).to_pylist()

    def numbers(self, ids: Sequence[str]) -> list[int | None]:
        """Return the numbers of the rows with these ids; None for an id that does not exist."""
        return [row if row >= 0 else None for row in self._rows_of(ids).tolist()]

    def find(
        self, text: str, column: str | None = None, *, limit: int = MAX_HITS
    ) -> tuple[np.ndarray, bool]:
        """Return the rows whose id or text contains ``text`` in any case, ascending, and whether there are more.

        Cost: one search of bytes over the ids and texts, about 0.1 s for 100 MB.

        Parameters
        ----------
        text
            At least one character.
        column
            "id" or a column of texts (default: all of them).
        limit
            Largest number of rows.
        """
        if not text:
            raise InvalidInputError("the text to search for is empty.")
        if column is not None and column not in self._found:
            raise InvalidInputError(
                f"column {column[:60]!r} cannot be searched; those that can are {list(self._found)}."
            )
        _, compute = _arrow()
        needle = text.casefold().encode(errors="surrogatepass")
        hits = np.zeros(len(self), bool)
        for name, texts in self._found.items():
            if column in (None, name):
                hits |= compute.match_substring(texts, needle).to_numpy()
        rows = np.sort(self._row_of[hits])
        return rows[:limit], len(rows) > limit

    def page(
        self, order: Order, offset: int, limit: int, *, label: str | None = None
    ) -> tuple[list[str], int]:
        """Return the ids of a page and the total number of items; the label is text, as JSON or Python writes it."""
        rows = np.arange(len(self))
        if label is not None:
            texts = [{str(value), json.dumps(value)} for value in self._label_values]
            codes = [code for code, text in enumerate(texts) if label in text]
            chosen = np.array([] if self._label_codes is None else self._label_codes)
            rows = np.flatnonzero(np.isin(chosen, codes))
        chosen = (rows if order == "ambiguous" else rows[::-1])[offset : offset + limit]
        return self.ids(chosen.tolist()), len(rows)

    def rank(self, kappa: float) -> float:
        """Return the fraction of items with a smaller kappa."""
        if not len(self):
            return 0.0
        return float(np.searchsorted(self.kappa, np.float32(kappa))) / len(self)

    def quantiles(self) -> list[tuple[float, float]]:
        """Return (fraction, kappa) at 0, 0.01, ... 1; empty for an empty gallery."""
        if not len(self):
            return []
        last = len(self) - 1
        return [(i / 100, float(self.kappa[round(i / 100 * last)])) for i in range(101)]

    def sample(self, count: int) -> list[str]:
        """Return the ids of at most ``count`` items, evenly spaced by rank of kappa."""
        places = np.linspace(0, max(0, len(self) - 1), min(count, len(self))).astype(int)
        return self.ids(np.unique(places).tolist())

    def labels(self) -> list[Any] | None:
        """Return the label of each row; None without a label column."""
        if self._label_codes is None:
            return None
        return [self._label_values[code] for code in self._label_codes.tolist()]

    def _digest(self, content: bytes) -> None:
        """Set a new version that depends on the old one and this content."""
        self.version = hashlib.sha256(self.version.encode() + content).hexdigest()[:32]

    def _rows_of(self, ids: Sequence[str]) -> np.ndarray:
        """Return the row of each id; -1 for an id that does not exist."""
        pa, compute = _arrow()
        wanted = pa.array([name.encode(errors="surrogatepass") for name in ids], pa.large_binary())
        rows = compute.index_in(wanted, self._ids.cast(pa.large_binary()))
        return compute.fill_null(rows, -1).to_numpy()

    def _column(self, name: str, kind: str, parts: list[Any]) -> Column:
        """Return a payload column in row order."""
        pa, compute = _arrow()
        values = pa.chunked_array(parts, _payload_type(pa, kind))
        if kind in ("integer", "number"):
            with np.errstate(over="ignore"):
                numbers = values.to_numpy().astype(np.float64).astype(np.float32)[self._order]
            found = Column(name, "number", numbers)
        else:
            found = Column(name, "text")
        if name == self._label or (name != self._text and kind in ("text", "boolean")):
            encoded = compute.dictionary_encode(values).combine_chunks()
            if not isinstance(encoded, pa.DictionaryArray):  # of several chunks, or none
                encoded = pa.concat_arrays(encoded.unify_dictionaries().chunks)
            distinct = encoded.dictionary.to_pylist()
            codes, values, counts = _by_frequency(encoded.indices.to_numpy(), distinct)
            codes = codes[self._order]
            if name == self._label:
                self._label_codes, self._label_values = codes, values
                self.classes = list(zip(values, counts.tolist(), strict=True))[:_NAMED]
            few = name == self._label or len(distinct) <= max(_FEW, len(self) // 2)
            if few and len(distinct) <= _MAX_CATEGORIES:
                found = Column(name, "category", codes.astype(np.uint16), values)
        return found


def table_version(index: CredibleIndex) -> str:
    """Return a text that changes when the rows of a gallery or its stored map do; cheap to ask for."""
    return f"{index.version()} {map_stamp(index)}"


def _payload_type(pa: Any, kind: str) -> Any:
    types = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
    return types.get(kind, pa.large_string())


def _payload_array(pa: Any, kind: str, values: Sequence[Any]) -> Any:
    return pa.array(values, _payload_type(pa, kind))


def _folded(pa: Any, values: Sequence[str]) -> Any:
    """Return the beginnings of texts without case, as bytes."""
    return pa.array([v[:_SEARCHED].casefold().encode() for v in values], pa.large_binary())


def _by_frequency(codes: np.ndarray, values: list[Any]) -> tuple[np.ndarray, list[Any], np.ndarray]:
    """Return codes, values and counts with the most frequent values first, and then as text."""
    counts = np.bincount(codes, minlength=len(values))
    order = sorted(range(len(values)), key=lambda i: (-counts[i], str(values[i])))
    new = np.zeros(len(values), np.uint32)
    new[order] = np.arange(len(values), dtype=np.uint32)
    return new[codes], [values[i] for i in order], counts[order]
