"""Lance, the versioned table format of LanceDB: galleries in tables, and tables of users.

A path ``folder/gallery.lance`` is also the table ``gallery`` of ``lancedb.connect("folder")``. Each change is one
versioned commit: readers see all of it or nothing, and a writer that is killed leaves the previous version. A delete of
more than 1,000 rows is one commit per 1,000. On a local disk Lance does not call fsync, so a power failure (not a
killed process) may lose the last seconds.

Writers on one machine are serialised by a lock file next to the table. Elsewhere Lance itself decides: ``id`` is
declared as the primary key, so that of two writers of the same id that commit at once, the second one starts again and
finds the first one's row.

Ids are looked up by a scan at first, and by an index once there are 50,000 rows; at most 50,000 rows, or 2 %, are
not in it yet and are scanned.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import check_local, reporting_writes
from aureole.data._addresses import check_bucket, lance_options
from aureole.engines._addresses import is_local
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
    file_lock,
    nearest_within,
    parse_sizes,
    probes_of,
    slack,
    the_only,
    width_of,
    write_sizes,
)
from aureole.errors import (
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
    MissingPackageError,
)

SCHEMA_KEY = "aureole.schema"  # in the metadata of a table: it is a gallery
_NOTE, _INDEX = "aureole.note.", "aureole.index"
_ID_INDEX = "aureole_id"
_IDS = 1000  # per expression
_MERGED = 8192  # rows of a batch to be merged: Lance cuts larger ones
# bytes that a merge may take; Lance's own limit is exceeded by 100,000 rows of 768 dimensions
_MEMORY = str(16 << 30)
_PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}
_SCAN_ROWS = 2**14  # rows per batch of a scan
# what Lance and Arrow raise for damaged files; ArrowInvalid and UnicodeDecodeError are ValueErrors
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, IndexError, MemoryError)
_LEAST_LINKS = 4  # with fewer, Lance builds graphs that are not connected
_SCANNED_IDS = 50_000  # rows whose ids need no index
_KINDS = {"ivf": "IVF_FLAT", "hnsw": "IVF_HNSW_FLAT"}  # of indexes of galleries


def lance_package() -> Any:
    """The package, imported when it is used."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns about every table that it creates
    os.environ.setdefault("LANCE_MEM_POOL_SIZE", _MEMORY)
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "Lance tables need pylance: pip install 'aureole[search]'."
        ) from error
    return lance


def table_exists(where: str) -> bool:
    """Whether a Lance table exists at an address."""
    if is_local(where):
        return (Path(where) / "_versions").is_dir()
    check_bucket(where)
    try:
        open_table(where)
    except ValueError as error:
        if "was not found" in str(error):
            return False
        raise InvalidInputError(
            f"{where} cannot be opened: {str(error).splitlines()[0][:200]}"
        ) from error
    return True


def open_table(where: str) -> Any:
    """The Lance table at an address; one on S3 with the endpoint of ``AWS_ENDPOINT_URL``."""
    return lance_package().dataset(where, storage_options=lance_options(where))


@contextmanager
def locked(where: str) -> Iterator[None]:
    """Hold the lock for writers on this machine; does nothing on an object store."""
    if not is_local(where):
        yield
        return
    check_local(where)
    with reporting_writes(where):
        Path(where).parent.mkdir(parents=True, exist_ok=True)
    with file_lock(Path(f"{where.removesuffix('/')}.lock")):
        yield


