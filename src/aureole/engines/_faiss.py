"""FAISS: galleries in memory, saved as one file, and indexes of users. Only this module imports faiss.

A file ``gallery.faiss`` holds everything: ids, vectors, kappas, payload, notes and the centroids of an IVF index as
safetensors, which runs no code when it is read. A change makes a new snapshot and replaces the file atomically, so a
killed process leaves the previous one. A snapshot never changes, so searches and scans keep the one they began with.
Other processes notice that the file was replaced at their next call. Files are untrusted: every value is checked.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_file
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
    default_lists,
    describe_index,
    file_lock,
    nearest_within,
    parse_sizes,
    probes_of,
    slack,
    width_of,
    write_sizes,
)
from aureole.errors import (
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
    MissingPackageError,
)

_FORMAT = "aureole-gallery-1"
_INDEX = "index"  # the note of the IVF index
_SCAN_ROWS = 2**14  # rows per batch of a scan
_SPREAD, _GROUP = 0.02, 64  # up to 64 queries whose bounds are this close share a call
_TRAINING = 64  # vectors per list that an IVF index learns from
_FAILURES = (OSError, KeyError, TypeError, ValueError, IndexError, MemoryError, OverflowError)


def faiss_package() -> Any:
    """The package, imported when it is used."""
    try:
        import faiss
    except ImportError as error:
        raise MissingPackageError(
            "FAISS indexes need faiss-cpu: pip install 'aureole[search]'."
        ) from error
    return faiss


class _Search:
    """Searches of one Flat, IVFFlat or HNSWFlat index, by the labels that it returns."""

    def __init__(self, index: Any, probes: int | None = None) -> None:
        self._index, self._probes = index, probes
        self._l2 = index.metric_type == faiss_package().METRIC_L2
        self._is_graph = isinstance(index, faiss_package().IndexHNSWFlat)

    def within(self, mu: np.ndarray, bounds: np.ndarray) -> list[np.ndarray]:
        """The labels of the vectors whose inner product with each query is at least its bound; a graph may return more.

        Queries whose bounds are close share a call.
        """
        if self._is_graph:
            return [self._graph_within(*each) for each in zip(mu, bounds.tolist(), strict=True)]
        error = slack(mu.shape[1])
        bounds = np.maximum(bounds, -1.0) - error
        found = [np.zeros(0, np.int64)] * len(mu)
        search, parameters = _unpatched(self._index, "range_search"), self._parameters(None, 1)
        for group in _groups(bounds) if self._index.ntotal else ():
            lowest = float(bounds[group[0]])
            radius = 2 - 2 * lowest if self._l2 else lowest
            ends, scores, labels = search(
                np.ascontiguousarray(mu[group]), radius, params=parameters
            )
            products = 1 - scores / 2 if self._l2 else scores
            for place, query in enumerate(group.tolist()):
                own = slice(int(ends[place]), int(ends[place + 1]))
                inside = products[own] >= bounds[query] - (error if self._l2 else 0)
                found[query] = labels[own][inside]
        return found

    def nearest(self, query: np.ndarray, k: int, allowed: np.ndarray | None = None) -> np.ndarray:
        """The labels of the k nearest vectors, among those of the mask ``allowed``."""
        if k == 0:
            return np.zeros(0, np.int64)
        selector = None
        if allowed is not None:
            selector = faiss_package().IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        parameters = self._parameters(selector, k)
        search = _unpatched(self._index, "search")
        _, (labels,) = search(np.ascontiguousarray(query)[None], k, params=parameters)
        return labels[labels >= 0]  # -1 fills the rest

    def _graph_within(self, query: np.ndarray, bound: float) -> np.ndarray:
        storage = faiss_package().downcast_index(self._index.storage)

        def nearest(k: int) -> Rows:
            labels = self.nearest(query, k)
            return Rows(labels, storage.reconstruct_batch(labels), np.zeros(len(labels)))

        rows = nearest_within(nearest, query, bound, most=self._index.ntotal // 4)
        return rows.ids if rows else _Search(storage).within(query[None], np.array([bound]))[0]

    def _parameters(self, selector: Any, k: int) -> Any:
        faiss, index = faiss_package(), self._index
        if self._is_graph:
            width = max(index.hnsw.efSearch, 2 * k)
            return faiss.SearchParametersHNSW(efSearch=width, sel=selector)
        if isinstance(index, faiss.IndexIVFFlat):
            return faiss.SearchParametersIVF(nprobe=self._probes or index.nprobe, sel=selector)
        return faiss.SearchParameters(sel=selector)


@dataclass(frozen=True)
class _Snapshot:
    """Everything that a gallery holds. The mu of ``rows`` is a view of the memory of ``flat``."""

    schema: Schema
    rows: Rows
    place: dict[str, int]
    flat: Any
    index: Any = None
    kind: str = "ivf"
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
        """Without the rows at some places and with others; the centroids of the IVF index stay."""
        kept = np.ones(len(self.rows), bool)
        kept[removed] = False
        rows = pick_rows(self.rows, kept)
        if added is not None:
            rows = join_rows([rows, added], list(self.schema.columns), self.schema.dim)
        new = _Snapshot.of(self.schema, rows, kind=self.kind, sizes=self.sizes, notes=self.notes)
        if self.index is None:
            return new
        return new.indexed(self.centroids()) if self.kind == "ivf" else new.graph()

    def centroids(self) -> np.ndarray:
        """The centroids [lists, D] of the IVF index."""
        coarse = faiss_package().downcast_index(self.index.quantizer)
        return coarse.reconstruct_n(0, self.index.nlist)

    def graph(self) -> "_Snapshot":
        """With an HNSW graph."""
        faiss, links = faiss_package(), self.sizes.get("links", 32)
        index = faiss.IndexHNSWFlat(self.schema.dim, links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = width_of(self.sizes)
        index.add(np.ascontiguousarray(self.rows.mu))
        return replace(self, index=index)

    def indexed(self, centroids: np.ndarray) -> "_Snapshot":
        """With an IVF index of these centroids."""
        faiss, dim = faiss_package(), self.schema.dim
        coarse = faiss.IndexFlatIP(dim)
        coarse.add(np.ascontiguousarray(centroids))
        ivf = faiss.IndexIVFFlat(coarse, dim, len(centroids), faiss.METRIC_INNER_PRODUCT)
        ivf.add(np.ascontiguousarray(self.rows.mu))
        return replace(self, index=ivf)

    def built(self, kind: Approximate, sizes: dict[str, int]) -> "_Snapshot":
        """With an HNSW graph, or an IVF index whose centroids are learned from the rows."""
        faiss, dim = faiss_package(), self.schema.dim
        notes = self.notes | {_INDEX: write_sizes(kind, sizes)}
        new = replace(self, kind=kind, sizes=sizes, notes=notes)
        if kind == "hnsw":
            return new.graph()
        lists = sizes.get("lists", default_lists(len(self.rows)))
        if len(self.rows) < lists:
            raise InvalidInputError(
                f"FAISS learns lists from rows: {lists} lists need {lists} rows, but there are {len(self.rows)}."
            )
        ivf = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
        ivf.cp.min_points_per_centroid, ivf.cp.max_points_per_centroid = 1, _TRAINING
        ivf.train(self.rows.mu)
        new = replace(new, index=ivf)
        return new.indexed(new.centroids())

    def search(self, *, exact: bool) -> _Search:
        """The index that a search uses."""
        if exact or self.index is None:
            return _Search(self.flat)
        if self.kind == "hnsw":
            return _Search(self.index)
        return _Search(self.index, probes_of(self.sizes, self.index.nlist))

    def allowed(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """A mask of the rows that meet all conditions; None for all."""
        return matches(conditions, self.rows.payload, len(self.rows)) if conditions else None

    def picked(self, places: np.ndarray, columns: Sequence[str], *, vectors: bool = True) -> Rows:
        """The rows at some places."""
        payload = {name: self.rows.payload[name][places] for name in columns}
        mu = self.rows.mu[places] if vectors else NO_MU
        return Rows(self.rows.ids[places], mu, self.rows.kappa[places], payload)


class FaissStore:
    """Rows in memory around FAISS indexes, saved as one file after each change unless the address is 'faiss://'."""

    engine = "FAISS"

    def __init__(self, where: str) -> None:
        self.where, self._path = where, None if where == "faiss://" else Path(where)
        self._stamp: tuple[int, int] | None = None
        self._held: _Snapshot | None = None
        self._closed = False

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
        """Remove rows, and return how many existed. Cost: as for ``append``."""
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
        allowed = held.allowed(selection.conditions)
        for labels in held.search(exact=selection.exact).within(mu, bounds):
            places = np.sort(labels)
            places = places if allowed is None else places[allowed[places]]
            yield held.picked(places, selection.columns)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        held = self._now()
        allowed = held.allowed(selection.conditions)
        k = min(k, len(held.rows) if allowed is None else int(allowed.sum()))
        search = held.search(exact=selection.exact)
        for query in mu:
            yield held.picked(search.nearest(query, k, allowed), selection.columns)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index next to the exact one.

        Cost: each change, and each process that opens the gallery, builds an HNSW graph again.
        """
        check_build(kind, sizes)
        with self._locked():
            self._save(self._now().built(kind, sizes))

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        held = self._now()
        if held.index is None:
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
            self._held, self._stamp = _load(self._path), stamp
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
    if held.index is not None and held.kind == "ivf":
        arrays["centroids"] = held.centroids()
    about = {"schema": held.schema.to_json(), "notes": held.notes}
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
        schema, notes = Schema.from_json(about["schema"], str(path)), about["notes"]
        if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
            raise ValueError("its notes are not texts")
        kind = "ivf" if "centroids" in arrays else "hnsw"
        sizes = parse_sizes(notes.get(_INDEX), kind, str(path))
        rows = _unpacked(arrays, schema)
        held = _Snapshot.of(schema, rows, kind=kind, sizes=sizes, notes=notes)
        if len(held.place) != len(held.rows):
            raise DamagedGalleryError(f"{path} is damaged: ids occur more than once.")
        if kind == "hnsw":
            return held.graph() if _INDEX in notes else held
        centroids = arrays["centroids"]
        if centroids.shape[1:] != (schema.dim,) or centroids.dtype != np.float32:
            raise ValueError("its centroids have another shape or type")
        if not len(centroids) or not np.isfinite(centroids).all():
            raise ValueError("its centroids are not numbers")
        return held.indexed(centroids)


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

    Vectors are read from it by label, for which an IVF index gets a direct map (about 50 bytes per vector).
    """

    engine, unit, check_all = "FAISS", True, True

    def __init__(self, index: Any, names: Names) -> None:
        faiss = self._faiss = faiss_package()
        given = [name for name in ("collection", "vector", "id", "columns") if getattr(names, name)]
        if given:
            raise InvalidInputError(
                f"a FAISS index has no {given[0]}: it holds ids and vectors alone. Give kappa by id."
            )
        self._yours = index  # it owns the memory that the others look at
        self._outer = inner = faiss.downcast_index(index)
        if isinstance(inner, faiss.IndexIDMap):
            inner = faiss.downcast_index(inner.index)
        plain = isinstance(inner, (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexHNSWFlat))
        if not plain or inner.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            raise InvalidInputError(
                f"a {type(inner).__name__} with metric {inner.metric_type} cannot be wrapped: caps need the vectors "
                "themselves and the metric inner product or L2. Use a Flat, IVFFlat or HNSWFlat index."
            )
        self._inner, self.dim = inner, int(index.d)
        self._is_ivf = isinstance(inner, faiss.IndexIVFFlat)
        self._is_graph = isinstance(inner, faiss.IndexHNSWFlat)
        if self._is_ivf and inner.direct_map.type == faiss.DirectMap.NoMap:
            inner.set_direct_map_type(faiss.DirectMap.Hashtable)
        ids = np.sort(self._ids(self._labels()))
        twice = ids[1:][ids[1:] == ids[:-1]]
        if len(twice):
            raise InvalidInputError(
                f"the FAISS index has the id {twice[0]} twice; ids must be distinct."
            )

    def count(self) -> int:
        """The number of vectors."""
        return int(self._outer.ntotal)

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:  # noqa: ARG002
        """The rows with some ids. Cost: a pass over all ids."""
        wanted = [i for i in ids if isinstance(i, int) and abs(i) < 2**63]
        labels = self._labels()
        return self._rows(labels[np.isin(self._ids(labels), wanted)])

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:  # noqa: ARG002
        """All rows in the order of their positions."""
        labels = self._labels()
        for start in range(0, len(labels), _SCAN_ROWS):
            yield self._rows(labels[start : start + _SCAN_ROWS], vectors=vectors)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound."""
        yield from map(self._rows, self._search(exact=selection.exact).within(mu, bounds))

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        search, k = self._search(exact=selection.exact), min(k, self.count())
        for query in mu:
            yield self._rows(search.nearest(query, k))

    def approximate(self) -> dict[str, Any] | None:
        """The sizes of an IVF or HNSW index, or None."""
        if self._is_graph:
            return {"kind": "hnsw", "width": int(self._inner.hnsw.efSearch)}
        if self._is_ivf:
            lists, probes = int(self._inner.nlist), int(self._inner.nprobe)
            return {"kind": "ivf", "lists": lists, "probes": probes}
        return None

    def close(self) -> None:
        """Do nothing: the index is yours."""

    def _search(self, *, exact: bool) -> _Search:
        """The index that a search uses: exact ones scan the storage of a graph, or all lists."""
        if exact and self._is_graph:
            return _Search(self._faiss.downcast_index(self._inner.storage))
        return _Search(self._inner, self._inner.nlist if exact and self._is_ivf else None)

    def _labels(self) -> np.ndarray:
        """The labels of all vectors in the inner index."""
        if not self._is_ivf:
            return np.arange(self.count())
        lists, numbers = self._inner.invlists, range(self._inner.nlist)
        parts = [
            self._faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
            for number in numbers
            if lists.list_size(number)
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _ids(self, labels: np.ndarray) -> np.ndarray:
        """The ids of labels of the inner index."""
        if self._outer is self._inner or not len(labels):
            return labels
        ids = self._outer.id_map
        return self._faiss.rev_swig_ptr(ids.data(), ids.size())[labels]

    def _rows(self, labels: np.ndarray, *, vectors: bool = True) -> Rows:
        mu = NO_MU
        if vectors:
            mu = np.zeros((len(labels), self.dim), np.float32)
            if len(labels):
                self._inner.reconstruct_batch(np.ascontiguousarray(labels), mu)
        ids = object_array(self._ids(labels).tolist())
        return Rows(ids, mu, np.zeros(len(labels), np.float32))


def _unpatched(index: Any, method: str) -> Callable[..., Any]:
    """``search`` or ``range_search`` of an index, with search parameters and NumPy arrays.

    ``faiss.contrib.torch_utils`` replaces them by methods that take no parameters, and keeps the originals.
    """
    return getattr(index, f"{method}_numpy", getattr(index, method))


def _groups(bounds: np.ndarray) -> Iterator[np.ndarray]:
    """Queries in groups whose bounds are close, each with its lowest bound first."""
    order = np.argsort(bounds, kind="stable")
    start = 0
    while start < len(order):
        near = np.searchsorted(bounds[order], bounds[order[start]] + _SPREAD, side="right")
        end = min(int(near), start + _GROUP)
        yield order[start:end]
        start = end
