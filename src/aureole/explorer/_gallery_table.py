"""GalleryTable: the rows of a gallery in the order of kappa, as columns, with a search for text."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.explorer._gallery_map import GalleryMap, map_stamp, read_map
from aureole.retrieval import CredibleIndex, pack_strings

Order = Literal["ambiguous", "certain"]
Batch = tuple[Sequence[Any], np.ndarray, Mapping[str, Sequence[Any]]]
MAX_HITS = 200_000  # rows that a text search returns
_MAX_CATEGORIES = 10_000
_FEW = 50  # so many distinct values are always a category
_MAX_TEXT_BYTES = 512 * 2**20  # of all searchable text
_SEARCHED = 1000  # characters of each text that are searched
_NAMED = 100  # classes that are listed with their sizes
NO_MAP = "this gallery has no map. Make one with: aureole index map GALLERY"


@dataclass(frozen=True)
class Column:
    """A column in row order: float32 numbers (missing: NaN), or codes of ``values``; a text has no data.

    Codes are uint16 or uint32; the largest one stands for a missing value.
    """

    name: str
    kind: Literal["number", "category", "text"]
    data: np.ndarray | None = None
    values: list[Any] | None = None

    @property
    def type(self) -> str:
        """The type of the data, as in ``X-Aureole-Type``: f4, u2 or u4."""
        return "" if self.data is None else f"{self.data.dtype.kind}{self.data.itemsize}"

    def content(self) -> bytes:
        """The data, little endian."""
        assert self.data is not None
        return self.data.astype(self.data.dtype.newbyteorder("<"), copy=False).tobytes()

    def describe(self) -> dict[str, Any]:
        """The entry of the column in ``GET /v1/table``."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind == "category":
            return found | {"values": self.values}
        if self.kind == "number":
            assert self.data is not None
            finite = self.data[np.isfinite(self.data)]
            low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
            return found | {"low": low, "high": high}
        return found


class _PackedStrings:
    """Strings in one block of UTF-8 and the offsets of their ends: a fifth of the memory of a list of str."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self.text, self.ends = np.zeros(0, np.uint8), np.zeros(0, np.int64)

    def add(self, values: Sequence[str]) -> None:
        self._parts.append(pack_strings(values))

    def finish(self) -> None:
        start = 0
        for text, ends in self._parts:
            ends += start
            start += len(text)
        self.text = np.concatenate([self.text, *(text for text, _ in self._parts)])
        self.ends = np.concatenate([self.ends, *(ends for _, ends in self._parts)])
        self._parts = []

    def __getitem__(self, place: int) -> str:
        start = int(self.ends[place - 1]) if place else 0
        return self.text[start : int(self.ends[place])].tobytes().decode()


class _FoldedText:
    """Texts without case, joined by a byte that UTF-8 does not use: one search of bytes searches all of them."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, bytes, np.ndarray]] = []
        self._rows, self.size = 0, 0

    def add(self, values: Sequence[str]) -> None:
        texts = [value[:_SEARCHED].casefold().encode() for value in values]
        ends = np.array(list(accumulate(len(text) + 1 for text in texts)), np.int64)
        joined = b"\xff".join(texts) + b"\xff"
        self._parts.append((self._rows, joined, ends))
        self._rows += len(texts)
        self.size += len(joined)

    def find(self, needle: bytes, limit: int) -> list[np.ndarray]:
        """Positions of the texts that contain the needle, stopping soon after ``limit``."""
        found: list[np.ndarray] = []
        total = 0
        for first, joined, ends in self._parts:
            starts: list[int] = []
            at = joined.find(needle)
            while at >= 0:
                starts.append(at)
                at = joined.find(needle, joined.index(b"\xff", at) + 1)
            found.append(first + np.searchsorted(ends, np.array(starts, np.int64), side="right"))
            total += len(starts)
            if total > limit:
                break
        return found


