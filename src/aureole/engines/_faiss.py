"""FAISS: galleries in memory, saved as one file, and indexes of users.

A file ``gallery.faiss`` holds everything: ids, vectors, kappas, payload, notes and the approximate index as
safetensors, which runs no code when it is read. A change makes a new snapshot and replaces the file atomically, so a
killed process leaves the previous one. A snapshot never changes, so searches and scans keep the one they began with.
Other processes notice that the file was replaced at their next call. Files are untrusted: every value is checked.
"""

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_file
from aureole.engines._faiss_index import (
    FaissSearch,
    build_hnsw,
    build_ivf,
    faiss_package,
    hnsw_from_arrays,
    index_arrays,
    ivf_from_arrays,
)
from aureole.engines._filters import Condition, matches
from aureole.engines._integrity import has_unit_length, parse_note, reading, valid_kappa
from aureole.engines._schema import (
    NO_MU,
    Rows,
    Schema,
    join_rows,
    matches_schema,
    object_array,
    pack_strings,
    pick_rows,
    unpack_strings,
)
from aureole.engines._store import (
    Approximate,
    Names,
    Selection,
    check_build,
    describe_index,
    file_lock,
)
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError

_FORMAT = "aureole-gallery-1"
_LINKS = 32  # of a graph
_SCAN_ROWS = 2**14  # rows per batch of a scan
_FAILURES = (OSError, KeyError, TypeError, ValueError, IndexError, MemoryError, OverflowError)


@dataclass(frozen=True)
class _Snapshot:
    """Everything that a gallery holds. The mu of ``rows`` is a view of the memory of ``flat``."""

    schema: Schema
    rows: Rows
    place: dict[str, int]
    flat: Any
    index: Any = None
    kind: Approximate | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema, rows: Rows, **others: Any) -> "_Snapshot":
        """A snapshot of rows, whose vectors are copied to a flat index."""
        faiss, n = faiss_package(), len(rows)
        flat = faiss.IndexFlatIP(schema.dim)
        flat.add(np.ascontiguousarray(rows.mu))
        if n:
            mu = faiss.rev_swig_ptr(flat.get_xb(), n * schema.dim).reshape(n, schema.dim)
            rows = replace(rows, mu=mu)
        place = {name: i for i, name in enumerate(rows.ids.tolist())}
        return cls(schema, rows, place, flat, **others)

    def changed(self, removed: list[int], added: Rows | None) -> "_Snapshot":
        """Without the rows at some places and with others; the approximate index takes part."""
        kept = np.ones(len(self.rows), bool)
        kept[removed] = False
        rows = pick_rows(self.rows, kept)
        if added is not None:
            rows = join_rows([rows, added], list(self.schema.columns), self.schema.dim)
        new = _Snapshot.of(self.schema, rows, kind=self.kind, sizes=self.sizes, notes=self.notes)
        if self.kind == "ivf":
            index = faiss_package().clone_index(self.index)
            index.reset()  # keeps the centroids
            index.add(np.ascontiguousarray(rows.mu))
            return replace(new, index=index)
        if self.kind == "hnsw" and not removed and added is not None:
            index = faiss_package().clone_index(self.index)
            index.add(np.ascontiguousarray(added.mu))
            return replace(new, index=index)
        return new if self.kind is None else new.built(self.kind, self.sizes)

    def built(self, kind: Approximate, sizes: dict[str, int]) -> "_Snapshot":
        """With an approximate index."""
        mu = self.rows.mu
        is_ivf, links = kind == "ivf", sizes.get("links", _LINKS)
        index = build_ivf(mu, sizes.get("lists")) if is_ivf else build_hnsw(mu, links)
        return replace(self, index=index, kind=kind, sizes=sizes)

    def search(self, *, exact: bool) -> FaissSearch:
        """The index that a search uses."""
        index = self.flat if exact or self.index is None else self.index
        return FaissSearch(index, self.flat, self.sizes)

    def picked(self, places: np.ndarray, columns: Sequence[str], *, vectors: bool = True) -> Rows:
        """The rows at some places."""
        payload = {name: self.rows.payload[name][places] for name in columns}
        mu = self.rows.mu[places] if vectors else NO_MU
        return Rows(self.rows.ids[places], mu, self.rows.kappa[places], payload)