class _LanceTable:
    """Searches of a table with a column of ids, one of vectors, and maybe one of kappa."""

    engine = "Lance"
    dim: int
    where: str
    _follows = True  # later versions of the table
    _metric = "dot"  # of scans, which cost less than with cosines

    def __init__(self, table: Any, fixed: Sequence[str]) -> None:
        self._table, self._fixed = table, list(fixed)  # [id, vector] or [id, vector, kappa]

    def count(self) -> int:
        """The number of rows."""
        self._refresh()
        with reading(self.where, *_FAILURES):
            return self._table.count_rows()

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        self._refresh()
        with reading(self.where, *_FAILURES):
            parts = [
                self._scanner(columns, filter=each).to_table()
                for each in _with_ids(ids, self._fixed[0])
            ]
            return self._returned(self._rows(parts, columns))

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows of the current version; only the requested columns are read."""
        self._refresh()
        with reading(self.where, *_FAILURES):
            scanner = self._scanner(columns, vectors=vectors, batch_size=_SCAN_ROWS)
            for batch in scanner.to_batches():
                yield self._rows([batch], columns, vectors=vectors)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound: lists by a range of distances, a graph by its nearest rows."""
        total, how = self.count(), self._use_index(selection.exact)
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            rows, ranged = None, how
            if how["use_index"] and "nprobes" not in how:

                def nearest(k: int, query: np.ndarray = query) -> Rows:
                    return self._near(query, k, selection, how)

                rows = nearest_within(nearest, query, bound, most=total)
                ranged = {"use_index": False, "metric": self._metric}
            if rows is None:
                reach = 1 - max(bound, -1.0) + 2 * slack(self.dim)
                rows = self._near(
                    query, total, selection, ranged | {"distance_range": (None, reach)}
                )
            yield rows

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        k, how = min(k, self.count()), self._use_index(selection.exact)
        for query in mu:
            yield self._near(query, k, selection, how)

    def close(self) -> None:
        """Do nothing: no resources are held between calls."""

    def _use_index(self, exact: bool) -> dict[str, Any]:
        """How a search uses the approximate index."""
        raise NotImplementedError

    def _returned(self, rows: Rows) -> Rows:
        """The rows of a search, checked."""
        return rows

    def _refresh(self) -> None:
        if self._follows:
            with reading(self.where, *_FAILURES):
                self._table.checkout_latest()

    def _find_index(self) -> tuple[str, str, int] | None:
        """(Type, metric, lists) of an index on the column of vectors."""
        with reading(f"{self.where} (index of {self._fixed[1]})", *_FAILURES):
            for index in self._table.describe_indices():
                if list(index.field_names) == [self._fixed[1]]:
                    found = self._table.stats.index_stats(index.name)
                    part = (found.get("indices") or [{}])[0]
                    lists = part.get("num_partitions", 1)
                    return found["index_type"], part.get("metric_type") or "", lists
        return None

    def _near(self, query: np.ndarray, k: int, selection: Selection, how: dict[str, Any]) -> Rows:
        """The k nearest rows."""
        if k == 0:
            return self._rows([], selection.columns)
        nearest = {"column": self._fixed[1], "q": query, "k": k, **how}
        if "ef" in nearest:
            nearest["ef"] = max(nearest["ef"], 2 * k)
        with reading(self.where, *_FAILURES):
            table = self._scanner(
                selection.columns,
                nearest=nearest,
                filter=_expression(selection.conditions) if selection.conditions else None,
                prefilter=True,
                disable_scoring_autoprojection=True,
            ).to_table()
            return self._returned(self._rows([table], selection.columns))

    def _scanner(self, columns: Sequence[str], *, vectors: bool = True, **how: Any) -> Any:
        fixed = self._fixed if vectors else [self._fixed[0], *self._fixed[2:]]
        return self._table.scanner(columns=list(dict.fromkeys([*fixed, *columns])), **how)

    def _rows(self, parts: list[Any], columns: Sequence[str], *, vectors: bool = True) -> Rows:
        """Rows from Arrow tables or batches, without those that have no vector."""
        name, vector, *kappa = self._fixed
        ids: list[Any] = []
        payload: dict[str, list[Any]] = {name: [] for name in columns}
        blocks, kappas = [np.zeros((0, self.dim), np.float32)], [np.zeros(0, np.float32)]
        for part in parts:
            if vectors:
                if part[vector].null_count:
                    part = part.filter(part[vector].is_valid())
                column = part[vector]
                for chunk in column.chunks if hasattr(column, "chunks") else [column]:
                    flat = chunk.flatten().to_numpy(zero_copy_only=False)
                    blocks.append(flat.reshape(len(chunk), self.dim).astype(np.float32, copy=False))
            values = part[kappa[0]].to_numpy() if kappa else np.zeros(part.num_rows, np.float32)
            kappas.append(values)
            ids += part[name].to_pylist()
            for column in columns:
                payload[column] += part[column].to_pylist()
        mu = np.concatenate(blocks) if vectors else NO_MU
        arrays = {column: object_array(values) for column, values in payload.items()}
        return Rows(object_array(ids), mu, np.concatenate(kappas), arrays)


