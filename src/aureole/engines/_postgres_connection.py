"""The connection to PostgreSQL, reopened if lost, with typed errors. No other module imports psycopg or pgvector."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aureole.engines._addresses import shown_address
from aureole.errors import AureoleError, InvalidInputError, MissingPackageError

_T = TypeVar("_T")
_WAITS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each attempt to reconnect
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
        self._address, self._connection = address, None

    def close(self) -> None:
        """Close the connection, if it was ever opened."""
        if self._connection is not None:
            self._connection.close()

    def get(self, *, register: bool = True) -> Any:
        """The connection, reopened if it was lost; waits some seconds for a server that restarts."""
        if self._connection is None or self._connection.closed:
            waits = _WAITS[:1] if self._connection is None else _WAITS
            self._connection = self._open(waits, register=register)
        return self._connection

    @contextmanager
    def another(self, what: str) -> Iterator[Any]:
        """A second connection for this block, such as for a scan, during which the first one is used."""
        self.run(lambda connection: connection.execute("SELECT 1"), what)  # waits for a restart
        with self.reporting(what), self._open(_WAITS[:1], register=True) as connection:
            yield connection

    def register(self, connection: Any) -> None:
        """Register the vector type with a connection."""
        from pgvector.psycopg import register_vector

        try:
            register_vector(connection)
        except self.psycopg.ProgrammingError as error:
            raise AureoleError(
                "pgvector is not enabled in the database: run CREATE EXTENSION vector in it."
            ) from error

    def run(self, work: Callable[[Any], _T], what: str, *, changes: bool = False) -> _T:
        """Run work. If the connection is lost, it is repeated once, unless it changes rows."""
        with self.reporting(what):
            connection = self.get()
            try:
                if changes:  # nothing was sent yet if this fails
                    connection.execute("SELECT 1")
            except self.psycopg.Error:
                connection.close()
                connection = self.get()
            try:
                return work(connection)
            except self.psycopg.Error as error:
                # a timeout or a missing table does not lose the connection
                if not (connection.closed or (error.sqlstate or "").startswith(_GONE)):
                    raise
                connection.close()
                if changes:
                    raise AureoleError(
                        f"the connection was lost during {what}: either everything was stored or nothing. Check "
                        f"count(), then try again. {str(error).strip()[:300]}"
                    ) from error
            return work(self.get())

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Raise errors of PostgreSQL as ``AureoleError``, and close the connection, which may be in a bad state."""
        try:
            yield
        except self.psycopg.Error as error:
            self.close()
            text = [error.diag.message_primary or str(error).strip(), error.diag.message_hint or ""]
            place = shown_address(self._address)
            raise AureoleError(
                f"{place} could not {what}: {'. '.join(filter(None, text))[:300]}"
            ) from error

    def _open(self, waits: tuple[float, ...], *, register: bool) -> Any:
        place = shown_address(self._address)
        last: Exception | None = None
        for wait in waits:
            time.sleep(wait)
            try:
                connection = self.psycopg.connect(self._address, autocommit=True)
                break
            except self.psycopg.OperationalError as error:
                last = error
            except (self.psycopg.Error, ValueError):  # it quotes the address, with the password
                raise InvalidInputError(
                    f"{place} is not a valid PostgreSQL address: write postgresql://user@host:port/database#table."
                ) from None
        else:
            raise AureoleError(f"no connection to {place}: {str(last).strip()[:300]}") from last
        try:
            if register:
                self.register(connection)
        except BaseException:
            connection.close()  # or the next call would use it without vectors
            raise
        return connection