class _Codes:
    """Distinct values in order of appearance, and the code of each row's value."""

    def __init__(self, most: int | None) -> None:
        self.most, self.code_of = most, dict[Any, int]()
        self._parts = [np.zeros(0, np.uint32)]

    def add(self, values: Sequence[Any]) -> bool:
        """Whether the values are still few enough; otherwise the codes are of no use any more."""
        code_of = self.code_of
        codes = [code_of.setdefault(value, len(code_of)) for value in values]
        self._parts.append(np.array(codes, np.uint32))
        return self.most is None or len(code_of) <= self.most

    def finish(self) -> tuple[list[Any], np.ndarray, np.ndarray]:
        """(The values, most frequent first and then as text; the code of each row; how often each occurs)."""
        codes, values = np.concatenate(self._parts), list(self.code_of)
        counts = np.bincount(codes, minlength=len(values))
        order = sorted(range(len(values)), key=lambda i: (-counts[i], str(values[i])))
        new = np.zeros(len(values), np.uint32)
        new[order] = np.arange(len(values), dtype=np.uint32)
        return [values[i] for i in order], new[codes], counts[order]


class GalleryTable:
    """The rows of a gallery, numbered by kappa from the least certain on, ties by id.

    What the map, the selections, the lists and the filters of the explorer work on: columns of 4 or 2 bytes per row,
    ids by number and back, and a search for text. A snapshot in memory: about 50 bytes per row, the ids, and the texts
    once (in lower case, 1,000 characters each, 512 MiB in total; texts beyond are not searched).

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
        self._label, self._text = label_column, text_column
        self._names, self._found = _PackedStrings(), {"id": _FoldedText()}
        codes = {
            name: _Codes(None if name == label_column else _MAX_CATEGORIES)
            for name, kind in columns.items()
            if name == label_column or (name != text_column and kind in ("text", "boolean"))
        }
        self._found |= {name: _FoldedText() for name, kind in columns.items() if kind == "text"}
        hashes = [np.zeros(0, np.int64)]
        kappas = [np.zeros(0, np.float32)]
        numeric = {n: [np.zeros(0, np.float32)] for n, k in columns.items() if _is_number(k)}
        for ids, kappa, payload in batches:
            names = [str(name) for name in ids]
            self._names.add(names)
            self._add_text("id", names)
            hashes.append(np.fromiter(map(hash, names), np.int64, len(names)))
            kappas.append(np.asarray(kappa, np.float32))
            for name, parts in numeric.items():
                with np.errstate(over="ignore"):
                    parts.append(np.array(payload[name], np.float64).astype(np.float32))
            for name in list(codes):
                if not codes[name].add(payload[name]):
                    del codes[name]
            for name in [name for name in self._found if name != "id"]:
                self._add_text(name, payload[name])
        self._names.finish()
        self._sort(np.concatenate(kappas), np.concatenate(hashes))
        self.classes: list[tuple[Any, int]] = []
        self._label_codes: np.ndarray | None = None
        self._label_values: list[Any] = []
        self.columns = {"kappa": Column("kappa", "number", self.kappa)}
        for name, kind in columns.items():
            parts = numeric.pop(name, None)
            self.columns[name] = self._column(name, kind, codes.pop(name, None), parts)
        self._code_by_label = _codes_by_text(self._label_values)
        self.map: dict[str, Any] = {"available": False, "method": None, "reason": NO_MAP}
        self.version = ""
        self._digest(f"{version}\0{len(self)}\0{label_column}\0{text_column}".encode())

    @classmethod
    def read(
        cls, index: CredibleIndex, label_column: str | None = None, text_column: str | None = None
    ) -> "GalleryTable":
        """The table of all rows of an index, from one pass over ids, kappas and payload."""
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
        hashes = np.fromiter(map(hash, found.ids), np.int64, len(found.ids))
        at = np.minimum(np.searchsorted(self._hashes, hashes), max(0, len(self) - 1))
        known = self._hashes[at] == hashes if len(self) else np.zeros(len(hashes), bool)
        xy = np.full((len(self), 2), np.nan, np.float32)
        xy[self._hashed[at[known]]] = found.xy[known]
        for axis, name in enumerate(("map.x", "map.y")):
            self.columns[name] = Column(name, "number", np.ascontiguousarray(xy[:, axis]))
        missing = int(np.isnan(xy[:, 0]).sum())
        reason = None
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
        """The version, the number of rows, the columns and whether there is a map: ``GET /v1/table``."""
        return {
            "version": self.version,
            "rows": len(self),
            "columns": [column.describe() for column in self.columns.values()],
            "map": self.map,
        }

    def ids(self, rows: Iterable[int]) -> list[str]:
        """The ids of rows; raise if a number is not that of a row."""
        n, found = len(self), []
        for row in rows:
            if not 0 <= row < n:
                raise InvalidInputError(f"row {row} does not exist; the gallery has {n} rows.")
            found.append(self._names[int(self._order[row])])
        return found

    def numbers(self, ids: Sequence[str]) -> list[int | None]:
        """The numbers of the rows with these ids; None for an id that does not exist."""
        wanted = np.fromiter(map(hash, ids), np.int64, len(ids))
        at = np.searchsorted(self._hashes, wanted)
        return [
            self._number(name, int(key), int(i))
            for name, key, i in zip(ids, wanted, at, strict=True)
        ]

    def find(
        self, text: str, column: str | None = None, *, limit: int = MAX_HITS
    ) -> tuple[np.ndarray, bool]:
        """(Numbers of rows whose id or text contains ``text`` in any case, ascending; whether there are more).

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
        needle = text.casefold().encode(errors="surrogatepass")
        places: list[np.ndarray] = [np.zeros(0, np.int64)]
        for name, texts in self._found.items():
            if column in (None, name):
                places += texts.find(needle, limit)
        rows = np.unique(self._row_of[np.concatenate(places)])
        return rows[:limit], len(rows) > limit

    def page(
        self, order: Order, offset: int, limit: int, *, label: str | None = None
    ) -> tuple[list[str], int]:
        """(The ids of a page, the total number of items); the label is text, as JSON or Python writes it."""
        rows = np.arange(len(self))
        if label is not None:
            code = self._code_of(label)
            if code is None or self._label_codes is None:
                return [], 0
            rows = np.flatnonzero(self._label_codes == code)
        stop = min(offset + limit, len(rows))
        chosen = (rows if order == "ambiguous" else rows[::-1])[offset:stop]
        return self.ids(chosen.tolist()), len(rows)

    def rank(self, kappa: float) -> float:
        """The fraction of items with a smaller kappa."""
        if not len(self):
            return 0.0
        return float(np.searchsorted(self.kappa, np.float32(kappa))) / len(self)

    def quantiles(self) -> list[tuple[float, float]]:
        """(Fraction, kappa) at 0, 0.01, ... 1; empty for an empty gallery."""
        if not len(self):
            return []
        last = len(self) - 1
        return [(i / 100, float(self.kappa[round(i / 100 * last)])) for i in range(101)]

    def labels_of(self, rows: Sequence[int]) -> list[Any] | None:
        """The labels of some rows; None without a label column."""
        if self._label_codes is None:
            return None
        codes = self._label_codes[np.asarray(rows, np.int64)]
        return [self._label_values[code] for code in codes.tolist()]

    def sample(self, count: int) -> list[str]:
        """The ids of at most ``count`` items, evenly spaced by rank of kappa."""
        places = np.linspace(0, max(0, len(self) - 1), min(count, len(self))).astype(int)
        return self.ids(np.unique(places).tolist())

    def labels(self) -> list[Any] | None:
        """The label of each row; None without a label column."""
        return self.labels_of(range(len(self)))

    def embed(self, rows: Sequence[int]) -> dict[str, Any]:
        """``describe()`` of some rows only, each column with its data in base64, and only the values that occur."""
        chosen = np.asarray(rows, np.int64)
        columns = []
        for column in self.columns.values():
            if column.data is None:
                columns.append(column.describe())
                continue
            values, part_data = column.values, column.data[chosen]
            if values is not None:  # only those that occur
                used, codes = np.unique(part_data, return_inverse=True)
                values = [values[code] for code in used.tolist()]
                part_data = codes.astype(column.data.dtype)
            part = Column(column.name, column.kind, part_data, values)
            data = base64.b64encode(part.content()).decode()
            columns.append(part.describe() | {"type": part.type, "data": data})
        return self.describe() | {"rows": len(chosen), "columns": columns}

    def _digest(self, content: bytes) -> None:
        """A new version that depends on the old one and this content."""
        self.version = hashlib.sha256(self.version.encode() + content).hexdigest()[:32]

    def _add_text(self, name: str, values: Sequence[str]) -> None:
        """Make texts searchable, unless they are too large in total."""
        self._found[name].add(values)
        if name != "id" and sum(text.size for text in self._found.values()) > _MAX_TEXT_BYTES:
            del self._found[name]

    def _sort(self, kappa: np.ndarray, hashes: np.ndarray) -> None:
        """Number the rows by kappa, ties by id, and the ids by their hashes."""
        order = np.argsort(kappa, kind="stable")
        self.kappa = kappa[order]
        equal = self.kappa[1:] == self.kappa[:-1]
        tied = np.flatnonzero(np.r_[False, equal] | np.r_[equal, False]) if len(order) else order
        named = [
            (value, self._names[row], row)
            for value, row in zip(self.kappa[tied].tolist(), order[tied].tolist(), strict=True)
        ]
        order[tied] = [row for _, _, row in sorted(named)]
        self._order = order.astype(np.uint32)
        self._row_of = np.empty_like(self._order)
        self._row_of[order] = np.arange(len(order), dtype=np.uint32)
        by_hash = np.argsort(hashes, kind="stable")
        self._hashes, self._hashed = hashes[by_hash], self._row_of[by_hash]

    def _column(
        self, name: str, kind: str, codes: _Codes | None, parts: list[np.ndarray] | None
    ) -> Column:
        """A payload column in row order."""
        distinct = 0 if codes is None else len(codes.code_of)
        if codes is not None and (
            name == self._label or kind == "boolean" or distinct <= max(_FEW, len(self) // 2)
        ):
            values, by_place, counts = codes.finish()
            by_row = by_place[self._order]
            if name == self._label:
                self._label_codes, self._label_values = by_row, values
                self.classes = list(zip(values, counts.tolist(), strict=True))[:_NAMED]
            if distinct <= _MAX_CATEGORIES:
                return Column(name, "category", by_row.astype(np.uint16), values)
        if parts is not None:
            return Column(name, "number", np.concatenate(parts)[self._order])
        return Column(name, "text")

    def _number(self, name: str, key: int, at: int) -> int | None:
        while at < len(self._hashes) and self._hashes[at] == key:
            row = int(self._hashed[at])
            if self._names[int(self._order[row])] == name:
                return row
            at += 1
        return None

    def _code_of(self, label: str) -> int | None:
        """The class with this label. Numbers match in any notation: a browser writes 3 for 3.0 and 1e-7 for 1e-07."""
        code = self._code_by_label.get(label)
        if code is None:
            with suppress(ValueError):
                code = self._code_by_label.get(float(label))
        return code


def table_version(index: CredibleIndex) -> str:
    """A text that changes when the rows of a gallery or its stored map do; cheap to ask for."""
    return f"{index.version()} {map_stamp(index)}"


def _is_number(kind: str) -> bool:
    return kind in ("integer", "number")


def _codes_by_text(values: list[Any]) -> dict[str | float, int]:
    """The code of each label by its texts in Python and JSON, and by its value if it is a number."""
    found: dict[str | float, int] = {}
    for code, value in enumerate(values):
        found[str(value)] = code
        if not isinstance(value, str):
            found[json.dumps(value)] = code  # true for Python's True
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.setdefault(float(value), code)
    return found
