"""Connection: to a PostgreSQL, made again when it is lost. The one file that imports psycopg and pgvector."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aureole.errors import AureoleError, InvalidInputError, MissingPackageError
from aureole.retrieval._address import shown_address

_T = TypeVar("_T")
_WAITS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each attempt to connect again
_GONE = ("08", "57P")  # classes of errors after which a server ends the connection


class Connection:
    """One connection at a time to the database at an address; ``psycopg`` is the package, for its errors and SQL."""

    def __init__(self, address: str) -> None:
        try:
            import pgvector.psycopg  # noqa: F401
            import psycopg
            import psycopg.sql
        except ImportError as error:
            raise MissingPackageError(
                "galleries in PostgreSQL need psycopg and pgvector: pip install 'aureole[retrieval]'."
            ) from error
        self.psycopg: Any = psycopg
        self._address = address
        self._connection: Any = None

    def close(self) -> None:
        """Close it, if it was ever made."""
        if self._connection is not None:
            self._connection.close()

    def get(self, *, register: bool = True) -> Any:
        """The connection, made again if it is gone; a server that starts is waited for, some seconds."""
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
                    f"{shown_address(self._address)} is not an address that PostgreSQL understands: write "
                    "postgresql://user@host:port/database#table."
                ) from None
        else:
            place = shown_address(self._address)
            raise AureoleError(f"no connection to {place}: {str(last).strip()[:300]}") from last
        if register:
            try:
                self.register(self._connection)
            except BaseException:
                self.close()  # the next one is not to be met half made
                raise
        return self._connection

    def add_extension(self, connection: Any) -> None:
        """Switch pgvector on in the database."""
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self.psycopg.Error as error:
            self.close()
            raise AureoleError(
                f"pgvector cannot be switched on in this database: {str(error).strip()[:300]}"
            ) from error

    def register(self, connection: Any) -> None:
        """Let a connection speak of vectors."""
        from pgvector.psycopg import register_vector

        try:
            register_vector(connection)
        except self.psycopg.ProgrammingError as error:
            raise AureoleError(
                "the database has no pgvector: run CREATE EXTENSION vector in it."
            ) from error

    def read(self, work: Callable[[Any], _T]) -> _T:
        """Do what changes nothing; if the connection is lost, and only then, once more on a new one."""
        try:
            return work(self.get())
        except self.psycopg.Error as error:
            if not self._lost(error):
                raise self._refusal(error, "read") from error
        self.close()
        with self.telling("read"):
            return work(self.get())

    def change(self, work: Callable[[Any], _T], what: str) -> _T:
        """Do a change; if the connection is lost nobody knows whether it was made, and the error says so."""
        with self.telling(what):
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
                    f"the connection was lost during {what}: all of it was stored or nothing. Look at count(), then "
                    f"try again. {str(error).strip()[:300]}"
                ) from error

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Turn what PostgreSQL refuses into an error of this library, and close the connection: the next is clean."""
        try:
            yield
        except self.psycopg.Error as error:
            raise self._refusal(error, what) from error

    def _refusal(self, error: Any, what: str) -> AureoleError:
        self.close()
        said = [error.diag.message_primary or str(error).strip(), error.diag.message_hint or ""]
        place = shown_address(self._address)
        return AureoleError(f"{place} could not {what}: {'. '.join(filter(None, said))[:300]}")

    def _lost(self, error: Any) -> bool:
        """Whether an error came with the end of the connection, which a timeout or a missing table leaves whole."""
        return self._connection.closed or (error.sqlstate or "").startswith(_GONE)
