"""Shards: a gallery of several tables, searched in parallel, behind one address.

A folder ``name.shards`` has a manifest and the shards, Lance tables or FAISS galleries; a shard may also be elsewhere,
such as in PostgreSQL. A hash of its id decides in which shard a row is, so changes of one row concern one shard.

A change that concerns several shards is saved in a journal first. If the writer is killed, the next one that opens the
gallery completes it: no row is lost or doubled. Until then a reader may find the rows of some shards
and not yet those of others. Writers on one machine are serialised by a lock.

Every shard is searched by its own thread; the engines release the interpreter lock. A search costs as much as that of
one gallery with all rows, divided by the number of cores, and a few hundred microseconds per shard. A ``SearcherPool``
searches them in other processes instead. Then a shard may not respond: searches return what the others have, and
``take_missing`` names the shards that are missing.
"""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from aureole._io import check_local, reporting_writes
from aureole.errors import (
    AureoleError,
    DamagedGalleryError,
    InvalidInputError,
    ShardUnavailableError,
)
from aureole.retrieval._engines import engine_of
from aureole.retrieval._lance import LanceStore
from aureole.retrieval._quantisation import LARGEST_CAP
from aureole.retrieval._schema import Rows, Schema, join_rows, no_rows, pick_rows
from aureole.retrieval._shard_files import (
    MANIFEST,
    Manifest,
    read_journal,
    read_manifest,
    remove_journal,
    write_journal,
    write_manifest,
)
from aureole.retrieval._shard_writer import distribute, fill_shards
from aureole.retrieval._store import Approximate, Searcher, Selection, Store, all_rows, file_lock

SHARDS = 4  # of a new gallery
_NOTES = ("origin", "conformal")


@runtime_checkable
class SearcherPool(Protocol):
    """Searches shards in other processes.

    ``open`` returns a searcher for every address, once all can answer, and closes those that it returned before. A
    searcher raises ``ShardUnavailableError`` if it gets no answer in time.
    """

    def open(self, addresses: list[str]) -> Sequence[Searcher]: ...

    def close(self) -> None: ...


