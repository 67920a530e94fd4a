"""PostgreSQL with pgvector: galleries in tables, and tables of users. Only this module imports psycopg and pgvector.

An address ``postgresql://user@host/database#table`` names the table, by default ``gallery``; a second table
``<table>_notes`` holds the schema and the calibration. Each change is one transaction. In SQL, values are passed as
parameters and names as quoted identifiers. What PostgreSQL refuses, such as more dimensions than an index takes, is
reported in its words.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np

from aureole.engines._addresses import check_address, shown_address, split_address
from aureole.engines._filters import Condition
from aureole.engines._integrity import check_returned, parse_note, reading
from aureole.engines._schema import NO_MU, Rows, Schema, object_array
from aureole.engines._store import (
    Approximate,
    Names,
    Selection,
    check_build,
    default_lists,
    describe_index,
    nearest_within,
    parse_sizes,
    probes_of,
    slack,
    the_only,
    width_of,
    write_sizes,
)
from aureole.errors import (
    AureoleError,
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
    MissingPackageError,
)

_T = TypeVar("_T")
_WAITS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each attempt to reconnect
_GONE = ("08", "57P")  # classes of errors after which the server closes the connection
_NAME = re.compile(r"[a-z][a-z0-9_]{0,53}")
_SCAN_ROWS = 2**13  # rows per batch of a scan
_OPERATORS = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
_VECTOR_TYPES = ("vector", "halfvec")
_TYPES = {
    "text": 'text COLLATE "C"',
    "integer": "bigint",
    "number": "double precision",
    "boolean": "boolean",
}
_COPY_TYPES = {"text": "text", "integer": "int8", "number": "float8", "boolean": "bool"}
_COLUMNS = """
SELECT attname, format_type(atttypid, NULL), atttypmod, coalesce(attnum = ANY(indkey), false)
FROM pg_attribute LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_INDEXES = """
SELECT amname, opcname, coalesce(array_to_string(reloptions, ','), '')
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
JOIN pg_opclass ON pg_opclass.oid = indclass[0]
JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = %s::regclass AND attname = %s AND indisvalid AND indpred IS NULL AND amname IN ('hnsw', 'ivfflat')
ORDER BY amname, opcname
"""