class FaissStore:
    """Rows in memory around FAISS indexes, saved as one file after each change unless the address is 'faiss://'."""

    engine = "FAISS"

    def __init__(self, where: str, held: _Snapshot | None = None) -> None:
        self.where, self._path = where, None if where == "faiss://" else Path(where)
        self._stamp: tuple[int, int] | None = None
        self._held, self._closed = held, False

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "FaissStore":
        """A new store; 'faiss://' exists in memory only."""
        store = cls(where)
        with store._locked():
            if store._path is not None and store._path.exists():
                raise InvalidInputError(
                    f"{where} holds a gallery already. Open it, or delete it first."
                )
            store._save(_Snapshot.of(schema, rows))
        return store

    @classmethod
    def open(cls, where: str) -> "FaissStore":
        """Open the gallery in a file."""
        if where == "faiss://":
            raise InvalidInputError("'faiss://' exists in memory only; create it instead.")
        store = cls(where)
        store._now()
        return store

    @property
    def schema(self) -> Schema:
        """The schema of the last snapshot."""
        return self._now().schema

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists. Cost: the file is written again."""
        with self._locked():
            held = self._checked(rows)
            known = next((i for i in rows.ids if i in held.place), None)
            if known is not None:
                raise InvalidInputError(
                    f"id {known!r} is in the gallery already; use upsert to replace it. Nothing was stored."
                )
            if len(rows):
                self._save(held.changed([], rows))

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists. Cost: the file is written again."""
        with self._locked():
            held = self._checked(rows)
            places = [held.place[i] for i in rows.ids if i in held.place]
            if len(rows):
                self._save(held.changed(places, rows))
            return len(places)

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed. Cost: as for ``append``; an HNSW graph is built again."""
        with self._locked():
            held = self._now()
            places = [held.place[i] for i in ids if i in held.place]
            if places:
                self._save(held.changed(places, None))
            return len(places)

    def count(self) -> int:
        """The number of rows."""
        return len(self._now().rows)

    def version(self) -> str:
        """The stamp of the file; in memory, the identity of the snapshot."""
        held = self._now()
        return str(self._stamp or (len(held.rows), id(held)))

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        held = self._now()
        places = [held.place[i] for i in ids if i in held.place]
        return held.picked(np.array(places, np.int64), columns)

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows of the snapshot with which the scan begins."""
        held = self._now()
        for start in range(0, len(held.rows), _SCAN_ROWS):
            places = np.arange(start, min(start + _SCAN_ROWS, len(held.rows)))
            yield held.picked(places, columns, vectors=vectors)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound; scans share a call between queries whose bounds are close."""
        held = self._now()
        allowed = _allowed(held, selection.conditions)
        found = dict(held.search(exact=selection.exact).within(mu, bounds, exact=selection.exact))
        for query in range(len(mu)):
            places = np.sort(found.pop(query))
            places = places if allowed is None else places[allowed[places]]
            yield held.picked(places, selection.columns)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        held = self._now()
        allowed = _allowed(held, selection.conditions)
        k = min(k, len(held.rows) if allowed is None else int(allowed.sum()))
        search = held.search(exact=selection.exact)
        for query in mu:
            places = np.zeros(0, np.int64)
            if k:
                places = search.nearest(query, k, exact=selection.exact, allowed=allowed)
            yield held.picked(places, selection.columns)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index next to the exact one."""
        check_build(kind, sizes)
        with self._locked():
            self._save(self._now().built(kind, sizes))

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        held = self._now()
        if held.kind is None:
            return None
        return describe_index(held.kind, getattr(held.index, "nlist", 1), held.sizes)

    def problems(self) -> list[str]:
        """An empty list: the file was checked when it was read."""
        self._now()
        return []

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        return self._now().notes.get(name)

    def write_note(self, name: str, text: str) -> None:
        """Save a note with the gallery. Cost: the file is written again."""
        with self._locked():
            held = self._now()
            self._save(replace(held, notes=held.notes | {name: text}))

    def close(self) -> None:
        """Release the memory; the schema stays."""
        held, self._closed = self._now() if not self._closed else self._held, True
        if held is not None:
            nothing = join_rows([], list(held.schema.columns), held.schema.dim)
            self._held = _Snapshot.of(held.schema, nothing)

    def _now(self) -> _Snapshot:
        """The last snapshot, loaded if the file is not the one in memory."""
        while self._path is not None and not self._closed:
            stamp = _stamp(self._path)
            if self._held is not None and stamp == self._stamp:
                break
            self._held = _load(self._path)
            self._stamp = stamp
        assert self._held is not None
        return self._held

    def _checked(self, rows: Rows) -> _Snapshot:
        """The last snapshot; raises if rows were checked against another schema."""
        held = self._now()
        if not matches_schema(rows, held.schema):
            raise InvalidInputError(
                "the gallery was recreated with another dimension or other columns. Nothing was stored."
            )
        return held

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock for writers of the file."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with nullcontext() if self._path is None else file_lock(Path(f"{self._path}.lock")):
            yield

    def _save(self, held: _Snapshot) -> None:
        """Replace the file, if there is one, and the snapshot."""
        if self._path is not None:
            _write(self._path, held)
            self._stamp = _stamp(self._path)
        self._held = held


