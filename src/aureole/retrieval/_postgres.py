"""PostgreSQL with pgvector: a gallery in a table.

An address ``postgresql://user@host/database#table`` names the table, ``gallery`` by default; a second table
``<table>_notes`` keeps the schema and the calibration. Each change is one transaction.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any
from urllib.parse import urldefrag

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval._address import check_address
from aureole.retrieval._connection import Connection
from aureole.retrieval._filters import Condition
from aureole.retrieval._rows import Rows, Schema, strings
from aureole.retrieval._statements import COPY_TYPES, Statements, settings
from aureole.retrieval._store import Approximate, check_build, default_lists, slack, told_index

_NAME = re.compile(r"[a-z][a-z0-9_]{0,53}")
_SCANNED = 2**14  # rows of a scan at a time
_STRIDES = (16, 64, 256)  # rows taken at a time from a walk along an approximate index
_LARGEST_DIM, _LARGEST_INDEXED = 16_000, 2_000  # of pgvector
_MOST_LISTS, _MOST_LINKS = 32_768, 100


class PostgresStore:
    """Rows in a table of a database, over one connection that is made again when it is lost."""

    engine = "PostgreSQL"
    schema: Schema

    def __init__(self, where: str) -> None:
        check_address(where)
        address, name = urldefrag(where)
        self._connection = Connection(address)
        name = name or "gallery"
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name!r} cannot name a table: use at most 54 small letters, digits and _, a letter first."
            )
        self._name = name
        self._say = Statements(self._connection.psycopg.sql, name)

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "PostgresStore":
        """A new table, in one transaction with its first rows."""
        store = cls(where)
        if schema.dim > _LARGEST_DIM:
            raise InvalidInputError(
                f"pgvector keeps up to {_LARGEST_DIM} dimensions, but D is {schema.dim}."
            )
        store.schema = schema
        try:
            with store._connection.telling("create a gallery"):
                store._create(rows)
        except BaseException:
            store.close()
            raise
        return store

    def _create(self, rows: Rows) -> None:
        connection = self._connection.get(register=False)
        self._connection.add_extension(connection)
        self._connection.register(connection)
        errors = self._connection.psycopg.errors
        try:
            with connection.transaction():
                for statement in self._say.create(self.schema):
                    connection.execute(statement)
                self._set_note(connection, "schema", json.dumps(self.schema.to_json()))
                self._copy(connection, rows)
        except (errors.DuplicateTable, errors.UniqueViolation) as error:  # there, or made just now
            raise InvalidInputError(
                f"the database has a table {self._name!r} or {self._name}_notes already. Open it, name another "
                "after # in the address, or drop it first."
            ) from error

    @classmethod
    def open(cls, where: str) -> "PostgresStore":
        """The gallery in a table."""
        store = cls(where)
        try:
            with store._connection.telling("open a gallery"):
                connection = store._connection.get(register=False)
                query = "SELECT to_regclass(%s) IS NOT NULL"
                if not connection.execute(query, [f"{store._name}_notes"]).fetchone()[0]:
                    raise MissingInputError(
                        f"the database holds no gallery {store._name!r}. `aureole index build` makes one."
                    )
                store._connection.register(connection)
            store.schema = _schema(store.read_note("schema"), f"table {store._name!r}")
        except BaseException:
            store.close()
            raise
        return store

    def append(self, rows: Rows) -> None:
        """Add rows whose ids are new in one transaction."""

        def work(connection: Any) -> None:
            try:
                with connection.transaction():
                    self._copy(connection, rows)
            except self._connection.psycopg.errors.UniqueViolation as error:
                known = error.diag.message_detail or ""
                raise InvalidInputError(
                    f"an id is in the gallery already; delete it first. Nothing was stored. {known[:200]}"
                ) from error

        self._connection.change(work, "append")

    def delete(self, ids: list[str]) -> int:
        """Remove rows; the number that were there."""
        statement = self._say.delete()
        return self._connection.change(lambda c: c.execute(statement, [ids]).rowcount, "delete")

    def count(self) -> int:
        """The number of rows."""
        return self._connection.read(lambda c: c.execute(self._say.count()).fetchone()[0])

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows of some ids."""
        statement = self._say.fetch(columns)

        def work(connection: Any) -> Rows:
            with connection.cursor(binary=True) as cursor:
                return self._rows(cursor.execute(statement, [ids]).fetchall(), columns)

        return self._connection.read(work)

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """All rows without mu, from a cursor on the server, in one transaction."""
        nothing = np.zeros((0, 0), np.float32)
        connection = self._connection.read(lambda c: c.execute("SELECT 1").connection)
        with (
            self._connection.telling("read"),
            connection.transaction(),
            connection.cursor("scan", binary=True) as cursor,
        ):
            cursor.execute(self._say.scan(columns))
            while found := cursor.fetchmany(_SCANNED):
                ids, kappa, *payload = zip(*found, strict=True)
                held = {}
                for name, values in zip(columns, payload, strict=True):
                    held[name] = np.empty(len(ids), dtype=object)
                    held[name][:] = values
                yield Rows(strings(list(ids)), nothing, np.array(kappa, np.float32), held)

    def candidates(
        self,
        mu: np.ndarray,
        bounds: np.ndarray,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]:
        """All rows within each query's bound: by a scan, or by the approximate index, deeper and deeper."""
        index = None if exact else self._index_note()
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            reach = slack(self.schema.dim) - max(bound, -1.0)
            if index is None:
                yield self._connection.read(
                    lambda c, q=query, r=reach: self._scan(c, q, r, conditions, columns)
                )
                continue
            yield self._connection.read(
                lambda c, q=query, r=reach: self._walk(c, q, r, conditions, columns, index)
            )

    def nearest(
        self,
        mu: np.ndarray,
        k: int,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]:
        """The k nearest rows of each query that meet the conditions."""
        index = None if exact else self._index_note()
        for query in mu:
            yield self._connection.read(
                lambda c, q=query: self._order(c, q, k, conditions, columns, index)
            )

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an ivfflat (``lists``, ``probes``) or hnsw (``links``, ``width``) index."""
        check_build(kind, sizes)
        if self.schema.dim > _LARGEST_INDEXED:
            raise InvalidInputError(
                f"pgvector indexes up to {_LARGEST_INDEXED} dimensions, but D is {self.schema.dim}."
            )
        for name, most in (("lists", _MOST_LISTS), ("links", _MOST_LINKS)):
            if sizes.get(name, 1) > most:
                raise InvalidInputError(
                    f"pgvector takes up to {most:,} {name}, but got {sizes[name]:,}."
                )
        lists = sizes.get("lists", min(default_lists(self.count()), _MOST_LISTS))
        statements = self._say.index(kind, lists=lists, links=sizes.get("links", 16))

        def work(connection: Any) -> None:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
                note = {"kind": kind, "lists": lists, "sizes": sizes}
                self._set_note(connection, "index", json.dumps(note))

        self._connection.change(work, "build")

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index."""
        index = self._index_note()
        if index is None:
            return None
        return told_index(**index)

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        statement = self._say.read_note()
        found = self._connection.read(lambda c: c.execute(statement, [name]).fetchone())
        return None if found is None else found[0]

    def write_note(self, name: str, text: str) -> None:
        """Keep a note."""
        self._connection.change(lambda c: self._set_note(c, name, text), "write a note")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _set_note(self, connection: Any, name: str, text: str) -> None:
        connection.execute(self._say.write_note(), [name, text])

    def _copy(self, connection: Any, rows: Rows) -> None:
        kinds = self.schema.columns
        payload = [rows.payload[name].tolist() for name in kinds]
        with connection.cursor() as cursor, cursor.copy(self._say.copy(self.schema)) as copy:
            copy.set_types(["text", "vector", "float4", *(COPY_TYPES[k] for k in kinds.values())])
            for row in zip(rows.ids.tolist(), rows.mu, rows.kappa.tolist(), *payload, strict=True):
                copy.write_row(row)

    def _scan(
        self,
        connection: Any,
        query: np.ndarray,
        reach: float,
        conditions: Sequence[Condition],
        columns: Sequence[str],
    ) -> Rows:
        text, values = self._say.within(query, reach, conditions, columns, self.schema)
        with connection.cursor(binary=True) as cursor:
            found = cursor.execute(text, values).fetchall()
        return self._rows(found, columns)

    def _walk(
        self,
        connection: Any,
        query: np.ndarray,
        reach: float,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        index: dict[str, Any],
    ) -> Rows:
        """The rows within reach, nearest first, from a cursor over the approximate index until one is beyond."""
        text, values = self._say.nearest(query, conditions, columns, self.schema)
        found: list[tuple[Any, ...]] = []
        with connection.transaction():
            self._tune(connection, index, _STRIDES[-1])
            with connection.cursor("walk", binary=True) as cursor:
                cursor.execute(text, values)
                for stride in chain(_STRIDES, repeat(_STRIDES[-1])):
                    part = cursor.fetchmany(stride)
                    found += [row for row in part if row[-1] <= reach]
                    if len(part) < stride or part[-1][-1] > reach:
                        return self._rows(found, columns)
        raise AssertionError("the strides have no end")

    def _order(
        self,
        connection: Any,
        query: np.ndarray,
        k: int,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        index: dict[str, Any] | None,
    ) -> Rows:
        """The k nearest rows."""
        text, values = self._say.nearest(query, conditions, columns, self.schema)
        with connection.transaction(), connection.cursor(binary=True) as cursor:
            self._tune(connection, index, k)
            found = cursor.execute(self._say.limited(text), [*values, k]).fetchall()
        return self._rows(found, columns)

    def _tune(self, connection: Any, index: dict[str, Any] | None, k: int) -> None:
        """Set, for this transaction, how the approximate index is used."""
        for setting, value in settings(index, k):
            connection.execute("SELECT set_config(%s, %s, true)", [setting, value])

    def _rows(self, found: list[tuple[Any, ...]], columns: Sequence[str]) -> Rows:
        """Rows from (id, vector_send(mu), kappa, payload): pgvector sends two int16 and big-endian float32."""
        n, dim = len(found), self.schema.dim
        sent = np.frombuffer(b"".join(row[1] for row in found), np.uint8).reshape(n, 4 + 4 * dim)
        mu = np.ascontiguousarray(sent[:, 4:]).view(">f4").astype(np.float32)
        payload = {}
        for place, name in enumerate(columns):
            column = np.empty(n, dtype=object)
            column[:] = [row[3 + place] for row in found]
            payload[name] = column
        kappa = np.array([row[2] for row in found], np.float32)
        return Rows(strings([row[0] for row in found]), mu, kappa, payload)

    def _index_note(self) -> dict[str, Any] | None:
        text = self.read_note("index")
        return None if text is None else json.loads(text)


def _schema(note: str | None, where: str) -> Schema:
    try:
        values = json.loads(note or "null")
    except ValueError as error:
        raise InvalidInputError(f"{where} holds no gallery: its schema is not JSON.") from error
    return Schema.from_json(values, where)