class LanceStore(_LanceTable):
    """A gallery in a table; metric "dot" on unit vectors, whose distance is 1 - cosine."""

    schema: Schema

    def __init__(self, where: str, table: Any) -> None:
        super().__init__(table, ["id", "mu", "kappa"])
        self.where = where
        self._described: tuple[Any, dict[str, str], dict[str, Any] | None] = None, {}, None
        stored = self._metadata().get(SCHEMA_KEY)
        if stored is None:
            raise InvalidInputError(
                f"{where} holds no gallery: the Lance table has no schema of one."
            )
        self.schema = Schema.from_json(parse_note(stored, f"the schema of {where}"), where)
        self.dim = self.schema.dim
        expected = {field.name: field.type for field in _arrow_schema(self.schema)}
        for name, kind in expected.items():
            place = table.schema.get_field_index(name)
            if place < 0 or table.schema.field(place).type != kind:
                raise DamagedGalleryError(
                    f"{where} is damaged: it has no column {name!r} of the type {kind}."
                )

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "LanceStore":
        """Create a table with its first rows."""
        lance = lance_package()
        data = _to_arrow(rows, schema)
        field = data.schema.field("id").with_nullable(False).with_metadata(_PRIMARY_KEY)
        data = data.cast(data.schema.set(0, field))
        data = data.replace_schema_metadata({SCHEMA_KEY: json.dumps(schema.to_json())})
        with locked(where):
            if table_exists(where):
                raise InvalidInputError(
                    f"{where} holds a table already. Open it, or delete it first."
                )
            with _writing(where):
                options = lance_options(where)
                table = lance.write_dataset(data, where, mode="create", storage_options=options)
                return cls(where, table)

    @classmethod
    def open(cls, where: str) -> "LanceStore":
        """Open the table at a path."""
        if not table_exists(where):
            raise MissingInputError(
                f"{where} holds no gallery: the Lance table does not exist. `aureole index build` creates one."
            )
        with reading(where, *_FAILURES):
            table = open_table(where)
            if table.base_paths():  # of a shallow clone, or of strangers who want our credentials
                raise DamagedGalleryError(
                    f"{where} names files outside of its folder. Copy the whole table: dataset.deep_clone(…)."
                )
            table.count_rows()
        return cls(where, table)

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists, in one commit."""
        with locked(self.where):
            self._refresh()
            if not len(rows):
                return
            insert = self._table.merge_insert("id").when_matched_fail()
            insert = insert.when_not_matched_insert_all()
            try:
                with _writing(self.where):
                    insert.execute(_in_batches(_to_arrow(rows, self.schema)))
            except OSError:
                self._refresh()
                known = self._known(rows.ids.tolist())
                if not known:
                    raise
                raise InvalidInputError(
                    f"id {known[0]!r} is in the gallery already; use upsert to replace it. Nothing was stored."
                ) from None
            self._index_ids()

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists, in one commit; return how many were replaced."""
        with locked(self.where):
            self._refresh()
            if not len(rows):
                return 0
            merge = self._table.merge_insert("id").when_matched_update_all()
            merge = merge.when_not_matched_insert_all()
            with _writing(self.where):
                data = _in_batches(_to_arrow(rows, self.schema))
                replaced = merge.execute(data)["num_updated_rows"]
            self._index_ids()
            return replaced

    def delete(self, ids: list[str]) -> int:
        """Remove rows, in one commit per 1,000, and return how many existed."""
        with locked(self.where):
            self._refresh()
            known = self._known(ids)
            with _writing(self.where):
                for each in _with_ids(known):
                    self._table.delete(each)
            return len(known)

    def version(self) -> str:
        """The version of the table."""
        self._refresh()
        return str(self._table.version)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build IVF_FLAT (``lists``, ``probes``) or IVF_HNSW_FLAT (``links``, ``width``); later rows are scanned.

        The note of its sizes is committed before the index: with other sizes, searches of the former one are right.
        """
        check_build(kind, sizes)
        options = {"num_partitions": 1, "ef_construction": 200, "m": sizes.get("links", 32)}
        if options["m"] < _LEAST_LINKS:
            raise InvalidInputError(
                f"Lance takes {_LEAST_LINKS} links or more, but got {sizes['links']}."
            )
        with locked(self.where):
            self._refresh()
            if kind == "ivf":
                lists = sizes.get("lists", default_lists(self._table.count_rows()))
                options = {"num_partitions": lists}
            with _writing(self.where):
                self._index_ids()
                self._table.update_schema_metadata({_INDEX: write_sizes(kind, sizes)})
                self._table.create_index("mu", _KINDS[kind], metric="dot", replace=True, **options)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        self._refresh()
        index = self._index()
        return None if index is None else describe_index(**index)

    def problems(self) -> list[str]:
        """What is wrong with the index of mu and with the fragments of the table."""
        problems = []
        try:
            if self._index() is None and _INDEX in self._metadata():
                kind, metric, _ = self._find_index() or ("missing", "no metric", 1)
                problems.append(
                    f"the approximate index is not used: it is {kind} with {metric}. Build it again."
                )
            with reading(self.where, *_FAILURES):
                self._table.validate()
        except DamagedGalleryError as error:
            problems.append(str(error))
        return problems

    def read_note(self, name: str) -> str | None:
        """A note, or None."""
        self._refresh()
        return self._metadata().get(_NOTE + name)

    def write_note(self, name: str, text: str) -> None:
        """Save a note in the metadata of the table."""
        with locked(self.where):
            self._refresh()
            with _writing(self.where):
                self._table.update_schema_metadata({_NOTE + name: text})

    def _use_index(self, exact: bool) -> dict[str, Any]:
        index = None if exact else self._index()
        if index is None:
            return {"use_index": False, "metric": "dot"}
        how = {"use_index": True, "metric": "dot"}
        if index["kind"] == "hnsw":
            return how | {"ef": width_of(index["sizes"])}
        return how | {"nprobes": probes_of(index["sizes"], index["lists"])}

    def _returned(self, rows: Rows) -> Rows:
        return check_returned(rows, self.where)

    def _metadata(self) -> dict[str, str]:
        """The metadata of the version in use."""
        return self._version()[0]

    def _index(self) -> dict[str, Any] | None:
        """The kind, lists and sizes of the approximate index; None also if it is not one of galleries."""
        return self._version()[1]

    def _version(self) -> tuple[dict[str, str], dict[str, Any] | None]:
        """(Metadata, approximate index) of the version in use, read once."""
        if self._described[0] != self._table.version:
            with reading(self.where, *_FAILURES):
                stored = self._table.schema.metadata or {}
                metadata = {key.decode(): value.decode() for key, value in stored.items()}
            found, index = self._find_index(), None
            for kind, name in _KINDS.items():
                if found is not None and found[:2] == (name, "dot"):
                    sizes = parse_sizes(metadata.get(_INDEX), kind, self.where)
                    index = {"kind": kind, "lists": found[2], "sizes": sizes}
            self._described = self._table.version, metadata, index
        return self._described[1:]

    def _known(self, ids: list[str]) -> list[str]:
        """Those of the ids that exist: by the index of ids if there is one, else by a scan."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known: list[str] = []
        if self._indexed_ids() is not None:
            for each in _with_ids(ids):
                known += self._table.to_table(columns=["id"], filter=each)["id"].to_pylist()
            return known
        wanted = pc.SetLookupOptions(pa.array(ids, pa.string()))
        for batch in self._table.scanner(columns=["id"]).to_batches():
            column = batch.column("id")
            known += column.filter(pc.call_function("is_in", [column], wanted)).to_pylist()
        return known

    def _indexed_ids(self) -> int | None:
        """How many rows are in the index of ids; None without one."""
        found = [each for each in self._table.describe_indices() if each.name == _ID_INDEX]
        return found[0].num_rows_indexed if found else None

    def _index_ids(self) -> None:
        """Bring the index of ids up to date if it leaves out more rows than a lookup should scan."""
        rows, indexed = self._table.count_rows(), self._indexed_ids()
        if rows - (indexed or 0) <= max(_SCANNED_IDS, rows // 50):
            return
        if indexed is None:
            self._table.create_scalar_index("id", "BTREE", name=_ID_INDEX)
        else:
            self._table.optimize.optimize_indices(index_names=[_ID_INDEX])


class LanceSource(_LanceTable):
    """A column of fixed-size lists of numbers, searched by cosine without the index, by the index's metric with it.

    A path and a LanceDB table follow later versions of the table; a ``LanceDataset`` stays at its version.
    """

    check_all = False
    where = "the Lance table"
    _metric = "cosine"

    def __init__(self, source: Any, names: Names) -> None:
        lance = lance_package()
        if names.collection is not None:
            raise InvalidInputError(
                "collection is for databases: pass the path of the Lance table itself."
            )
        self._follows = not isinstance(source, lance.LanceDataset)
        if isinstance(source, str | os.PathLike):
            where = os.fspath(source)
            if not table_exists(where):
                raise MissingInputError(f"{where} does not exist, or is not a Lance table.")
            source = open_table(where)
        elif self._follows:
            source = source.to_lance()
        fields = {field.name: field.type for field in source.schema}
        vectors = [name for name, kind in fields.items() if _is_vector(kind)]
        where = f"the Lance table with the columns {sorted(fields)}"
        vector = the_only(vectors, names.vector, "column of vectors", where)
        # Lance cannot select a column whose name has a backtick
        plain = [name for name in fields if name not in vectors and "`" not in name]
        ids = plain if names.id is not None else [name for name in plain if name == "id"]
        super().__init__(source, [the_only(ids, names.id, "id column", where), vector])
        unknown = [name for name in names.columns if name not in plain]
        if unknown:
            raise InvalidInputError(
                f"the Lance table has no column {unknown[0]!r} of plain values. Columns: {sorted(plain)}."
            )
        self.dim = int(fields[vector].list_size)
        found = self._find_index()
        self._index = found if found and found[1] in ("cosine", "dot", "l2") else None
        self.unit = self._index is not None and self._index[1] != "cosine"

    def approximate(self) -> dict[str, Any] | None:
        """The kind of the table's vector index, or None."""
        return None if self._index is None else {"kind": self._index[0].lower()}

    def _use_index(self, exact: bool) -> dict[str, Any]:
        if self._index is None or exact:
            return {"use_index": False, "metric": "cosine"}
        return {"use_index": True, "metric": self._index[1]}


@contextmanager
def _writing(where: str) -> Iterator[None]:
    """Raise errors of the disk as ``WriteError``; Lance has the number of a system error in its messages only."""
    with reporting_writes(where):
        try:
            yield
        except OSError as error:
            number = re.search(r"\bos error (\d{1,3})\b", str(error))
            if error.errno is None and number is not None:
                raise OSError(int(number[1]), str(error)) from error
            raise


def _is_vector(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)


def _arrow_schema(schema: Schema) -> Any:
    """The Arrow schema of the table of a gallery."""
    import pyarrow as pa

    types = {"text": "string", "integer": "int64", "number": "float64", "boolean": "bool"}
    fixed = {"id": "string", "mu": pa.list_(pa.float32(), schema.dim), "kappa": "float32"}
    return pa.schema(fixed | {name: types[kind] for name, kind in schema.columns.items()})


def _to_arrow(rows: Rows, schema: Schema) -> Any:
    """Rows as the Arrow table that is stored."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(rows.mu).reshape(-1), pa.float32())
    mu = pa.FixedSizeListArray.from_arrays(flat, schema.dim)
    payload = [rows.payload[name].tolist() for name in schema.columns]
    columns = [rows.ids.tolist(), mu, rows.kappa, *payload]
    arrow = _arrow_schema(schema)
    arrays = [
        mu if column is mu else pa.array(column, kind)
        for column, kind in zip(columns, arrow.types, strict=True)
    ]
    return pa.table(arrays, schema=arrow)


def _in_batches(table: Any) -> Any:
    """A reader of batches that share no memory: Lance counts all memory behind a slice, for each slice."""
    import pyarrow as pa

    def copies() -> Iterator[Any]:
        for start in range(0, table.num_rows, _MERGED):
            part = table.slice(start, _MERGED)
            yield from part.take(pa.array(np.arange(part.num_rows))).combine_chunks().to_batches()

    return pa.RecordBatchReader.from_batches(table.schema, copies())


def _with_ids(ids: Sequence[Any], column: str = "id") -> Iterator[Any]:
    """Expressions that select the rows with some ids, 1,000 each."""
    import pyarrow.compute as pc

    for start in range(0, len(ids), _IDS):
        yield pc.field(column).isin(ids[start : start + _IDS])


def _expression(conditions: Sequence[Condition]) -> Any:
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