def _allowed(held: _Snapshot, conditions: Sequence[Condition]) -> np.ndarray | None:
    """A mask of the rows that meet all conditions; None for all."""
    return matches(conditions, held.rows.payload, len(held.rows)) if conditions else None


def _write(path: Path, held: _Snapshot) -> None:
    """Write a snapshot to a file that replaces the former one once its content has reached the disk."""
    from safetensors.numpy import save

    rows = held.rows
    arrays = {"mu": np.ascontiguousarray(rows.mu), "kappa": np.ascontiguousarray(rows.kappa)}
    texts = {"id": rows.ids}
    for name, column in rows.payload.items():
        (texts if column.dtype == object else arrays)[f"payload.{name}"] = column
    for name, column in texts.items():
        arrays[f"{name}.text"], arrays[f"{name}.ends"] = pack_strings(column.tolist())
    index = None
    if held.kind is not None:
        index = {"kind": held.kind, "sizes": held.sizes}
        parts = index_arrays(held.index, held.kind)
        arrays |= {f"index.{name}": part for name, part in parts.items()}
    about = {"schema": held.schema.to_json(), "notes": held.notes, "index": index}
    metadata = {"format": _FORMAT, "gallery": json.dumps(about, allow_nan=False)}
    with atomic_file(path) as file:
        file.write(save(arrays, metadata))
        file.flush()
        os.fsync(file.fileno())


def _load(path: Path) -> _Snapshot:
    """The snapshot in an untrusted file."""
    from safetensors import SafetensorError, safe_open

    if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe or a device would not end
        raise DamagedGalleryError(f"{path} cannot be read: it is not a file.")
    with reading(str(path), SafetensorError, *_FAILURES):
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise DamagedGalleryError(f"{path} does not have the format {_FORMAT!r}.")
            about = parse_note(metadata["gallery"], str(path))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        schema = Schema.from_json(about["schema"], str(path))
        notes = about["notes"]
        if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
            raise ValueError("its notes are not texts")
        held = _Snapshot.of(schema, _unpacked(arrays, schema), notes=notes)
        if len(held.place) != len(held.rows):
            raise DamagedGalleryError(f"{path} is damaged: ids occur more than once.")
        return held if about["index"] is None else _with_index(held, about["index"], arrays)


