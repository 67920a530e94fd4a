"""Shards: a gallery of several galleries, searched at once and behind one address.

A folder ``name.shards`` has a manifest and the shards, Lance tables or FAISS galleries; a shard may also be elsewhere,
such as in PostgreSQL. A hash of its id decides in which shard a row is, so changes of one row concern one shard.

A change that concerns several shards is saved in a journal first. If the writer is killed, the next one that opens the
gallery to write or read completes it: no row is lost or doubled. Until then a reader may find the rows of some shards
and not yet those of others. Writers on one machine are serialised by a lock.

Every shard is searched by its own thread; the engines release the interpreter lock. A search costs as much as that of
one gallery with all rows, divided by the number of cores, and a few hundred microseconds per shard.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import check_local, reporting_writes
from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError
from aureole.retrieval._engines import table_engine_of
from aureole.retrieval._row_blocks import all_rows, concatenate, pick
from aureole.retrieval._schema import Rows, Schema, no_rows
from aureole.retrieval._shard_files import (
    MANIFEST,
    Manifest,
    read_journal,
    read_manifest,
    remove_journal,
    write_journal,
    write_manifest,
)
from aureole.retrieval._store import Approximate, Selection, Store, file_lock

SHARDS = 4  # of a new gallery
_NOTES = ("origin", "conformal")


class ShardedStore:
    """Rows in several stores, by a hash of their ids."""

    engine = "Lance"  # of new shards; an object has the engines of its own

    def __init__(self, where: str, manifest: Manifest) -> None:
        self.where, self._folder = where, Path(where)
        self._open(manifest)

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
            for store in _filled(folder, manifest, blocks, observer):
                store.close()
            write_manifest(folder, manifest)
        return cls(where, manifest)

    @classmethod
    def open(cls, where: str) -> "ShardedStore":
        """Open the gallery in a folder, and complete a change that was interrupted."""
        store = cls(where, read_manifest(Path(where)))
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
        return sum(self._ask(lambda store: store.count()))

    def counts(self) -> dict[str, int]:
        """The number of rows of every shard, by its address."""
        counts = self._ask(lambda store: store.count())
        return dict(zip(self._manifest.shards, counts, strict=True))

    def version(self) -> str:
        """The generation and the versions of all shards."""
        self._refresh()
        versions = self._ask(lambda store: store.version())
        return f"{self._manifest.generation}:{','.join(versions)}"

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids, each from its own shard."""
        self._refresh()
        place = self._manifest.place(ids)
        wanted = [[ids[i] for i in np.flatnonzero(place == s)] for s in range(len(self._stores))]
        parts = self._ask(
            lambda store, names: store.fetch(names, columns) if names else None, wanted
        )
        return concatenate([part for part in parts if part is not None], columns, self.schema)

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
        found = self._ask(lambda store: list(store.candidates(mu, bounds, selection)))
        for parts in zip(*found, strict=True):
            yield concatenate(parts, selection.columns, self.schema)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query among the k nearest of every shard."""
        self._refresh()
        found = self._ask(lambda store: list(store.nearest(mu, k, selection)))
        for query, parts in zip(mu, zip(*found, strict=True), strict=True):
            rows = concatenate(parts, selection.columns, self.schema)
            yield pick(rows, np.argsort(-(rows.mu @ query), kind="stable")[:k])

    def build(self, kind: Approximate, *, compressed: bool = False, **sizes: int) -> None:
        """Build an approximate index in every shard, one after the other: each uses all cores."""
        with self._writing():
            for store in self._stores:
                store.build(kind, compressed=compressed, **sizes)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the first shard's approximate index; None unless all shards have one."""
        found = self._ask(lambda store: store.approximate())
        return None if any(each is None for each in found) else found[0]

    def problems(self) -> list[str]:
        """What is wrong with the shards, and rows that are in another shard than their id belongs to."""
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
        """Close all shards."""
        for store in self._stores:
            store.close()
        self._threads.shutdown()

    def rebalance(self, shards: int, *, observer: Callable[[int], None] | None = None) -> None:
        """Distribute the rows to another number of new Lance tables, switch to them, and remove the old ones."""
        with self._writing():
            old = self._manifest
            new = old.next_generation(shards)
            _remove_leftovers(self._folder, old)
            blocks = all_rows(self)
            stores = _filled(self._folder, new, blocks, observer)
            copy_notes(self, stores[0])
            write_manifest(self._folder, new)
            self.close()
            self._open(new)
            _remove_leftovers(self._folder, new)

    def _open(self, manifest: Manifest) -> None:
        self._manifest, self.schema = manifest, manifest.schema
        self._stores: list[Store] = [
            table_engine_of(address).open(_address(self._folder, address))
            for address in manifest.shards
        ]
        for address, store in zip(manifest.shards, self._stores, strict=True):
            if (store.schema.dim, store.schema.columns) != (self.schema.dim, self.schema.columns):
                raise DamagedGalleryError(
                    f"{self.where} is damaged: the shard {address} has another dimension or other columns than the "
                    "manifest says."
                )
        self.engine = " and ".join(sorted({store.engine for store in self._stores}))
        self._threads = ThreadPoolExecutor(len(self._stores), "aureole-shard")

    def _refresh(self) -> None:
        """Open the new shards if another process has redistributed the rows."""
        manifest = read_manifest(self._folder)
        if manifest != self._manifest:
            self.close()
            self._open(manifest)

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
        parts = [part for _, part in _distribute(rows, self._manifest)]

        def change(store: Store, work: tuple[Rows, list[str]]) -> int:
            part, ids = work
            return (store.upsert(part) if len(part) else 0) + (store.delete(ids) if ids else 0)

        return sum(self._ask(change, list(zip(parts, gone, strict=True))))

    def _ask(self, call: Callable[..., Any], work: Sequence[Any] | None = None) -> list[Any]:
        """The results of a function of every shard (and its part of the work), each in its own thread."""
        arguments = (self._stores,) if work is None else (self._stores, work)
        return list(self._threads.map(call, *arguments))


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


def _distribute(rows: Rows, manifest: Manifest) -> list[tuple[str, Rows]]:
    """(Address, its rows) of every shard."""
    place = manifest.place(rows.ids.tolist())
    return [
        (address, pick(rows, np.flatnonzero(place == number)))
        for number, address in enumerate(manifest.shards)
    ]


def _filled(
    folder: Path,
    manifest: Manifest,
    blocks: Iterator[Rows],
    observer: Callable[[int], None] | None,
) -> list[Store]:
    """The shards of a manifest, created with all rows of some blocks."""
    empty = no_rows(list(manifest.schema.columns), manifest.schema.dim)
    stores: list[Store] = [
        table_engine_of(address).create(_address(folder, address), manifest.schema, empty)
        for address in manifest.shards
    ]
    done = 0
    for rows in blocks:
        for store, (_, part) in zip(stores, _distribute(rows, manifest), strict=True):
            store.append(part)
        done += len(rows)
        if observer is not None:
            observer(done)
    return stores


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Remove shards that the manifest does not name: of an earlier generation, or of an interrupted change."""
    for path in folder.iterdir():
        name = path.name.removesuffix(".lock")
        is_shard = name.partition("-")[0].isdigit() and name.endswith((".lance", ".faiss"))
        if is_shard and name not in manifest.shards:
            with reporting_writes(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
