"""The interface of engines, locks, and sizes of approximate indexes."""

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from aureole._io import reporting_writes
from aureole.engines._filters import Condition
from aureole.engines._integrity import parse_note
from aureole.engines._schema import Rows, Schema
from aureole.errors import DamagedGalleryError, InvalidInputError

Approximate = Literal["ivf", "hnsw"]
_SMALLEST_SIZES = {"ivf": {"lists": 1, "probes": 1}, "hnsw": {"links": 2, "width": 1}}
_LARGEST_SIZE = 2**31
_FIRST_NEAREST = 64


@dataclass(frozen=True)
class Selection:
    """Which rows a search may return (``conditions``), with which payload ``columns``.

    ``exact`` scans all rows even if an approximate index exists.
    """

    conditions: Sequence[Condition] = ()
    columns: Sequence[str] = ()
    exact: bool = False


@dataclass(frozen=True)
class Names:
    """What the rows of an index of yours are called: its collection, vector and id columns, and others to read."""

    collection: str | tuple[str, ...] | None = None
    vector: str | None = None
    id: str | None = None
    columns: tuple[str, ...] = ()


@runtime_checkable
class Searcher(Protocol):
    """What an engine must provide for searches.

    - ``candidates`` yields, query by query, all rows of the selection whose inner product with the query is at least
      its bound minus ``slack``; an approximate index may miss some.
    - ``nearest`` yields, query by query, the k rows of the selection with the highest inner products.
    - ``fetch`` returns the rows with the given ids, in any order, without those that do not exist.
    - ``scan`` yields all rows in batches, in any order, without mu unless ``vectors`` is set.
    - ``approximate`` is the kind and sizes of the approximate index, or None.
    - ``version`` is a text that changes with the rows, at a cost that does not grow with them.
    - Notes are short texts saved with the rows, such as a calibration.
    - ``where`` is the address, for messages.
    """

    engine: str
    where: str

    @property
    def schema(self) -> Schema: ...

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]: ...

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]: ...

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows: ...

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]: ...

    def count(self) -> int: ...

    def version(self) -> str: ...

    def approximate(self) -> dict[str, Any] | None: ...

    def read_note(self, name: str) -> str | None: ...

    def write_note(self, name: str, text: str) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Store(Searcher, Protocol):
    """What an engine must provide for galleries.

    - ``append`` adds all rows or none, durably, and raises if an id exists already.
    - ``upsert`` adds rows, replaces those whose id exists, all or none, durably, and returns how many it replaced.
    - ``build`` builds an approximate index.
    - ``problems`` lists what is wrong with the approximate index and with the files; rows are checked elsewhere.
    """

    def append(self, rows: Rows) -> None: ...

    def upsert(self, rows: Rows) -> int: ...

    def delete(self, ids: list[str]) -> int: ...

    def build(self, kind: Approximate, **sizes: int) -> None: ...

    def problems(self) -> list[str]: ...


def the_only(candidates: Sequence[str], given: str | None, what: str, where: str) -> str:
    """The given name if it is a candidate, or the only candidate; raise otherwise."""
    if given is not None:
        if given in candidates:
            return given
        raise InvalidInputError(f"{where} has no {what} {given!r}. Found: {sorted(candidates)}.")
    if len(candidates) == 1:
        return candidates[0]
    found = f"it has {sorted(candidates)}" if candidates else "it has none"
    raise InvalidInputError(f"{where} needs the name of its {what}: {found}.")


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the operating system releases it if the process dies."""
    with reporting_writes(path):
        handle = open(path, "a")  # noqa: SIM115
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:  # at once, also while a traceback keeps the handle alive
            fcntl.flock(handle, fcntl.LOCK_UN)


def slack(dim: int) -> float:
    """How far an engine's float32 inner product of two directions can be from the exact cosine.

    The rounding error of a sum of D products of unit vectors is at most D 2^-24, in any order. Engines search within
    bounds widened by it (at least 1e-5), and the exact cosine decides.
    """
    return max(1e-5, (dim + 8) * 2.0**-24)


def nearest_within(
    nearest: Callable[[int], Rows], query: np.ndarray, bound: float, *, most: int | None = None
) -> Rows | None:
    """The rows within a bound from an index that finds nearest rows: more of them until one is outside.

    None if the bound holds about ``most`` rows or more; then a scan costs less.
    """
    k = _FIRST_NEAREST
    while most is None or k < most:
        rows = nearest(k)
        if len(rows) < k:
            return rows
        length = np.linalg.norm(rows.mu, axis=-1)
        if (rows.mu @ query / np.where(length > 0, length, 1.0)).min() < bound - slack(len(query)):
            return rows
        k *= 4
    return None


def check_build(kind: str, sizes: dict[str, int]) -> None:
    """Raise unless ``kind`` is an approximate index and ``sizes`` are valid for it."""
    smallest = _SMALLEST_SIZES.get(kind)
    if smallest is None or not sizes.keys() <= smallest.keys():
        raise InvalidInputError(
            f"build takes 'ivf' with lists and probes or 'hnsw' with links and width, but got {kind!r} with "
            f"{sorted(sizes)}."
        )
    for name, size in sizes.items():
        if type(size) is not int or not smallest[name] <= size <= _LARGEST_SIZE:
            raise InvalidInputError(
                f"{name} must be an integer of at least {smallest[name]}, but is {size!r}."
            )


def write_sizes(kind: Approximate, sizes: dict[str, int]) -> str:
    """The note of an approximate index: the sizes with which it was built, and with which searches use it."""
    return json.dumps({"kind": kind, "sizes": sizes})


def parse_sizes(text: str | None, kind: str, what: str) -> dict[str, int]:
    """The sizes of an index of this kind from an untrusted note; empty if the note describes another kind.

    Examples
    --------
    >>> parse_sizes('{"kind": "ivf", "sizes": {"probes": 2}}', "ivf", "gallery.lance")
    {'probes': 2}
    """
    if text is None:
        return {}
    what = f"{what} (note of its approximate index)"
    note = parse_note(text, what)
    try:
        check_build(note["kind"], note["sizes"])
    except (AttributeError, InvalidInputError, KeyError, TypeError) as error:
        raise DamagedGalleryError(f"{what} is damaged: {str(error)[:200]}") from error
    return note["sizes"] if note["kind"] == kind else {}


def default_lists(rows: int) -> int:
    """The default number of IVF lists: 4 sqrt(rows), and at most one per row."""
    return max(1, min(rows, round(4 * rows**0.5)))


def probes_of(sizes: dict[str, int], lists: int) -> int:
    """How many of the lists a search scans (default: one in 16)."""
    return min(sizes.get("probes", max(1, lists // 16)), lists)


def width_of(sizes: dict[str, int]) -> int:
    """How many neighbours a search of an HNSW graph keeps track of (default: 128)."""
    return sizes.get("width", 128)


def describe_index(kind: str, lists: int, sizes: dict[str, int]) -> dict[str, Any]:
    """An approximate index as ``approximate`` returns it."""
    return {"kind": kind, **sizes, **({"lists": lists} if kind == "ivf" else {})}