def _with_index(held: _Snapshot, about: Any, arrays: dict[str, np.ndarray]) -> _Snapshot:
    """A snapshot with its approximate index from untrusted arrays."""
    kind, sizes = about["kind"], about["sizes"]
    if kind not in ("ivf", "hnsw") or not isinstance(sizes, dict):
        raise ValueError("its approximate index has an invalid kind or sizes")
    check_build(kind, sizes)
    parts = {
        name.removeprefix("index."): array
        for name, array in arrays.items()
        if name.startswith("index.")
    }
    if kind == "ivf":
        index = ivf_from_arrays(held.rows.mu, parts)
    else:
        index = hnsw_from_arrays(held.rows.mu, sizes.get("links", _LINKS), parts)
    return replace(held, index=index, kind=kind, sizes=sizes)


def _unpacked(arrays: dict[str, np.ndarray], schema: Schema) -> Rows:
    """Rows from untrusted arrays; raises KeyError or ValueError if they are invalid."""

    def text(name: str) -> np.ndarray:
        return object_array(unpack_strings(arrays[f"{name}.text"], arrays[f"{name}.ends"]))

    payload = {
        name: text(f"payload.{name}") if kind == "text" else arrays[f"payload.{name}"]
        for name, kind in schema.columns.items()
    }
    mu, kappa = arrays["mu"], arrays["kappa"]
    rows = Rows(text("id"), mu, kappa, payload)
    shapes = {kappa.shape, *(column.shape for column in payload.values())}
    if not matches_schema(rows, schema) or shapes != {(len(rows),)}:
        raise ValueError("shapes or types differ from the schema")
    if mu.dtype != np.float32 or kappa.dtype != np.float32:
        raise ValueError("mu or kappa is not a float32 array")
    if not (has_unit_length(mu).all() and valid_kappa(kappa).all()):
        raise ValueError("a mu has another length than 1, or a kappa is negative or NaN")
    return rows


