"""The connection to PostgreSQL, reopened if lost, with typed errors. No other module imports psycopg or pgvector."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from aureole.errors import AureoleError, InvalidInputError, MissingPackageError
from aureole.retrieval._store import probes_of, shown_address, width_of

_T = TypeVar("_T")
_WAITS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each attempt to reconnect
_STRIDES = (16, 64, 256)  # rows per fetch from a cursor over an approximate index
_GONE = ("08", "57P")  # classes of errors after which the server closes the connection


class Connection:
    """One connection at a time to a database; ``psycopg`` is the package."""

    def __init__(self, address: str) -> None:
        try:
            import pgvector.psycopg  # noqa: F401
            import psycopg
            import psycopg.sql
        except ImportError as error:
            raise MissingPackageError(
                "galleries in PostgreSQL need psycopg and pgvector: pip install 'aureole[postgres]'."
            ) from error
        self.psycopg: Any = psycopg
        self._address = address
        self._connection: Any = None

    def close(self) -> None:
        """Close the connection, if it was ever opened."""
        if self._connection is not None:
            self._connection.close()

    def get(self, *, register: bool = True) -> Any:
        """The connection, reopened if it was lost; waits some seconds for a server that restarts."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        waits = _WAITS if self._connection is not None else _WAITS[:1]
        last: Exception | None = None
        for wait in waits:
            time.sleep(wait)
            try:
                self._connection = self.psycopg.connect(self._address, autocommit=True)
                break
            except self.psycopg.OperationalError as error:
                last = error
            except (self.psycopg.Error, ValueError):  # it quotes the address, with the password
                raise InvalidInputError(
                    f"{shown_address(self._address)} is not a valid PostgreSQL address: write "
                    "postgresql://user@host:port/database#table."
                ) from None
        else:
            place = shown_address(self._address)
            raise AureoleError(f"no connection to {place}: {str(last).strip()[:300]}") from last
        if register:
            try:
                self.register(self._connection)
            except BaseException:
                self.close()  # or the next call would use it without vectors
                raise
        return self._connection

    def add_extension(self, connection: Any) -> None:
        """Enable pgvector in the database."""
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self.psycopg.Error as error:
            self.close()
            raise AureoleError(
                f"pgvector cannot be enabled in this database: {str(error).strip()[:300]}"
            ) from error

    def register(self, connection: Any) -> None:
        """Register the vector type with a connection."""
        from pgvector.psycopg import register_vector

        try:
            register_vector(connection)
        except self.psycopg.ProgrammingError as error:
            raise AureoleError(
                "pgvector is not enabled in the database: run CREATE EXTENSION vector in it."
            ) from error

    def read(self, work: Callable[[Any], _T], *, register: bool = True) -> _T:
        """Run work that changes nothing; retry once if the connection is lost."""
        try:
            return work(self.get(register=register))
        except self.psycopg.Error as error:
            if not self._lost(error):
                raise self._failure(error, "read") from error
        self.close()
        with self.reporting("read"):
            return work(self.get(register=register))

    def change(self, work: Callable[[Any], _T], what: str) -> _T:
        """Run a change once; if the connection is lost, the error says that it may have been committed."""
        with self.reporting(what):
            connection = self.get()
            try:
                connection.execute("SELECT 1")
            except self.psycopg.Error:  # it was lost before: nothing was sent yet
                connection.close()
                connection = self.get()
            try:
                return work(connection)
            except self.psycopg.Error as error:
                if not self._lost(error):
                    raise
                connection.close()
                raise AureoleError(
                    f"the connection was lost during {what}: either everything was stored or nothing. Check count(), "
                    f"then try again. {str(error).strip()[:300]}"
                ) from error

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Raise errors of PostgreSQL as ``AureoleError``, and close the connection, which may be in a bad state."""
        try:
            yield
        except self.psycopg.Error as error:
            raise self._failure(error, what) from error

    def _failure(self, error: Any, what: str) -> AureoleError:
        self.close()
        message = [error.diag.message_primary or str(error).strip(), error.diag.message_hint or ""]
        place = shown_address(self._address)
        return AureoleError(f"{place} could not {what}: {'. '.join(filter(None, message))[:300]}")

    def _lost(self, error: Any) -> bool:
        """Whether the connection was lost, which a timeout or a missing table does not cause."""
        return self._connection.closed or (error.sqlstate or "").startswith(_GONE)


def walk(
    connection: Any, index: dict[str, Any], statement: Any, values: list[Any], reach: float
) -> list[tuple[Any, ...]]:
    """The records within reach, read from a cursor over an approximate index up to the first one that is farther.

    The statement returns the nearest first, with the distance as the last column.
    """
    records: list[tuple[Any, ...]] = []
    with connection.transaction():
        tune(connection, index, _STRIDES[-1])
        with connection.cursor("walk", binary=True) as cursor:
            cursor.execute(statement, values)
            for stride in chain(_STRIDES, repeat(_STRIDES[-1])):
                part = cursor.fetchmany(stride)
                records += [record for record in part if record[-1] <= reach]
                if len(part) < stride or part[-1][-1] > reach:
                    break
    return records


def tune(connection: Any, index: dict[str, Any] | None, k: int) -> None:
    """Make searches for k rows in this transaction use an approximate index, or none."""
    for name, value in settings(index, k):
        connection.execute("SELECT set_config(%s, %s, true)", [name, value])


def decode_vectors(sent: Sequence[bytes], dim: int) -> Float[np.ndarray, "n dim"]:
    """Vectors from ``vector_send`` (two int16, then big-endian float32); ValueError if the dimension is another one."""
    content = np.frombuffer(b"".join(sent), np.uint8).reshape(len(sent), 4 + 4 * dim)
    return np.ascontiguousarray(content[:, 4:]).view(">f4").astype(np.float32)


def settings(index: dict[str, Any] | None, k: int) -> list[tuple[str, str]]:
    """The PostgreSQL settings with which a search for k rows uses an approximate index, or none."""
    if index is None:
        return [("enable_indexscan", "off")]
    if index["kind"] == "ivf":
        probes = probes_of(index["sizes"], index["lists"])
        return [("enable_seqscan", "off"), ("ivfflat.probes", str(probes))]
    return [
        ("enable_seqscan", "off"),
        ("hnsw.ef_search", str(min(1000, max(width_of(index["sizes"]), k)))),
        ("hnsw.iterative_scan", "strict_order"),
        ("hnsw.max_scan_tuples", "200000"),
    ]
