"""Damaged galleries: reading untrusted notes, and the check of every row that ``aureole index check`` runs.

Opening a gallery validates what is small: notes, columns, types, dimension, and the metric and size of an approximate
index. ``find_problems`` reads everything, block by block.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError

if TYPE_CHECKING:
    from aureole.retrieval._schema import Rows, Schema
    from aureole.retrieval._store import Store

LARGEST_NOTE = 2**24  # characters
MAX_DIM = 2**20
_UNIT = 1e-3  # how far the squared length of a stored mu may be from 1
_LARGEST_LISTS = 2**31
_SIZES = {"ivf": {"lists", "probes"}, "hnsw": {"links", "width"}}
_SOURCE = re.compile(r",? /\S+\.(rs|cpp|h):\d+(:\d+)?")  # places in the source of other packages
_SHOWN = 200  # characters of another package's message


def parse_note(text: str, what: str) -> Any:
    """The value of untrusted JSON text; ``what`` names it in the error. NaN, Infinity and deep nesting are refused.

    Examples
    --------
    >>> parse_note('{"dim": 3}', "gallery.faiss/manifest.json")
    {'dim': 3}
    >>> parse_note("[" * 100_000, "gallery.faiss/manifest.json")
    Traceback (most recent call last):
    aureole.errors.DamagedGalleryError: gallery.faiss/manifest.json is damaged: its JSON is nested too deeply.
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


def parse_index_note(value: Any, what: str) -> dict[str, Any]:
    """The kind, lists and sizes of an approximate index from an untrusted note.

    Examples
    --------
    >>> parse_index_note({"kind": "ivf", "lists": 4, "sizes": {"probes": 2}}, "gallery.lance")
    {'kind': 'ivf', 'lists': 4, 'sizes': {'probes': 2}}
    """
    valid = isinstance(value, dict)
    valid = valid and value.keys() == {"kind", "lists", "sizes"}
    valid = valid and isinstance(value["kind"], str) and value["kind"] in _SIZES
    if not valid or not isinstance(value["sizes"], dict):
        raise DamagedGalleryError(
            f"{what} is damaged: the note of its approximate index is invalid."
        )
    numbers = {"lists": value["lists"], **value["sizes"]}
    for name, number in numbers.items():
        if name not in _SIZES[value["kind"]] | {"lists"} or not _is_size(number):
            raise DamagedGalleryError(
                f"{what} is damaged: the note of its approximate index has {str(name)[:40]!r} = {str(number)[:40]}."
            )
    return value