class ShardedStore:
    """Rows in several stores, by a hash of their ids."""

    engine = "Lance"  # of new shards; an object has the engines of its own

    def __init__(self, where: str, manifest: Manifest, pool: SearcherPool | None = None) -> None:
        self.where, self._folder, self._pool = where, Path(where), pool
        self._missing: set[str] = set()
        self._open(manifest)
        if pool is not None:
            self._searchers = pool.open(self._addresses())

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "ShardedStore":
        """Create a gallery with its first rows, in four Lance tables."""
        return cls.fill(where, schema, iter([rows]))

    @classmethod
    def fill(
        cls,
        where: str,
        schema: Schema,
        blocks: Iterator[Rows],
        *,
        shards: int = SHARDS,
        observer: Callable[[int], None] | None = None,
    ) -> "ShardedStore":
        """Create a gallery with all rows of some blocks; it exists once they are complete."""
        folder = Path(where)
        check_local(folder)
        with reporting_writes(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if (folder / MANIFEST).exists():
                raise InvalidInputError(
                    f"{where} holds a gallery already. Open it, or delete it first."
                )
            empty = Manifest(schema, ())
            _remove_leftovers(folder, empty)
            manifest = empty.next_generation(shards)
            for store in fill_shards(folder, manifest, blocks, observer):
                store.close()
            write_manifest(folder, manifest)
        return cls(where, manifest)

    @classmethod
    def open(cls, where: str, pool: SearcherPool | None = None) -> "ShardedStore":
        """Open the gallery in a folder, and complete a change that was interrupted."""
        store = cls(where, read_manifest(Path(where)), pool)
        if read_journal(store._folder, store.schema) is not None:
            with store._writing():
                pass
        return store

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists."""
        with self._writing():
            known = self._known(rows.ids.tolist())
            if known:
                raise InvalidInputError(
                    f"id {known[0]!r} is in the gallery already; use upsert to replace it. Nothing was stored."
                )
            self._change(rows, ())

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists; return how many were replaced."""
        with self._writing():
            return self._change(rows, ())

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed."""
        with self._writing():
            return self._change(no_rows(list(self.schema.columns), self.schema.dim), ids)

    def count(self) -> int:
        """The number of rows."""
        self._refresh()
        return sum(self._ask(lambda store: store.count(), self._stores))

    def counts(self) -> dict[str, int]:
        """The number of rows of every shard, by its address."""
        self._refresh()
        counts = self._ask(lambda store: store.count(), self._stores)
        return dict(zip(self._manifest.shards, counts, strict=True))

    def version(self) -> str:
        """The generation and the versions of all shards."""
        self._refresh()
        versions = self._ask(lambda store: store.version(), self._stores)
        return f"{self._manifest.generation}:{','.join(versions)}"

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids, each from its own shard."""
        self._refresh()
        place = self._manifest.place(ids)
        wanted = [[ids[i] for i in np.flatnonzero(place == s)] for s in range(len(self._stores))]
        parts = self._ask(
            lambda store, names: store.fetch(names, columns) if names else None,
            self._stores,
            wanted,
        )
        return join_rows([part for part in parts if part is not None], columns, self.schema.dim)

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows, shard by shard."""
        self._refresh()
        for store in self._stores:
            yield from store.scan(columns, vectors=vectors)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound, of all shards."""
        self._refresh()
        found = self._ask_alive(lambda shard: list(shard.candidates(mu, bounds, selection)))
        for parts in zip(*found, strict=True):
            yield join_rows(parts, selection.columns, self.schema.dim)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query among the k nearest of every shard."""
        self._refresh()
        found = self._ask_alive(lambda shard: list(shard.nearest(mu, k, selection)))
        for query, parts in zip(mu, zip(*found, strict=True), strict=True):
            rows = join_rows(parts, selection.columns, self.schema.dim)
            yield pick_rows(rows, np.argsort(-(rows.mu @ query), kind="stable")[:k])

    def take_missing(self) -> tuple[str, ...]:
        """The addresses of shards that were missing in searches since the last call."""
        missing, self._missing = tuple(sorted(self._missing)), set()
        return missing

    def build(self, kind: Approximate, *, compressed: bool = False, **sizes: int) -> None:
        """Build an approximate index in every shard, one after the other: each uses all cores."""
        with self._writing():
            for store in self._stores:
                expect_part(store, len(self._stores))
                store.build(kind, compressed=compressed, **sizes)

    @contextmanager
    def exclusive(self) -> Iterator[list[str]]:
        """The addresses of all shards, for work in other processes; no other process writes to them meanwhile."""
        with self._writing():
            yield [_address(self._folder, shard) for shard in self._manifest.shards]

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the first shard's approximate index; None unless all shards have one."""
        self._refresh()
        found = self._ask(lambda store: store.approximate(), self._stores)
        return None if any(each is None for each in found) else found[0]

    def problems(self) -> list[str]:
        """What is wrong with the shards, and rows that are in another shard than their id belongs to."""
        self._refresh()
        problems = []
        for number, (address, store) in enumerate(
            zip(self._manifest.shards, self._stores, strict=True)
        ):
            problems += [f"shard {address}: {problem}" for problem in store.problems()]
            try:
                places = (self._manifest.place(rows.ids.tolist()) for rows in store.scan([]))
                strangers = sum(int((place != number).sum()) for place in places)
            except (AureoleError, AttributeError) as error:
                problems.append(f"shard {address}: {error}")
                continue
            if strangers:
                problems.append(f"shard {address}: {strangers} rows belong to another shard.")
        return problems

    def read_note(self, name: str) -> str | None:
        """A note, which the first shard has."""
        self._refresh()
        return self._stores[0].read_note(name)

    def write_note(self, name: str, text: str) -> None:
        """Save a note with the first shard."""
        with self._writing():
            self._stores[0].write_note(name, text)

    def close(self) -> None:
        """Close all shards, and the processes that search them."""
        self._close_shards()
        if self._pool is not None:
            self._pool.close()

    def rebalance(self, shards: int, *, observer: Callable[[int], None] | None = None) -> None:
        """Distribute the rows to another number of new Lance tables, switch to them, and remove the old ones."""
        with self._writing():
            old = self._manifest
            new = old.next_generation(shards)
            _remove_leftovers(self._folder, old)
            blocks = all_rows(self)
            stores = fill_shards(self._folder, new, blocks, observer)
            copy_notes(self, stores[0])
            write_manifest(self._folder, new)
            self._reopen(new)
            _remove_leftovers(self._folder, new)

    def _open(self, manifest: Manifest) -> None:
        self._manifest, self.schema = manifest, manifest.schema
        self._stores: list[Store] = [
            engine_of(address).open(address) for address in self._addresses()
        ]
        for address, store in zip(manifest.shards, self._stores, strict=True):
            if (store.schema.dim, store.schema.columns) != (self.schema.dim, self.schema.columns):
                raise DamagedGalleryError(
                    f"{self.where} is damaged: the shard {address} has another dimension or other columns than the "
                    "manifest says."
                )
        self.engine = " and ".join(sorted({store.engine for store in self._stores}))
        self._searchers: Sequence[Searcher] = self._stores
        self._threads = ThreadPoolExecutor(len(self._stores), "aureole-shard")

    def _addresses(self) -> list[str]:
        return [_address(self._folder, shard) for shard in self._manifest.shards]

    def _refresh(self) -> None:
        """Open the new shards if another process has redistributed the rows."""
        manifest = read_manifest(self._folder)
        if manifest != self._manifest:
            self._reopen(manifest)

    def _reopen(self, manifest: Manifest) -> None:
        """Search the shards of another manifest: in this process, until those of the pool can answer."""
        self._close_shards()
        self._open(manifest)
        pool = self._pool
        if pool is None:
            return

        addresses = self._addresses()

        def start() -> None:
            searchers = pool.open(addresses)
            if self._manifest is manifest:
                self._searchers = searchers

        threading.Thread(target=start, name="aureole-shards", daemon=True).start()

    def _close_shards(self) -> None:
        for store in self._stores:
            store.close()
        self._threads.shutdown()

    def _writing(self) -> Any:
        return _Writing(self)

    def _known(self, ids: list[str]) -> list[str]:
        return self.fetch(ids, ()).ids.tolist() if ids else []

    def _change(self, rows: Rows, removed: Sequence[str]) -> int:
        """Add, replace or remove rows, and return how many existed; a journal is kept if several shards change."""
        concerned = set(self._manifest.place([*rows.ids.tolist(), *removed]).tolist())
        if len(concerned) > 1:
            write_journal(self._folder, rows, removed)
        existed = self._apply(rows, removed)
        if len(concerned) > 1:
            remove_journal(self._folder)
        return existed

    def _apply(self, rows: Rows, removed: Sequence[str]) -> int:
        """Make a change in all shards; the same change again has no effect."""
        names = list(removed)
        place = self._manifest.place(names)
        gone = [[names[i] for i in np.flatnonzero(place == s)] for s in range(len(self._stores))]
        parts = distribute(rows, self._manifest)

        def change(store: Store, work: tuple[Rows, list[str]]) -> int:
            part, ids = work
            return (store.upsert(part) if len(part) else 0) + (store.delete(ids) if ids else 0)

        return sum(self._ask(change, self._stores, list(zip(parts, gone, strict=True))))

    def _ask(self, call: Callable[..., Any], shards: Sequence[Any], *work: Sequence[Any]) -> list:
        """The results of a function of every shard (and its part of the work), each in its own thread."""
        return list(self._threads.map(call, shards, *work))

    def _ask_alive(self, call: Callable[[Searcher], list[Rows]]) -> list[list[Rows]]:
        """The results of the shards that respond; raise if none does."""
        results = []
        futures = [self._threads.submit(call, searcher) for searcher in self._searchers]
        for address, future in zip(self._manifest.shards, futures, strict=True):
            try:
                results.append(future.result())
            except ShardUnavailableError:
                self._missing.add(address)
        if not results:
            raise ShardUnavailableError(f"no shard of {self.where} responds. Try again later.")
        return results


class _Writing:
    """The lock of writers, with an interrupted change completed first."""

    def __init__(self, store: ShardedStore) -> None:
        self._store, self._lock = store, _locked(store._folder)

    def __enter__(self) -> None:
        self._lock.__enter__()
        try:
            self._store._refresh()
            journal = read_journal(self._store._folder, self._store.schema)
            if journal is not None:
                self._store._apply(*journal)
                remove_journal(self._store._folder)
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)


def expect_part(store: Store, shards: int) -> None:
    """Build the next index of a shard for its part of the members of caps, since the others are in other shards."""
    if isinstance(store, LanceStore):
        store.cap_members = max(1, -(-LARGEST_CAP // shards))


def copy_notes(source: Store, to: Store) -> None:
    """Copy the provenance and the calibration of a gallery."""
    for name in _NOTES:
        text = source.read_note(name)
        if text is not None:
            to.write_note(name, text)


def _locked(folder: Path) -> Any:
    return file_lock(folder / "lock")


def _address(folder: Path, shard: str) -> str:
    return shard if "://" in shard else str(folder / shard)


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Remove shards that the manifest does not name: of an earlier generation, or of an interrupted change."""
    for path in folder.iterdir():
        name = path.name.removesuffix(".lock")
        is_shard = name.partition("-")[0].isdigit() and name.endswith((".lance", ".faiss"))
        if is_shard and name not in manifest.shards:
            with reporting_writes(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
