"""FAISS, in memory or with its rows durable in a folder: the one file that imports it.

The flat index is exact and holds the directions; an IVF or HNSW index beside it holds them a second time.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.retrieval.filters import Condition, matches
from aureole.retrieval.rows import DTYPES, Rows, Schema, fits, strings
from aureole.retrieval.segments import Folder, pack_rows, unpack_rows
from aureole.retrieval.store import Approximate, check_build, default_lists, probes_of, slack

__all__ = ["FaissStore"]

_SPREAD = 0.02  # FAISS takes one radius a call: queries whose bounds are this close share one
_GROUP = 64
_SCANNED = 2**16  # rows of a scan at a time


class FaissStore:
    """Rows in memory around FAISS indexes; with a folder each change is durable before it is seen."""

    engine = "FAISS"

    def __init__(self, schema: Schema, folder: Folder | None) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingPackageError(
                "galleries in FAISS need faiss-cpu: pip install 'aureole[retrieval]'."
            ) from error
        self._faiss: Any = faiss
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
        scanned = exact or self._index is None
        for group in _groups(bounds) if scanned else np.arange(len(bounds))[:, None]:
            for query, (places, scores) in zip(
                group, self._within(mu[group], float(bounds[group[0]]), exact), strict=True
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
            _, places = self._search(query[None], k, kept, exact)
            yield self._rows(places[0][places[0] >= 0], columns)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index beside the flat one."""
        with self._writing():
            index = _trained(self._faiss, kind, self._mu(), sizes)
            name = f"index-{secrets.token_hex(8)}.faiss"
            if self._folder:
                self._publish_index(self._folder, index, name, kind, sizes)
            self._index, self._index_file = index, name
            self._index_kind, self._sizes = kind, sizes

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index."""
        self._refresh()
        if self._index is None:
            return None
        lists = {"lists": self._index.nlist} if self._index_kind == "ivf" else {}
        return {"kind": self._index_kind, **lists, **self._sizes}

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
        self._flat = self._faiss.IndexFlatIP(self._schema.dim)
        self._forget_index()
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
        if index is None:
            return self._forget_index()
        name = Path(index["file"]).name
        if name == self._index_file:
            return None
        self._forget_index()
        try:
            found = self._faiss.read_index(str(folder.path / name))
        except RuntimeError as error:
            raise InvalidInputError(
                f"{folder.path / name}, the approximate index, cannot be read: {str(error)[-200:]}"
            ) from error
        rest = self._mu()[found.ntotal :]
        if len(rest):
            found.add(np.ascontiguousarray(rest))
        self._index, self._index_file = found, name
        self._index_kind, self._sizes = index["kind"], index["sizes"]
        return None

    def _forget_index(self) -> None:
        self._index: Any = None
        self._index_file: str | None = None
        self._index_kind: str | None = None
        self._sizes: dict[str, int] = {}

    def _publish_index(
        self, folder: Folder, index: Any, name: str, kind: Approximate, sizes: dict[str, int]
    ) -> None:
        """Make a trained index durable and the gallery's own; the files of former ones go: readers hold copies."""
        self._faiss.write_index(index, str(folder.path / name))
        with open(folder.path / name, "rb") as handle:
            os.fsync(handle.fileno())
        manifest = folder.manifest()
        manifest["index"] = {"file": name, "kind": kind, "sizes": sizes}
        folder.publish(manifest)
        self._stamp = folder.stamp()
        for former in folder.path.glob("index-*.faiss"):
            if former.name != name:
                former.unlink(missing_ok=True)

    def _add(self, rows: Rows) -> None:
        start = len(self._ids)
        self._flat.add(np.ascontiguousarray(rows.mu))
        if self._index is not None:
            self._index.add(np.ascontiguousarray(rows.mu))
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

    def _mu(self) -> np.ndarray:
        """The stored directions, a view of the flat index's memory that the next append ends."""
        n, dim = self._flat.ntotal, self._schema.dim
        if n == 0:
            return np.zeros((0, dim), np.float32)
        return self._faiss.rev_swig_ptr(self._flat.get_xb(), n * dim).reshape(n, dim)

    def _kept(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """Which rows may be found, or None for all."""
        if not conditions:
            return self._alive if self._dead else None
        return self._alive & matches(conditions, self._payload, len(self._ids))

    def _rows(self, places: np.ndarray, columns: Sequence[str]) -> Rows:
        payload = {name: self._payload[name][places] for name in columns}
        return Rows(self._ids[places], self._mu()[places], self._kappa[places], payload)

    def _within(
        self, mu: np.ndarray, bound: float, exact: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Places, inner products) of the rows of each query above one bound, less the slack."""
        mu = np.ascontiguousarray(mu)
        radius = max(bound, -1.0) - slack(self._schema.dim)
        if self._index is not None and not exact and self._index_kind == "hnsw":
            yield from (self._graph_within(query[None], radius) for query in mu)
            return
        index = self._flat
        parameters = None
        if self._index is not None and not exact:
            index = self._index
            parameters = self._faiss.SearchParametersIVF(nprobe=probes_of(self._sizes, index.nlist))
        ends, scores, places = index.range_search(mu, radius, params=parameters)
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield places[start:end], scores[start:end]

    def _graph_within(self, query: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
        """(Places, inner products) from HNSW: a few nearest, else a wide range search, else for crowds a scan."""
        faiss, total = self._faiss, self._flat.ntotal
        width = self._sizes.get("width", 128)
        if total == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        k = min(max(1, width // 2), total)
        scores, places = self._search(query, k, None, exact=False)
        known = places[0] >= 0
        if known.all() and scores[0, -1] < radius:
            inside = scores[0] >= radius
            return places[0][inside], scores[0][inside]
        parameters = faiss.SearchParametersHNSW(efSearch=4 * width)
        _, found, places = self._index.range_search(query, radius, params=parameters)
        if len(places) > 8 * width:  # more than the search has room to look around for
            _, found, places = self._flat.range_search(query, radius)
        return places, found

    def _search(
        self, query: np.ndarray, k: int, kept: np.ndarray | None, exact: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        faiss = self._faiss
        selector = None
        if kept is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(kept, bitorder="little"))
        if self._index is None or exact:
            return self._flat.search(query, k, params=faiss.SearchParameters(sel=selector))
        if self._index_kind == "ivf":
            probes = probes_of(self._sizes, self._index.nlist)
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        else:
            width = max(self._sizes.get("width", 128), 2 * k)
            parameters = faiss.SearchParametersHNSW(efSearch=width, sel=selector)
        return self._index.search(query, k, params=parameters)


def _groups(bounds: np.ndarray) -> Iterator[np.ndarray]:
    """Queries in groups whose bounds are close, each with its lowest bound first."""
    order = np.argsort(bounds, kind="stable")
    start = 0
    while start < len(order):
        near = np.searchsorted(bounds[order], bounds[order[start]] + _SPREAD, side="right")
        end = min(int(near), start + _GROUP)
        yield order[start:end]
        start = end


def _trained(faiss: Any, kind: Approximate, mu: np.ndarray, sizes: dict[str, int]) -> Any:
    check_build(kind, sizes)
    n, dim = mu.shape
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, sizes.get("links", 32), faiss.METRIC_INNER_PRODUCT)
    else:
        lists = sizes.get("lists", default_lists(n))
        if n < lists:
            raise InvalidInputError(
                f"lists are learned from rows: {lists} need as many, but there are {n}."
            )
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1
        index.cp.max_points_per_centroid = 64
        index.train(mu)
    index.add(mu)
    return index
