"""Lance, the versioned table format of LanceDB: the one file that imports it.

A path ``folder/gallery.lance`` is also the table ``gallery`` of ``lancedb.connect("folder")``. Each change is one
versioned commit: a reader sees all of it or nothing, and a writer that dies leaves the version before. Two take more
than one: a delete of more than 1,000 rows is a commit for each 1,000, and ``build`` commits the index and then the note
without which no search uses it. On a local disk Lance does not call fsync, so a power cut (not a killed process) may
take the last seconds. Writers on one machine take turns by a lock file beside the table; on an object store let one
process write at a time.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError
from aureole.retrieval.address import is_local
from aureole.retrieval.filters import Condition
from aureole.retrieval.rows import Rows, Schema, strings
from aureole.retrieval.store import Approximate, check_build, default_lists, probes_of, slack

__all__ = [
    "SCHEMA_KEY",
    "LanceStore",
    "lance_package",
    "locked",
    "table_exists",
    "table_metadata",
    "to_arrow",
]

SCHEMA_KEY, _NOTE, _INDEX = "aureole.schema", "aureole.note.", "aureole.index"
_BATCH = 1000  # ids in one expression
_FIRST_NEAREST = 256
_LEAST_LINKS = 4  # of Lance: with fewer a graph falls apart


class LanceStore:
    """Rows in a Lance table; metric "dot" on unit vectors, whose distance is 1 - cosine."""

    engine = "Lance"
    schema: Schema

    def __init__(self, where: str, table: Any) -> None:
        self._where, self._table = where, table
        stored = table_metadata(table).get(SCHEMA_KEY)
        if stored is None:
            raise InvalidInputError(
                f"{where} holds no gallery: it is a Lance table of something else."
            )
        self.schema = Schema.from_json(json.loads(stored), where)

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "LanceStore":
        """A new table."""
        lance = lance_package()
        data = to_arrow(rows, schema)
        data = data.replace_schema_metadata({SCHEMA_KEY: json.dumps(schema.to_json())})
        with locked(where):
            if table_exists(where):
                raise InvalidInputError(
                    f"{where} holds a table already. Open it, or delete it first."
                )
            return cls(where, lance.write_dataset(data, where, mode="create"))

    @classmethod
    def open(cls, where: str) -> "LanceStore":
        """The table at a path."""
        lance = lance_package()
        if not table_exists(where):
            raise MissingInputError(
                f"{where} holds no gallery: there is no Lance table. `aureole index build` makes one."
            )
        try:
            table = lance.dataset(where)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"{where} cannot be read as a Lance table: {str(error)[:200]}"
            ) from error
        return cls(where, table)

    def append(self, rows: Rows) -> None:
        """Add rows whose ids are new in one commit."""
        lance = lance_package()
        with locked(self._where):
            self._table.checkout_latest()
            known = self._known(rows.ids.tolist())
            if known:
                raise InvalidInputError(
                    f"id {known[0]!r} is in the gallery already; delete it first. Nothing was stored."
                )
            if len(rows):
                data = to_arrow(rows, self.schema)
                self._table = lance.write_dataset(data, self._table, mode="append")

    def delete(self, ids: list[str]) -> int:
        """Remove rows, in one commit for each 1,000; the number that were there."""
        import pyarrow.compute as pc

        with locked(self._where):
            self._table.checkout_latest()
            known = self._known(ids)
            for start in range(0, len(known), _BATCH):
                self._table.delete(pc.field("id").isin(known[start : start + _BATCH]))
            return len(known)

    def count(self) -> int:
        """The number of rows."""
        self._table.checkout_latest()
        return self._table.count_rows()

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows of some ids."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self._table.checkout_latest()
        parts = [
            self._table.scanner(
                columns=["id", "mu", "kappa", *columns],
                filter=pc.field("id").isin(ids[start : start + _BATCH]),
            ).to_table()
            for start in range(0, len(ids), _BATCH)
        ]
        found = pa.concat_tables(parts) if parts else None
        return _from_arrow(found, columns, self.schema)

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """All rows without mu: only the columns asked for are read."""
        import pyarrow as pa

        self._table.checkout_latest()
        for batch in self._table.scanner(columns=["id", "kappa", *columns]).to_batches():
            yield _without_mu(pa.Table.from_batches([batch]), columns)

    def candidates(
        self,
        mu: np.ndarray,
        bounds: np.ndarray,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        *,
        exact: bool,
    ) -> Iterator[Rows]:
        """All rows within each query's bound, by a range of distances."""
        total = self.count()
        tuned = self._tuned(exact)
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            if "ef" in tuned:
                yield self._deepening(query, total, bound, conditions, columns, tuned)
                continue
            reach = 1 - max(bound, -1.0) + 2 * slack(self.schema.dim)
            yield self._near(query, total, conditions, columns, tuned, reach)

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
        k, tuned = min(k, self.count()), self._tuned(exact)
        for query in mu:
            yield self._near(query, k, conditions, columns, tuned, None)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build IVF_FLAT (``lists``, ``probes``) or IVF_HNSW_FLAT (``links``, ``width``); later rows are scanned."""
        check_build(kind, sizes)
        if sizes.get("links", _LEAST_LINKS) < _LEAST_LINKS:
            raise InvalidInputError(
                f"Lance takes {_LEAST_LINKS} links or more, but got {sizes['links']}."
            )
        with locked(self._where):
            self._table.checkout_latest()
            n = self._table.count_rows()
            if kind == "ivf":
                lists = sizes.get("lists", default_lists(n))
                options: dict[str, Any] = {"num_partitions": lists}
            else:
                options = {"num_partitions": 1, "m": sizes.get("links", 32), "ef_construction": 200}
            name = {"ivf": "IVF_FLAT", "hnsw": "IVF_HNSW_FLAT"}[kind]
            self._table.create_index("mu", name, metric="dot", replace=True, **options)
            self._note_index(kind, options["num_partitions"], sizes)

    def adopt(self, lists: int, sizes: dict[str, int]) -> None:
        """Use an index of so many lists that others built on the column mu, such as the workers of a cluster."""
        check_build("ivf", sizes)
        with locked(self._where):
            self._table.checkout_latest()
            self._note_index("ivf", lists, sizes)

    def _note_index(self, kind: str, lists: int, sizes: dict[str, int]) -> None:
        note = {"kind": kind, "lists": lists, "sizes": sizes}
        self._table.update_schema_metadata({_INDEX: json.dumps(note)})

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index."""
        self._table.checkout_latest()
        note = table_metadata(self._table).get(_INDEX)
        if note is None:
            return None
        index = json.loads(note)
        lists = {"lists": index["lists"]} if index["kind"] == "ivf" else {}
        return {"kind": index["kind"], **lists, **index["sizes"]}

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        self._table.checkout_latest()
        return table_metadata(self._table).get(_NOTE + name)

    def write_note(self, name: str, text: str) -> None:
        """Keep a note in the table's metadata."""
        with locked(self._where):
            self._table.checkout_latest()
            self._table.update_schema_metadata({_NOTE + name: text})

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _deepening(
        self,
        query: np.ndarray,
        total: int,
        bound: float,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        tuned: dict[str, Any],
    ) -> Rows:
        """Nearest rows, more and more of them until one is outside the bound: a graph has no range search."""
        k = _FIRST_NEAREST
        while k < total:
            found = self._near(query, k, conditions, columns, tuned, None)
            scores = found.mu @ query
            if len(found) < k or scores.min() < bound - slack(self.schema.dim):
                return found
            k *= 4
        reach = 1 - max(bound, -1.0) + 2 * slack(self.schema.dim)
        return self._near(query, total, conditions, columns, self._tuned(True), reach)

    def _near(
        self,
        query: np.ndarray,
        k: int,
        conditions: Sequence[Condition],
        columns: Sequence[str],
        tuned: dict[str, Any],
        reach: float | None,
    ) -> Rows:
        if k == 0:
            return _from_arrow(None, columns, self.schema)
        nearest = {"column": "mu", "q": query, "k": k, "metric": "dot", **tuned}
        if reach is not None:
            nearest["distance_range"] = (None, reach)
        if "ef" in nearest:
            nearest["ef"] = max(nearest["ef"], 2 * k)
        found = self._table.scanner(
            columns=["id", "mu", "kappa", *columns],
            nearest=nearest,
            filter=_expression(conditions),
            prefilter=True,
            disable_scoring_autoprojection=True,
        ).to_table()
        return _from_arrow(found, columns, self.schema)

    def _tuned(self, exact: bool) -> dict[str, Any]:
        """How widely the approximate index, if there is one, is searched; or that it is not to be used."""
        note = None if exact else table_metadata(self._table).get(_INDEX)
        if note is None:  # an index without a note is one whose builder died, or another's
            return {"use_index": False}
        index = json.loads(note)
        if index["kind"] == "hnsw":
            return {"use_index": True, "nprobes": 1, "ef": index["sizes"].get("width", 128)}
        return {"use_index": True, "nprobes": probes_of(index["sizes"], index["lists"])}

    def _known(self, ids: list[str]) -> list[str]:
        """Those of the ids that are in the table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(ids, pa.string())
        known: list[str] = []
        for batch in self._table.scanner(columns=["id"]).to_batches():
            column = batch.column("id")
            found = pc.call_function("is_in", [column], pc.SetLookupOptions(wanted))
            known += column.filter(found).to_pylist()
        return known


def lance_package() -> Any:
    """The package, imported when it is used; an error says how to get it."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns of every table that it creates
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "Lance tables need pylance: pip install 'aureole[retrieval]'."
        ) from error
    return lance


