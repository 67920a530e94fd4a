"""PostgreSQL with pgvector: galleries in tables, and tables of users.

An address ``postgresql://user@host/database#table`` names the table, by default ``gallery``; a second table
``<table>_notes`` holds the schema and the calibration. Each change is one transaction. In SQL, values are passed as
parameters and names as quoted identifiers.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, repeat
from typing import Any
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float

from aureole.engines._addresses import check_address, shown_address, split_address
from aureole.engines._filters import Condition
from aureole.engines._integrity import check_returned, parse_index_note, parse_note, reading
from aureole.engines._postgres_connection import Connection
from aureole.engines._schema import NO_MU, Rows, Schema, object_array
from aureole.engines._store import (
    Approximate,
    Names,
    Selection,
    check_build,
    default_lists,
    describe_index,
    probes_of,
    slack,
    the_only,
    width_of,
)
from aureole.errors import (
    AureoleError,
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,53}")
_SCAN_ROWS = 2**13  # rows per batch of a scan
_STRIDES = (16, 64, 256)  # rows per fetch from a cursor over an approximate index
_LARGEST_DIM, _LARGEST_INDEXED = 16_000, 2_000  # limits of pgvector
_MOST_LISTS, _MOST_LINKS = 32_768, 100
_OPERATORS = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
_VECTOR_TYPES = ("vector", "halfvec")
_TYPES = {
    "text": 'text COLLATE "C"',
    "integer": "bigint",
    "number": "double precision",
    "boolean": "boolean",
}
_COPY_TYPES = {"text": "text", "integer": "int8", "number": "float8", "boolean": "bool"}
_SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
_COLUMNS = """
SELECT attname, format_type(atttypid, NULL), atttypmod, coalesce(attnum = ANY(indkey), false)
FROM pg_attribute LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_INDEXES = """
SELECT amname, opcname, coalesce(array_to_string(reloptions, ','), '')
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
JOIN pg_opclass ON pg_opclass.oid = indclass[0]
JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = %s AND attname = %s AND indisvalid AND indpred IS NULL AND amname IN ('hnsw', 'ivfflat')
ORDER BY amname, opcname
"""


