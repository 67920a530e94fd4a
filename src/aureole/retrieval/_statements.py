"""Statements: the SQL of a gallery's two tables. Values travel as parameters and names as quoted identifiers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aureole.retrieval._filters import Condition
from aureole.retrieval._rows import Schema
from aureole.retrieval._store import Approximate, probes_of, width_of

_TYPES = {
    "text": 'text COLLATE "C"',
    "integer": "bigint",
    "number": "double precision",
    "boolean": "boolean",
}
COPY_TYPES = {"text": "text", "integer": "int8", "number": "float8", "boolean": "bool"}
_TAKEN = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}  # columns of every table


class Statements:
    """What is said to PostgreSQL about the table of a name and its notes; ``sql`` is psycopg's module of that name."""

    def __init__(self, sql: Any, name: str) -> None:
        self._sql = sql
        self._table, self._notes = sql.Identifier(name), sql.Identifier(f"{name}_notes")
        self._index = sql.Identifier(f"{name}_mu")

    def create(self, schema: Schema) -> list[Any]:
        """Make both tables."""
        sql = self._sql
        columns = [
            sql.SQL("{} {} NOT NULL").format(self._column(name), sql.SQL(_TYPES[kind]))
            for name, kind in schema.columns.items()
        ]
        fixed = [
            sql.SQL('id text COLLATE "C" PRIMARY KEY'),
            sql.SQL("mu vector({}) NOT NULL").format(sql.Literal(schema.dim)),
            sql.SQL("kappa real NOT NULL"),
        ]
        notes = sql.SQL("CREATE TABLE {} (name text PRIMARY KEY, body text NOT NULL)")
        return [
            self._of("CREATE TABLE {} ({})", sql.SQL(", ").join([*fixed, *columns])),
            notes.format(self._notes),
        ]

    def copy(self, schema: Schema) -> Any:
        """Add rows, from binary input."""
        names = self._names("id", "mu", "kappa", *schema.columns)
        return self._of("COPY {} ({}) FROM STDIN WITH (FORMAT BINARY)", names)

    def delete(self) -> Any:
        """Remove the rows of the ids %s."""
        return self._of("DELETE FROM {} WHERE id = ANY(%s)")

    def count(self) -> Any:
        """The number of rows."""
        return self._of("SELECT count(*) FROM {}")

    def fetch(self, columns: Sequence[str]) -> Any:
        """The rows of the ids %s."""
        text = self._sql.SQL("SELECT {} FROM {} WHERE id = ANY(%s)")
        return text.format(self._selected(columns), self._table)

    def scan(self, columns: Sequence[str]) -> Any:
        """All rows without mu."""
        names = self._names("id", "kappa", *columns)
        return self._sql.SQL("SELECT {} FROM {}").format(names, self._table)

    def within(
        self,
        query: np.ndarray,
        reach: float,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        schema: Schema,
    ) -> tuple[Any, list[Any]]:
        """(Statement, values): the rows within reach of a query, by a scan."""
        where, values = self._where(conditions, schema)
        text = self._sql.SQL("SELECT {} FROM {} WHERE mu <#> %s <= %s AND {}")
        return text.format(self._selected(columns), self._table, where), [query, reach, *values]

    def nearest(
        self,
        query: np.ndarray,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        schema: Schema,
    ) -> tuple[Any, list[Any]]:
        """(Statement, values): rows with, last, the negative inner product with a query, the lowest first."""
        where, values = self._where(conditions, schema)
        text = self._sql.SQL("SELECT {}, mu <#> %s FROM {} WHERE {} ORDER BY mu <#> %s")
        return text.format(self._selected(columns), self._table, where), [query, *values, query]

    def limited(self, statement: Any) -> Any:
        """A statement that gives %s rows at most."""
        return statement + self._sql.SQL(" LIMIT %s")

    def index(self, kind: Approximate, *, lists: int, links: int) -> list[Any]:
        """Make the approximate index, in place of the one that was."""
        sql = self._sql
        if kind == "ivf":
            made = sql.SQL("ivfflat (mu vector_ip_ops) WITH (lists = {})").format(
                sql.Literal(lists)
            )
        else:
            made = sql.SQL("hnsw (mu vector_ip_ops) WITH (m = {}, ef_construction = {})").format(
                sql.Literal(links), sql.Literal(max(64, 2 * links))
            )
        return [
            sql.SQL("DROP INDEX IF EXISTS {}").format(self._index),
            sql.SQL("CREATE INDEX {} ON {} USING {}").format(self._index, self._table, made),
        ]

    def read_note(self) -> Any:
        """The note of the name %s."""
        return self._sql.SQL("SELECT body FROM {} WHERE name = %s").format(self._notes)

    def write_note(self) -> Any:
        """Keep, under the name %s, the text %s."""
        return self._sql.SQL(
            "INSERT INTO {} (name, body) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET body = excluded.body"
        ).format(self._notes)

    def _of(self, text: str, *parts: Any) -> Any:
        """A statement whose first gap is the table."""
        return self._sql.SQL(text).format(self._table, *parts)

    def _selected(self, columns: Sequence[str]) -> Any:
        fixed = self._sql.SQL("id, vector_send(mu), kappa")
        return self._sql.SQL(", ").join([fixed, *(self._column(name) for name in columns)])

    def _names(self, *names: str) -> Any:
        return self._sql.SQL(", ").join([self._column(name) for name in names])

    def _column(self, name: str) -> Any:
        """A payload column's name in the table: in capitals, which no other has, where PostgreSQL has taken it."""
        return self._sql.Identifier(name.upper() if name in _TAKEN else name)

    def _where(self, conditions: Sequence[Condition], schema: Schema) -> tuple[Any, list[Any]]:
        sql = self._sql
        parts, values = [sql.SQL("TRUE")], []
        for condition in conditions:
            name = self._column(condition.column)
            cast = sql.SQL(_TYPES[schema.columns[condition.column]].split(" COLLATE")[0])
            if condition.kind == "any":
                parts.append(sql.SQL("{} = ANY(%s::{}[])").format(name, cast))
                values.append(list(condition.values))
                continue
            for sign, end in zip((">=", "<="), condition.values, strict=True):
                if end is not None:
                    parts.append(sql.SQL("{} {} %s::{}").format(name, sql.SQL(sign), cast))
                    values.append(end)
        return sql.SQL(" AND ").join(parts), values


def settings(index: dict[str, Any] | None, k: int) -> list[tuple[str, str]]:
    """How one search for k rows uses the approximate index of a note, or that it must not."""
    if index is None:
        return [("enable_indexscan", "off")]
    usual = [("enable_seqscan", "off")]
    if index["kind"] == "hnsw":
        width = min(1000, max(width_of(index["sizes"]), k))
        return [
            *usual,
            ("hnsw.ef_search", str(width)),
            ("hnsw.iterative_scan", "strict_order"),
            ("hnsw.max_scan_tuples", "200000"),
        ]
    return [*usual, ("ivfflat.probes", str(probes_of(index["sizes"], index["lists"])))]
