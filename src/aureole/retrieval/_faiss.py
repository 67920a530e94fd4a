"""FAISS: a gallery in memory, with atomic snapshots on disk.

A folder ``gallery.faiss`` holds one snapshot: ``manifest.json``, the files that it names, and a lock file for writers.
Every change of the rows writes all of them to a new file and then replaces the manifest, so a process that is killed
meanwhile leaves the previous snapshot readable. Open galleries load a new snapshot when they are used next.

The manifest's log lists files of rows and of positions to delete, to be applied in order. This version writes at most
one of each; 0.1.0 wrote one per change. Files are safetensors: loading them runs no code. The manifest has the SHA-256
of each file, and opening a gallery verifies them. Files are untrusted: every value is validated when it is read.

A gallery with a compressed index keeps its codes in memory, and ids, vectors, kappas and payload on disk: its files of
rows are memory maps. A change of the rows then writes one file more, not a new snapshot, and the SHA-256 of files of
rows is verified by ``problems`` only.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import PART, reporting_writes
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.retrieval._compression import Compression, check_compressed
from aureole.retrieval._faiss_codes import CodeIndex, build_codes
from aureole.retrieval._faiss_files import (
    FAILURES,
    FORMAT,
    MANIFEST,
    check_digest,
    deleted_places,
    durable_file,
    missing,
    pack_rows,
    read_arrays,
    read_manifest,
    unpack_rows,
    write_arrays,
)
from aureole.retrieval._faiss_index import VectorIndex
from aureole.retrieval._filters import Condition, matches
from aureole.retrieval._integrity import check_returned, reading
from aureole.retrieval._mapped_rows import MappedPlaces, MappedRows, hash_arrays
from aureole.retrieval._schema import (
    DTYPES,
    NO_MU,
    Rows,
    Schema,
    matches_schema,
    object_array,
)
from aureole.retrieval._store import (
    Approximate,
    Selection,
    check_build,
    describe_index,
    file_lock,
    slack,
)

_LOCK = "lock"
_SPREAD, _GROUP = 0.02, 64  # up to 64 queries whose bounds are this close share a call
_SCAN_ROWS = 2**16  # rows per batch of a scan
_MOST_FILES = 64  # of a compressed gallery, before they are merged


class FaissStore:
    """Rows in memory around FAISS indexes, saved as a snapshot after each change if there is a folder."""

    engine = "FAISS"

    def __init__(self, schema: Schema, folder: Path | None) -> None:
        self._schema, self._folder = schema, folder
        self.where = "faiss://" if folder is None else str(folder)
        self._notes: dict[str, str] = {}
        self._clear()

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "FaissStore":
        """A new store; 'faiss://' exists in memory only."""
        store = cls(schema, None)
        store._add(rows)
        if where == "faiss://":
            return store
        store._folder, store.where = Path(where), where
        folder = store._folder
        with reporting_writes(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / _LOCK):
            if (folder / MANIFEST).exists():
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
        store = cls(Schema.from_json(read_manifest(folder).get("schema"), where), folder)
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
                self._change([], rows)

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists. Cost: a new snapshot, as for ``append``."""
        with self._writing():
            self._check_schema(rows)
            places = [self._place[i] for i in rows.ids if i in self._place]
            if len(rows):
                self._change(places, rows)
            return len(places)

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed. Cost: a new snapshot, as for ``append``."""
        with self._writing():
            places = [self._place[i] for i in ids if i in self._place]
            if places:
                self._change(places, None)
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

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows."""
        self._refresh()
        ids, kappa, mu = self._ids, self._kappa, self._vectors.mu if vectors else NO_MU
        stored = {name: self._payload[name] for name in columns}
        for places in np.array_split(np.flatnonzero(self._alive), len(ids) // _SCAN_ROWS + 1):
            with reading(self.where, *FAILURES):
                payload = {name: column[places] for name, column in stored.items()}
                own = mu[places] if vectors else NO_MU
                rows = Rows(ids[places], own, kappa[places], payload)
            yield rows

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound; scans share a call between queries whose bounds are close."""
        self._refresh()
        choose = self._chooser(selection.conditions)
        if not selection.exact and self._vectors.approximation is not None:
            for query, bound in zip(mu, bounds.tolist(), strict=True):
                ((places, _),) = self._vectors.within(query[None], bound, exact=False)
                places = self._inside(query, bound, np.sort(choose(places)))
                yield self._rows(places, selection.columns)
            return
        results: dict[int, np.ndarray] = {}
        for group in _groups(bounds):
            lowest = float(bounds[group[0]])
            within = self._vectors.within(mu[group], lowest, exact=True)
            for query, (places, scores) in zip(group.tolist(), within, strict=True):
                places = places[scores >= bounds[query] - slack(self._schema.dim)]
                results[query] = np.sort(choose(places))
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

    def build(self, kind: Approximate, *, compressed: bool = False, **sizes: int) -> None:
        """Build an IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index next to the exact one.

        A compressed one replaces the vectors in memory. All vectors are in memory while it is built.
        """
        check_build(kind, sizes)
        if compressed and self._folder is None:
            raise InvalidInputError(
                "'faiss://' exists in memory only, and a compressed index keeps its vectors on disk: use a folder."
            )
        with self._writing():
            if compressed:
                check_compressed(kind, len(self._place))
            if self._mapped is not None and self._folder is not None:
                self._load(self._folder, read_manifest(self._folder), in_memory=True)
            self._compact()
            self._stamp = None
            if compressed:
                self._vectors.approximation, self._compression = build_codes(self._vectors, sizes)
            else:
                self._vectors.build(kind, sizes)
            self._save_rows()

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        self._refresh()
        index = self._vectors.approximation
        if index is None:
            return None
        lists = getattr(index.index, "nlist", 1)
        return describe_index(index.kind, lists, index.sizes, self._compression)

    def problems(self) -> list[str]:
        """What is wrong with the approximate index: whether it holds other vectors than the rows."""
        self._refresh()
        problems = self._vectors.problems()
        if self._mapped is not None and self._folder is not None:  # not verified when it was opened
            for name in (name for entry in self._log for name in entry.values()):
                try:
                    check_digest(self._folder / name, self._hashes.get(name))
                except DamagedGalleryError as error:
                    problems.append(str(error))
        return problems

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
        self._mapped: MappedRows | None = None  # with a compressed index: all columns are on disk
        self._compression: Compression | None = None
        self._ids: Any = object_array([])
        self._place: Any = {}  # positions by id, of the rows that are not deleted
        self._kappa: Any = np.zeros(0, np.float32)
        self._alive = np.zeros(0, bool)
        self._payload: dict[str, Any] = {
            name: np.zeros(0, DTYPES[kind]) for name, kind in self._schema.columns.items()
        }
        self._log: list[dict[str, str]] = []
        self._hashes: dict[str, str] = {}  # SHA-256 of the files of the snapshot, by name
        # of the manifest that is in memory; None during a change, so that a failed one is undone by loading again
        self._stamp: tuple[int, int] | None = None

    def _change(self, removed: list[int], rows: Rows | None) -> None:
        """Remove the rows at some positions, add others, and save."""
        if self._mapped is None:
            self._remove(removed)
            if rows is not None:
                self._add(rows)
            self._save_rows()
            return
        log = self._log if len(self._log) < _MOST_FILES else self._merged_log(self._mapped)
        self._stamp = None
        if removed:
            places = {"places": np.array(removed, np.int64)}
            log = [*log, {"deleted": self._write("deleted", places)}]
        if rows is not None:
            arrays = pack_rows(rows) | hash_arrays(rows.ids.tolist())
            log = [*log, {"rows": self._write("rows", arrays)}]
        self._save_manifest(log)
        self._stamp = None  # load what was written
        self._refresh()

    def _merged_log(self, mapped: MappedRows) -> list[dict[str, str]]:
        """The log with one file for all rows after those of the first file; positions stay."""
        log, late = self._log[:1], np.arange(mapped.first, len(mapped))
        if len(late):
            rows = self._rows(late, list(self._payload))
            arrays = pack_rows(rows) | hash_arrays(rows.ids.tolist())
            log = [*log, {"rows": self._write("rows", arrays)}]
        if not self._alive.all():
            places = {"places": np.flatnonzero(~self._alive)}
            log = [*log, {"deleted": self._write("deleted", places)}]
        return log

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

    def _chooser(self, conditions: Sequence[Condition]) -> Callable[[np.ndarray], np.ndarray]:
        """A function that returns those of some positions whose rows may be returned."""
        if self._mapped is None:
            allowed = self._allowed(conditions)
            return lambda places: places if allowed is None else places[allowed[places]]

        def choose(places: np.ndarray) -> np.ndarray:
            places = places[self._alive[places]]
            return places[self._matching(conditions, places)] if conditions else places

        return choose

    def _inside(self, query: np.ndarray, bound: float, places: np.ndarray) -> np.ndarray:
        """Of the candidates that codes propose, those within the bound: only their ids and kappas are read."""
        if self._mapped is None:
            return places
        with reading(self.where, *FAILURES):
            outside = self._mapped.mu[places] @ query < bound - slack(self._schema.dim)
        return places[~outside]  # NaN is not outside, so that it is noticed

    def _matching(self, conditions: Sequence[Condition], places: np.ndarray) -> np.ndarray:
        """Which rows at some positions meet all conditions; reads only their columns."""
        names = {condition.column for condition in conditions}
        with reading(self.where, *FAILURES):
            values = {name: self._payload[name][places] for name in names}
        return matches(conditions, values, len(places))

    def _allowed(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """Which rows may be returned; None for all."""
        if conditions and self._mapped is not None:
            blocks = self._mapped.blocks(_SCAN_ROWS)
            parts = [self._matching(conditions, block) for block in blocks]
            return self._alive & np.concatenate([np.zeros(0, bool), *parts])
        if conditions:
            return self._alive & matches(conditions, self._payload, len(self._ids))
        return None if len(self._place) == len(self._ids) else self._alive

    def _rows(self, places: np.ndarray, columns: Sequence[str]) -> Rows:
        if self._mapped is not None:
            with reading(self.where, *FAILURES):
                rows = self._mapped.rows(places, columns)
            return check_returned(rows, self.where)
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
            arrays = pack_rows(rows)
            if self._compression is not None:
                arrays |= hash_arrays(rows.ids.tolist())
            log.append({"rows": self._write("rows", arrays)})
        if not self._alive.all():
            deleted = {"places": np.flatnonzero(~self._alive)}
            log.append({"deleted": self._write("deleted", deleted)})
        self._save_manifest(log)
        if self._compression is not None:  # what was written is used from disk
            self._stamp = None
            self._refresh()

    def _write(self, kind: str, arrays: dict[str, np.ndarray]) -> str:
        """Write arrays to a new file, and return its name."""
        assert self._folder is not None
        name, digest = write_arrays(self._folder, kind, arrays)
        self._hashes[name] = digest
        return name

    def _save_manifest(self, log: list[dict[str, str]]) -> None:
        """Make these files, the approximate index and the notes the current snapshot."""
        folder, index = self._folder, self._vectors.approximation
        if folder is None:
            return
        current = {MANIFEST, _LOCK, *(name for entry in log for name in entry.values())}
        described = None
        if index is not None:
            current.add(index.file)
            if not (folder / index.file).exists():
                self._hashes[index.file] = self._vectors.write(folder / index.file)
            described = {"file": index.file, "kind": index.kind, "sizes": index.sizes}
            if self._compression is not None:
                described["compression"] = self._compression.to_json()
        manifest = {
            "format": FORMAT,
            "schema": self._schema.to_json(),
            "log": log,
            "notes": self._notes,
            "index": described,
            "sha256": {name: digest for name, digest in self._hashes.items() if name in current},
        }
        with durable_file(folder / MANIFEST) as file:
            file.write(json.dumps(manifest, allow_nan=False).encode())
        self._log, self._stamp = log, _stamp(folder)
        for path in folder.iterdir():  # of former snapshots and of writers that were killed
            if path.name not in current and path.suffix in (".safetensors", ".faiss", ".tmp", PART):
                path.unlink(missing_ok=True)

    def _refresh(self) -> None:
        """Load the last snapshot if it is not the one in memory."""
        while self._folder is not None and (stamp := _stamp(self._folder)) != self._stamp:
            try:
                self._load(self._folder, read_manifest(self._folder))
            except InvalidInputError:
                if _stamp(self._folder) == stamp:
                    raise
                continue  # a writer has replaced the snapshot, and deleted its files
            self._stamp = stamp

    def _load(self, folder: Path, manifest: dict[str, Any], *, in_memory: bool = False) -> None:
        """Load a snapshot; ``in_memory`` loads the rows of a compressed one into memory, without its index."""
        self._schema = Schema.from_json(manifest.get("schema"), str(folder))
        self._clear()
        self._log, self._notes = manifest["log"], manifest["notes"]
        self._hashes = dict(manifest.get("sha256", {}))
        index = manifest["index"]
        compressed = index is not None and "compression" in index
        if index is not None and compressed and not in_memory:
            self._map(folder, index)
            return
        for entry in self._log:
            ((kind, name),) = entry.items()
            arrays = read_arrays(folder, name, self._hashes.get(name))
            with reading(str(folder / name), *FAILURES):
                if kind == "rows":
                    self._add(unpack_rows(arrays, self._schema))
                else:
                    self._remove(deleted_places(arrays, len(self._ids)))
        if len(self._place) != np.count_nonzero(self._alive):
            raise DamagedGalleryError(f"{folder} is damaged: ids occur more than once.")
        if index is not None and not compressed:
            digest = self._hashes.get(index["file"])
            path = folder / index["file"]
            self._vectors.load(path, index["kind"], index["sizes"], digest)

    def _map(self, folder: Path, index: dict[str, Any]) -> None:
        """Map the files of a compressed gallery, and load its codes."""
        rows, deleted = MappedRows(self._schema), []
        for entry in self._log:
            ((kind, name),) = entry.items()
            if kind == "rows":
                rows.add(folder / name)
                continue
            arrays = read_arrays(folder, name, self._hashes.get(name))
            with reading(str(folder / name), *FAILURES):
                deleted += deleted_places(arrays, len(rows))
        alive = np.ones(len(rows), bool)
        alive[deleted] = False
        self._compression = Compression.from_json(index["compression"], str(folder))
        self._vectors = CodeIndex(self._schema.dim, rows.mu, self._compression)
        digest = self._hashes.get(index["file"])
        self._vectors.load(folder / index["file"], index["kind"], index["sizes"], digest)
        self._mapped, self._alive, self._place = rows, alive, MappedPlaces(rows, alive)
        self._ids, self._kappa, self._payload = rows.ids, rows.kappa, dict(rows.payload)


def _groups(bounds: np.ndarray) -> Iterator[np.ndarray]:
    """Queries in groups whose bounds are close, each with its lowest bound first."""
    order = np.argsort(bounds, kind="stable")
    start = 0
    while start < len(order):
        near = np.searchsorted(bounds[order], bounds[order[start]] + _SPREAD, side="right")
        end = min(int(near), start + _GROUP)
        yield order[start:end]
        start = end


def _stamp(folder: Path) -> tuple[int, int]:
    """What changes whenever the manifest is replaced."""
    try:
        status = os.stat(f"{folder}/{MANIFEST}")  # before every search: faster than pathlib
    except FileNotFoundError as error:
        raise missing(folder) from error
    return status.st_ino, status.st_mtime_ns
