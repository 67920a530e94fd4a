"""What may have changed in a source since the last look: files by their time and size, rows of a database by a column.

A watch yields more inputs than have changed rather than fewer: the hash of each input decides. It remembers what it has
yielded when ``settle`` is called, after the rows were committed.
"""

import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote
from uuid import UUID

import numpy as np

from aureole.data import ENDINGS, FILES, RemotePath, resolve, walk
from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval import Connection, check_address, open_table, shown_address, split_address
from aureole.scale._sources import Broken, SourceSpec, kind_of, open_source

_SETTLED = 2 * 10**9  # nanoseconds after which another change of a file would change its time
_PAGE, _FETCHED = 10_000, 64  # rows per query of ids, and of inputs
_OVERLAP = {datetime: timedelta(minutes=1), date: timedelta(days=1), int: 1_000}
_SCHEMES = ("postgresql://", "postgres://")
_ALL = "SELECT {id}, {time} FROM {table} WHERE {time} IS NOT NULL ORDER BY {time}, {id} LIMIT %s"
_SINCE = "SELECT {id}, {time} FROM {table} WHERE {time} >= %s ORDER BY {time}, {id} LIMIT %s"
_AFTER = "SELECT {id}, {time} FROM {table} WHERE ({time}, {id}) > (%s, %s) ORDER BY {time}, {id} LIMIT %s"
_INPUTS = "SELECT {id}, {input} FROM {table} WHERE {id} = ANY(%s)"
_VECTORS = "SELECT {id}, {input}::real[] FROM {table} WHERE {id} = ANY(%s)"
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"


