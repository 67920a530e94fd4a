"""Lance, the versioned table format of LanceDB: galleries in tables, and tables of users.

A path ``folder/gallery.lance`` is also the table ``gallery`` of ``lancedb.connect("folder")``. Each change is one
versioned commit: readers see all of it or nothing, and a writer that is killed leaves the previous version. Two changes
take several commits: a delete of more than 1,000 rows is one commit per 1,000, and ``build`` commits the index and then
the note without which no search uses it. On a local disk Lance does not call fsync, so a power failure (not a killed
process) may lose the last seconds.

Writers on one machine are serialised by a lock file next to the table. Elsewhere Lance itself decides: ``id`` is
declared as the primary key, so that of two writers of the same id that commit at once, the second one starts again and
finds the first one's row.

Ids are looked up by a scan at first, and by an index once there are 50,000 rows; at most 50,000 rows, or 2 %, are
not in it yet and are scanned.
"""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aureole.data._addresses import lance_options
from aureole.engines._integrity import check_returned, parse_index_note, parse_note, reading
from aureole.engines._lance_tables import (
    BATCH,
    ID_INDEX,
    expression,
    in_batches,
    indexed_ids,
    keyed,
    known_ids,
    lance_package,
    locked,
    open_table,
    table_exists,
    table_metadata,
    to_arrow,
    with_ids,
    writing,
)
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
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError

SCHEMA_KEY = "aureole.schema"  # in the metadata of a table: it is a gallery
_NOTE, _INDEX = "aureole.note.", "aureole.index"
_FIRST_NEAREST = 256
_SCAN_ROWS = 2**14  # rows per batch of a scan
# what Lance and Arrow raise for damaged files; ArrowInvalid and UnicodeDecodeError are ValueErrors
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, IndexError, MemoryError)
_LEAST_LINKS = 4  # with fewer, Lance builds graphs that are not connected
_SCANNED_IDS = 50_000  # rows whose ids need no index


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
        filters = [
            with_ids(ids[start : start + BATCH], self._fixed[0])
            for start in range(0, len(ids), BATCH)
        ]
        with reading(self.where, *_FAILURES):
            parts = [self._scanner(columns, filter=each).to_table() for each in filters]
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
        """All rows within each query's bound, by a range of distances."""
        total, how = self.count(), self._use_index(selection.exact)
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            yield self._within(query, bound, total, selection, how)

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

    def _within(
        self, query: np.ndarray, bound: float, total: int, selection: Selection, how: dict[str, Any]
    ) -> Rows:
        """Lists are searched by a range; a graph for more and more nearest rows until one is outside the bound."""
        error = slack(self.dim)
        if how["use_index"] and "nprobes" not in how:
            k = _FIRST_NEAREST
            while k < total:
                rows = self._near(query, k, selection, how)
                if len(rows) < k or _least_cosine(rows.mu, query) < bound - error:
                    return rows
                k *= 4
            how = {"use_index": False, "metric": self._metric}
        reach = 1 - max(bound, -1.0) + 2 * error
        return self._near(query, total, selection, how | {"distance_range": (None, reach)})

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
                filter=expression(selection.conditions) if selection.conditions else None,
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
        self._described: tuple[int, dict[str, str]] = -1, {}  # the metadata of a version
        self._parsed: tuple[str, dict[str, Any]] | None = None  # the note of the index
        with reading(where, *_FAILURES):
            stored = table_metadata(table).get(SCHEMA_KEY)
            fields = {field.name: str(field.type) for field in table.schema}
        if stored is None:
            raise InvalidInputError(
                f"{where} holds no gallery: the Lance table has no schema of one."
            )
        self.schema = Schema.from_json(parse_note(stored, f"the schema of {where}"), where)
        self.dim = self.schema.dim
        for name, kind in _stored_types(self.schema).items():
            if fields.get(name) != kind:
                raise DamagedGalleryError(
                    f"{where} is damaged: its column {name!r} must have the type {kind}, but has {fields.get(name)}."
                )

    @classmethod
    def create(cls, where: str, schema: Schema, rows: Rows) -> "LanceStore":
        """Create a table with its first rows."""
        lance = lance_package()
        data = keyed(to_arrow(rows, schema))
        data = data.replace_schema_metadata({SCHEMA_KEY: json.dumps(schema.to_json())})
        with locked(where):
            if table_exists(where):
                raise InvalidInputError(
                    f"{where} holds a table already. Open it, or delete it first."
                )
            with writing(where):
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
        store = cls(where, table)
        problem = store._index_problem()
        if problem is not None:
            raise DamagedGalleryError(f"{where} is damaged: {problem} Build it again.")
        return store

    def append(self, rows: Rows) -> None:
        """Add all rows, or none if an id exists, in one commit."""
        with locked(self.where):
            self._refresh()
            if not len(rows):
                return
            insert = self._table.merge_insert("id").when_matched_fail()
            try:
                with writing(self.where):
                    insert.when_not_matched_insert_all().execute(
                        in_batches(to_arrow(rows, self.schema))
                    )
            except OSError:
                self._refresh()
                known = known_ids(self._table, rows.ids.tolist())
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
            with writing(self.where):
                data = in_batches(to_arrow(rows, self.schema))
                replaced = merge.execute(data)["num_updated_rows"]
            self._index_ids()
            return replaced

    def delete(self, ids: list[str]) -> int:
        """Remove rows, in one commit per 1,000, and return how many existed."""
        with locked(self.where):
            self._refresh()
            known = known_ids(self._table, ids)
            with writing(self.where):
                for start in range(0, len(known), BATCH):
                    self._table.delete(with_ids(known[start : start + BATCH]))
            return len(known)

    def version(self) -> str:
        """The version of the table."""
        self._refresh()
        return str(self._table.version)

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build IVF_FLAT (``lists``, ``probes``) or IVF_HNSW_FLAT (``links``, ``width``); later rows are scanned."""
        check_build(kind, sizes)
        if sizes.get("links", _LEAST_LINKS) < _LEAST_LINKS:
            raise InvalidInputError(
                f"Lance takes {_LEAST_LINKS} links or more, but got {sizes['links']}."
            )
        with locked(self.where):
            self._table.checkout_latest()
            if kind == "ivf":
                lists = sizes.get("lists", default_lists(self._table.count_rows()))
                name, options = "IVF_FLAT", {"num_partitions": lists}
            else:
                name, options = "IVF_HNSW_FLAT", {"num_partitions": 1, "ef_construction": 200}
                options["m"] = sizes.get("links", 32)
            with writing(self.where):
                self._index_ids()
                self._table.create_index("mu", name, metric="dot", replace=True, **options)
                self._note_index(kind, options["num_partitions"], sizes)

    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index, or None."""
        self._refresh()
        note = self._index_note()
        return None if note is None else describe_index(**note)

    def problems(self) -> list[str]:
        """What is wrong with the index of mu and with the fragments of the table."""
        problems = []
        try:
            problem = self._index_problem(required=True)
            problems += [] if problem is None else [problem]
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
            with writing(self.where):
                self._table.update_schema_metadata({_NOTE + name: text})

    def _use_index(self, exact: bool) -> dict[str, Any]:
        """An index without a note is unfinished, or not ours, and is not used."""
        index = None if exact else self._index_note()
        if index is None:
            return {"use_index": False, "metric": "dot"}
        how = {"use_index": True, "metric": "dot"}
        if index["kind"] == "hnsw":
            return how | {"ef": width_of(index["sizes"])}
        return how | {"nprobes": probes_of(index["sizes"], index["lists"])}

    def _returned(self, rows: Rows) -> Rows:
        return check_returned(rows, self.where)

    def _index_ids(self) -> None:
        """Bring the index of ids up to date if it leaves out more rows than a lookup should scan."""
        rows, indexed = self._table.count_rows(), indexed_ids(self._table)
        if rows - (indexed or 0) <= max(_SCANNED_IDS, rows // 50):
            return
        if indexed is None:
            self._table.create_scalar_index("id", "BTREE", name=ID_INDEX)
        else:
            self._table.optimize.optimize_indices(index_names=[ID_INDEX])

    def _note_index(self, kind: str, lists: int, sizes: dict[str, int]) -> None:
        note = json.dumps({"kind": kind, "lists": lists, "sizes": sizes})
        self._table.update_schema_metadata({_INDEX: note})

    def _metadata(self) -> dict[str, str]:
        """The metadata of the version in use, read once."""
        with reading(self.where, *_FAILURES):
            if self._described[0] != self._table.version:
                self._described = self._table.version, table_metadata(self._table)
        return self._described[1]

    def _index_note(self) -> dict[str, Any] | None:
        """The kind, lists and sizes of the approximate index, or None."""
        note = self._metadata().get(_INDEX)
        if note is None:
            return None
        if self._parsed is None or self._parsed[0] != note:
            what = f"{self.where} (note of its index)"
            self._parsed = note, parse_index_note(parse_note(note, what), what)
        return self._parsed[1]

    def _index_problem(self, *, required: bool = False) -> str | None:
        """What is wrong with the index that searches use: its kind, its metric or its number of lists.

        Without an index that is ``required``, searches would be right, but slow.
        """
        note = self._index_note()
        if note is None:
            return None
        expected = {"ivf": "IVF_FLAT", "hnsw": "IVF_HNSW_FLAT"}[note["kind"]]
        with reading(f"{self.where} (index of mu)", *_FAILURES):
            names = [
                i.name for i in self._table.describe_indices() if list(i.field_names) == ["mu"]
            ]
            if not names:
                return "the approximate index is missing." if required else None
            stats = self._table.stats.index_stats(names[0])
            metrics = {part["metric_type"] for part in stats["indices"]}
            lists = {part["num_partitions"] for part in stats["indices"]}
        if stats["index_type"] == expected and metrics == {"dot"} and lists == {note["lists"]}:
            return None
        got = f"{stats['index_type']} with the metric {', '.join(sorted(map(str, metrics)))}"
        return (
            f"the approximate index is {got} and {sorted(map(str, lists))} lists, but its note says {expected} with "
            f"the metric dot and {note['lists']} lists."
        )


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
        self._index = self._find_index()
        self.unit = self._index is not None and self._index["metric"] != "cosine"

    def approximate(self) -> dict[str, Any] | None:
        """The kind of the table's vector index, or None."""
        return None if self._index is None else {"kind": self._index["kind"]}

    def _use_index(self, exact: bool) -> dict[str, Any]:
        if self._index is None or exact:
            return {"use_index": False, "metric": "cosine"}
        return {"use_index": True, "metric": self._index["metric"]}

    def _find_index(self) -> dict[str, Any] | None:
        """The kind and metric of an index on the column of vectors."""
        for index in self._table.describe_indices():
            if list(index.field_names) != [self._fixed[1]]:
                continue
            found = self._table.stats.index_stats(index.name)
            metric = found["indices"][0].get("metric_type") if found.get("indices") else None
            if metric in ("cosine", "dot", "l2"):
                return {"kind": found["index_type"].lower(), "metric": metric}
        return None


def _least_cosine(mu: np.ndarray, query: np.ndarray) -> float:
    length = np.linalg.norm(mu, axis=-1)
    return float((mu @ query / np.where(length > 0, length, 1.0)).min())


def _is_vector(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)


def _stored_types(schema: Schema) -> dict[str, str]:
    """The Arrow types, as text, of the columns of a gallery."""
    kinds = {"text": "string", "integer": "int64", "number": "double", "boolean": "bool"}
    fixed = {"id": "string", "mu": f"fixed_size_list<item: float>[{schema.dim}]", "kappa": "float"}
    return fixed | {name: kinds[kind] for name, kind in schema.columns.items()}