def table_exists(where: str) -> bool:
    """Whether there is a Lance table at an address."""
    if is_local(where):
        return (Path(where) / "_versions").is_dir()
    lance = lance_package()
    try:
        lance.dataset(where)
    except ValueError:
        return False
    return True


@contextmanager
def locked(where: str) -> Iterator[None]:
    """The turn of a writer on this machine; nothing on an object store."""
    if not is_local(where):
        yield
        return
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    with open(f"{where.removesuffix('/')}.lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def table_metadata(table: Any) -> dict[str, str]:
    """The small texts that a table's schema keeps."""
    found = table.schema.metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


def to_arrow(rows: Rows, schema: Schema) -> Any:
    """Rows as the Arrow table that is stored."""
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
    }
    flat = pa.array(np.ascontiguousarray(rows.mu).reshape(-1), pa.float32())
    columns = {
        "id": pa.array(rows.ids.tolist(), pa.string()),
        "mu": pa.FixedSizeListArray.from_arrays(flat, schema.dim),
        "kappa": pa.array(rows.kappa, pa.float32()),
    }
    for name, kind in schema.columns.items():
        columns[name] = pa.array(rows.payload[name].tolist(), types[kind])
    return pa.table(columns)


def _from_arrow(table: Any, columns: Sequence[str], schema: Schema) -> Rows:
    if table is None:
        empty = {name: np.zeros(0, object) for name in columns}
        return Rows(
            strings([]), np.zeros((0, schema.dim), np.float32), np.zeros(0, np.float32), empty
        )
    mu = table["mu"].combine_chunks()
    flat = mu.flatten() if table.num_rows else mu.values[:0]
    wide = flat.to_numpy(zero_copy_only=False).reshape(table.num_rows, schema.dim)
    return replace(_without_mu(table, columns), mu=wide)


def _without_mu(table: Any, columns: Sequence[str]) -> Rows:
    payload = {}
    for name in columns:
        column = np.empty(table.num_rows, dtype=object)
        column[:] = table[name].to_pylist()
        payload[name] = column
    nothing = np.zeros((0, 0), np.float32)
    return Rows(strings(table["id"].to_pylist()), nothing, table["kappa"].to_numpy(), payload)


def _expression(conditions: Sequence[Condition]) -> Any:
    """The conditions as an expression tree: values stay values, and no text is parsed."""
    import pyarrow.compute as pc

    parts = []
    for condition in conditions:
        field = pc.field(condition.column)
        if condition.kind == "any":
            equal = [field == value for value in condition.values]
            parts.append(reduce(lambda a, b: a | b, equal, pc.scalar(False)))
            continue
        low, high = condition.values
        if low is not None:
            parts.append(field >= low)
        if high is not None:
            parts.append(field <= high)
    return reduce(and_, parts) if parts else None