class _PostgresTable:
    """Searches of a table with a column of ids, one of vectors, and maybe one of kappa.

    They scan the table, or walk along an index on the vectors, nearest first.
    """

    engine = "PostgreSQL"
    dim: int
    where: str
    _metric = "ip"  # of scans, which cost less than with cosines
    _kappa = False  # whether there is a column kappa
    _kinds = ("text", "vector")  # of ids and vectors

    def __init__(self, where: str) -> None:
        check_address(where)
        self.where = shown_address(where)
        address, self._fragment = split_address(where)
        self._connection = Connection(address)

    def count(self) -> int:
        """The number of rows with a vector."""
        statement = self._sql("SELECT count({vector}) FROM {table}")
        return self._connection.run(lambda c: c.execute(statement, []).fetchone()[0], "count")

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        statement = self._select("{vector} IS NOT NULL AND {id} = ANY(%s::{id_type}[])", columns)
        return self._rows(statement, [ids], columns, found=True)

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows, from a cursor on the server, in one transaction of a connection of its own."""
        statement = self._select("{vector} IS NOT NULL", columns, vectors=vectors)
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
        index = None if selection.exact else self._index_in_use()
        error, metric = slack(self.dim), self._metric if index is None else index["metric"]
        where, values = self._where(selection.conditions)
        ranged = self._select("{near} <= %s AND {where}", selection.columns, metric, where=where)
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            lowest = max(bound, -1.0) - error
            reach = {"cosine": 1 - lowest, "ip": -lowest, "l2": math.sqrt(2 - 2 * lowest)}[metric]
            if index is None:
                yield self._rows(ranged, [query, reach, *values], selection.columns, found=True)
            else:
                yield self._walk(query, reach, selection, index)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        index = None if selection.exact else self._index_in_use()
        metric = self._metric if index is None else index["metric"]
        where, values = self._where(selection.conditions)
        statement = self._nearest_first(selection.columns, metric, where, " LIMIT %s")
        for query in mu:
            values_of = [query, *values, query, k]
            yield self._rows(
                statement, values_of, selection.columns, tuned=_settings(index, k), found=True
            )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _index_in_use(self) -> dict[str, Any] | None:
        """The kind, metric, lists and sizes of the approximate index."""
        raise NotImplementedError

    def _where(self, conditions: Sequence[Condition]) -> tuple[Any, list[Any]]:  # noqa: ARG002
        """(Conditions in SQL, their values)."""
        return self._sql("{vector} IS NOT NULL"), []

    def _walk(
        self, query: np.ndarray, reach: float, selection: Selection, index: dict[str, Any]
    ) -> Rows:
        """The rows within reach, from a cursor over an approximate index up to the first one that is farther."""
        where, values = self._where(selection.conditions)
        statement = self._nearest_first(selection.columns, index["metric"], where)

        def work(connection: Any) -> list[tuple[Any, ...]]:
            records: list[tuple[Any, ...]] = []
            with connection.transaction():
                _tune(connection, _settings(index, _STRIDES[-1]))
                with connection.cursor("walk", binary=True) as cursor:
                    cursor.execute(statement, [query, *values, query])
                    for stride in chain(_STRIDES, repeat(_STRIDES[-1])):
                        part = cursor.fetchmany(stride)
                        records += [record for record in part if record[-1] <= reach]
                        if len(part) < stride or part[-1][-1] > reach:
                            return records
            raise AssertionError

        records = self._connection.run(work, "search")
        return self._returned(self._decode(records, selection.columns))

    def _nearest_first(
        self, columns: Sequence[str], metric: str, where: Any, limit: str = ""
    ) -> Any:
        """The rows with their distance to a query, which comes last, nearest first."""
        near = self._sql(f"{{vector}} {_OPERATORS[metric]} %s::{{vector_type}}")
        names = self._selected(columns)
        text = "SELECT {columns}, {near} FROM {table} WHERE {where} ORDER BY {near}"
        return self._sql(text + limit, columns=names, near=near, where=where)

    def _select(
        self,
        condition: str,
        columns: Sequence[str],
        metric: str = "ip",
        *,
        vectors: bool = True,
        **parts: Any,
    ) -> Any:
        near = self._sql(f"{{vector}} {_OPERATORS[metric]} %s::{{vector_type}}")
        names = self._selected(columns, vectors=vectors)
        condition = self._sql(condition, near=near, **parts)
        return self._sql(
            "SELECT {columns} FROM {table} WHERE {condition}", columns=names, condition=condition
        )

    def _selected(self, columns: Sequence[str], *, vectors: bool = True) -> Any:
        """The columns of a row: id, vector, kappa, payload."""
        names = [self._sql("{id}")]
        names += [self._sql("vector_send({vector}::vector)")] if vectors else []
        names += [self._column("kappa")] if self._kappa else []
        names += [self._column(name) for name in columns]
        return self._connection.psycopg.sql.SQL(", ").join(names)

    def _sql(self, text: str, **parts: Any) -> Any:
        """A statement with names and other parts filled in."""
        return self._connection.psycopg.sql.SQL(text).format(**self._parts, **parts)

    def _column(self, name: str) -> Any:
        return self._quoted(name)

    def _quoted(self, *name: str) -> Any:
        """A quoted identifier."""
        return self._text(self._connection.psycopg.sql.Identifier(*name).as_string(None))

    def _text(self, text: str) -> Any:
        """Part of a statement, in which psycopg would take a percent sign for a placeholder."""
        return self._connection.psycopg.sql.SQL(text.replace("%", "%%"))

    def _rows(
        self,
        statement: Any,
        values: list[Any],
        columns: Sequence[str],
        *,
        tuned: Sequence[tuple[str, str]] = (),
        found: bool = False,
    ) -> Rows:
        """The rows of a statement; those that a search has ``found`` are checked."""

        def work(connection: Any) -> list[tuple[Any, ...]]:
            with connection.transaction() if tuned else nullcontext():
                _tune(connection, tuned)
                with connection.cursor(binary=True) as cursor:
                    return cursor.execute(statement, values).fetchall()

        rows = self._decode(self._connection.run(work, "read"), columns)
        return self._returned(rows) if found else rows

    def _returned(self, rows: Rows) -> Rows:
        """The rows of a search, checked."""
        return rows

    def _decode(
        self, records: list[tuple[Any, ...]], columns: Sequence[str], *, vectors: bool = True
    ) -> Rows:
        """Rows from (id, vector, kappa, payload)."""
        values = list(zip(*records, strict=True))
        place = 1
        mu, kappa = np.zeros((0, self.dim), np.float32), np.zeros(len(records), np.float32)
        if vectors and records:
            mu = self._vectors(values[place])
        place += vectors
        if self._kappa:
            with reading(self.where, TypeError, ValueError):  # a null
                kappa = np.array(values[place] if records else [], np.float32)
            place += 1
        payload = {
            name: object_array(values[i] if records else [])
            for i, name in enumerate(columns, start=place)
        }
        ids = object_array(values[0] if records else [])
        return Rows(ids, mu if vectors else NO_MU, kappa, payload)

    def _vectors(self, sent: Sequence[bytes]) -> np.ndarray:
        with reading(self.where, TypeError, ValueError):  # a null, or another dimension
            return _decode_vectors(sent, self.dim)


class PostgresStore(_PostgresTable):
    """A gallery in a table of a database, over one connection that is reopened when it is lost."""

    schema: Schema
    _kappa = True

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._name = self._fragment or "gallery"
        if not _NAME.fullmatch(self._name):
            raise InvalidInputError(
                f"{self._name!r} cannot name a table: use at most 54 lowercase letters, digits and _, starting with a "
                "letter."
            )
        names = {"table": "", "notes": "_notes", "index": "_mu", "incoming": "_incoming"}
        self._parts = {key: self._quoted(self._name + end) for key, end in names.items()}
        self._parts |= {"id": self._quoted("id"), "vector": self._quoted("mu")}
        self._parts |= {"id_type": self._text("text"), "vector_type": self._text("vector")}

    @property
    def dim(self) -> int:
        """The dimension."""
        return self.schema.dim

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "PostgresStore":
        """Create a table with its first rows, in one transaction."""
        store = cls(where)
        if schema.dim > _LARGEST_DIM:
            raise InvalidInputError(
                f"pgvector stores up to {_LARGEST_DIM} dimensions, but D is {schema.dim}."
            )
        store.schema = schema
        try:
            with store._connection.reporting("create a gallery"):
                store._create(rows)
        except BaseException:
            store.close()
            raise
        return store

    def _create(self, rows: Rows) -> None:
        connection = self._connection.get(register=False)
        errors, sql = self._connection.psycopg.errors, self._connection.psycopg.sql
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self._connection.psycopg.Error as error:
            self.close()
            raise AureoleError(
                f"pgvector cannot be enabled in this database: {str(error).strip()[:300]}"
            ) from error
        self._connection.register(connection)
        columns = [
            sql.SQL("{} {} NOT NULL").format(self._column(name), sql.SQL(_TYPES[kind]))
            for name, kind in self.schema.columns.items()
        ]
        fixed = sql.SQL(
            'id text COLLATE "C" PRIMARY KEY, mu vector({}) NOT NULL, kappa real NOT NULL'
        ).format(sql.Literal(self.schema.dim))
        columns = sql.SQL(", ").join([fixed, *columns])
        try:
            with connection.transaction():
                connection.execute(self._sql("CREATE TABLE {table} ({columns})", columns=columns))
                notes = "CREATE TABLE {notes} (name text PRIMARY KEY, body text NOT NULL)"
                connection.execute(self._sql(notes))
                self._set_note(connection, "schema", json.dumps(self.schema.to_json()))
                self._copy(connection, rows)
        except (errors.DuplicateTable, errors.UniqueViolation) as error:
            raise InvalidInputError(
                f"the database has a table {self._name!r} or {self._name}_notes already. Open it, use another name "
                "after # in the address, or drop it first."
            ) from error

    @classmethod
    def open(cls, where: str) -> "PostgresStore":
        """Open the gallery in a table."""
        store = cls(where)
        try:
            with store._connection.reporting("open a gallery"):
                connection = store._connection.get(register=False)
                query = "SELECT to_regclass(%s) IS NOT NULL"
                if not connection.execute(query, [f"{store._name}_notes"]).fetchone()[0]:
                    raise MissingInputError(
                        f"the database holds no gallery {store._name!r}. `aureole index build` creates one."
                    )
                store._connection.register(connection)
            store.schema = _parse_schema(store.read_note("schema"), f"table {store._name!r}")
            store._check_columns()
            problem = store._index_problem()
            if problem is not None:
                raise DamagedGalleryError(f"{store.where} is damaged: {problem} Build it again.")
        except BaseException:
            store.close()
            raise
        return store

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists, in one transaction."""

        def work(connection: Any) -> None:
            try:
                with connection.transaction():
                    self._copy(connection, rows)
            except self._connection.psycopg.errors.UniqueViolation as error:
                detail = error.diag.message_detail or ""
                raise InvalidInputError(
                    f"an id is in the gallery already; use upsert to replace it. Nothing was stored. {detail[:200]}"
                ) from error

        self._connection.run(work, "append", changes=True)

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists, in one transaction; return how many were replaced."""
        sql = self._connection.psycopg.sql
        updates = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(self._column(name))
            for name in ("mu", "kappa", *self.schema.columns)
        )
        columns = self._names(["id", "mu", "kappa", *self.schema.columns])
        # in the order of ids: two writers that lock the same rows do not wait for each other
        merge = self._sql(
            "WITH merged AS (INSERT INTO {table} ({columns}) SELECT {columns} FROM {incoming} ORDER BY id "
            "ON CONFLICT (id) DO UPDATE SET {updates} RETURNING xmax = 0 AS is_new) "
            "SELECT count(*) FILTER (WHERE NOT is_new) FROM merged",
            columns=columns,
            updates=updates,
        )
        create = "CREATE TEMPORARY TABLE {incoming} (LIKE {table}) ON COMMIT DROP"

        def work(connection: Any) -> int:
            with connection.transaction():
                connection.execute(self._sql(create))
                self._copy(connection, rows, "{incoming}")
                return connection.execute(merge).fetchone()[0]

        return self._connection.run(work, "upsert", changes=True)

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed."""
        statement = self._sql("DELETE FROM {table} WHERE id = ANY(%s)")
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
        if self.dim > _LARGEST_INDEXED:
            raise InvalidInputError(
                f"pgvector indexes up to {_LARGEST_INDEXED} dimensions, but D is {self.dim}."
            )
        for name, most in (("lists", _MOST_LISTS), ("links", _MOST_LINKS)):
            if sizes.get(name, 1) > most:
                raise InvalidInputError(
                    f"pgvector takes up to {most:,} {name}, but got {sizes[name]:,}."
                )
        lists = sizes.get("lists", min(default_lists(self.count()), _MOST_LISTS))
        links = sizes.get("links", 16)
        method = f"ivfflat (mu vector_ip_ops) WITH (lists = {lists:d})"
        if kind == "hnsw":
            depth = max(64, 2 * links)
            method = f"hnsw (mu vector_ip_ops) WITH (m = {links:d}, ef_construction = {depth:d})"

        def work(connection: Any) -> None:
            with connection.transaction():
                connection.execute(self._sql("DROP INDEX IF EXISTS {index}"))
                connection.execute(self._sql(f"CREATE INDEX {{index}} ON {{table}} USING {method}"))
                note = {"kind": kind, "lists": lists, "sizes": sizes}
                self._set_note(connection, "index", json.dumps(note))

        self._connection.run(work, "build", changes=True)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        index = self._index_note()
        return None if index is None else describe_index(**index)

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        record = self._one(self._sql("SELECT body FROM {notes} WHERE name = %s"), [name])
        return None if record is None else record[0]

    def write_note(self, name: str, text: str) -> None:
        """Save a note."""
        self._connection.run(lambda c: self._set_note(c, name, text), "write a note", changes=True)

    def problems(self) -> list[str]:
        """What is wrong with the approximate index and with the key of the table."""
        problem = self._index_problem(required=True)
        statement = self._sql(
            "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisunique AND indisvalid"
        )
        record = self._one(statement, [self._sql("{table}").as_string(None)])
        problems = [] if problem is None else [problem]
        return problems if record[0] else [*problems, "the table has no primary key."]

    def _one(self, statement: Any, values: list[Any]) -> Any:
        """The first record of a statement, or None."""
        return self._connection.run(lambda c: c.execute(statement, values).fetchone(), "read")

    def _returned(self, rows: Rows) -> Rows:
        return check_returned(rows, self.where)

    def _index_in_use(self) -> dict[str, Any] | None:
        note = self._index_note()
        return None if note is None else {"metric": "ip", **note}

    def _check_columns(self) -> None:
        """Raise unless the table has the columns of the schema with their types."""
        statement = self._sql(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        table = self._sql("{table}").as_string(None)
        found = dict(
            self._connection.run(lambda c: c.execute(statement, [table]).fetchall(), "read")
        )
        expected = {"id": "text", "mu": f"vector({self.schema.dim})", "kappa": "real"}
        for name, kind in self.schema.columns.items():
            stored = name.upper() if name in _SYSTEM_COLUMNS else name
            expected[stored] = _TYPES[kind].removesuffix(' COLLATE "C"')
        for name, kind in expected.items():
            if found.get(name) != kind:
                raise DamagedGalleryError(
                    f"{self.where} is damaged: its column {name!r} must have the type {kind}, but has "
                    f"{found.get(name)}."
                )

    def _index_problem(self, *, required: bool = False) -> str | None:
        """What is wrong with the index that searches use; without one they would be right, but slow."""
        note = self._index_note()
        if note is None:
            return None
        statement = (
            "SELECT am.amname, op.opcname, i.indisvalid, i.indrelid = to_regclass(%s), c.reloptions FROM pg_index i "
            "JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam "
            "JOIN pg_opclass op ON op.oid = i.indclass[0] WHERE i.indexrelid = to_regclass(%s)"
        )
        names = [self._sql(text).as_string(None) for text in ("{table}", "{index}")]
        record = self._one(statement, names)
        if record is None:
            return "the approximate index is missing." if required else None
        method = {"ivf": "ivfflat", "hnsw": "hnsw"}[note["kind"]]
        *kind, options = record
        lists = note["kind"] == "hnsw" or f"lists={note['lists']}" in (options or [])
        if lists and kind == [method, "vector_ip_ops", True, True]:
            return None
        return (
            f"the approximate index is {record[0]} with {record[1]} and {', '.join(options or ['no options'])}, but "
            f"its note says {method} with vector_ip_ops and lists={note['lists']}, or it is not valid."
        )

    def _index_note(self) -> dict[str, Any] | None:
        text = self.read_note("index")
        if text is None:
            return None
        what = f"{self.where} (note of its index)"
        return parse_index_note(parse_note(text, what), what)

    def _set_note(self, connection: Any, name: str, text: str) -> None:
        statement = (
            "INSERT INTO {notes} (name, body) VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
        )
        connection.execute(self._sql(statement), [name, text])

    def _copy(self, connection: Any, rows: Rows, into: str = "{table}") -> None:
        kinds = self.schema.columns
        payload = [rows.payload[name].tolist() for name in kinds]
        statement = self._sql(
            f"COPY {into} ({{columns}}) FROM STDIN WITH (FORMAT BINARY)",
            columns=self._names(["id", "mu", "kappa", *kinds]),
        )
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["text", "vector", "float4", *(_COPY_TYPES[k] for k in kinds.values())])
            for row in zip(rows.ids.tolist(), rows.mu, rows.kappa.tolist(), *payload, strict=True):
                copy.write_row(row)

    def _where(self, conditions: Sequence[Condition]) -> tuple[Any, list[Any]]:
        sql = self._connection.psycopg.sql
        values: list[Any] = []
        parts = [sql.SQL("TRUE")]
        for condition in conditions:
            name = self._column(condition.column)
            kind = self.schema.columns[condition.column]
            cast = sql.SQL(_TYPES[kind].removesuffix(' COLLATE "C"'))
            if condition.kind == "any":
                parts.append(sql.SQL("{} = ANY(%s::{}[])").format(name, cast))
                values.append(list(condition.values))
                continue
            for sign, end in zip((">=", "<="), condition.values, strict=True):
                if end is not None:
                    parts.append(sql.SQL("{} {} %s::{}").format(name, sql.SQL(sign), cast))
                    values.append(end)
        return sql.SQL(" AND ").join(parts), values

    def _names(self, names: Sequence[str]) -> Any:
        return self._connection.psycopg.sql.SQL(", ").join([self._column(name) for name in names])

    def _column(self, name: str) -> Any:
        """The name of a payload column in the table: uppercase if it is the name of a system column."""
        name = name.upper() if name in _SYSTEM_COLUMNS else name
        return self._quoted(name)


