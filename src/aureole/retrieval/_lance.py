"""Lance, the versioned table format of LanceDB: a gallery in a table. The only module that imports lance.

A path ``folder/gallery.lance`` is also the table ``gallery`` of ``lancedb.connect("folder")``. Each change is one
versioned commit: readers see all of it or nothing, and a writer that is killed leaves the previous version. Two changes
take several commits: a delete of more than 1,000 rows is one commit per 1,000, and ``build`` commits the index and then
the note without which no search uses it. On a local disk Lance does not call fsync, so a power failure (not a killed
process) may lose the last seconds.

Writers on one machine are serialised by a lock file next to the table. Elsewhere Lance itself decides: ``id`` is
declared as the primary key, so that of two writers of the same id that commit at once, the second one starts again and
finds the first one's row. Tables of earlier versions do not declare it; let only one machine write to them at a time.

Ids are looked up by a scan at first, and by an index once there are 50,000 rows; at most 50,000 rows, or 2 %, are
not in it yet and are scanned.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError
from aureole.retrieval._filters import Condition
from aureole.retrieval._schema import NO_MU, Rows, Schema, no_rows, object_array
from aureole.retrieval._store import (
    Approximate,
    Selection,
    check_build,
    default_lists,
    describe_index,
    file_lock,
    is_local,
    probes_of,
    slack,
    width_of,
)

SCHEMA_KEY = "aureole.schema"  # in the metadata of a table: it is a gallery
_NOTE, _INDEX = "aureole.note.", "aureole.index"
_BATCH = 1000  # ids per expression
_FIRST_NEAREST = 256
_LEAST_LINKS = 4  # with fewer, Lance builds graphs that are not connected
_PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}
_ID_INDEX = "aureole_id"
_SCANNED_IDS = 50_000  # rows whose ids need no index


class LanceStore:
    """Rows in a Lance table; metric "dot" on unit vectors, whose distance is 1 - cosine."""

    engine = "Lance"
    schema: Schema

    def __init__(self, where: str, table: Any) -> None:
        self._where, self._table = where, table
        stored = table_metadata(table).get(SCHEMA_KEY)
        if stored is None:
            raise InvalidInputError(
                f"{where} holds no gallery: the Lance table has no schema of one."
            )
        self.schema = Schema.from_json(json.loads(stored), where)

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "LanceStore":
        """Create a table with its first rows."""
        lance = lance_package()
        data = _keyed(to_arrow(rows, schema))
        data = data.replace_schema_metadata({SCHEMA_KEY: json.dumps(schema.to_json())})
        with locked(where):
            if table_exists(where):
                raise InvalidInputError(
                    f"{where} holds a table already. Open it, or delete it first."
                )
            return cls(where, lance.write_dataset(data, where, mode="create"))

    @classmethod
    def open(cls, where: str) -> "LanceStore":
        """Open the table at a path."""
        lance = lance_package()
        if not table_exists(where):
            raise MissingInputError(
                f"{where} holds no gallery: the Lance table does not exist. `aureole index build` creates one."
            )
        try:
            table = lance.dataset(where)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"{where} cannot be read as a Lance table: {str(error)[:200]}"
            ) from error
        return cls(where, table)

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists, in one commit."""
        with locked(self._where):
            self._table.checkout_latest()
            if not len(rows):
                return
            insert = self._table.merge_insert("id").when_matched_fail()
            try:
                insert.when_not_matched_insert_all().execute(to_arrow(rows, self.schema))
            except OSError:
                self._table.checkout_latest()
                known = known_ids(self._table, rows.ids.tolist())
                if not known:
                    raise
                raise InvalidInputError(
                    f"id {known[0]!r} is in the gallery already; use upsert to replace it. Nothing was stored."
                ) from None
            self._index_ids()

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists, in one commit; return how many were replaced."""
        with locked(self._where):
            self._table.checkout_latest()
            if not len(rows):
                return 0
            merge = self._table.merge_insert("id").when_matched_update_all()
            merge = merge.when_not_matched_insert_all()
            replaced = merge.execute(to_arrow(rows, self.schema))["num_updated_rows"]
            self._index_ids()
            return replaced

    def delete(self, ids: list[str]) -> int:
        """Remove rows, in one commit per 1,000, and return how many existed."""
        with locked(self._where):
            self._table.checkout_latest()
            known = known_ids(self._table, ids)
            for start in range(0, len(known), _BATCH):
                self._table.delete(with_ids(known[start : start + _BATCH]))
            return len(known)

    def count(self) -> int:
        """The number of rows."""
        self._table.checkout_latest()
        return self._table.count_rows()

    def version(self) -> str:
        """The version of the table."""
        self._table.checkout_latest()
        return str(self._table.version)

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        self._table.checkout_latest()
        names = ["id", "mu", "kappa", *columns]
        filters = [with_ids(ids[start : start + _BATCH]) for start in range(0, len(ids), _BATCH)]
        parts = [self._table.scanner(columns=names, filter=one).to_table() for one in filters]
        return from_arrow(parts, columns, self.schema)

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """All rows without mu; only the requested columns are read."""
        self._table.checkout_latest()
        for batch in self._table.scanner(columns=["id", "kappa", *columns]).to_batches():
            yield without_mu(batch, columns)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound, by a range of distances."""
        total, index = self.count(), self._index_options(selection.exact)
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            yield self._within(query, bound, total, selection, index)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        k, index = min(k, self.count()), self._index_options(selection.exact)
        for query in mu:
            yield self._near(query, k, selection, index)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build IVF_FLAT (``lists``, ``probes``) or IVF_HNSW_FLAT (``links``, ``width``); later rows are scanned."""
        check_build(kind, sizes)
        if sizes.get("links", _LEAST_LINKS) < _LEAST_LINKS:
            raise InvalidInputError(
                f"Lance takes {_LEAST_LINKS} links or more, but got {sizes['links']}."
            )
        with locked(self._where):
            self._table.checkout_latest()
            if kind == "ivf":
                lists = sizes.get("lists", default_lists(self._table.count_rows()))
                name, options = "IVF_FLAT", {"num_partitions": lists}
            else:
                name, options = "IVF_HNSW_FLAT", {"num_partitions": 1, "ef_construction": 200}
                options["m"] = sizes.get("links", 32)
            self._index_ids()
            self._table.create_index("mu", name, metric="dot", replace=True, **options)
            self._note_index(kind, options["num_partitions"], sizes)

    def adopt(self, lists: int, sizes: dict[str, int]) -> None:
        """Use an index of the column mu with this many lists that workers of a cluster have built."""
        check_build("ivf", sizes)
        with locked(self._where):
            self._table.checkout_latest()
            self._note_index("ivf", lists, sizes)

    def _index_ids(self) -> None:
        """Bring the index of ids up to date if it leaves out more rows than a lookup should scan."""
        rows, indexed = self._table.count_rows(), _indexed_ids(self._table)
        if rows - (indexed or 0) <= max(_SCANNED_IDS, rows // 50):
            return
        if indexed is None:
            self._table.create_scalar_index("id", "BTREE", name=_ID_INDEX)
        else:
            self._table.optimize.optimize_indices(index_names=[_ID_INDEX])

    def _note_index(self, kind: str, lists: int, sizes: dict[str, int]) -> None:
        note = {"kind": kind, "lists": lists, "sizes": sizes}
        self._table.update_schema_metadata({_INDEX: json.dumps(note)})

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        self._table.checkout_latest()
        note = table_metadata(self._table).get(_INDEX)
        return None if note is None else describe_index(**json.loads(note))

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        self._table.checkout_latest()
        return table_metadata(self._table).get(_NOTE + name)

    def write_note(self, name: str, text: str) -> None:
        """Save a note in the metadata of the table."""
        with locked(self._where):
            self._table.checkout_latest()
            self._table.update_schema_metadata({_NOTE + name: text})

    def close(self) -> None:
        """Do nothing: no resources are held between calls."""

    def _within(
        self,
        query: np.ndarray,
        bound: float,
        total: int,
        selection: Selection,
        index: dict[str, Any],
    ) -> Rows:
        """A graph has no range search: search it for more and more nearest rows until one is outside the bound."""
        error = slack(self.schema.dim)
        if "ef" in index:
            k = _FIRST_NEAREST
            while k < total:
                rows = self._near(query, k, selection, index)
                if len(rows) < k or (rows.mu @ query).min() < bound - error:
                    return rows
                k *= 4
            index = self._index_options(exact=True)
        reach = 1 - max(bound, -1.0) + 2 * error
        return self._near(query, total, selection, index, reach=reach)

    def _near(
        self,
        query: np.ndarray,
        k: int,
        selection: Selection,
        index: dict[str, Any],
        *,
        reach: float | None = None,
    ) -> Rows:
        """The k nearest rows, or those of them within a distance."""
        if k == 0:
            return from_arrow([], selection.columns, self.schema)
        nearest = {"column": "mu", "q": query, "k": k, "metric": "dot", **index}
        if reach is not None:
            nearest["distance_range"] = (None, reach)
        if "ef" in nearest:
            nearest["ef"] = max(nearest["ef"], 2 * k)
        table = self._table.scanner(
            columns=["id", "mu", "kappa", *selection.columns],
            nearest=nearest,
            filter=expression(selection.conditions),
            prefilter=True,
            disable_scoring_autoprojection=True,
        ).to_table()
        return from_arrow([table], selection.columns, self.schema)

    def _index_options(self, exact: bool) -> dict[str, Any]:
        """How a search uses the approximate index: with which sizes, or not at all."""
        note = None if exact else table_metadata(self._table).get(_INDEX)
        if note is None:  # an index without a note is unfinished, or not ours
            return {"use_index": False}
        index = json.loads(note)
        if index["kind"] == "hnsw":
            return {"use_index": True, "nprobes": 1, "ef": width_of(index["sizes"])}
        return {"use_index": True, "nprobes": probes_of(index["sizes"], index["lists"])}


def lance_package() -> Any:
    """The package, imported when it is used."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns about every table that it creates
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "Lance tables need pylance: pip install 'aureole[retrieval]'."
        ) from error
    return lance