def _stamp(path: Path) -> tuple[int, int]:
    """What changes whenever the file is replaced."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise MissingInputError(
            f"{path} holds no gallery: the file is missing. `aureole index build` creates one."
        ) from error
    return status.st_ino, status.st_mtime_ns


class FaissSource:
    """A FAISS index of yours: Flat, IVFFlat or HNSWFlat, which hold the vectors themselves, also inside an IDMap.

    The vectors are read where FAISS keeps them. If the index changes, the next call sees it.
    """

    engine, unit, check_all, filters = "FAISS", True, True, False

    def __init__(self, index: Any, names: Names) -> None:
        faiss = faiss_package()
        given = [name for name in ("collection", "vector", "id", "columns") if getattr(names, name)]
        if given:
            raise InvalidInputError(
                f"a FAISS index has no {given[0]}: it holds ids and vectors alone. Give kappa by id."
            )
        self._yours = index  # it owns the memory that the others look at
        self._faiss, self._outer = faiss, faiss.downcast_index(index)
        inner: Any = self._outer
        if isinstance(inner, faiss.IndexIDMap):
            inner = faiss.downcast_index(inner.index)
        flat = inner
        if isinstance(inner, faiss.IndexHNSWFlat):
            flat = faiss.downcast_index(inner.storage)
        plain = isinstance(flat, (faiss.IndexFlat, faiss.IndexIVFFlat))
        if not plain or inner.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            raise InvalidInputError(
                f"a {type(inner).__name__} with metric {inner.metric_type} cannot be wrapped: caps need the vectors "
                "themselves and the metric inner product or L2. Use a Flat, IVFFlat or HNSWFlat index."
            )
        self._search = FaissSearch(inner)
        self._inner, self._flat = inner, flat if isinstance(flat, faiss.IndexFlat) else None
        self.dim = int(index.d)
        self._starts = self._labels = self._ids = np.full(1, -1)  # of no index
        self._refresh()

    def count(self) -> int:
        """The number of vectors."""
        return int(self._outer.ntotal)

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:  # noqa: ARG002
        """The rows with some ids."""
        self._refresh()
        wanted = np.array([i for i in ids if isinstance(i, int) and abs(i) < 2**63], np.int64)
        place = np.searchsorted(self._sorted, wanted)
        known = place < len(self._sorted)
        known[known] = self._sorted[place[known]] == wanted[known]
        return self._rows(self._order[place[known]])

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:  # noqa: ARG002
        """All rows in the order of their positions."""
        self._refresh()
        for start in range(0, len(self._ids), _SCAN_ROWS):
            places = np.arange(start, min(start + _SCAN_ROWS, len(self._ids)))
            rows = self._rows(places) if vectors else None
            yield rows or Rows(self._names(places), NO_MU, np.zeros(len(places), np.float32))

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound."""
        self._refresh()
        found = dict(self._search.within(mu, bounds, exact=selection.exact))
        for query in range(len(mu)):
            yield self._rows(self._places(found.pop(query)))

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        self._refresh()
        for query in mu:
            labels = self._search.nearest(query, min(k, self.count()), exact=selection.exact)
            yield self._rows(self._places(labels))

    def approximate(self) -> dict[str, Any] | None:
        """The sizes of an IVF or HNSW index, or None."""
        if self._search.is_graph:
            return {"kind": "hnsw", "width": int(self._inner.hnsw.efSearch)}
        if self._flat is None:
            lists, probes = int(self._inner.nlist), int(self._inner.nprobe)
            return {"kind": "ivf", "lists": lists, "probes": probes}
        return None

    def close(self) -> None:
        """Do nothing: the index is yours."""

    def _refresh(self) -> None:
        """Read the ids, and where the vectors are, if an id was added, removed or moved."""
        labels, starts = self._layout()
        ids = labels
        if self._outer is not self._inner:
            ids = self._faiss.vector_to_array(self._outer.id_map)[labels]
        now, before = (starts, labels, ids), (self._starts, self._labels, self._ids)
        if all(map(np.array_equal, now, before)):
            return
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(twice):
            raise InvalidInputError(
                f"the FAISS index has the id {ids[order[twice[0]]]} twice; ids must be distinct."
            )
        self._starts, self._labels, self._ids = now
        self._order, self._sorted = order, ids[order]
        # of the labels that a search of the inner index returns
        self._by_label = np.argsort(labels, kind="stable")

    def _layout(self) -> tuple[np.ndarray, np.ndarray]:
        """(Labels of the inner index by position, where the lists of an IVF index start and end)."""
        if self._flat is not None:
            return np.arange(self.count()), np.zeros(1, np.int64)
        lists = self._inner.invlists
        sizes = [lists.list_size(number) for number in range(self._inner.nlist)]
        parts = [
            self._view(lists.get_ids(number), size) for number, size in enumerate(sizes) if size
        ]
        labels = np.concatenate([*parts, np.zeros(0, np.int64)])
        return labels, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def _places(self, labels: np.ndarray) -> np.ndarray:
        """The positions of labels that a search has returned."""
        if self._flat is not None:
            return labels
        return self._by_label[np.searchsorted(self._labels, labels, sorter=self._by_label)]

    def _rows(self, places: np.ndarray) -> Rows:
        mu = self._vectors(places)
        return Rows(self._names(places), mu, np.zeros(len(places), np.float32))

    def _names(self, places: np.ndarray) -> np.ndarray:
        return object_array(self._ids[places].tolist())

    def _vectors(self, places: np.ndarray) -> np.ndarray:
        if not len(places):
            return np.zeros((0, self.dim), np.float32)
        if self._flat is not None:
            stored = self._view(self._flat.get_xb(), len(self._ids) * self.dim)
            return stored.reshape(-1, self.dim)[places]
        mu = np.empty((len(places), self.dim), np.float32)
        lists = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(lists).tolist():
            here = np.flatnonzero(lists == number)
            first, last = self._starts[number : number + 2].tolist()
            codes = self._inner.invlists.get_codes(number)
            stored = self._view(codes, (last - first) * 4 * self.dim).view(np.float32)
            mu[here] = stored.reshape(-1, self.dim)[places[here] - first]
        return mu

    def _view(self, pointer: Any, size: int) -> np.ndarray:
        return self._faiss.rev_swig_ptr(pointer, size)
