"""Rows of a FAISS gallery that stay on disk: files of rows as memory maps, ids found by their hashes.

A file of rows is a safetensors file (``pack_rows``) with two more arrays: the sorted hashes of the ids, and the row of
each. Nothing is read when it is opened but its header. Files are untrusted: the header is validated when a file is
opened, and values when they are read.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import DamagedGalleryError
from aureole.retrieval._integrity import parse_note, reading
from aureole.retrieval._schema import DTYPES, Rows, Schema, object_array

HASHES, ORDER = "id.hash", "id.order"
_DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8", "U8": "|u1", "BOOL": "|b1"}
_LARGEST_HEADER = 2**20
_FAILURES = (OSError, ValueError, TypeError, KeyError, IndexError, OverflowError)


def hash_arrays(ids: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays by which ids are found: their sorted hashes, and the row of each."""
    hashes = np.array([_hash(name) for name in ids], np.uint64)
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    return {HASHES: hashes[order], ORDER: order}


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an untrusted safetensors file as read-only memory maps."""
    with reading(str(path), *_FAILURES):
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise ValueError("invalid header")
            header = parse_note(file.read(length).decode(), str(path))
        header.pop("__metadata__", None)
        start = 8 + length
        return {name: _map(path, start, size - start, entry) for name, entry in header.items()}


def _map(path: Path, start: int, size: int, entry: Any) -> np.ndarray:
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"]
    first, last = entry["data_offsets"]
    numbers = [first, last, *shape]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("invalid shape or offsets")
    if last > size or last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError("an array does not fit the file")
    if first == last:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start + first, tuple(shape))


class MappedText:
    """Strings as (bytes, ends), decoded when they are used."""

    def __init__(self, text: np.ndarray, ends: np.ndarray) -> None:
        self._text, self._ends = text, ends
        if text.dtype != np.uint8 or ends.dtype != np.int64 or text.ndim != 1 or ends.ndim != 1:
            raise ValueError("texts have an invalid type or shape")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, places: Any) -> np.ndarray:
        places = np.asarray(places, np.int64)
        ends = np.asarray(self._ends[places])
        starts = np.where(places > 0, self._ends[np.maximum(places - 1, 0)], 0)
        if len(places) and not (starts.min() >= 0 and ends.max() <= len(self._text)):
            raise ValueError("the ends of strings do not fit their text")
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return object_array([self._text[start:end].tobytes().decode() for start, end in spans])


class Column:
    """A column of several files, one after the other; indexed by an array of positions."""

    def __init__(self, parts: Sequence[Any], empty: np.ndarray) -> None:
        self._parts, self._empty = list(parts), empty
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, places: Any) -> np.ndarray:
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        places = np.asarray(places, np.int64)
        if len(self._parts) == 1:
            return np.asarray(self._parts[0][places])
        owner = np.searchsorted(self._starts, places, side="right") - 1
        values = np.empty((len(places), *self._empty.shape[1:]), self._empty.dtype)
        for number in np.unique(owner).tolist():
            own = owner == number
            values[own] = self._parts[number][places[own] - self._starts[number]]
        return values


class MappedRows:
    """The rows of a gallery in files, by position in the order in which they were added."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._files: list[dict[str, np.ndarray]] = []
        self.ids = self.kappa = self.mu = Column([], object_array([]))
        self.payload: dict[str, Column] = {}
        self._collect()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def first(self) -> int:
        """The number of rows in the first file."""
        return len(self._files[0]["id.ends"]) if self._files else 0

    def add(self, path: Path) -> None:
        """Map another file; raises if its arrays do not fit the schema."""
        arrays = map_arrays(path)
        with reading(str(path), *_FAILURES):
            self._check(arrays)
            self._files.append(arrays)
            self._collect()

    def rows(self, places: np.ndarray, columns: Sequence[str]) -> Rows:
        """Some rows, read from disk."""
        payload = {name: self.payload[name][places] for name in columns}
        return Rows(self.ids[places], self.mu[places], self.kappa[places], payload)

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """All positions, in blocks."""
        for start in range(0, len(self), size):
            yield np.arange(start, min(start + size, len(self)))

    def find(self, name: str) -> list[int]:
        """The positions of the rows with an id, deleted ones included; the last one comes first."""
        value, end, places = np.uint64(_hash(name)), len(self), []
        for arrays in reversed(self._files):
            hashes, order = arrays[HASHES], arrays[ORDER]
            start = end - len(order)
            low, high = (int(np.searchsorted(hashes, value, side)) for side in ("left", "right"))
            rows = np.asarray(order[low:high])
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(order):
                raise DamagedGalleryError("the hashes of ids name rows that do not exist.")
            found = (start + rows).tolist()
            places += [p for p in reversed(found) if self.ids[np.array([p])][0] == name]
            end = start
        return places

    def _collect(self) -> None:
        files = self._files
        text = object_array([])
        self.ids = Column([MappedText(f["id.text"], f["id.ends"]) for f in files], text)
        self.mu = Column([f["mu"] for f in files], np.zeros((0, self._schema.dim), np.float32))
        self.kappa = Column([f["kappa"] for f in files], np.zeros(0, np.float32))
        for name, kind in self._schema.columns.items():
            key = f"payload.{name}"
            if kind == "text":
                parts = [MappedText(f[f"{key}.text"], f[f"{key}.ends"]) for f in files]
            else:
                parts = [f[key] for f in files]
            self.payload[name] = Column(parts, np.zeros(0, DTYPES[kind]))

    def _check(self, arrays: dict[str, np.ndarray]) -> None:
        count, dim = len(arrays["id.ends"]), self._schema.dim
        expected = {
            "mu": ((count, dim), np.float32),
            "kappa": ((count,), np.float32),
            HASHES: ((count,), np.uint64),
            ORDER: ((count,), np.int64),
        }
        for name, kind in self._schema.columns.items():
            if kind == "text":
                expected[f"payload.{name}.ends"] = ((count,), np.int64)
            else:
                expected[f"payload.{name}"] = ((count,), DTYPES[kind])
        for name, (shape, dtype) in expected.items():
            array = arrays[name]
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise ValueError(f"{name} has another shape or type than the schema")


class MappedPlaces:
    """The positions of ids that are not deleted: like a dict, but on disk."""

    def __init__(self, rows: MappedRows, alive: np.ndarray) -> None:
        self._rows, self._alive = rows, alive
        self._count = int(np.count_nonzero(alive))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> int:
        place = self.get(name)
        if place is None:
            raise KeyError(name)
        return place

    def get(self, name: str) -> int | None:
        """The position of an id, or None."""
        return next((place for place in self._rows.find(name) if self._alive[place]), None)


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
