"""Copies of a gallery at another address, such as one of another engine."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from aureole._io import atomic_folder
from aureole.errors import InvalidInputError
from aureole.retrieval._engines import engine_of
from aureole.retrieval._faiss import FaissStore
from aureole.retrieval._schema import Rows, Schema, join_rows, no_rows
from aureole.retrieval._store import Store, all_rows, is_local

NOTES = ("origin", "conformal")


def copy_rows(source: Store, where: str, *, observer: Callable[[int], None] | None) -> None:
    """Copy all rows and notes of a gallery to a new one at an address."""
    engine = engine_of(where)
    if where == "faiss://":
        raise InvalidInputError(
            "'faiss://' exists in memory only, so it cannot be the address of a copy. Use a path that ends in .faiss."
        )
    if is_local(where) and Path(where).exists():
        raise InvalidInputError(f"{where} already exists. Choose another address, or delete it.")
    with atomic_folder(Path(where)) if is_local(where) else nullcontext(where) as part:
        copy = _fill_table(engine, str(part), source.schema, all_rows(source), observer)
        for key in NOTES:
            text = source.read_note(key)
            if text is not None:
                copy.write_note(key, text)
        copy.close()


def _fill_table(
    engine: Any,
    where: str,
    schema: Schema,
    blocks: Iterator[Rows],
    observer: Callable[[int], None] | None,
) -> Store:
    """A new table with all rows; FAISS writes a snapshot per append, so it gets all rows at once."""
    if engine is FaissStore:
        blocks = iter([join_rows(list(blocks), list(schema.columns), schema.dim)])
    store, done = None, 0
    for rows in blocks:
        if store is None:
            store = engine.create(where, schema, rows)
        else:
            store.append(rows)
        done += len(rows)
        if observer is not None:
            observer(done)
    empty = no_rows(list(schema.columns), schema.dim)
    return engine.create(where, schema, empty) if store is None else store