class PostgresSource(_PostgresTable):
    """A column of type vector or halfvec: scanned by cosine distance, or walked through along its own index."""

    check_all = False
    _metric = "cosine"

    def __init__(self, where: str, names: Names) -> None:
        super().__init__(where)
        table = names.collection or unquote(self._fragment)
        if not table:
            raise InvalidInputError(
                "name the table: postgresql://user@host/database#table, or collection='table'."
            )
        self._table = (table,) if isinstance(table, str) else tuple(table)
        try:
            with self._connection.reporting("read the table"):
                self._describe(names)
        except BaseException:
            self.close()
            raise

    def _describe(self, names: Names) -> None:
        """Find the columns, the dimension and the index of the table."""
        connection = self._connection.get(register=False)
        name = self._connection.psycopg.sql.Identifier(*self._table).as_string(None)
        (oid,) = connection.execute("SELECT to_regclass(%s)::oid", [name]).fetchone()
        if oid is None:
            raise MissingInputError(f"the database has no table {name}.")
        self._connection.register(connection)
        found = connection.execute(_COLUMNS, [oid]).fetchall()
        types = {column: kind for column, kind, _, _ in found}
        vectors = [c for c, kind, _, _ in found if kind.rpartition(".")[2] in _VECTOR_TYPES]
        self._vector = the_only(vectors, names.vector, "vector column", f"table {name}")
        keys = [column for column, _, _, primary in found if primary]
        keys = [column for column, *_ in found] if names.id is not None else keys
        own_id = the_only(keys, names.id, "id column", f"table {name}")
        unknown = [column for column in names.columns if column not in types]
        if unknown:
            raise InvalidInputError(
                f"table {name} has no column {unknown[0]!r}. Columns: {sorted(types)}."
            )
        self._parts = {
            "table": self._quoted(*self._table),
            "id": self._quoted(own_id),
            "id_type": self._text(types[own_id]),
            "vector": self._quoted(self._vector),
            "vector_type": self._text(types[self._vector]),
        }
        self.dim = next(size for column, _, size, _ in found if column == self._vector)
        if self.dim < 1:  # a column without a dimension
            text = "SELECT vector_dims({vector}) FROM {table} WHERE {vector} IS NOT NULL LIMIT 1"
            self.dim = (connection.execute(self._sql(text), []).fetchone() or [0])[0]
            if not self.dim:
                raise InvalidInputError(
                    f"table {name} is empty, and column {self._vector!r} has no dimension."
                )
        self._index = _index_of(connection.execute(_INDEXES, [oid, self._vector]).fetchall())
        self.unit = self._index is not None and self._index["metric"] != "cosine"

    def approximate(self) -> dict[str, Any] | None:
        """The kind and metric of the column's hnsw or ivfflat index, or None."""
        if self._index is None:
            return None
        return {"kind": self._index["kind"], "metric": self._index["metric"]}

    def _index_in_use(self) -> dict[str, Any] | None:
        return self._index

    def _vectors(self, sent: Sequence[bytes]) -> np.ndarray:
        try:
            return _decode_vectors(sent, self.dim)
        except ValueError as error:
            raise InvalidInputError(
                f"column {self._vector!r} holds vectors of different dimensions; the first has {self.dim}."
            ) from error


