"""The check of every row of a gallery, as ``aureole index check`` runs it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aureole.engines._integrity import has_unit_length, valid_kappa
from aureole.engines._schema import MAX_ID_BYTES, Rows, Schema
from aureole.engines._store import Store
from aureole.errors import AureoleError

_TYPES = {"text": str, "integer": int, "number": float, "boolean": bool}


def find_problems(store: Store, observer: Callable[[int], None] | None = None) -> list[str]:
    """What is wrong with a gallery, one sentence per kind of problem; empty if everything is valid.

    Cost: one pass over all rows with their mu and payload, and 8 bytes of memory per row for the ids.
    """
    problems, found = store.problems(), dict[str, tuple[int, str]]()
    hashes, seen = [np.zeros(0, np.int64)], 0
    try:
        total = store.count()
        for rows in store.scan(list(store.schema.columns), vectors=True):
            ids, seen = rows.ids.tolist(), seen + len(rows)
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
            for kind, places in _invalid(rows, store.schema).items():
                count, first = found.get(kind, (0, repr(ids[places[0]])[:60]))
                found[kind] = (count + len(places), first)
            if observer is not None:
                observer(seen)
        if seen != total:
            problems.append(f"the gallery counts {total:,} rows, but {seen:,} can be read.")
        every = np.sort(np.concatenate(hashes))
        twice = np.unique(every[1:][every[1:] == every[:-1]])
        if len(twice):
            problems.append(_name_duplicates(store, twice))
    except AureoleError as error:
        problems.append(str(error))
    rows_have = [
        f"{count:,} {'row has' if count == 1 else 'rows have'} {kind}; the first has the id {first}."
        for kind, (count, first) in found.items()
    ]
    return list(dict.fromkeys([*rows_have, *problems]))


def _invalid(rows: Rows, schema: Schema) -> dict[str, np.ndarray]:
    """The places of invalid rows by kind of problem."""
    bad = {
        "an id that is not a text of 1 to 1,024 bytes": [not _is_id(i) for i in rows.ids.tolist()],
        "a kappa that is negative or NaN": ~valid_kappa(rows.kappa),
        "a mu whose length is not 1": ~has_unit_length(rows.mu),
    }
    for name, kind in schema.columns.items():
        values = rows.payload[name].tolist()
        bad[f"a value of the column {name!r} that is not a {kind}"] = [
            type(v) is not _TYPES[kind] or (kind == "number" and not math.isfinite(v))
            for v in values
        ]
    places = {kind: np.flatnonzero(mask) for kind, mask in bad.items()}
    return {kind: found for kind, found in places.items() if len(found)}


def _is_id(name: Any) -> bool:
    if not isinstance(name, str) or "\0" in name:
        return False
    return len(name.encode(errors="replace")) <= MAX_ID_BYTES


def _name_duplicates(store: Store, hashes: np.ndarray) -> str:
    """The sentence about ids that occur more than once, from a second pass over the ids."""
    seen: set[Any] = set()
    for block in store.scan([]):
        for name in block.ids.tolist():
            if hash(name) in hashes:
                if name in seen:
                    return f"ids occur more than once, such as {repr(name)[:60]}."
                seen.add(name)
    return "ids occur more than once."