def table_exists(where: str) -> bool:
    """Whether a Lance table exists at an address."""
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
    """Hold the lock for writers on this machine; does nothing on an object store."""
    if not is_local(where):
        yield
        return
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    with file_lock(Path(f"{where.removesuffix('/')}.lock")):
        yield


def table_metadata(table: Any) -> dict[str, str]:
    """The metadata of a table's schema."""
    metadata = table.schema.metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}


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


def from_arrow(parts: Sequence[Any], columns: Sequence[str], schema: Schema) -> Rows:
    """Rows from Arrow tables."""
    import pyarrow as pa

    if not parts:
        return no_rows(columns, schema.dim)
    table = pa.concat_tables(parts)
    mu = table["mu"].combine_chunks()
    flat = mu.flatten() if table.num_rows else mu.values[:0]
    wide = flat.to_numpy(zero_copy_only=False).reshape(table.num_rows, schema.dim)
    return replace(without_mu(table, columns), mu=wide)


def without_mu(table: Any, columns: Sequence[str]) -> Rows:
    """Rows without mu from an Arrow table or batch."""
    payload = {name: object_array(table[name].to_pylist()) for name in columns}
    ids = object_array(table["id"].to_pylist())
    return Rows(ids, NO_MU, table["kappa"].to_numpy(), payload)


