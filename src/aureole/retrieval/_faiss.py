"""FAISS: rows in memory, their directions in its indexes; durable where there is a folder."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError
from aureole.retrieval._directions import Approximation, Directions
from aureole.retrieval._filters import Condition, matches
from aureole.retrieval._rows import DTYPES, Rows, Schema, fits, strings
from aureole.retrieval._segments import Folder, pack_rows, unpack_rows
from aureole.retrieval._store import Approximate, slack, told_index

_SPREAD = 0.02  # FAISS takes one radius a call: queries whose bounds are this close share one
_GROUP = 64
_SCANNED = 2**16  # rows of a scan at a time


class FaissStore:
    """Rows in memory around FAISS indexes; with a folder each change is durable before it is seen."""

    engine = "FAISS"

    def __init__(self, schema: Schema, folder: Folder | None) -> None:
        self._schema, self._folder = schema, folder
        self._clear()
        self._notes: dict[str, str] = {}

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "FaissStore":
        """A new store; 'faiss://' is in memory alone."""
        store = cls(schema, None)
        store._add(rows)
        if where != "faiss://":
            store._folder, store._done = Folder.create(Path(where), schema, rows)
            store._refresh()
        return store

    @classmethod
    def open(cls, where: str) -> "FaissStore":
        """The store in a folder."""
        if where == "faiss://":
            raise InvalidInputError("'faiss://' lives in memory and cannot be opened; create it.")
        folder = Folder(Path(where))
        store = cls(Schema.from_json(folder.manifest().get("schema"), where), folder)
        store._refresh()
        return store

    @property
    def schema(self) -> Schema:
        """The schema, that of the new gallery where the folder was made anew; after ``close`` the last one."""
        if self._stamp is not None:
            self._refresh()
        return self._schema

    def append(self, rows: Rows) -> None:
        """Add rows whose ids are new, all or none."""
        with self._writing():
            if not fits(rows, self._schema):
                raise InvalidInputError(
                    "the gallery was made anew with another dimension or other columns. Nothing was stored."
                )
            known = next((i for i in rows.ids if i in self._place), None)
            if known is not None:
                raise InvalidInputError(
                    f"id {known!r} is in the gallery already; delete it first. Nothing was stored."
                )
            if not len(rows):
                return
            self._log({"rows": pack_rows(rows)})
            self._add(rows)

    def delete(self, ids: list[str]) -> int:
        """Remove rows; the number that were there."""
        with self._writing():
            places = [self._place[i] for i in ids if i in self._place]
            if places:
                self._log({"deleted": {"places": np.array(places, np.int64)}})
                self._remove(places)
            return len(places)

    def count(self) -> int:
        """The number of rows."""
        self._refresh()
        return len(self._place)

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows of some ids."""
        self._refresh()
        places = [self._place[i] for i in ids if i in self._place]
        return self._rows(np.array(places, np.int64), columns)

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """All rows without mu."""
        self._refresh()
        nothing = np.zeros((0, 0), np.float32)
        ids, kappa, held = self._ids, self._kappa, {name: self._payload[name] for name in columns}
        for places in np.array_split(np.flatnonzero(self._alive), len(ids) // _SCANNED + 1):
            payload = {name: column[places] for name, column in held.items()}
            yield Rows(ids[places], nothing, kappa[places], payload)

    def candidates(
        self,
        mu: np.ndarray,
        bounds: np.ndarray,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]:
        """All rows within each query's bound; in a scan queries with near bounds share a call at the lowest of them."""
        self._refresh()
        kept = self._kept(conditions)
        found: dict[int, np.ndarray] = {}
        scanned = exact or self._directions.approximation is None
        for group in _groups(bounds) if scanned else np.arange(len(bounds))[:, None]:
            for query, (places, scores) in zip(
                group,
                self._directions.within(mu[group], float(bounds[group[0]]), exact=exact),
                strict=True,
            ):
                places = places[scores >= bounds[query] - slack(self._schema.dim)]
                found[query] = np.sort(places if kept is None else places[kept[places]])
        for query in range(len(mu)):
            yield self._rows(found.pop(query), columns)

    def nearest(
        self,
        mu: np.ndarray,
        k: int,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]:
        """The k nearest rows of each query that meet the conditions."""
        self._refresh()
        kept = self._kept(conditions)
        k = min(k, len(self._place) if kept is None else int(kept.sum()))
        for query in mu:
            if k == 0:
                yield self._rows(np.zeros(0, np.int64), columns)
                continue
            _, places = self._directions.search(query[None], k, kept, exact=exact)
            yield self._rows(places[0][places[0] >= 0], columns)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index beside the flat one."""
        with self._writing():
            file = f"index-{secrets.token_hex(8)}.faiss"
            near = self._directions.approximated(kind, sizes, file)
            if self._folder:
                self._publish_index(self._folder, near)
            self._directions.approximation = near

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index."""
        self._refresh()
        near = self._directions.approximation
        if near is None:
            return None
        return told_index(near.kind, getattr(near.index, "nlist", 1), near.sizes)

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        self._refresh()
        return self._notes.get(name)

    def write_note(self, name: str, text: str) -> None:
        """Keep a note."""
        with self._writing():
            self._notes[name] = text
            if self._folder:
                manifest = self._folder.manifest()
                manifest["notes"][name] = text
                self._folder.publish(manifest)
                self._stamp = self._folder.stamp()

    def close(self) -> None:
        """Let the memory go."""
        self._clear()

    def _clear(self) -> None:
        self._directions = Directions(self._schema.dim)
        self._ids = strings([])
        self._place: dict[str, int] = {}
        self._dead = 0
        self._kappa = np.zeros(0, np.float32)
        self._alive = np.zeros(0, bool)
        self._payload = {
            name: np.zeros(0, DTYPES[kind]) for name, kind in self._schema.columns.items()
        }
        self._done: list[dict[str, str]] = []
        self._stamp: tuple[int, int] | None = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The writers' lock, with all that others wrote read before."""
        if self._folder is None:
            yield
            return
        with self._folder.locked():
            self._refresh()
            yield

    def _log(self, change: dict[str, dict[str, np.ndarray]]) -> None:
        if not self._folder:
            return
        ((kind, arrays),) = change.items()
        manifest = self._folder.manifest()
        entry = self._folder.add(kind, arrays)
        manifest["log"].append(entry)
        self._folder.publish(manifest)
        self._done.append(entry)
        self._stamp = self._folder.stamp()

    def _refresh(self) -> None:
        """Read what others have written since."""
        if not self._folder:
            return
        while (stamp := self._folder.stamp()) != self._stamp:
            manifest = self._folder.manifest()
            log, schema = (
                manifest["log"],
                Schema.from_json(manifest.get("schema"), str(self._folder.path)),
            )
            if schema != self._schema or log[: len(self._done)] != self._done:
                self._schema = schema  # the folder was made anew
                self._clear()
            for entry in log[len(self._done) :]:
                if "rows" in entry:
                    self._add(unpack_rows(self._folder.read(entry["rows"]), schema))
                else:
                    self._remove(self._folder.read(entry["deleted"])["places"].tolist())
                self._done.append(entry)
            self._notes = dict(manifest["notes"])
            try:
                self._load_index(self._folder, manifest["index"])
            except InvalidInputError:
                if self._folder.stamp() == stamp:
                    raise
                continue  # another process built it anew, and took the file away
            self._stamp = stamp

    def _load_index(self, folder: Folder, index: dict[str, Any] | None) -> None:
        """Read the approximate index that the manifest names, whole, unless it is the one in memory."""
        near = self._directions.approximation
        file = None if index is None else Path(index["file"]).name
        if near is not None and near.file == file:
            return
        self._directions.approximation = None
        if index is not None and file is not None:
            self._directions.load(folder.path / file, index["kind"], index["sizes"])

    def _publish_index(self, folder: Folder, near: Approximation) -> None:
        """Make an approximate index durable and the gallery's own; the files of former ones go: readers hold copies."""
        near.save(folder.path)
        manifest = folder.manifest()
        manifest["index"] = {"file": near.file, "kind": near.kind, "sizes": near.sizes}
        folder.publish(manifest)
        self._stamp = folder.stamp()
        for former in folder.path.glob("index-*.faiss"):
            if former.name != near.file:
                former.unlink(missing_ok=True)

    def _add(self, rows: Rows) -> None:
        start = len(self._ids)
        self._directions.add(rows.mu)
        self._ids = np.concatenate([self._ids, rows.ids])
        self._place.update({name: start + i for i, name in enumerate(rows.ids)})
        self._kappa = np.concatenate([self._kappa, rows.kappa])
        self._alive = np.concatenate([self._alive, np.ones(len(rows), bool)])
        for name, column in rows.payload.items():
            self._payload[name] = np.concatenate([self._payload[name][:start], column])

    def _remove(self, places: list[int]) -> None:
        for place in places:
            del self._place[self._ids[place]]
        self._alive[places] = False
        self._dead += len(places)

    def _kept(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """Which rows may be found, or None for all."""
        if not conditions:
            return self._alive if self._dead else None
        return self._alive & matches(conditions, self._payload, len(self._ids))

    def _rows(self, places: np.ndarray, columns: Sequence[str]) -> Rows:
        payload = {name: self._payload[name][places] for name in columns}
        return Rows(self._ids[places], self._directions.mu[places], self._kappa[places], payload)


def _groups(bounds: np.ndarray) -> Iterator[np.ndarray]:
    """Queries in groups whose bounds are close, each with its lowest bound first."""
    order = np.argsort(bounds, kind="stable")
    start = 0
    while start < len(order):
        near = np.searchsorted(bounds[order], bounds[order[start]] + _SPREAD, side="right")
        end = min(int(near), start + _GROUP)
        yield order[start:end]
        start = end
