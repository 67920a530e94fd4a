"""A Lance or LanceDB table as the source of a wrapped index."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval._lance import lance_package, open_table, table_exists
from aureole.retrieval._schema import NO_MU, Rows, no_rows, object_array
from aureole.retrieval._wrap import Names, grow, the_only

_SCAN_ROWS, _BATCH = 2**14, 1000  # rows per batch of a scan, ids per expression


class LanceSource:
    """A column of fixed-size lists of numbers, searched by cosine without the index, by the index's metric with it.

    A path and a LanceDB table follow later versions of the table; a ``LanceDataset`` stays at its version.
    """

    engine, check_all = "Lance", False

    def __init__(self, source: Any, names: Names) -> None:
        lance = lance_package()
        if names.collection is not None:
            raise InvalidInputError(
                "collection is for databases: pass the path of the Lance table itself."
            )
        self._latest = not isinstance(source, lance.LanceDataset)
        if isinstance(source, str | os.PathLike):
            where = os.fspath(source)
            if not table_exists(where):
                raise MissingInputError(f"{where} does not exist, or is not a Lance table.")
            source = open_table(where)
        elif self._latest:
            source = source.to_lance()
        self._table = source
        fields = {field.name: field.type for field in source.schema}
        vectors = [name for name, kind in fields.items() if _is_vector(kind)]
        where = f"the Lance table with the columns {sorted(fields)}"
        self._vector = the_only(vectors, names.vector, "column of vectors", where)
        # Lance cannot select a column whose name has a backtick
        plain = [name for name in fields if name not in vectors and "`" not in name]
        ids = plain if names.id is not None else [name for name in plain if name == "id"]
        self._id = the_only(ids, names.id, "id column", where)
        self.dim = int(fields[self._vector].list_size)
        self._columns = plain
        self._index = self._find_index()
        self.unit = self._index is not None and self._index["metric"] != "cosine"

    def count(self) -> int:
        """The number of rows with a vector."""
        self._refresh()
        return self._table.count_rows()

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        import pyarrow.compute as pc

        self._refresh()
        parts = []
        for start in range(0, len(ids), _BATCH):
            wanted = pc.field(self._id).isin(ids[start : start + _BATCH])
            parts.append(self._scanner(columns, filter=wanted).to_table())
        return self._rows(parts, columns)

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:
        """All rows in batches."""
        self._refresh()
        scanner = self._scanner(columns, vectors=vectors, batch_size=_SCAN_ROWS)
        for batch in scanner.to_batches():
            yield self._rows([batch], columns, vectors=vectors)

    def within(
        self, query: np.ndarray, bound: float, columns: Sequence[str], *, exact: bool
    ) -> Rows:
        """All rows with at least this cosine: by a range of distances, or from an index by growing k."""
        total = self.count()
        if total == 0:
            return no_rows(columns, self.dim)
        if self._index is not None and not exact:
            rows = grow(lambda k: self.nearest(query, k, columns, exact=False), bound, total, query)
            if rows is not None:
                return rows
        near = {"k": total, "distance_range": (None, float(np.nextafter(1 - bound, 4)))}
        return self._near(query, near | {"metric": "cosine", "use_index": False}, columns)

    def nearest(self, query: np.ndarray, k: int, columns: Sequence[str], *, exact: bool) -> Rows:
        """The k nearest rows."""
        how = {"k": k, "metric": "cosine", "use_index": False}
        if self._index is not None and not exact:
            how |= {"metric": self._index["metric"], "use_index": True}
        return self._near(query, how, columns)

    def approximate(self) -> dict[str, Any] | None:
        """The kind of the table's vector index, or None."""
        return None if self._index is None else {"kind": self._index["kind"]}

    def close(self) -> None:
        """Do nothing: no resources are held between calls."""

    def _refresh(self) -> None:
        if self._latest:
            self._table.checkout_latest()

    def _near(self, query: np.ndarray, how: dict[str, Any], columns: Sequence[str]) -> Rows:
        nearest = {"column": self._vector, "q": query, **how}
        scanner = self._scanner(columns, nearest=nearest, disable_scoring_autoprojection=True)
        return self._rows([scanner.to_table()], columns)

    def _scanner(self, columns: Sequence[str], *, vectors: bool = True, **how: Any) -> Any:
        unknown = [name for name in columns if name not in self._columns]
        if unknown:
            raise InvalidInputError(
                f"the Lance table has no column {unknown[0]!r} of plain values. Columns: {sorted(self._columns)}."
            )
        wanted = dict.fromkeys([self._id, *([self._vector] if vectors else []), *columns])
        return self._table.scanner(columns=list(wanted), **how)

    def _rows(self, parts: list[Any], columns: Sequence[str], *, vectors: bool = True) -> Rows:
        """Rows from Arrow tables or batches, without those that have no vector."""
        ids: list[Any] = []
        payload: dict[str, list[Any]] = {name: [] for name in columns}
        blocks = [np.zeros((0, self.dim), np.float32)]
        for part in parts:
            if vectors:
                part = part.filter(part[self._vector].is_valid())
                column = part[self._vector]
                for chunk in column.chunks if hasattr(column, "chunks") else [column]:
                    flat = chunk.flatten().to_numpy(zero_copy_only=False)
                    blocks.append(flat.reshape(len(chunk), self.dim).astype(np.float32))
            ids += part[self._id].to_pylist()
            for name in columns:
                payload[name] += part[name].to_pylist()
        mu = np.concatenate(blocks) if vectors else NO_MU
        arrays = {name: object_array(values) for name, values in payload.items()}
        return Rows(object_array(ids), mu, np.zeros(len(ids), np.float32), arrays)

    def _find_index(self) -> dict[str, Any] | None:
        """The kind and metric of an index on the column of vectors."""
        for index in self._table.describe_indices():
            if list(index.field_names) != [self._vector]:
                continue
            found = self._table.stats.index_stats(index.name)
            metric = found["indices"][0].get("metric_type") if found.get("indices") else None
            if metric in ("cosine", "dot", "l2"):
                return {"kind": found["index_type"].lower(), "metric": metric}
        return None


def _is_vector(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