@runtime_checkable
class Watch(Protocol):
    """A source that is looked at again and again."""

    def changed(self) -> Iterator[tuple[str, Any]]:
        """(Id, input) of all inputs that may be new or changed since the last call of ``settle``."""
        ...

    def settle(self) -> None:
        """What ``changed`` has yielded is stored."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def is_database(path: str) -> bool:
    """Whether a source is a table of PostgreSQL."""
    return path.startswith(_SCHEMES)


def open_watch(spec: SourceSpec, updated: str | None = None) -> Watch:
    """The watch of a source; raises for sources that cannot be followed."""
    if is_database(spec.path):
        return PostgresWatch(spec, updated)
    if updated is not None:
        raise InvalidInputError("--updated-column is for tables of PostgreSQL.")
    kind = kind_of(spec.path)
    if kind == "shards":
        raise InvalidInputError(
            f"{spec.path} holds .tar files, which cannot be followed. Follow a folder of pictures, a table, or a table "
            "of PostgreSQL."
        )
    if kind == "folder":
        return FolderWatch(spec)
    if spec.id_column is None:
        raise InvalidInputError(
            f"rows of {spec.path} need ids to be followed, since row numbers shift. Name their column with --id-column."
        )
    return TableWatch(spec, lance=kind == "lance")


class FolderWatch:
    """The pictures below a folder; memory: their names, times and sizes."""

    def __init__(self, spec: SourceSpec) -> None:
        self._path = resolve(spec.path)
        self._seen: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}

    def changed(self) -> Iterator[tuple[str, Any]]:
        """The files whose time or size has changed."""
        self._pending = {}
        for name in walk(self._path, ENDINGS):
            state = _state(self._path / name)
            if state is not None and self._seen.get(name) != state:
                self._pending[name] = state
                yield name.encode("utf-8", "backslashreplace").decode(), self._path / name

    def settle(self) -> None:
        """Remember the files."""
        self._seen |= _settled(self._pending)

    def close(self) -> None:
        """Nothing is open."""


class TableWatch:
    """The rows of table files or of a Lance table: all rows of a file that has changed."""

    def __init__(self, spec: SourceSpec, *, lance: bool) -> None:
        self._spec, self._lance = spec, lance
        self._seen: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}

    def changed(self) -> Iterator[tuple[str, Any]]:
        """The rows of files whose time or size has changed."""
        states = self._states()
        self._pending = {
            name: state for name, state in states.items() if self._seen.get(name) != state
        }
        if not self._pending:
            return
        source = open_source(self._spec)
        for chunk in source.chunks():
            if self._lance or chunk.place[0] in self._pending:
                yield from source.read(chunk)

    def settle(self) -> None:
        """Remember the files."""
        self._seen |= self._pending if self._lance else _settled(self._pending)

    def close(self) -> None:
        """Nothing is open."""

    def _states(self) -> dict[str, Any]:
        if self._lance:
            return {"": open_table(self._spec.path).version}
        path = resolve(self._spec.path)
        root, names = (
            (path.parent, [path.name]) if path.is_file() else (path, list(walk(path, FILES)))
        )
        states = {name: _state(root / name) for name in names}
        return {name: state for name, state in states.items() if state is not None}


class PostgresWatch:
    """The rows of a table of PostgreSQL whose ``updated`` column, or else whose id, has grown.

    A transaction may commit rows whose time or id is smaller than what others have committed before, so the last minute
    (or the last 1,000 ids) is looked at again. Rows whose column is NULL are not read. Values are passed as parameters,
    and names as quoted identifiers.
    """

    def __init__(self, spec: SourceSpec, updated: str | None = None) -> None:
        check_address(spec.path)
        address, fragment = split_address(spec.path)
        if not fragment:
            raise InvalidInputError("name the table: postgresql://user@host/database#table.")
        if spec.id_column is None or spec.column is None:
            raise InvalidInputError(
                "a table of PostgreSQL needs --id-column, and --column, --text-column or --image-column."
            )
        self._connection, self._spec = Connection(address), spec
        sql: Any = self._connection.psycopg.sql
        table = unquote(fragment).split(".", 1)
        self._names = {
            "table": sql.Identifier(*table),
            "id": sql.Identifier(spec.id_column),
            "input": sql.Identifier(spec.column),
            "time": sql.Identifier(updated or spec.id_column),
        }
        self._grows = updated is None
        self._last: Any = None
        self._recent: dict[Any, Any] = {}
        self._pending: dict[Any, Any] = {}
        columns = (spec.id_column, spec.column, updated or spec.id_column)
        try:
            self._check(columns)
        except BaseException:
            self.close()
            raise

    def changed(self) -> Iterator[tuple[str, Any]]:
        """The rows whose column is near the largest value seen, or above, and has changed."""
        self._pending = {}
        for page in self._pages():
            rows = {name: time for name, time in page if self._recent.get(name) != time}
            names = list(rows)
            for first in range(0, len(names), _FETCHED):
                for name, value in self._inputs(names[first : first + _FETCHED]):
                    yield str(name), self._input(value)
            floor = self._floor(page[-1][1])
            self._pending = {n: t for n, t in self._pending.items() if t >= floor} | dict(page)

    def settle(self) -> None:
        """Remember the rows near the largest value of the column, which are looked at again."""
        if not self._pending:
            return
        self._last = max(self._pending.values())
        floor = self._floor(self._last)
        self._recent = {name: time for name, time in self._pending.items() if time >= floor}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @staticmethod
    def _floor(last: Any) -> Any:
        """Where the next look begins if the largest value so far is ``last``."""
        kind = next((kind for kind in _OVERLAP if isinstance(last, kind)), None)
        return last if kind is None else last - _OVERLAP[kind]

    def _pages(self) -> Iterator[list[tuple[Any, Any]]]:
        begun = self._last is not None
        values = [self._floor(self._last), _PAGE] if begun else [_PAGE]
        page = self._rows(_SINCE if begun else _ALL, values)
        while page:
            self._check_types(page[0])
            yield page
            if len(page) < _PAGE:
                return
            name, last = page[-1]
            page = self._rows(_AFTER, [last, name, _PAGE])

    def _inputs(self, names: list[Any]) -> list[tuple[Any, Any]]:
        return self._rows(_VECTORS if self._spec.modality == "vector" else _INPUTS, [names])

    def _rows(self, text: str, values: list[Any]) -> Any:
        query = self._connection.psycopg.sql.SQL(text).format(**self._names)
        return self._connection.read(
            lambda connection: connection.execute(query, values).fetchall(), register=False
        )

    def _check(self, columns: tuple[str, ...]) -> None:
        name = self._names["table"].as_string(None)
        found = [row[0] for row in self._rows(_COLUMNS, [name])]
        if not found:
            raise MissingInputError(f"{shown_address(self._spec.path)}: the table does not exist.")
        missing = [column for column in columns if column not in found]
        if missing:
            raise MissingInputError(
                f"table {name} has no column {missing[0]!r}. Columns: {', '.join(sorted(found))}."
            )

    def _check_types(self, row: tuple[Any, Any]) -> None:
        name, time_ = row
        if not isinstance(name, str | int | UUID) or isinstance(name, bool):
            raise InvalidInputError(
                f"ids must be texts, integers or UUIDs, but {self._spec.id_column!r} has {type(name).__name__}."
            )
        if self._grows and not isinstance(time_, int):
            raise InvalidInputError(
                f"{self._spec.id_column!r} does not hold integers that grow. Name a column with the time of the last "
                "change with --updated-column."
            )

    def _input(self, value: Any) -> Any:
        kind = self._spec.modality
        if value is None:
            return Broken("the row has no value.")
        if kind == "vector":
            return np.asarray(value, np.float32)
        wanted = bytes if kind == "image" else str
        if not isinstance(value, wanted):
            return Broken(
                f"the value is {type(value).__name__}, but {kind}s are {wanted.__name__}."
            )
        return value


def _state(path: Path | RemotePath) -> tuple[Any, ...] | None:
    """(Time of change, size) of a file; None if it does not exist any more."""
    if isinstance(path, RemotePath):
        return tuple(path.state())
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _settled(states: dict[str, Any]) -> dict[str, Any]:
    """The states that another change of the file would alter; a file that was just written is looked at again."""
    now = time.time_ns()
    return {
        name: state
        for name, state in states.items()
        if not isinstance(state[0], int) or now - state[0] > _SETTLED
    }