def known_ids(table: Any, ids: list[str]) -> list[str]:
    """Those of the ids that exist in a table: by the index of ids if there is one, else by a scan."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known: list[str] = []
    if _indexed_ids(table) is not None:
        for start in range(0, len(ids), _BATCH):
            chosen = table.scanner(columns=["id"], filter=with_ids(ids[start : start + _BATCH]))
            known += chosen.to_table()["id"].to_pylist()
        return known
    wanted = pa.array(ids, pa.string())
    for batch in table.scanner(columns=["id"]).to_batches():
        column = batch.column("id")
        is_known = pc.call_function("is_in", [column], pc.SetLookupOptions(wanted))
        known += column.filter(is_known).to_pylist()
    return known


def _indexed_ids(table: Any) -> int | None:
    """How many rows are in the index of ids; None without one."""
    found = [each for each in table.describe_indices() if each.name == _ID_INDEX]
    return found[0].num_rows_indexed if found else None


def _keyed(data: Any) -> Any:
    """An Arrow table of rows whose ids are declared as the primary key."""
    import pyarrow as pa

    key = pa.field("id", pa.string(), nullable=False, metadata=_PRIMARY_KEY)
    return data.cast(data.schema.set(data.schema.get_field_index("id"), key))


def with_ids(ids: Sequence[str]) -> Any:
    """An expression that selects the rows with some ids."""
    import pyarrow.compute as pc

    return pc.field("id").isin(ids)


def expression(conditions: Sequence[Condition]) -> Any:
    """The conditions as an expression tree; no text is parsed."""
    import pyarrow.compute as pc

    parts = []
    for condition in conditions:
        field = pc.field(condition.column)
        if condition.kind == "any":
            equal = [field == value for value in condition.values]
            parts.append(reduce(or_, equal, pc.scalar(False)))
            continue
        low, high = condition.values
        if low is not None:
            parts.append(field >= low)
        if high is not None:
            parts.append(field <= high)
    return reduce(and_, parts) if parts else None
