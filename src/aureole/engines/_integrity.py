"""Damaged galleries: untrusted notes, errors of engines as ``DamagedGalleryError``, and the check of every row."""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aureole.errors import AureoleError, DamagedGalleryError

LARGEST_NOTE = 2**24  # characters
MAX_DIM, MAX_ID_BYTES = 2**20, 1024
TYPES = {"text": str, "integer": int, "number": float, "boolean": bool}
_UNIT = 1e-3  # how far the squared length of a stored mu may be from 1
_SOURCE = re.compile(r",? /\S+\.(rs|cpp|h):\d+(:\d+)?")  # places in the source of other packages
_SHOWN = 200  # characters of another package's message


def parse_note(text: str, what: str) -> Any:
    """The value of untrusted JSON text; ``what`` names it in the error. NaN, Infinity and deep nesting are refused.

    Examples
    --------
    >>> parse_note('{"dim": 3}', "gallery.faiss")
    {'dim': 3}
    """
    if len(text) > LARGEST_NOTE:
        raise DamagedGalleryError(
            f"{what} is damaged: it has {len(text):,} characters, but the limit is {LARGEST_NOTE:,}."
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise DamagedGalleryError(f"{what} is damaged: its JSON is nested too deeply.") from error
    except ValueError as error:
        raise DamagedGalleryError(f"{what} is damaged: it is not JSON ({error}).") from error


@contextmanager
def reading(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise exceptions of another package that reads ``what`` as ``DamagedGalleryError``.

    ``kinds`` are the exceptions that the package raises for damaged files. A panic of Rust code, which is not an
    ``Exception``, is recognised by its name.
    """
    try:
        yield
    except AureoleError:
        raise
    except BaseException as error:
        if not isinstance(error, kinds) and type(error).__name__ != "PanicException":
            raise
        text = _SOURCE.sub("", " ".join(f"{type(error).__name__}: {error}".split()))[:_SHOWN]
        raise DamagedGalleryError(
            f"{what} cannot be read; it may be damaged ({text}). `aureole index check` lists problems; restore it "
            "from a copy, or rebuild it."
        ) from (error if isinstance(error, Exception) else None)


def check_returned(rows: Any, where: str) -> Any:
    """The rows that an engine returned for a search; raises if one has an impossible id, mu or kappa."""
    valid = valid_kappa(rows.kappa).all() and has_unit_length(rows.mu).all()
    if not (valid and set(map(type, rows.ids.tolist())) <= {str}):
        raise DamagedGalleryError(
            f"{where} is damaged: a row has no id, a mu whose length is not 1, or a kappa that is negative or NaN. "
            "`aureole index check` lists the problems; restore it from a copy, or rebuild it."
        )
    return rows


def has_unit_length(mu: np.ndarray) -> np.ndarray:
    """Whether each row of float32 vectors has length 1, within rounding.

    Examples
    --------
    >>> has_unit_length(np.array([[0.6, 0.8], [0, 0], [1e30, 0], [np.nan, 1]], np.float32))
    array([ True, False, False, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(np.einsum("ij,ij->i", mu, mu) - 1) < _UNIT


def valid_kappa(kappa: np.ndarray) -> np.ndarray:
    """Whether concentrations are at least 0; inf is a point."""
    with np.errstate(invalid="ignore"):
        return kappa >= 0


def find_problems(store: Any, observer: Callable[[int], None] | None = None) -> list[str]:
    """What is wrong with the gallery of a ``Store``, one sentence per kind of problem; empty if everything is valid.

    Cost: one pass over all rows with their mu and payload, and 8 bytes of memory per row for the ids.
    """
    problems, found = store.problems(), dict[str, tuple[int, str]]()
    hashes, seen = [np.zeros(0, np.int64)], 0
    try:
        total = store.count()
        for rows in store.scan(list(store.schema.columns), vectors=True):
            ids, seen = rows.ids.tolist(), seen + len(rows)
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
            for kind, bad in _invalid(rows, store.schema.columns).items():
                places = np.flatnonzero(bad)
                if len(places):
                    count, first = found.get(kind, (0, repr(ids[places[0]])[:60]))
                    found[kind] = (count + len(places), first)
            if observer is not None:
                observer(seen)
        if seen != total:
            problems.append(f"the gallery counts {total:,} rows, but {seen:,} can be read.")
        every = np.sort(np.concatenate(hashes))
        twice = int((every[1:] == every[:-1]).sum())
        if twice:
            problems.append(
                f"{twice:,} {'row has' if twice == 1 else 'rows have'} the id of another row."
            )
    except AureoleError as error:
        problems.append(str(error))
    rows_have = [
        f"{count:,} {'row has' if count == 1 else 'rows have'} {kind}; the first has the id {first}."
        for kind, (count, first) in found.items()
    ]
    return list(dict.fromkeys([*rows_have, *problems]))


def _invalid(rows: Any, columns: dict[str, str]) -> dict[str, Any]:
    """Masks of the invalid rows by kind of problem."""
    bad = {
        "an id that is not a text of 1 to 1,024 bytes": [not _is_id(i) for i in rows.ids.tolist()],
        "a kappa that is negative or NaN": ~valid_kappa(rows.kappa),
        "a mu whose length is not 1": ~has_unit_length(rows.mu),
    }
    for name, kind in columns.items():
        bad[f"a value of the column {name!r} that is not a {kind}"] = [
            type(v) is not TYPES[kind] or (kind == "number" and not math.isfinite(v))
            for v in rows.payload[name].tolist()
        ]
    return bad


def _is_id(name: Any) -> bool:
    if not isinstance(name, str) or "\0" in name:
        return False
    return len(name.encode(errors="replace")) <= MAX_ID_BYTES


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