def _tune(connection: Any, settings: Sequence[tuple[str, str]]) -> None:
    """Change settings for this transaction."""
    for name, value in settings:
        connection.execute("SELECT set_config(%s, %s, true)", [name, value])


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


def _decode_vectors(sent: Sequence[bytes], dim: int) -> Float[np.ndarray, "n dim"]:
    """Vectors from ``vector_send`` (two int16, then big-endian float32); ValueError if the dimension is another one."""
    content = np.frombuffer(b"".join(sent), np.uint8).reshape(len(sent), 4 + 4 * dim)
    return np.ascontiguousarray(content[:, 4:]).view(">f4").astype(np.float32)


def _index_of(found: list[tuple[str, str, str]]) -> dict[str, Any] | None:
    """The first index whose metric caps can use, cosine first, as ``_settings`` takes it."""
    usable = []
    for method, operators, options in found:
        metric = operators.removesuffix("_ops").rpartition("_")[2]
        if metric in _OPERATORS:
            sizes = dict(option.split("=") for option in options.split(",") if "=" in option)
            kind = "ivf" if method == "ivfflat" else method
            lists = int(sizes.get("lists", 100))
            usable.append({"kind": kind, "metric": metric, "lists": lists, "sizes": {}})
    return min(usable, key=lambda index: list(_OPERATORS).index(index["metric"]), default=None)


def _parse_schema(note: str | None, where: str) -> Schema:
    if note is None:
        raise DamagedGalleryError(
            f"{where} does not hold a gallery: the note of its schema is missing."
        )
    return Schema.from_json(parse_note(note, f"the schema of {where}"), where)
