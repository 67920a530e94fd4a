"""Lance, the versioned table format of LanceDB: a gallery in a table.

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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aureole._io import reporting_writes
from aureole.data import lance_options
from aureole.errors import (
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
)
from aureole.retrieval._compression import Compression, check_compressed
from aureole.retrieval._integrity import (
    check_returned,
    parse_index_note,
    parse_note,
    reading,
)
from aureole.retrieval._lance_codes import build_codes, has_code, index_type
from aureole.retrieval._lance_tables import (
    BATCH,
    ID_INDEX,
    expression,
    from_arrow,
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
    vectors_of,
    with_ids,
    without_mu,
)
from aureole.retrieval._quantisation import LARGEST_CAP, nearest_exactly
from aureole.retrieval._schema import Rows, Schema
from aureole.retrieval._store import (
    Approximate,
    Selection,
    check_build,
    default_lists,
    describe_index,
    probes_of,
    slack,
    width_of,
)

SCHEMA_KEY = "aureole.schema"  # in the metadata of a table: it is a gallery
_NOTE, _INDEX = "aureole.note.", "aureole.index"
_FIRST_NEAREST = 256
# what Lance and Arrow raise for damaged files; ArrowInvalid and UnicodeDecodeError are ValueErrors
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, IndexError, MemoryError)
_LEAST_LINKS = 4  # with fewer, Lance builds graphs that are not connected
_SCANNED_IDS = 50_000  # rows whose ids need no index


class LanceStore:
    """Rows in a Lance table; metric "dot" on unit vectors, whose distance is 1 - cosine."""

    engine = "Lance"
    schema: Schema
    cap_members = LARGEST_CAP  # of the largest caps that a compressed index is built for

    def __init__(self, where: str, table: Any) -> None:
        self.where, self._table = where, table
        self._parsed: tuple[str, dict[str, Any]] | None = None  # the note of the index
        with reading(where, *_FAILURES):
            stored = table_metadata(table).get(SCHEMA_KEY)
            fields = {field.name: str(field.type) for field in table.schema}
        if stored is None:
            raise InvalidInputError(
                f"{where} holds no gallery: the Lance table has no schema of one."
            )
        self.schema = Schema.from_json(parse_note(stored, f"the schema of {where}"), where)
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
            with reporting_writes(where):
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
                with reporting_writes(self.where):
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

    def append_new(self, rows: Rows) -> None:
        """Add rows whose ids are known to be new: no id is looked up or indexed."""
        if not len(rows):
            return
        with locked(self.where), reporting_writes(self.where):
            data = keyed(to_arrow(rows, self.schema))
            self._table = lance_package().write_dataset(data, self._table, mode="append")

    def index_ids(self) -> None:
        """Index the ids after ``append_new``, if there are many."""
        with locked(self.where), reporting_writes(self.where):
            self._refresh()
            self._index_ids()

    def upsert(self, rows: Rows) -> int:
        """Add rows, and replace those whose id exists, in one commit; return how many were replaced."""
        with locked(self.where):
            self._refresh()
            if not len(rows):
                return 0
            merge = self._table.merge_insert("id").when_matched_update_all()
            merge = merge.when_not_matched_insert_all()
            with reporting_writes(self.where):
                data = in_batches(to_arrow(rows, self.schema))
                replaced = merge.execute(data)["num_updated_rows"]
            self._index_ids()
            return replaced

    def delete(self, ids: list[str]) -> int:
        """Remove rows, in one commit per 1,000, and return how many existed."""
        with locked(self.where):
            self._refresh()
            known = known_ids(self._table, ids)
            with reporting_writes(self.where):
                for start in range(0, len(known), BATCH):
                    self._table.delete(with_ids(known[start : start + BATCH]))
            return len(known)

    def count(self) -> int:
        """The number of rows."""
        with reading(self.where, *_FAILURES):
            self._table.checkout_latest()
            return self._table.count_rows()

    def version(self) -> str:
        """The version of the table."""
        self._refresh()
        return str(self._table.version)

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        names = ["id", "mu", "kappa", *columns]
        filters = [with_ids(ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)]
        with reading(self.where, *_FAILURES):
            self._table.checkout_latest()
            parts = [self._table.scanner(columns=names, filter=one).to_table() for one in filters]
            return check_returned(from_arrow(parts, columns, self.schema), self.where)

    def scan(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """All rows; only the requested columns are read."""
        import pyarrow as pa

        names = ["id", *(["mu"] if vectors else []), "kappa", *columns]
        with reading(self.where, *_FAILURES):
            self._table.checkout_latest()
            for batch in self._table.scanner(columns=names).to_batches():
                if vectors:
                    table = pa.Table.from_batches([batch])
                    yield from_arrow([table], columns, self.schema)
                else:
                    yield without_mu(batch, columns)

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound, by a range of distances."""
        total = self.count()
        index, compression = self._index_options(selection.exact)
        for query, bound in zip(mu, bounds.tolist(), strict=True):
            yield self._within(query, bound, total, selection, index, compression)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        total = self.count()
        k, (index, compression) = min(k, total), self._index_options(selection.exact)

        def near(query: np.ndarray, k: int) -> Rows:
            return self._near(query, k, selection, index)

        def within(query: np.ndarray, bound: float) -> Rows:
            return self._within(query, bound, total, selection, index, compression)

        for query in mu:
            yield near(query, k) if compression is None else nearest_exactly(query, k, near, within)

    def build(self, kind: Approximate, *, compressed: bool = False, **sizes: int) -> None:
        """Build IVF_FLAT (``lists``, ``probes``) or IVF_HNSW_FLAT (``links``, ``width``); later rows are scanned.

        A compressed index is IVF_PQ, or IVF_SQ for few rows.
        """
        check_build(kind, sizes)
        if compressed:
            self._build_compressed(kind, sizes)
            return
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
            with reporting_writes(self.where):
                self._index_ids()
                self._table.create_index("mu", name, metric="dot", replace=True, **options)
                self._note_index(kind, options["num_partitions"], sizes)

    def _build_compressed(self, kind: Approximate, sizes: dict[str, int]) -> None:
        with locked(self.where):
            self._table.checkout_latest()
            total = self._table.count_rows()
            check_compressed(kind, total)
            lists = sizes.get("lists", default_lists(total))
            with reporting_writes(self.where):
                self._index_ids()
                compression, sizes = build_codes(
                    self._table, self.schema.dim, lists, sizes, members=self.cap_members
                )
                self._note_index(kind, lists, sizes, compression)

    def adopt(self, lists: int, sizes: dict[str, int]) -> None:
        """Use an index of the column mu with this many lists that workers of a cluster have built."""
        check_build("ivf", sizes)
        with locked(self.where):
            self._table.checkout_latest()
            self._note_index("ivf", lists, sizes)

    def _index_ids(self) -> None:
        """Bring the index of ids up to date if it leaves out more rows than a lookup should scan."""
        rows, indexed = self._table.count_rows(), indexed_ids(self._table)
        if rows - (indexed or 0) <= max(_SCANNED_IDS, rows // 50):
            return
        if indexed is None:
            self._table.create_scalar_index("id", "BTREE", name=ID_INDEX)
        else:
            self._table.optimize.optimize_indices(index_names=[ID_INDEX])

    def _note_index(
        self,
        kind: str,
        lists: int,
        sizes: dict[str, int],
        compression: Compression | None = None,
    ) -> None:
        note: dict[str, Any] = {"kind": kind, "lists": lists, "sizes": sizes}
        if compression is not None:
            note["compression"] = compression.to_json()
        self._table.update_schema_metadata({_INDEX: json.dumps(note)})

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
            with reporting_writes(self.where):
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
        compression: Compression | None = None,
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
            index, _ = self._index_options(exact=True)
        widening = 0.0 if compression is None else compression.widening(bound)
        reach = 1 - max(bound - widening, -1.0) + 2 * error
        least = None if compression is None else bound - error
        return self._near(query, total, selection, index, reach=reach, least=least)

    def _near(
        self,
        query: np.ndarray,
        k: int,
        selection: Selection,
        index: dict[str, Any],
        *,
        reach: float | None = None,
        least: float | None = None,
    ) -> Rows:
        """The k nearest rows, or those of them within a distance by the index and with a ``least`` inner product."""
        if k == 0:
            return from_arrow([], selection.columns, self.schema)
        nearest = {"column": "mu", "q": query, "k": k, "metric": "dot", **index}
        if reach is not None:
            nearest["distance_range"] = (None, reach)
        if "ef" in nearest:
            nearest["ef"] = max(nearest["ef"], 2 * k)
        with reading(self.where, *_FAILURES):
            table = self._table.scanner(
                columns=["id", "mu", "kappa", *selection.columns],
                nearest=nearest,
                filter=expression(selection.conditions),
                prefilter=True,
                disable_scoring_autoprojection=True,
            ).to_table()
            mu = vectors_of(table, self.schema.dim)
            if least is not None:  # only members become Python strings; NaN stays, to be noticed
                inside = np.flatnonzero(~(mu @ query < least))
                table, mu = table.drop_columns("mu").take(inside), mu[inside]
            rows = replace(without_mu(table, selection.columns), mu=mu)
        return check_returned(rows, self.where)

    def _index_options(self, exact: bool) -> tuple[dict[str, Any], Compression | None]:
        """(How a search uses the approximate index: with which sizes, or not at all; its compression, if any)."""
        index = None if exact else self._index_note()
        if index is None:  # an index without a note is unfinished, or not ours
            return {"use_index": False}, None
        if index["kind"] == "hnsw":
            return {"use_index": True, "nprobes": 1, "ef": width_of(index["sizes"])}, None
        options = {"use_index": True, "nprobes": probes_of(index["sizes"], index["lists"])}
        return options, index.get("compression")

    def _refresh(self) -> None:
        with reading(self.where, *_FAILURES):
            self._table.checkout_latest()

    def _metadata(self) -> dict[str, str]:
        with reading(self.where, *_FAILURES):
            return table_metadata(self._table)

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
        if "compression" in note:
            expected = index_type(note["compression"])
        with reading(f"{self.where} (index of mu)", *_FAILURES):
            names = [
                i.name for i in self._table.describe_indices() if list(i.field_names) == ["mu"]
            ]
            if not names:
                return "the approximate index is missing." if required else None
            stats = self._table.stats.index_stats(names[0])
            metrics = {part["metric_type"] for part in stats["indices"]}
            lists = {part["num_partitions"] for part in stats["indices"]}
            coded = all(has_code(part, note.get("compression")) for part in stats["indices"])
        same = stats["index_type"] == expected and metrics == {"dot"} and lists == {note["lists"]}
        if same and coded:
            return None
        got = f"{stats['index_type']} with the metric {', '.join(sorted(map(str, metrics)))}"
        return (
            f"the approximate index is {got} and {sorted(map(str, lists))} lists, but its note says {expected} with "
            f"the metric dot and {note['lists']} lists, or its codes have another size."
        )


def _stored_types(schema: Schema) -> dict[str, str]:
    """The Arrow types, as text, of the columns of a gallery."""
    kinds = {"text": "string", "integer": "int64", "number": "double", "boolean": "bool"}
    fixed = {"id": "string", "mu": f"fixed_size_list<item: float>[{schema.dim}]", "kappa": "float"}
    return fixed | {name: kinds[kind] for name, kind in schema.columns.items()}
