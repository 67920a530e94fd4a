"""PostgreSQL with pgvector: a gallery in a table.

An address ``postgresql://user@host/database#table`` names the table, by default ``gallery``; a second table
``<table>_notes`` holds the schema and the calibration. Each change is one transaction. In SQL, values are passed as
parameters and names as quoted identifiers.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aureole.errors import (
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
)
from aureole.retrieval._compression import check_compressed
from aureole.retrieval._filters import Condition
from aureole.retrieval._integrity import check_returned, parse_index_note, parse_note, reading
from aureole.retrieval._postgres_codes import (
    LARGEST_HALF,
    choose_probes,
    half_compression,
    half_distance,
)
from aureole.retrieval._postgres_connection import Connection, decode_vectors, tune, walk
from aureole.retrieval._quantisation import nearest_exactly
from aureole.retrieval._schema import NO_MU, Rows, Schema, object_array
from aureole.retrieval._store import (
    Approximate,
    Selection,
    check_address,
    check_build,
    default_lists,
    describe_index,
    shown_address,
    slack,
    split_address,
)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,53}")
_SCAN_ROWS = 2**14  # rows per batch of a scan
_LARGEST_DIM, _LARGEST_INDEXED = 16_000, 2_000  # limits of pgvector
_MOST_LISTS, _MOST_LINKS = 32_768, 100
_TYPES = {
    "text": 'text COLLATE "C"',
    "integer": "bigint",
    "number": "double precision",
    "boolean": "boolean",
}
_COPY_TYPES = {"text": "text", "integer": "int8", "number": "float8", "boolean": "bool"}
_SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}


class PostgresStore:
    """Rows in a table of a database, over one connection that is reopened when it is lost."""

    engine = "PostgreSQL"
    schema: Schema

    def __init__(self, where: str) -> None:
        check_address(where)
        self.where = shown_address(where)
        address, name = split_address(where)
        self._connection = Connection(address)
        self._name = name or "gallery"
        if not _NAME.fullmatch(self._name):
            raise InvalidInputError(
                f"{self._name!r} cannot name a table: use at most 54 lowercase letters, digits and _, starting with a "
                "letter."
            )

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
        self._connection.add_extension(connection)
        self._connection.register(connection)
        errors, sql = self._connection.psycopg.errors, self._connection.psycopg.sql
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

        self._connection.change(work, "append")

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

        return self._connection.change(work, "upsert")

    def delete(self, ids: list[str]) -> int:
        """Remove rows, and return how many existed."""
        statement = self._sql("DELETE FROM {table} WHERE id = ANY(%s)")
        return self._connection.change(lambda c: c.execute(statement, [ids]).rowcount, "delete")

    def count(self) -> int:
        """The number of rows."""
        statement = self._sql("SELECT count(*) FROM {table}")
        return self._connection.read(lambda c: c.execute(statement).fetchone()[0])

    def version(self) -> str:
        """The changes that PostgreSQL has counted; its counters lag behind by up to a second."""
        statement = (
            "SELECT concat_ws(' ', n_tup_ins, n_tup_upd, n_tup_del) "
            "FROM pg_stat_all_tables WHERE relid = to_regclass(%s)"
        )
        record = self._connection.read(lambda c: c.execute(statement, [self._name]).fetchone())
        return "" if record is None else record[0]

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        statement = self._select("SELECT {columns} FROM {table} WHERE id = ANY(%s)", columns)
        return self._connection.read(lambda c: self._rows(c, statement, [ids], columns))

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows, from a cursor on the server, in one transaction."""
        sql = self._connection.psycopg.sql
        fixed = sql.SQL("id, vector_send(mu), kappa" if vectors else "id, kappa")
        names = sql.SQL(", ").join([fixed, *(self._column(name) for name in columns)])
        connection = self._connection.read(lambda c: c.execute("SELECT 1").connection)
        with (
            self._connection.reporting("read"),
            connection.transaction(),
            connection.cursor("scan", binary=True) as cursor,
        ):
            cursor.execute(self._sql("SELECT {columns} FROM {table}", columns=names))
            while records := cursor.fetchmany(_SCAN_ROWS):
                if vectors:
                    yield self._decode(records, columns)
                    continue
                ids, kappa, *values = zip(*records, strict=True)
                payload = dict(zip(columns, map(object_array, values), strict=True))
                yield Rows(object_array(ids), NO_MU, np.array(kappa, np.float32), payload)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound: by a scan, or nearest first from the approximate index."""
        index = None if selection.exact else self._index_note()
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            if index is None:
                yield self._within(query, slack(self.schema.dim) - max(bound, -1.0), selection)
            else:
                yield self._reach(query, bound, selection, index)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        index = None if selection.exact else self._index_note()

        def work(connection: Any, query: np.ndarray, k: int) -> Rows:
            statement, values = self._nearest_first(query, selection, index)
            limited = statement + self._connection.psycopg.sql.SQL(" LIMIT %s")
            with connection.transaction():
                tune(connection, index, k)
                return self._rows(connection, limited, [*values, k], selection.columns)

        def near(query: np.ndarray, k: int) -> Rows:
            return self._connection.read(lambda c: work(c, query, k))

        def within(query: np.ndarray, bound: float) -> Rows:
            assert index is not None
            return self._reach(query, bound, selection, index)

        for query in mu:
            if index is None or "compression" not in index:
                yield near(query, k)
            else:
                yield nearest_exactly(query, k, near, within)

    def build(self, kind: Approximate, *, compressed: bool = False, **sizes: int) -> None:
        """Build an ivfflat (``lists``, ``probes``) or hnsw (``links``, ``width``) index.

        A compressed one is ivfflat over vectors in half precision.
        """
        check_build(kind, sizes)
        if compressed:
            check_compressed(kind, self.count())
        largest = LARGEST_HALF if compressed else _LARGEST_INDEXED
        if self.schema.dim > largest:
            raise InvalidInputError(
                f"pgvector indexes up to {largest} dimensions, but D is {self.schema.dim}."
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
        if compressed:
            half = f"(mu::halfvec({self.schema.dim:d})) halfvec_ip_ops"
            method = f"ivfflat ({half}) WITH (lists = {lists:d})"

        def work(connection: Any) -> None:
            with connection.transaction():
                connection.execute(self._sql("DROP INDEX IF EXISTS {index}"))
                connection.execute(self._sql(f"CREATE INDEX {{index}} ON {{table}} USING {method}"))
                note: dict[str, Any] = {"kind": kind, "lists": lists, "sizes": sizes}
                if compressed:
                    note["sizes"] = choose_probes(self, connection, lists, sizes)
                    note["compression"] = half_compression(self.schema.dim).to_json()
                self._set_note(connection, "index", json.dumps(note))

        self._connection.change(work, "build")

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        index = self._index_note()
        return None if index is None else describe_index(**index)

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        statement = self._sql("SELECT body FROM {notes} WHERE name = %s")
        record = self._connection.read(lambda c: c.execute(statement, [name]).fetchone())
        return None if record is None else record[0]

    def write_note(self, name: str, text: str) -> None:
        """Save a note."""
        self._connection.change(lambda c: self._set_note(c, name, text), "write a note")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def problems(self) -> list[str]:
        """What is wrong with the approximate index and with the key of the table."""
        problem = self._index_problem(required=True)
        statement = self._sql(
            "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisunique AND indisvalid"
        )
        name = self._sql("{table}").as_string(None)
        record = self._connection.read(lambda c: c.execute(statement, [name]).fetchone())
        problems = [] if problem is None else [problem]
        return problems if record[0] else [*problems, "the table has no primary key."]

    def _check_columns(self) -> None:
        """Raise unless the table has the columns of the schema with their types."""
        statement = self._sql(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        table = self._sql("{table}").as_string(None)
        found = dict(self._connection.read(lambda c: c.execute(statement, [table]).fetchall()))
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
        record = self._connection.read(lambda c: c.execute(statement, names).fetchone())
        if record is None:
            return "the approximate index is missing." if required else None
        method = {"ivf": "ivfflat", "hnsw": "hnsw"}[note["kind"]]
        *kind, options = record
        lists = note["kind"] == "hnsw" or f"lists={note['lists']}" in (options or [])
        operators = "halfvec_ip_ops" if "compression" in note else "vector_ip_ops"
        if lists and kind == [method, operators, True, True]:
            return None
        return (
            f"the approximate index is {record[0]} with {record[1]} and {', '.join(options or ['no options'])}, but "
            f"its note says {method} with {operators} and lists={note['lists']}, or it is not valid."
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

    def _within(self, query: np.ndarray, reach: float, selection: Selection) -> Rows:
        """The rows within reach of a query, by a scan."""
        where, values = self._where(selection.conditions)
        text = "SELECT {columns} FROM {table} WHERE mu <#> %s <= %s AND {where}"
        statement = self._select(text, selection.columns, where=where)
        values = [query, reach, *values]
        return self._connection.read(lambda c: self._rows(c, statement, values, selection.columns))

    def _reach(
        self, query: np.ndarray, bound: float, selection: Selection, index: dict[str, Any]
    ) -> Rows:
        """The rows within a bound of a query, from the approximate index."""
        reach = slack(self.schema.dim) - max(bound, -1.0)
        if "compression" in index:
            reach += index["compression"].widening(bound)
        statement, values = self._nearest_first(query, selection, index)
        records = self._connection.read(lambda c: walk(c, index, statement, values, reach))
        return check_returned(self._decode(records, selection.columns), self.where)

    def _rows(
        self, connection: Any, statement: Any, values: list[Any], columns: Sequence[str]
    ) -> Rows:
        with connection.cursor(binary=True) as cursor:
            records = cursor.execute(statement, values).fetchall()
        return check_returned(self._decode(records, columns), self.where)

    def _decode(self, records: list[tuple[Any, ...]], columns: Sequence[str]) -> Rows:
        """Rows from (id, vector_send(mu), kappa, payload)."""
        with reading(self.where, TypeError, ValueError):  # a null, or a vector of another dimension
            mu = decode_vectors([record[1] for record in records], self.schema.dim)
            kappa = np.array([record[2] for record in records], np.float32)
        payload = {
            name: object_array([record[place] for record in records])
            for place, name in enumerate(columns, start=3)
        }
        ids = object_array([record[0] for record in records])
        return Rows(ids, mu, kappa, payload)

    def _sql(self, text: str, **parts: Any) -> Any:
        """A statement with the names of the tables, and other parts, filled in."""
        sql = self._connection.psycopg.sql
        names = {"table": "", "notes": "_notes", "index": "_mu", "incoming": "_incoming"}
        names = {key: sql.Identifier(self._name + end) for key, end in names.items()}
        return sql.SQL(text).format(**names, **parts)

    def _select(self, text: str, columns: Sequence[str], **parts: Any) -> Any:
        sql = self._connection.psycopg.sql
        names = [sql.SQL("id, vector_send(mu), kappa"), *(self._column(name) for name in columns)]
        return self._sql(text, columns=sql.SQL(", ").join(names), **parts)

    def _nearest_first(
        self, query: np.ndarray, selection: Selection, index: dict[str, Any] | None
    ) -> tuple[Any, list[Any]]:
        """(Statement, values): rows, ordered by the negative inner product with a query, which comes last."""
        where, values = self._where(selection.conditions)
        sql = self._connection.psycopg.sql
        distance = sql.SQL("mu <#> %s")
        if index is not None and "compression" in index:
            distance = half_distance(sql, self.schema.dim)
        text = "SELECT {columns}, {distance} FROM {table} WHERE {where} ORDER BY {distance}"
        statement = self._select(text, selection.columns, where=where, distance=distance)
        return statement, [query, *values, query]

    def _where(self, conditions: Sequence[Condition]) -> tuple[Any, list[Any]]:
        sql = self._connection.psycopg.sql
        parts, values = [sql.SQL("TRUE")], []
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
        return self._connection.psycopg.sql.Identifier(name)


def _parse_schema(note: str | None, where: str) -> Schema:
    if note is None:
        raise DamagedGalleryError(
            f"{where} does not hold a gallery: the note of its schema is missing."
        )
    return Schema.from_json(parse_note(note, f"the schema of {where}"), where)
