"""Blocks of rows: joined, selected, and in batches of a suitable size."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from aureole.retrieval._schema import DTYPES, Rows, Schema, no_rows
from aureole.retrieval._store import Store

_BATCH = 50_000  # rows that are moved at once


def all_rows(source: Store) -> Iterator[Rows]:
    """All rows of a gallery with their mu and payload, in batches of about 50,000, as they would be stored."""
    kinds = source.schema.columns
    for rows in in_batches(source.scan(list(kinds), vectors=True)):
        payload = {name: rows.payload[name].astype(DTYPES[kind]) for name, kind in kinds.items()}
        yield replace(rows, payload=payload)


def in_batches(blocks: Iterator[Rows]) -> Iterator[Rows]:
    """The same rows in blocks of about 50,000."""
    held: list[Rows] = []
    for rows in blocks:
        held.append(rows)
        if sum(map(len, held)) >= _BATCH:
            yield join(held)
            held = []
    if held:
        yield join(held)


def join(parts: Sequence[Rows]) -> Rows:
    """Rows of several blocks that have the same columns."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.mu for part in parts]),
        np.concatenate([part.kappa for part in parts]),
        {name: np.concatenate([part.payload[name] for part in parts]) for name in parts[0].payload},
    )


def concatenate(parts: Sequence[Rows], columns: Sequence[str], schema: Schema) -> Rows:
    """Rows of several blocks, none of which may be left."""
    filled = [part for part in parts if len(part)]
    return join(filled) if filled else no_rows(columns, schema.dim)


def pick(rows: Rows, places: np.ndarray) -> Rows:
    """The rows at some positions."""
    payload = {name: column[places] for name, column in rows.payload.items()}
    return Rows(rows.ids[places], rows.mu[places], rows.kappa[places], payload)