def read_json_file(path: Path, form: str) -> dict[str, Any]:
    """The JSON object in a file, which must say that it has the format ``form``; raises FileNotFoundError as it is."""
    try:
        if path.stat().st_size > LARGEST_NOTE:
            raise DamagedGalleryError(f"{path} is larger than {LARGEST_NOTE >> 20} MiB.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedGalleryError(f"{path} cannot be read: {error}.") from error
    found = parse_note(text, str(path))
    if not isinstance(found, dict) or found.get("format") != form:
        raise DamagedGalleryError(f"{path} does not have the format {form!r}.")
    return found


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
    except kinds as error:
        raise _unreadable(what, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise _unreadable(what, error) from None


def check_returned(rows: "Rows", where: str) -> "Rows":
    """The rows that an engine returned for a search; raises if one has an impossible id, mu or kappa."""
    valid = valid_kappa(rows.kappa).all() and has_unit_length(rows.mu).all()
    if not (valid and set(map(type, rows.ids.tolist())) <= {str}):
        raise DamagedGalleryError(
            f"{where} is damaged: a row has no id, a mu whose length is not 1, or a kappa that is negative or NaN. "
            "`aureole index check` lists the problems; restore it from a copy, or rebuild it."
        )
    return rows


def find_problems(store: "Store", observer: Callable[[int], None] | None = None) -> list[str]:
    """What is wrong with a gallery, one sentence per kind of problem; empty if everything is valid.

    Cost: one pass over all rows with their mu and payload, and 8 bytes of memory per row for the ids.
    """
    problems = store.problems()
    rows = RowProblems(store.schema)
    try:
        total = store.count()
        for block in store.scan(list(store.schema.columns), vectors=True):
            rows.add(block)
            if observer is not None:
                observer(rows.seen)
        problems += rows.report()
        if rows.seen != total:
            problems.append(f"the gallery counts {total:,} rows, but {rows.seen:,} can be read.")
        if rows.has_duplicates():
            problems.append(_name_duplicates(store, rows.duplicated()))
    except AureoleError as error:
        problems += [*rows.report(), str(error)]
    return list(dict.fromkeys(problems))


class RowProblems:
    """Counts invalid rows by kind of problem, and remembers the first id of each."""

    def __init__(self, schema: "Schema") -> None:
        self.seen = 0
        self._schema = schema
        self._found: dict[str, tuple[int, str]] = {}
        self._hashes: list[np.ndarray] = []

    def add(self, rows: "Rows") -> None:
        """Check a block of rows with mu and all payload columns."""
        ids = rows.ids.tolist()
        self.seen += len(ids)
        self._hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
        named = np.fromiter((_is_id(name) for name in ids), bool, len(ids))
        self._note("an id that is not a text of 1 to 1,024 bytes", ~named, ids)
        self._note("a kappa that is negative or NaN", ~valid_kappa(rows.kappa), ids)
        self._note("a mu whose length is not 1", ~has_unit_length(rows.mu), ids)
        for name, kind in self._schema.columns.items():
            valid = _valid_payload(rows.payload[name], kind)
            self._note(f"a value of the column {name!r} that is not a {kind}", ~valid, ids)

    def report(self) -> list[str]:
        """One sentence per kind of problem."""
        return [
            f"{count:,} {'row has' if count == 1 else 'rows have'} {what}; the first has the id {first}."
            for what, (count, first) in self._found.items()
        ]

    def has_duplicates(self) -> bool:
        """Whether two ids have the same hash."""
        return len(self.duplicated()) > 0

    def duplicated(self) -> np.ndarray:
        """The hashes that several ids have."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.int64), *self._hashes]))
        return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])

    def _note(self, what: str, bad: np.ndarray, ids: list[Any]) -> None:
        places = np.flatnonzero(bad)
        if len(places):
            count, first = self._found.get(what, (0, repr(ids[places[0]])[:60]))
            self._found[what] = (count + len(places), first)


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
    """Whether concentrations are at least 0; inf is a point.

    Examples
    --------
    >>> valid_kappa(np.array([0.0, 3.0, np.inf, -1.0, np.nan]))
    array([ True,  True,  True, False, False])
    """
    with np.errstate(invalid="ignore"):
        return kappa >= 0


def _name_duplicates(store: "Store", hashes: np.ndarray) -> str:
    """The sentence about ids that occur more than once, from a second pass over the ids."""
    seen: set[Any] = set()
    for block in store.scan([]):
        for name in block.ids.tolist():
            if hash(name) in hashes:
                if name in seen:
                    return f"ids occur more than once, such as {repr(name)[:60]}."
                seen.add(name)
    return "ids occur more than once."


def _is_id(name: Any) -> bool:
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        return len(name.encode()) <= 1024
    except UnicodeEncodeError:
        return False


def _valid_payload(column: np.ndarray, kind: str) -> np.ndarray:
    """Which values have the type of a column; numbers are finite."""
    types = {"text": str, "integer": int, "number": float, "boolean": bool}
    values = column.tolist()
    right = (type(v) is types[kind] and (kind != "number" or math.isfinite(v)) for v in values)
    return np.fromiter(right, bool, len(values))


def _is_size(number: Any) -> bool:
    return (
        isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= _LARGEST_LISTS
    )


def _unreadable(what: str, error: BaseException) -> InvalidInputError:
    text = _SOURCE.sub("", " ".join(f"{type(error).__name__}: {error}".split()))[:_SHOWN]
    return DamagedGalleryError(
        f"{what} cannot be read; it may be damaged ({text}). `aureole index check` lists problems; restore it from a "
        "copy, or rebuild it."
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
