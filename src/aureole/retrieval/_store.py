"""The protocol that an engine's adapter keeps, and the place where an address finds its adapter."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from aureole.errors import InvalidInputError
from aureole.retrieval._address import check_address, shown_address
from aureole.retrieval._filters import Condition
from aureole.retrieval._rows import Rows, Schema

Approximate = Literal["ivf", "hnsw"]


def slack(dim: int) -> float:
    """How far an engine's float32 inner product of two directions can be from the exact cosine.

    The worst case of a sum of D rounded products of unit vectors is D 2^-24, whatever the order. Bounds are widened by
    it, and by 1e-5 at least, and the exact cosine decides.
    """
    return max(1e-5, (dim + 8) * 2.0**-24)


def check_build(kind: str, sizes: dict[str, int]) -> None:
    """Refuse an approximate index that no adapter knows, or sizes that are none."""
    least = {"ivf": {"lists": 1, "probes": 1}, "hnsw": {"links": 2, "width": 1}}
    if kind not in least or not sizes.keys() <= least[kind].keys():
        raise InvalidInputError(
            f"build takes 'ivf' with lists and probes or 'hnsw' with links and width, but got {kind!r} with "
            f"{sorted(sizes)}."
        )
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < least[kind][name]:
            raise InvalidInputError(
                f"{name} must be a whole number of at least {least[kind][name]}, but is {size!r}."
            )


def default_lists(rows: int) -> int:
    """How many lists the rows are put into where no number was asked for: four times their root, and none to spare.

    Examples
    --------
    >>> [default_lists(rows) for rows in (0, 9, 1_000_000)]
    [1, 9, 4000]
    """
    return max(1, min(rows, round(4 * rows**0.5)))


def probes_of(sizes: dict[str, int], lists: int) -> int:
    """How many of the lists a search looks into: as many as asked for, or one in 16.

    Examples
    --------
    >>> probes_of({}, 64), probes_of({"probes": 100}, 64)
    (4, 64)
    """
    return min(sizes.get("probes", max(1, lists // 16)), lists)


def width_of(sizes: dict[str, int]) -> int:
    """How widely a graph is searched: as asked for, or 128.

    Examples
    --------
    >>> width_of({}), width_of({"width": 300})
    (128, 300)
    """
    return sizes.get("width", 128)


def told_index(kind: Approximate, lists: int, sizes: dict[str, int]) -> dict[str, Any]:
    """An approximate index as ``approximate`` tells it: its kind, its number of lists if any, what was asked for.

    Examples
    --------
    >>> told_index("ivf", 64, {"probes": 4}), told_index("hnsw", 1, {"links": 32})
    ({'kind': 'ivf', 'lists': 64, 'probes': 4}, {'kind': 'hnsw', 'links': 32})
    """
    return {"kind": kind, **({"lists": lists} if kind == "ivf" else {}), **sizes}


@runtime_checkable
class Store(Protocol):
    """What an adapter does: keep rows durably, and give candidates that hold every row of a cap.

    ``append`` returns only when the rows are durable, all or none, and refuses ids that are there. ``candidates``
    yields, query by query, all rows whose inner product with the query reaches its bound less ``slack``, and that meet
    the conditions; without ``exact`` an approximate index, where one was built, may miss some. ``nearest``
    yields the k rows of highest inner product. ``fetch`` gives the rows of some ids, in any order, without those that
    are not there. ``scan`` yields all rows in batches, without mu, in the engine's own order. All give the payload of
    ``columns`` only. ``notes`` are small texts kept with the rows, and ``approximate`` is the kind
    and sizes of the approximate index, if one was built.
    """

    engine: str

    @property
    def schema(self) -> Schema: ...

    def append(self, rows: Rows) -> None: ...

    def delete(self, ids: list[str]) -> int: ...

    def count(self) -> int: ...

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows: ...

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]: ...

    def candidates(
        self,
        mu: np.ndarray,
        bounds: np.ndarray,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]: ...

    def nearest(
        self,
        mu: np.ndarray,
        k: int,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]: ...

    def build(self, kind: Approximate, **sizes: int) -> None: ...

    def approximate(self) -> dict[str, Any] | None: ...

    def read_note(self, name: str) -> str | None: ...

    def write_note(self, name: str, text: str) -> None: ...

    def close(self) -> None: ...


def create_store(where: str, schema: Schema, rows: Rows) -> Store:
    """A new store at an address, with its first rows; refused where there is one."""
    return adapter_of(where).create(where, schema, rows)


def open_store(where: str) -> Store:
    """The store at an address."""
    return adapter_of(where).open(where)


def adapter_of(where: str) -> Any:
    """The class that keeps the rows of an address; an error says which addresses there are."""
    check_address(where)
    if where.startswith(("postgresql://", "postgres://")):
        from aureole.retrieval._postgres import PostgresStore

        return PostgresStore
    if where.removesuffix("/").endswith(".lance"):
        from aureole.retrieval._lance import LanceStore

        return LanceStore
    if where == "faiss://" or where.removesuffix("/").endswith(".faiss"):
        from aureole.retrieval._faiss import FaissStore

        return FaissStore
    raise InvalidInputError(
        f"{shown_address(where)!r} names no engine: use a path that ends in .lance (LanceDB) or .faiss (FAISS), "
        "'faiss://' (FAISS in memory) or a postgresql:// address (PostgreSQL with pgvector)."
    )
