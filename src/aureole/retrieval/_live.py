"""Live galleries: an address that ends in ``.live`` stands for the version of a gallery that is in service.

The address is a small file that names the current version and the previous one. Releasing a version replaces the file,
atomically. An open gallery looks at the file (one ``stat``) when a call begins, and stays with one version until the
call ends, so that no answer is a mixture of two. Updates hold a lock that a switch needs too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.retrieval._engines import engine_of
from aureole.retrieval._live_files import SUFFIX, Live, file_state, read_live, resolve
from aureole.retrieval._schema import Origin, Rows, Schema
from aureole.retrieval._store import Approximate, Selection, Store, file_lock

_Method = TypeVar("_Method", bound=Callable[..., Any])


class SwitchedGalleryError(InvalidInputError):
    """A live gallery was switched to another version, which this update does not belong to."""


@dataclass
class _Version:
    """An open version, with the number of iterators over its rows."""

    store: Store
    iterators: int = 0
    retired: bool = False

    def close_if_unused(self) -> None:
        if self.retired and not self.iterators:
            self.store.close()


class LiveStore:
    """The current version of a live gallery. Not thread-safe.

    Parameters
    ----------
    where
        The address, which ends in ``.live``.
    follow
        Whether to use a new version from the next call on (default), or to stay with the one that was opened. One that
        stays refuses updates after a switch.
    """

    def __init__(self, where: str, *, follow: bool = True) -> None:
        self.where, self.follows, self._path = where, follow, Path(where)
        self._pins = self._updates = 0
        self._state = file_state(self._path) if self._path.exists() else None
        self.live = read_live(self._path)
        self._version = _Version(self._open(self.live))
        self.engine = self.current.engine
        self._own_model = self._model = _model(self._version.store)

    @classmethod
    def open(cls, where: str, *, follow: bool = True) -> "LiveStore":
        """Open the current version."""
        return cls(where, follow=follow)

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "LiveStore":
        """Refuse: a version is created at its own address."""
        del schema, rows
        raise not_a_gallery(where)

    @property
    def current(self) -> Store:
        """The store of the version in use, without a look at the file."""
        return self._version.store

    @property
    def schema(self) -> Schema:
        """The schema of the current version."""
        with self.pinned() as store:
            return store.schema

    @contextmanager
    def pinned(self) -> Iterator[Store]:
        """The current version, which stays the same inside the block, also in blocks within it."""
        if not self._pins:
            self._refresh()
        self._pins += 1
        try:
            yield self.current
        finally:
            self._pins -= 1

    @contextmanager
    def updating(self) -> Iterator[Store]:
        """The current version, which cannot be switched by any process inside the block."""
        if self._updates:
            yield self.current
            return
        with lock(self._path):
            self._refresh(updating=True)
            self._pins, self._updates = self._pins + 1, 1
            try:
                yield self.current
            finally:
                self._pins, self._updates = self._pins - 1, 0

    def append(self, rows: Rows) -> None:
        """Add all rows to the current version, or none if an id exists."""
        with self.updating() as store:
            self._check_model()
            store.append(rows)

    def upsert(self, rows: Rows) -> int:
        """Add rows to the current version, and replace those whose id exists; return how many were replaced."""
        with self.updating() as store:
            self._check_model()
            return store.upsert(rows)

    def delete(self, ids: list[str]) -> int:
        """Remove rows of the current version, and return how many existed."""
        with self.updating() as store:
            return store.delete(ids)

    def count(self) -> int:
        """The number of rows."""
        with self.pinned() as store:
            return store.count()

    def version(self) -> str:
        """The number of the release, and the version of its rows."""
        with self.pinned() as store:
            return f"{self.live.number}:{store.version()}"

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        with self.pinned() as store:
            return store.fetch(ids, columns)

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows of the version that is current when the scan is requested."""
        with self.pinned() as store:
            return self._held(store.scan(columns, vectors=vectors))

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound."""
        with self.pinned() as store:
            return self._held(store.candidates(mu, bounds, selection))

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        with self.pinned() as store:
            return self._held(store.nearest(mu, k, selection))

    def build(self, kind: Approximate, *, compressed: bool = False, **sizes: int) -> None:
        """Build an approximate index of the current version; a switch waits until it is complete."""
        with self.updating() as store:
            store.build(kind, compressed=compressed, **sizes)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        with self.pinned() as store:
            return store.approximate()

    def problems(self) -> list[str]:
        """What is wrong with the current version."""
        with self.pinned() as store:
            return store.problems()

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        with self.pinned() as store:
            return store.read_note(name)

    def write_note(self, name: str, text: str) -> None:
        """Save a note with the current version."""
        with self.updating() as store:
            store.write_note(name, text)
            self._own_model = self._model = _model(store)

    def close(self) -> None:
        """Close the version in use."""
        self.current.close()

    def _refresh(self, *, updating: bool = False) -> None:
        """Open the current version if it is another one; a store that does not follow refuses updates instead."""
        if not (self.follows or updating):
            return
        state = file_state(self._path)
        if state == self._state:
            return
        live = read_live(self._path)
        if live.number != self.live.number:
            if not self.follows:
                raise SwitchedGalleryError(
                    f"{self.where} was switched to another version while it was open. Nothing was stored; open it "
                    "again."
                )
            store = self._open(live)
            old, self._version = self._version, _Version(store)
            old.retired = True
            old.close_if_unused()
            self.engine, self._model = store.engine, _model(store)
        self.live, self._state = live, state

    def _open(self, live: Live) -> Store:
        address = resolve(self._path, live.current.gallery)
        try:
            return engine_of(address).open(address)
        except DamagedGalleryError:
            raise
        except InvalidInputError as error:
            raise type(error)(
                f"the current version of {self.where} does not open: {error}"
            ) from error

    def _check_model(self) -> None:
        if self._own_model is not None and self._model not in (None, self._own_model):
            raise SwitchedGalleryError(
                f"{self.where} was switched to a version of another model while it was open, and its posteriors have "
                "unrelated directions. Nothing was stored; open it again, and embed the rows with the new model."
            )

    def _held(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """The rows of an iterator, whose version stays open until it ends."""
        version = self._version
        version.iterators += 1

        def held() -> Iterator[Rows]:
            try:
                yield from rows
            finally:
                version.iterators -= 1
                version.close_if_unused()

        return held()


def one_version(store: Store) -> AbstractContextManager[Any]:
    """A block in which a store is at one version."""
    return store.pinned() if isinstance(store, LiveStore) else nullcontext()


def one_update(store: Store) -> AbstractContextManager[Any]:
    """A block in which a store is at one version, and no process can switch it."""
    return store.updating() if isinstance(store, LiveStore) else nullcontext()


def reads(method: _Method) -> _Method:
    """A method of an index that uses one version from beginning to end."""
    return _in_block(method, one_version)


def updates(method: _Method) -> _Method:
    """A method of an index that changes one version, which no process switches meanwhile."""
    return _in_block(method, one_update)


def _in_block(method: _Method, block: Callable[[Store], AbstractContextManager[Any]]) -> _Method:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with block(self._store):
            return method(self, *args, **kwargs)

    return cast(_Method, call)


def plain_store(store: Store) -> Store:
    """The store of the version in use, or the store itself if it has no versions."""
    return store.current if isinstance(store, LiveStore) else store


def lock(path: Path) -> AbstractContextManager[None]:
    """The lock of updates and switches of a ``.live`` file."""
    return file_lock(path.with_name(f"{path.name}.lock"))


def not_a_gallery(where: str) -> InvalidInputError:
    """The error for a gallery that is to be created at a ``.live`` address."""
    return InvalidInputError(
        f"{where} names the version of a gallery that is in service, so a gallery cannot be created there. Create it "
        f"at an address of its own, such as {where.removesuffix(SUFFIX)}-2.lance, and put it in service with "
        f"`aureole index release`."
    )


def _model(store: Store) -> tuple[int, str] | None:
    """The dimension and the fingerprint of the model that made a version, or None if the model is not known."""
    text = store.read_note("origin")
    fingerprint = None if text is None else Origin.from_json(text).fingerprint
    return None if fingerprint is None else (store.schema.dim, fingerprint)
