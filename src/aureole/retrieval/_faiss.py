"""FAISS: a gallery in memory, with atomic snapshots on disk. The only module that imports faiss.

A folder ``gallery.faiss`` holds one snapshot: ``manifest.json``, the files that it names, and a lock file for writers.
Every change of the rows writes all of them to a new file and then replaces the manifest, so a process that is killed
meanwhile leaves the previous snapshot readable. Open galleries load a new snapshot when they are used next.

The manifest's log lists files of rows and of positions to delete, to be applied in order. This version writes at most
one of each; 0.1.0 wrote one per change. Files are safetensors: loading them runs no code.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_file
from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError
from aureole.retrieval._filters import Condition, matches
from aureole.retrieval._schema import (
    DTYPES,
    NO_MU,
    Rows,
    Schema,
    matches_schema,
    object_array,
    pack_strings,
    unpack_strings,
)
from aureole.retrieval._store import (
    Approximate,
    Selection,
    check_build,
    default_lists,
    describe_index,
    file_lock,
    probes_of,
    slack,
    width_of,
)

_FORMAT = "aureole-segments-1"
_MANIFEST, _LOCK = "manifest.json", "lock"
_SPREAD, _GROUP = 0.02, 64  # up to 64 queries whose bounds are this close share a call
_SCAN_ROWS = 2**16  # rows per batch of a scan


class FaissStore:
    """Rows in memory around FAISS indexes, saved as a snapshot after each change if there is a folder."""

    engine = "FAISS"

    def __init__(self, schema: Schema, folder: Path | None) -> None:
        self._schema, self._folder = schema, folder
        self._notes: dict[str, str] = {}
        self._clear()

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "FaissStore":
        """A new store; 'faiss://' exists in memory only."""
        store = cls(schema, None)
        store._add(rows)
        if where == "faiss://":
            return store
        store._folder = folder = Path(where)
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / _LOCK):
            if (folder / _MANIFEST).exists():
                raise InvalidInputError(
                    f"{folder} holds a gallery already. Open it, or delete the folder first."
                )
            store._save_rows()
        return store

    @classmethod
    def open(cls, where: str) -> "FaissStore":
        """Open the last snapshot in a folder."""
        if where == "faiss://":
            raise InvalidInputError("'faiss://' exists in memory only; create it instead.")
        folder = Path(where)
        store = cls(Schema.from_json(_read_manifest(folder).get("schema"), where), folder)
        store._refresh()
        return store

    @property
    def schema(self) -> Schema:
        """The schema of the last snapshot."""
        if self._stamp is not None:  # after close it stays what it was
            self._refresh()
        return self._schema

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists. Cost: a new snapshot, which writes all rows of the gallery."""
        with self._writing():
            self._check_schema(rows)
            known = next((i for i in rows.ids if i in self._place), None)
            if known is not None:
                raise InvalidInputError(
                    f"id {known!r} is in the gallery already; use upsert to replace it. Nothing was stored."
                )
            if len(rows):
                self._add(rows)
                self._save_rows()

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists. Cost: a new snapshot, as for ``append``."""
        with self._writing():
            self._check_schema(rows)
            places = [self._place[i] for i in rows.ids if i in self._place]
            if len(rows):
                self._remove(places)
                self._add(rows)
                self._save_rows()
            return len(places)

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed. Cost: a new snapshot, as for ``append``."""
        with self._writing():
            places = [self._place[i] for i in ids if i in self._place]
            if places:
                self._remove(places)
                self._save_rows()
            return len(places)

    def count(self) -> int:
        """The number of rows."""
        self._refresh()
        return len(self._place)

    def version(self) -> str:
        """The stamp of the last snapshot; in memory, the numbers of rows, with and without deleted ones."""
        self._refresh()
        return str(self._stamp or (len(self._ids), len(self._place)))

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        self._refresh()
        places = [self._place[i] for i in ids if i in self._place]
        return self._rows(np.array(places, np.int64), columns)

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """All rows without mu."""
        self._refresh()
        ids, kappa = self._ids, self._kappa
        stored = {name: self._payload[name] for name in columns}
        for places in np.array_split(np.flatnonzero(self._alive), len(ids) // _SCAN_ROWS + 1):
            payload = {name: column[places] for name, column in stored.items()}
            yield Rows(ids[places], NO_MU, kappa[places], payload)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound; scans share a call between queries whose bounds are close."""
        self._refresh()
        allowed = self._allowed(selection.conditions)
        if not selection.exact and self._vectors.approximation is not None:
            for query, bound in zip(mu, bounds.tolist(), strict=True):
                ((places, _),) = self._vectors.within(query[None], bound, exact=False)
                places = places if allowed is None else places[allowed[places]]
                yield self._rows(np.sort(places), selection.columns)
            return
        results: dict[int, np.ndarray] = {}
        for group in _groups(bounds):
            lowest = float(bounds[group[0]])
            within = self._vectors.within(mu[group], lowest, exact=True)
            for query, (places, scores) in zip(group.tolist(), within, strict=True):
                places = places[scores >= bounds[query] - slack(self._schema.dim)]
                results[query] = np.sort(places if allowed is None else places[allowed[places]])
        for query in range(len(mu)):
            yield self._rows(results.pop(query), selection.columns)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        self._refresh()
        allowed = self._allowed(selection.conditions)
        k = min(k, len(self._place) if allowed is None else int(allowed.sum()))
        for query in mu:
            places = np.zeros(0, np.int64)
            if k:
                _, (found,) = self._vectors.nearest(query[None], k, allowed, exact=selection.exact)
                places = found[found >= 0]
            yield self._rows(places, selection.columns)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index next to the exact one."""
        with self._writing():
            self._compact()
            self._stamp = None
            self._vectors.build(kind, sizes)
            self._save_rows()

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        self._refresh()
        index = self._vectors.approximation
        if index is None:
            return None
        return describe_index(index.kind, getattr(index.index, "nlist", 1), index.sizes)

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        self._refresh()
        return self._notes.get(name)

    def write_note(self, name: str, text: str) -> None:
        """Save a note in the manifest; the rows are not written again."""
        with self._writing():
            self._stamp = None
            self._notes[name] = text
            self._save_manifest(self._log)

    def close(self) -> None:
        """Release the memory."""
        self._clear()

    def _clear(self) -> None:
        self._vectors = VectorIndex(self._schema.dim)
        self._ids = object_array([])
        self._place: dict[str, int] = {}  # of the rows that are not deleted
        self._kappa = np.zeros(0, np.float32)
        self._alive = np.zeros(0, bool)
        self._payload = {
            name: np.zeros(0, DTYPES[kind]) for name, kind in self._schema.columns.items()
        }
        self._log: list[dict[str, str]] = []
        # of the manifest that is in memory; None during a change, so that a failed one is undone by loading again
        self._stamp: tuple[int, int] | None = None

    def _add(self, rows: Rows) -> None:
        self._stamp, start = None, len(self._ids)
        self._vectors.add(rows.mu)
        self._ids = np.concatenate([self._ids, rows.ids])
        self._place.update({name: start + i for i, name in enumerate(rows.ids)})
        self._kappa = np.concatenate([self._kappa, rows.kappa])
        self._alive = np.concatenate([self._alive, np.ones(len(rows), bool)])
        for name, column in rows.payload.items():
            self._payload[name] = np.concatenate([self._payload[name], column])

    def _remove(self, places: list[int]) -> None:
        self._stamp = None
        for place in places:
            if self._place.get(self._ids[place]) == place:  # the id may have been added again
                del self._place[self._ids[place]]
        self._alive[places] = False

    def _compact(self) -> None:
        """Drop deleted rows and, since positions change, the approximate index."""
        if not self._alive.all():
            rows = self._rows(np.flatnonzero(self._alive), list(self._payload))
            self._clear()
            self._add(rows)

    def _check_schema(self, rows: Rows) -> None:
        if not matches_schema(rows, self._schema):
            raise InvalidInputError(
                "the gallery was recreated with another dimension or other columns. Nothing was stored."
            )

    def _allowed(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """Which rows may be returned; None for all."""
        if conditions:
            return self._alive & matches(conditions, self._payload, len(self._ids))
        return None if len(self._place) == len(self._ids) else self._alive

    def _rows(self, places: np.ndarray, columns: Sequence[str]) -> Rows:
        payload = {name: self._payload[name][places] for name in columns}
        return Rows(self._ids[places], self._vectors.mu[places], self._kappa[places], payload)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock for writers, with the last snapshot in memory."""
        if self._folder is None:
            yield
            return
        _stamp(self._folder)  # raises if the gallery does not exist
        with file_lock(self._folder / _LOCK):
            self._refresh()
            yield

    def _save_rows(self) -> None:
        """Write a snapshot of all rows."""
        if self._folder is None:
            return
        if self._vectors.approximation is None:
            self._compact()
        log = []
        if len(self._ids):
            rows = self._rows(np.arange(len(self._ids)), list(self._payload))
            log.append({"rows": _write_arrays(self._folder, "rows", pack_rows(rows))})
        if not self._alive.all():
            deleted = {"places": np.flatnonzero(~self._alive)}
            log.append({"deleted": _write_arrays(self._folder, "deleted", deleted)})
        self._save_manifest(log)

    def _save_manifest(self, log: list[dict[str, str]]) -> None:
        """Make these files, the approximate index and the notes the current snapshot."""
        folder, index = self._folder, self._vectors.approximation
        if folder is None:
            return
        current = {_MANIFEST, _LOCK, *(name for entry in log for name in entry.values())}
        described = None
        if index is not None:
            current.add(index.file)
            if not (folder / index.file).exists():
                faiss = self._vectors.faiss
                with _durable_file(folder / index.file) as file:
                    faiss.write_index(index.index, faiss.PyCallbackIOWriter(file.write))
            described = {"file": index.file, "kind": index.kind, "sizes": index.sizes}
        manifest = {
            "format": _FORMAT,
            "schema": self._schema.to_json(),
            "log": log,
            "notes": self._notes,
            "index": described,
        }
        with _durable_file(folder / _MANIFEST) as file:
            file.write(json.dumps(manifest, allow_nan=False).encode())
        self._log, self._stamp = log, _stamp(folder)
        for path in folder.iterdir():  # of former snapshots and of writers that were killed
            if path.name not in current and path.suffix in (".safetensors", ".faiss", ".tmp"):
                path.unlink(missing_ok=True)

    def _refresh(self) -> None:
        """Load the last snapshot if it is not the one in memory."""
        while self._folder is not None and (stamp := _stamp(self._folder)) != self._stamp:
            try:
                self._load(self._folder, _read_manifest(self._folder))
            except InvalidInputError:
                if _stamp(self._folder) == stamp:
                    raise
                continue  # a writer has replaced the snapshot, and deleted its files
            self._stamp = stamp

    def _load(self, folder: Path, manifest: dict[str, Any]) -> None:
        self._schema = Schema.from_json(manifest.get("schema"), str(folder))
        self._clear()
        self._log, self._notes = manifest["log"], manifest["notes"]
        for entry in self._log:
            if "rows" in entry:
                self._add(unpack_rows(_read_arrays(folder, entry["rows"]), self._schema))
            else:
                self._remove(_read_arrays(folder, entry["deleted"])["places"].tolist())
        index = manifest["index"]
        if index is not None:
            path = folder / Path(index["file"]).name
            self._vectors.load(path, index["kind"], index["sizes"])


@dataclass(frozen=True)
class Approximation:
    """An approximate index, the sizes that were requested, the name of its file, and how a range search uses it."""

    index: Any
    kind: Approximate
    sizes: dict[str, int]
    file: str
    parameters: Any = None


class VectorIndex:
    """Unit vectors by position, in the order in which they were added.

    ``flat`` is exact and holds the vectors; ``approximation`` (IVF or HNSW), if it was built, holds them again.
    """

    def __init__(self, dim: int) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingPackageError(
                "galleries in FAISS need faiss-cpu: pip install 'aureole[retrieval]'."
            ) from error
        self.faiss: Any = faiss
        self.dim = dim
        self.flat: Any = faiss.IndexFlatIP(dim)
        self.approximation: Approximation | None = None
        self._view: np.ndarray | None = None

    @property
    def mu(self) -> np.ndarray:
        """All vectors: a view of the memory of ``flat``, valid until the next ``add``."""
        view = self._view
        if view is None:
            n = self.flat.ntotal
            view = np.zeros(0, np.float32)
            if n:
                view = self.faiss.rev_swig_ptr(self.flat.get_xb(), n * self.dim)
            self._view = view = view.reshape(n, self.dim)
        return view

    def add(self, mu: np.ndarray) -> None:
        """Add vectors to both indexes."""
        mu = np.ascontiguousarray(mu)
        self._view = None
        self.flat.add(mu)
        if self.approximation is not None:
            self.approximation.index.add(mu)

    def build(self, kind: Approximate, sizes: dict[str, int]) -> None:
        """Build an IVF or HNSW index of the vectors."""
        check_build(kind, sizes)
        faiss, mu = self.faiss, self.mu
        if kind == "hnsw":
            links = sizes.get("links", 32)
            index = faiss.IndexHNSWFlat(self.dim, links, faiss.METRIC_INNER_PRODUCT)
        else:
            lists = sizes.get("lists", default_lists(len(mu)))
            if len(mu) < lists:
                raise InvalidInputError(
                    f"FAISS learns lists from rows: {lists} lists need {lists} rows, but there are {len(mu)}."
                )
            coarse = faiss.IndexFlatIP(self.dim)
            index = faiss.IndexIVFFlat(coarse, self.dim, lists, faiss.METRIC_INNER_PRODUCT)
            index.cp.min_points_per_centroid = 1
            index.cp.max_points_per_centroid = 64
            index.train(mu)
        index.add(mu)
        file = f"index-{secrets.token_hex(8)}.faiss"
        self._use(index, kind, sizes, file)

    def load(self, path: Path, kind: Approximate, sizes: dict[str, int]) -> None:
        """Load an approximate index, and add the vectors that were appended after it was built."""
        try:
            index = self.faiss.read_index(str(path))
        except RuntimeError as error:
            raise InvalidInputError(
                f"{path}, the approximate index, cannot be read: {str(error)[-200:]}"
            ) from error
        rest = self.mu[index.ntotal :]
        if len(rest):
            index.add(np.ascontiguousarray(rest))
        self._use(index, kind, sizes, path.name)

    def _use(self, index: Any, kind: Approximate, sizes: dict[str, int], file: str) -> None:
        parameters = None
        if kind == "ivf":
            parameters = self.faiss.SearchParametersIVF(nprobe=probes_of(sizes, index.nlist))
        self.approximation = Approximation(index, kind, sizes, file, parameters)

    def within(
        self, mu: np.ndarray, bound: float, *, exact: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Positions, inner products) of the vectors above a bound less the slack, for each query."""
        mu = np.ascontiguousarray(mu)
        radius = max(bound, -1.0) - slack(self.dim)
        index, parameters, approximation = self.flat, None, self.approximation
        if approximation is not None and not exact:
            if approximation.kind == "hnsw":
                yield from (self._graph_within(query[None], radius, approximation) for query in mu)
                return
            index = approximation.index
            parameters = approximation.parameters
        search = unpatched(index, "range_search")
        ends, scores, places = search(mu, radius, params=parameters)
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield places[start:end], scores[start:end]

    def nearest(
        self, query: np.ndarray, k: int, allowed: np.ndarray | None, *, exact: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Inner products, positions) of the k nearest allowed vectors of a query [1, D]; -1 fills positions."""
        faiss, approximation = self.faiss, self.approximation
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        if approximation is None or exact:
            parameters = faiss.SearchParameters(sel=selector)
            return unpatched(self.flat, "search")(query, k, params=parameters)
        index, sizes = approximation.index, approximation.sizes
        if approximation.kind == "ivf":
            probes = probes_of(sizes, index.nlist)
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        else:
            width = max(width_of(sizes), 2 * k)
            parameters = faiss.SearchParametersHNSW(efSearch=width, sel=selector)
        return unpatched(index, "search")(query, k, params=parameters)

    def _graph_within(
        self, query: np.ndarray, radius: float, graph: Approximation
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Positions, inner products) from HNSW: a few nearest, else a range search, else, for large caps, a scan."""
        total, width = self.flat.ntotal, width_of(graph.sizes)
        if total == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        k = min(max(1, width // 2), total)
        (scores,), (places,) = self.nearest(query, k, None, exact=False)
        if (places >= 0).all() and scores[-1] < radius:
            inside = scores >= radius
            return places[inside], scores[inside]
        parameters = self.faiss.SearchParametersHNSW(efSearch=4 * width)
        search = unpatched(graph.index, "range_search")
        _, scores, places = search(query, radius, params=parameters)
        if len(places) > 8 * width:  # more than the search can keep track of
            _, scores, places = self.flat.range_search(query, radius)
        return places, scores


def pack_rows(rows: Rows) -> dict[str, np.ndarray]:
    """Rows as arrays of numbers."""
    arrays = {"mu": np.ascontiguousarray(rows.mu), "kappa": np.ascontiguousarray(rows.kappa)}
    texts = {"id": rows.ids}
    for name, column in rows.payload.items():
        (texts if column.dtype == object else arrays)[f"payload.{name}"] = column
    for name, column in texts.items():
        arrays[f"{name}.text"], arrays[f"{name}.ends"] = pack_strings(column.tolist())
    return arrays


def unpack_rows(arrays: dict[str, np.ndarray], schema: Schema) -> Rows:
    """Rows from untrusted arrays."""

    def text(name: str) -> np.ndarray:
        return object_array(unpack_strings(arrays[f"{name}.text"], arrays[f"{name}.ends"]))

    try:
        payload = {
            name: text(f"payload.{name}") if kind == "text" else arrays[f"payload.{name}"]
            for name, kind in schema.columns.items()
        }
        mu, kappa = arrays["mu"], arrays["kappa"]
        rows = Rows(text("id"), mu, kappa, payload)
        shapes = {kappa.shape, *(column.shape for column in payload.values())}
        if not matches_schema(rows, schema) or shapes != {(len(rows),)}:
            raise ValueError("shapes or types differ from the schema")
        if mu.dtype != np.float32 or kappa.dtype != np.float32 or not np.isfinite(mu).all():
            raise ValueError("mu or kappa is not a finite float32 array")
    except (KeyError, ValueError) as error:
        raise InvalidInputError(f"a file of rows is damaged: {error!r}.") from error
    return rows


def _groups(bounds: np.ndarray) -> Iterator[np.ndarray]:
    """Queries in groups whose bounds are close, each with its lowest bound first."""
    order = np.argsort(bounds, kind="stable")
    start = 0
    while start < len(order):
        near = np.searchsorted(bounds[order], bounds[order[start]] + _SPREAD, side="right")
        end = min(int(near), start + _GROUP)
        yield order[start:end]
        start = end


@contextmanager
def _durable_file(path: Path) -> Iterator[Any]:
    """A file that replaces ``path`` atomically, after its content has reached the disk."""
    with atomic_file(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_arrays(folder: Path, kind: str, arrays: dict[str, np.ndarray]) -> str:
    """Write arrays to a new file, and return its name."""
    from safetensors.numpy import save

    name = f"{kind}-{secrets.token_hex(8)}.safetensors"
    with _durable_file(folder / name) as file:
        file.write(save(arrays))
    return name


def _read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if Path(name).name != name:
        raise InvalidInputError(
            f"{folder / _MANIFEST} names {name!r}, which is outside its folder."
        )
    try:
        return load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"{folder / name} cannot be read: {error}.") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _missing(folder) from error
    except ValueError as error:
        raise InvalidInputError(f"{path} is not JSON: {error}.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise InvalidInputError(f"{path} does not have the format {_FORMAT!r}.")
    return manifest


def _stamp(folder: Path) -> tuple[int, int]:
    """What changes whenever the manifest is replaced."""
    try:
        status = os.stat(f"{folder}/{_MANIFEST}")  # before every search: faster than pathlib
    except FileNotFoundError as error:
        raise _missing(folder) from error
    return status.st_ino, status.st_mtime_ns


def _missing(folder: Path) -> MissingInputError:
    return MissingInputError(
        f"{folder} holds no gallery: {_MANIFEST} is missing. `aureole index build` creates one."
    )


def unpatched(index: Any, method: str) -> Callable[..., Any]:
    """``search`` or ``range_search`` of an index, with search parameters and NumPy arrays.

    ``faiss.contrib.torch_utils`` replaces them by methods that take no parameters, and keeps the originals.
    """
    return getattr(index, f"{method}_numpy", getattr(index, method))
