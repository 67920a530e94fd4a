"""Filling new shards: rows are written in large blocks, and duplicate ids are found once, at the end.

Nobody else opens these shards before the manifest names them, so no id has to be looked up while they are written. A
lookup per block would make the cost grow faster than the number of rows.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from aureole.errors import InvalidInputError
from aureole.retrieval._lance import LanceStore
from aureole.retrieval._schema import Rows, join_rows, no_rows, pick_rows
from aureole.retrieval._shard_files import Manifest

_HELD_BYTES = 2**28  # vectors in memory before they are written


def distribute(rows: Rows, manifest: Manifest) -> list[Rows]:
    """The rows of every shard."""
    place = manifest.place(rows.ids.tolist())
    return [
        pick_rows(rows, np.flatnonzero(place == number)) for number in range(len(manifest.shards))
    ]


def fill_shards(
    folder: Path,
    manifest: Manifest,
    blocks: Iterator[Rows],
    observer: Callable[[int], None] | None = None,
) -> list[LanceStore]:
    """The shards of a manifest, new Lance tables in a folder, with all rows of some blocks.

    Memory: 256 MiB of vectors, and 8 bytes per row for the hashes of ids.

    Raises
    ------
    InvalidInputError
        If an id occurs more than once.
    """
    schema = manifest.schema
    names = list(schema.columns)
    empty = no_rows(names, schema.dim)
    stores = [LanceStore.create(str(folder / name), schema, empty) for name in manifest.shards]
    held: list[list[Rows]] = [[] for _ in stores]
    hashes, done, waiting = [np.zeros(0, np.int64)], 0, 0

    def flush() -> None:
        for store, parts in zip(stores, held, strict=True):
            store.append_new(join_rows(parts, names, schema.dim))
            parts.clear()

    for rows in blocks:
        hashes.append(np.fromiter(map(hash, rows.ids.tolist()), np.int64, len(rows)))
        for parts, part in zip(held, distribute(rows, manifest), strict=True):
            parts.append(part)
        waiting += rows.mu.nbytes
        if waiting >= _HELD_BYTES:
            flush()
            waiting = 0
        done += len(rows)
        if observer is not None:
            observer(done)
    flush()
    _check_distinct(np.concatenate(hashes), stores)
    for store in stores:
        store.index_ids()
    return stores


def _check_distinct(hashes: np.ndarray, stores: list[LanceStore]) -> None:
    """Raise if an id occurs twice; ids are compared only if two have the same hash."""
    hashes.sort()
    twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not twice:
        return
    for store in stores:
        seen: set[str] = set()
        for rows in store.scan([]):
            for name in rows.ids.tolist():
                if hash(name) in twice:
                    if name in seen:
                        raise InvalidInputError(
                            f"ids must be distinct, but {name!r} occurs more than once."
                        )
                    seen.add(name)