class _Connection:
    """One connection at a time to a database, reopened if lost, with typed errors; ``psycopg`` is the package."""

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

    def quoted(self, *name: str) -> str:
        """A quoted identifier for a statement with parameters, in which a percent sign is doubled."""
        return self.psycopg.sql.Identifier(*name).as_string(None).replace("%", "%%")

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
            raise AureoleError(
                f"{shown_address(self._address)} could not {what}: {'. '.join(filter(None, text))[:300]}"
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


class _PostgresTable:
    """Searches of a table with a column of ids, one of vectors, and maybe one of kappa.

    They scan the table, or take more and more of the nearest rows from an index on the vectors.
    """

    engine = "PostgreSQL"
    dim: int
    where: str
    _metric = "ip"  # of scans, which cost less than with cosines
    _kappa = False  # whether there is a column kappa
    _table: str
    _id: str
    _vector: str
    _id_type, _vector_type = "text", "vector"

    def __init__(self, where: str) -> None:
        check_address(where)
        self.where = shown_address(where)
        address, self._fragment = split_address(where)
        self._connection = _Connection(address)

    def count(self) -> int:
        """The number of rows with a vector."""
        return self._one(f"SELECT count({self._vector}) FROM {self._table}", [], "count")[0]

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        condition = f"{self._vector} IS NOT NULL AND {self._id} = ANY(%s::{self._id_type}[])"
        return self._found(f"{self._select(columns)} WHERE {condition}", [ids], columns)

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows, from a cursor on the server, in one transaction of a connection of its own."""
        statement = f"{self._select(columns, vectors=vectors)} WHERE {self._vector} IS NOT NULL"
        with (
            self._connection.another("read") as connection,
            connection.transaction(),
            connection.cursor("scan", binary=True) as cursor,
        ):
            cursor.execute(statement, [])
            while records := cursor.fetchmany(_SCAN_ROWS):
                yield self._decode(records, columns, vectors=vectors)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound: by a scan, or nearest first from the approximate index."""
        index = None if selection.exact else self._index()
        if index is not None:
            for query, bound in zip(mu, bounds.tolist(), strict=True):

                def nearest(k: int, query: np.ndarray = query) -> Rows:
                    return self._nearest(query, k, selection, index)

                yield nearest_within(nearest, query, bound) or self._decode([], selection.columns)
            return
        where, values = self._where(selection.conditions)
        ranged = (
            f"{self._select(selection.columns)} WHERE {self._near(self._metric)} <= %s AND {where}"
        )
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            lowest = max(bound, -1.0) - slack(self.dim)
            reach = -lowest if self._metric == "ip" else 1 - lowest
            yield self._found(ranged, [query, reach, *values], selection.columns)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        index = None if selection.exact else self._index()
        for query in mu:
            yield self._nearest(query, k, selection, index)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _index(self) -> dict[str, Any] | None:
        """The kind, metric, lists and sizes of the approximate index that searches use."""
        raise NotImplementedError

    def _where(self, conditions: Sequence[Condition]) -> tuple[str, list[Any]]:  # noqa: ARG002
        """(Conditions in SQL, their values)."""
        return f"{self._vector} IS NOT NULL", []

    def _find_index(self, connection: Any, vector: str) -> dict[str, Any] | None:
        """The first index whose metric caps can use, cosine first."""
        usable = []
        for method, operators, options in connection.execute(
            _INDEXES, [self._table.replace("%%", "%"), vector]
        ).fetchall():
            metric = operators.removesuffix("_ops").rpartition("_")[2]
            if metric in _OPERATORS:
                sizes = dict(option.split("=") for option in options.split(",") if "=" in option)
                kind, lists = method.removesuffix("flat"), int(sizes.get("lists", 100))
                usable.append({"kind": kind, "metric": metric, "lists": lists, "sizes": {}})
        order = list(_OPERATORS)
        return min(usable, key=lambda index: order.index(index["metric"]), default=None)

    def _nearest(
        self, query: np.ndarray, k: int, selection: Selection, index: dict[str, Any] | None
    ) -> Rows:
        """The k nearest rows."""
        where, values = self._where(selection.conditions)
        near = self._near(self._metric if index is None else index["metric"])
        select = self._select(selection.columns)
        statement = f"{select} WHERE {where} ORDER BY {near} LIMIT %s"
        tuned = _settings(index, k)
        return self._found(statement, [*values, query, k], selection.columns, tuned)

    def _near(self, metric: str) -> str:
        return f"{self._vector} {_OPERATORS[metric]} %s::{self._vector_type}"

    def _select(self, columns: Sequence[str], *, vectors: bool = True) -> str:
        """The start of a statement that returns id, vector, kappa and payload."""
        names = [self._id, *([f"vector_send({self._vector}::vector)"] if vectors else [])]
        names += ["kappa"] if self._kappa else []
        names += [self._connection.quoted(name) for name in columns]
        return f"SELECT {', '.join(names)} FROM {self._table}"

    def _one(self, statement: str, values: list[Any], what: str = "read") -> Any:
        """The first record of a statement, or None."""
        return self._connection.run(lambda c: c.execute(statement, values).fetchone(), what)

    def _found(
        self,
        statement: str,
        values: list[Any],
        columns: Sequence[str],
        tuned: Sequence[tuple[str, str]] = (),
    ) -> Rows:
        """The rows of a search, checked; ``tuned`` are settings for its transaction."""

        def work(connection: Any) -> list[tuple[Any, ...]]:
            with connection.transaction() if tuned else nullcontext():
                for setting in tuned:
                    connection.execute("SELECT set_config(%s, %s, true)", setting)
                with connection.cursor(binary=True) as cursor:
                    # a prepared statement would keep a plan made under other settings
                    prepare = False if tuned else None
                    return cursor.execute(statement, values, prepare=prepare).fetchall()

        return self._returned(self._decode(self._connection.run(work, "read"), columns))

    def _returned(self, rows: Rows) -> Rows:
        """The rows of a search, checked."""
        return rows

    def _decode(
        self, records: list[tuple[Any, ...]], columns: Sequence[str], *, vectors: bool = True
    ) -> Rows:
        """Rows from (id, vector, kappa, payload)."""
        wide = 1 + vectors + self._kappa + len(columns)
        values = list(zip(*records, strict=True)) if records else [()] * wide
        ids, mu, place = object_array(values[0]), NO_MU, 1 + vectors
        with reading(self.where, TypeError, ValueError):  # a null, or another dimension
            if vectors:  # of vector_send: two int16, then big-endian float32
                content = np.frombuffer(b"".join(values[1]), np.uint8)
                content = content.reshape(len(ids), 4 + 4 * self.dim)[:, 4:]
                mu = np.ascontiguousarray(content).view(">f4").astype(np.float32)
            kappa = np.zeros(len(ids), np.float32)
            if self._kappa:
                kappa = np.array(values[place], np.float32)
        payload = map(object_array, values[place + self._kappa :])
        return Rows(ids, mu, kappa, dict(zip(columns, payload, strict=True)))


class PostgresStore(_PostgresTable):
    """A gallery in a table of a database, over one connection that is reopened when it is lost."""

    schema: Schema
    _kappa = True

    def __init__(self, where: str) -> None:
        super().__init__(where)
        name = self._table = self._fragment or "gallery"
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name!r} cannot name a table: use at most 54 lowercase letters, digits and _, starting with a "
                "letter."
            )
        self._name, self._id, self._vector = name, "id", "mu"
        self._table, self._notes, self._incoming, self._index_name = (
            self._connection.quoted(name + end) for end in ("", "_notes", "_incoming", "_mu")
        )

    @property
    def dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The dimension."""
        return self.schema.dim

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "PostgresStore":
        """Create a table with its first rows, in one transaction."""
        store = cls(where)
        store.schema = schema
        with store._closing("create a gallery"):
            store._create(rows)
        return store

    def _create(self, rows: Rows) -> None:
        connection = self._connection.get(register=False)
        errors = self._connection.psycopg.errors
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self._connection.psycopg.Error as error:
            raise AureoleError(
                f"pgvector cannot be enabled in this database: {str(error).strip()[:300]}"
            ) from error
        self._connection.register(connection)
        columns = [
            'id text COLLATE "C" PRIMARY KEY',
            f"mu vector({self.dim:d}) NOT NULL",
            "kappa real NOT NULL",
            *(
                f"{self._connection.quoted(name)} {_TYPES[kind]} NOT NULL"
                for name, kind in self.schema.columns.items()
            ),
        ]
        try:
            with connection.transaction():
                connection.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
                connection.execute(
                    f"CREATE TABLE {self._notes} (name text PRIMARY KEY, body text NOT NULL)"
                )
                self._set_note(connection, "schema", json.dumps(self.schema.to_json()))
                self._copy(connection, rows, self._table)
        except (errors.DuplicateTable, errors.UniqueViolation) as error:
            raise InvalidInputError(
                f"the database has a table {self._name!r} or {self._name}_notes already. Open it, use another name "
                "after # in the address, or drop it first."
            ) from error

    @classmethod
    def open(cls, where: str) -> "PostgresStore":
        """Open the gallery in a table."""
        store = cls(where)
        with store._closing("open a gallery"):
            connection = store._connection.get(register=False)
            query = "SELECT to_regclass(%s) IS NOT NULL"
            if not connection.execute(query, [f"{store._name}_notes"]).fetchone()[0]:
                raise MissingInputError(
                    f"the database holds no gallery {store._name!r}. `aureole index build` creates one."
                )
            store._connection.register(connection)
            note = store.read_note("schema")
            place = f"table {store._name!r}"
            if note is None:
                raise DamagedGalleryError(
                    f"{place} does not hold a gallery: the note of its schema is missing."
                )
            store.schema = Schema.from_json(parse_note(note, f"the schema of {place}"), place)
        return store

    @contextmanager
    def _closing(self, what: str) -> Iterator[None]:
        """Close the connection if the block raises."""
        try:
            with self._connection.reporting(what):
                yield
        except BaseException:
            self.close()
            raise

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists, in one transaction."""

        def work(connection: Any) -> None:
            try:
                with connection.transaction():
                    self._copy(connection, rows, self._table)
            except self._connection.psycopg.errors.UniqueViolation as error:
                detail = error.diag.message_detail or ""
                raise InvalidInputError(
                    f"an id is in the gallery already; use upsert to replace it. Nothing was stored. {detail[:200]}"
                ) from error

        self._connection.run(work, "append", changes=True)

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists, in one transaction; return how many were replaced."""
        names = self._columns()
        updates = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        # in the order of ids: two writers that lock the same rows do not wait for each other
        merge = (
            f"WITH merged AS (INSERT INTO {self._table} ({', '.join(names)}) "
            f"SELECT {', '.join(names)} FROM {self._incoming} ORDER BY id "
            f"ON CONFLICT (id) DO UPDATE SET {updates} RETURNING xmax = 0 AS is_new) "
            "SELECT count(*) FILTER (WHERE NOT is_new) FROM merged"
        )
        create = f"CREATE TEMPORARY TABLE {self._incoming} (LIKE {self._table}) ON COMMIT DROP"

        def work(connection: Any) -> int:
            with connection.transaction():
                connection.execute(create)
                self._copy(connection, rows, self._incoming)
                return connection.execute(merge).fetchone()[0]

        return self._connection.run(work, "upsert", changes=True)

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed."""
        statement = f"DELETE FROM {self._table} WHERE id = ANY(%s)"
        return self._connection.run(
            lambda c: c.execute(statement, [ids]).rowcount, "delete", changes=True
        )

    def version(self) -> str:
        """The changes that PostgreSQL has counted; its counters lag behind by up to a second."""
        statement = (
            "SELECT concat_ws(' ', n_tup_ins, n_tup_upd, n_tup_del) "
            "FROM pg_stat_all_tables WHERE relid = to_regclass(%s)"
        )
        record = self._one(statement, [self._name])
        return "" if record is None else record[0]

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an ivfflat (``lists``, ``probes``) or hnsw (``links``, ``width``) index."""
        check_build(kind, sizes)
        lists = sizes.get("lists", min(default_lists(self.count()), 32_768))
        links = sizes.get("links", 16)
        method = f"ivfflat (mu vector_ip_ops) WITH (lists = {lists:d})"
        if kind == "hnsw":
            depth = max(64, 2 * links)
            method = f"hnsw (mu vector_ip_ops) WITH (m = {links:d}, ef_construction = {depth:d})"

        def work(connection: Any) -> None:
            with connection.transaction():
                connection.execute(f"DROP INDEX IF EXISTS {self._index_name}")
                connection.execute(
                    f"CREATE INDEX {self._index_name} ON {self._table} USING {method}"
                )
                self._set_note(connection, "index", write_sizes(kind, sizes))

        self._connection.run(work, "build", changes=True)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        index = self._index()
        return index and describe_index(index["kind"], index["lists"], index["sizes"])

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        record = self._one(f"SELECT body FROM {self._notes} WHERE name = %s", [name])
        return None if record is None else record[0]

    def write_note(self, name: str, text: str) -> None:
        """Save a note."""
        self._connection.run(lambda c: self._set_note(c, name, text), "write a note", changes=True)

    def problems(self) -> list[str]:
        """What is wrong with the approximate index and with the key of the table."""
        problems = []
        if self._index() is None and self.read_note("index") is not None:
            problems.append("the approximate index is missing or not valid. Build it again.")
        statement = "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisunique AND indisvalid"
        if not self._one(statement, [self._table])[0]:
            problems.append("the table has no primary key.")
        return problems

    def _returned(self, rows: Rows) -> Rows:
        return check_returned(rows, self.where)

    def _index(self) -> dict[str, Any] | None:
        index = self._connection.run(lambda c: self._find_index(c, "mu"), "read")
        if index is None:
            return None
        sizes = parse_sizes(self.read_note("index"), index["kind"], self.where)
        return index | {"sizes": sizes}

    def _set_note(self, connection: Any, name: str, text: str) -> None:
        statement = (
            f"INSERT INTO {self._notes} (name, body) VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
        )
        connection.execute(statement, [name, text])

    def _copy(self, connection: Any, rows: Rows, into: str) -> None:
        kinds = self.schema.columns
        payload = [rows.payload[name].tolist() for name in kinds]
        statement = f"COPY {into} ({', '.join(self._columns())}) FROM STDIN WITH (FORMAT BINARY)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["text", "vector", "float4", *(_COPY_TYPES[k] for k in kinds.values())])
            for row in zip(rows.ids.tolist(), rows.mu, rows.kappa.tolist(), *payload, strict=True):
                copy.write_row(row)

    def _columns(self) -> list[str]:
        return ["id", "mu", "kappa", *map(self._connection.quoted, self.schema.columns)]

    def _where(self, conditions: Sequence[Condition]) -> tuple[str, list[Any]]:
        parts, values = ["TRUE"], list[Any]()
        for condition in conditions:
            name = self._connection.quoted(condition.column)
            cast = _TYPES[self.schema.columns[condition.column]].removesuffix(' COLLATE "C"')
            if condition.kind == "any":
                parts.append(f"{name} = ANY(%s::{cast}[])")
                values.append(list(condition.values))
                continue
            for sign, end in zip((">=", "<="), condition.values, strict=True):
                if end is not None:
                    parts.append(f"{name} {sign} %s::{cast}")
                    values.append(end)
        return " AND ".join(parts), values


class PostgresSource(_PostgresTable):
    """A column of type vector or halfvec: scanned by cosine distance, or searched by its own index."""

    check_all = False
    _metric = "cosine"

    def __init__(self, where: str, names: Names) -> None:
        super().__init__(where)
        table = names.collection or unquote(self._fragment)
        if not table:
            raise InvalidInputError(
                "name the table: postgresql://user@host/database#table, or collection='table'."
            )
        self._table = self._connection.quoted(*((table,) if isinstance(table, str) else table))
        try:
            with self._connection.reporting("read the table"):
                self._describe(names)
        except BaseException:
            self.close()
            raise

    def _describe(self, names: Names) -> None:
        """Find the columns, the dimension and the index of the table."""
        connection = self._connection.get(register=False)
        name = self._table.replace("%%", "%")
        if connection.execute("SELECT to_regclass(%s)::oid", [name]).fetchone()[0] is None:
            raise MissingInputError(f"the database has no table {name}.")
        self._connection.register(connection)
        found = connection.execute(_COLUMNS, [name]).fetchall()
        types = {column: kind for column, kind, _, _ in found}
        vectors = [c for c, kind, _, _ in found if kind.rpartition(".")[2] in _VECTOR_TYPES]
        vector = the_only(vectors, names.vector, "vector column", f"table {name}")
        keys = [column for column, _, _, primary in found if primary]
        keys = [column for column, *_ in found] if names.id is not None else keys
        own_id = the_only(keys, names.id, "id column", f"table {name}")
        unknown = [column for column in names.columns if column not in types]
        if unknown:
            raise InvalidInputError(
                f"table {name} has no column {unknown[0]!r}. Columns: {sorted(types)}."
            )
        self._id, self._vector = map(self._connection.quoted, (own_id, vector))
        self._id_type, self._vector_type = (
            types[each].replace("%", "%%") for each in (own_id, vector)
        )
        self.dim = next(size for column, _, size, _ in found if column == vector)
        if self.dim < 1:
            raise InvalidInputError(
                f"column {vector!r} of table {name} has no dimension. Declare it: ALTER TABLE … TYPE vector(n)."
            )
        self._own_index = self._find_index(connection, vector)
        self.unit = self._own_index is not None and self._own_index["metric"] != "cosine"

    def approximate(self) -> dict[str, Any] | None:
        """The kind and metric of the column's hnsw or ivfflat index, or None."""
        index = self._own_index
        return index and {"kind": index["kind"], "metric": index["metric"]}

    def _index(self) -> dict[str, Any] | None:
        return self._own_index


def _settings(index: dict[str, Any] | None, k: int) -> list[tuple[str, str]]:
    """The settings with which a search for k rows uses an approximate index, or none."""
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
