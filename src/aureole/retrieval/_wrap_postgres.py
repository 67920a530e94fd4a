"""A PostgreSQL table with a pgvector column as the source of a wrapped index.

In SQL, values are passed as parameters and names as quoted identifiers; types come from the catalogue.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval._postgres_connection import Connection, decode_vectors, tune, walk
from aureole.retrieval._schema import NO_MU, Rows, object_array
from aureole.retrieval._store import check_address, split_address
from aureole.retrieval._wrap import Names, the_only

_SCAN_ROWS = 2**12  # rows per batch of a scan
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
_OPERATORS = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
_VECTOR_TYPES = ("vector", "halfvec")


class PostgresSource:
    """A column of type vector or halfvec: scanned by cosine distance, or walked through along its own index."""

    engine, check_all = "PostgreSQL", False

    def __init__(self, where: str, names: Names) -> None:
        check_address(where)
        address, fragment = split_address(where)
        table = names.collection or unquote(fragment)
        if not table:
            raise InvalidInputError(
                "name the table: postgresql://user@host/database#table, or collection='table'."
            )
        self._connection = Connection(address)
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
        self._types = {column: kind for column, kind, _, _ in found}
        vectors = [c for c, kind, _, _ in found if kind.rpartition(".")[2] in _VECTOR_TYPES]
        self._vector = the_only(vectors, names.vector, "vector column", f"table {name}")
        keys = [column for column, _, _, primary in found if primary]
        keys = [column for column, *_ in found] if names.id is not None else keys
        self._id = the_only(keys, names.id, "id column", f"table {name}")
        unknown = [column for column in names.columns if column not in self._types]
        if unknown:
            raise InvalidInputError(
                f"table {name} has no column {unknown[0]!r}. Columns: {sorted(self._types)}."
            )
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

    def count(self) -> int:
        """The number of rows with a vector."""
        statement = self._sql("SELECT count({vector}) FROM {table}")
        return self._connection.read(lambda c: c.execute(statement, []).fetchone()[0])

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        kind = self._text(self._types[self._id])
        text = (
            "SELECT {columns} FROM {table} WHERE {vector} IS NOT NULL AND {id} = ANY(%s::{kind}[])"
        )
        statement = self._select(text, columns, kind=kind)
        return self._connection.read(lambda c: self._rows(c, statement, [ids], columns))

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:
        """All rows, from a cursor on the server, in one transaction."""
        text = "SELECT {columns} FROM {table} WHERE {vector} IS NOT NULL"
        statement = self._select(text, columns, vectors=vectors)
        connection = self._connection.read(lambda c: c.execute("SELECT 1").connection)
        with (
            self._connection.reporting("read"),
            connection.transaction(),
            connection.cursor("scan", binary=True) as cursor,
        ):
            cursor.execute(statement, [])
            while records := cursor.fetchmany(_SCAN_ROWS):
                yield self._decode(records, columns, vectors=vectors)

    def within(
        self, query: np.ndarray, bound: float, columns: Sequence[str], *, exact: bool
    ) -> Rows:
        """All rows with at least this cosine: by a scan, or nearest first from the approximate index."""
        if self._index is None or exact:
            text = "SELECT {columns} FROM {table} WHERE {vector} {compare} %s::{kind} <= %s"
            statement = self._select(text, columns, **self._compare("cosine"))
            values = [query, 1 - bound]
            return self._connection.read(lambda c: self._rows(c, statement, values, columns))
        reaches = {"cosine": 1 - bound, "ip": -bound, "l2": math.sqrt(2 - 2 * bound)}
        reach = reaches[self._index["metric"]]
        index, statement = self._index, self._nearest_first(columns, self._index["metric"])
        records = self._connection.read(lambda c: walk(c, index, statement, [query, query], reach))
        return self._decode(records, columns)

    def nearest(self, query: np.ndarray, k: int, columns: Sequence[str], *, exact: bool) -> Rows:
        """The k nearest rows."""
        index = None if exact else self._index
        metric = "cosine" if index is None else index["metric"]
        statement = self._nearest_first(columns, metric, limit=True)

        def work(connection: Any) -> Rows:
            with connection.transaction():
                tune(connection, index, k)
                return self._rows(connection, statement, [query, query, k], columns)

        return self._connection.read(work)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and metric of the column's hnsw or ivfflat index, or None."""
        if self._index is None:
            return None
        return {"kind": self._index["kind"], "metric": self._index["metric"]}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _nearest_first(self, columns: Sequence[str], metric: str, *, limit: bool = False) -> Any:
        """The rows with their distance to a query, which comes last, nearest first."""
        text = (
            "SELECT {columns}, {vector} {compare} %s::{kind} FROM {table} WHERE {vector} IS NOT NULL "
            "ORDER BY {vector} {compare} %s::{kind}"
        )
        text += " LIMIT %s" if limit else ""
        return self._select(text, columns, **self._compare(metric))

    def _compare(self, metric: str) -> dict[str, Any]:
        kind = self._types[self._vector]
        return {"compare": self._text(_OPERATORS[metric]), "kind": self._text(kind)}

    def _select(
        self, text: str, columns: Sequence[str], *, vectors: bool = True, **parts: Any
    ) -> Any:
        fixed = "{id}, vector_send({vector}::vector)" if vectors else "{id}"
        names = [self._sql(fixed), *(self._quoted(name) for name in columns)]
        joined = self._connection.psycopg.sql.SQL(", ").join(names)
        return self._sql(text, columns=joined, **parts)

    def _sql(self, text: str, **parts: Any) -> Any:
        """A statement with quoted names filled in; always pass it a list of values."""
        names = {"table": self._quoted(*self._table), "vector": self._quoted(self._vector)}
        if "{id}" in text:
            names["id"] = self._quoted(self._id)
        return self._connection.psycopg.sql.SQL(text).format(**names, **parts)

    def _quoted(self, *name: str) -> Any:
        """A quoted identifier."""
        return self._text(self._connection.psycopg.sql.Identifier(*name).as_string(None))

    def _text(self, text: str) -> Any:
        """Part of a statement, in which psycopg would take a percent sign for a placeholder."""
        return self._connection.psycopg.sql.SQL(text.replace("%", "%%"))

    def _rows(
        self, connection: Any, statement: Any, values: list[Any], columns: Sequence[str]
    ) -> Rows:
        with connection.cursor(binary=True) as cursor:
            return self._decode(cursor.execute(statement, values).fetchall(), columns)

    def _decode(
        self, records: list[tuple[Any, ...]], columns: Sequence[str], *, vectors: bool = True
    ) -> Rows:
        """Rows from (id, vector_send(mu), columns)."""
        n, mu = len(records), NO_MU
        if vectors:
            try:
                mu = decode_vectors([record[1] for record in records], self.dim)
            except ValueError as error:
                raise InvalidInputError(
                    f"column {self._vector!r} holds vectors of different dimensions; the first has {self.dim}."
                ) from error
        payload = {
            name: object_array([record[place] for record in records])
            for place, name in enumerate(columns, start=1 + vectors)
        }
        ids = object_array([record[0] for record in records])
        return Rows(ids, mu, np.zeros(n, np.float32), payload)


def _index_of(found: list[tuple[str, str, str]]) -> dict[str, Any] | None:
    """The first index whose metric caps can use, cosine first, as ``settings`` takes it."""
    usable = []
    for method, operators, options in found:
        metric = operators.removesuffix("_ops").rpartition("_")[2]
        if metric in _OPERATORS:
            sizes = dict(option.split("=") for option in options.split(",") if "=" in option)
            kind = "ivf" if method == "ivfflat" else method
            lists = int(sizes.get("lists", 100))
            usable.append({"kind": kind, "metric": metric, "lists": lists, "sizes": {}})
    return min(usable, key=lambda index: list(_OPERATORS).index(index["metric"]), default=None)
