"""Lance, the versioned table format of LanceDB: a gallery in a table.

A path ``folder/gallery.lance`` is also the table ``gallery`` of ``lancedb.connect("folder")``. Each change is one
versioned commit: a reader sees all of it or nothing, and a writer that dies leaves the version before. Two take more
than one: a delete of more than 1,000 rows is a commit for each 1,000, and ``build`` commits the index and then the note
without which no search uses it. On a local disk Lance does not call fsync, so a power cut (not a killed process) may
take the last seconds. Writers on one machine take turns by a lock file beside the table; on an object store let one
process write at a time.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval._filters import Condition
from aureole.retrieval._lance_tables import (
    SCHEMA_KEY,
    expression,
    from_arrow,
    known_ids,
    lance_package,
    locked,
    table_exists,
    table_metadata,
    to_arrow,
    with_ids,
    without_mu,
)
from aureole.retrieval._rows import Rows, Schema
from aureole.retrieval._store import (
    Approximate,
    check_build,
    default_lists,
    probes_of,
    slack,
    told_index,
    width_of,
)

_NOTE, _INDEX = "aureole.note.", "aureole.index"
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
            known = known_ids(self._table, rows.ids.tolist())
            if known:
                raise InvalidInputError(
                    f"id {known[0]!r} is in the gallery already; delete it first. Nothing was stored."
                )
            if len(rows):
                data = to_arrow(rows, self.schema)
                self._table = lance.write_dataset(data, self._table, mode="append")

    def delete(self, ids: list[str]) -> int:
        """Remove rows, in one commit for each 1,000; the number that were there."""
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

    def fetch(self, ids: list[str], columns: Sequence[str]) -> Rows:
        """The rows of some ids."""
        self._table.checkout_latest()
        parts = [
            self._table.scanner(
                columns=["id", "mu", "kappa", *columns],
                filter=with_ids(ids[start : start + _BATCH]),
            ).to_table()
            for start in range(0, len(ids), _BATCH)
        ]
        return from_arrow(parts, columns, self.schema)

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """All rows without mu: only the columns asked for are read."""
        self._table.checkout_latest()
        for batch in self._table.scanner(columns=["id", "kappa", *columns]).to_batches():
            yield without_mu(batch, columns)

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
        return told_index(**index)

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
            return from_arrow([], columns, self.schema)
        nearest = {"column": "mu", "q": query, "k": k, "metric": "dot", **tuned}
        if reach is not None:
            nearest["distance_range"] = (None, reach)
        if "ef" in nearest:
            nearest["ef"] = max(nearest["ef"], 2 * k)
        found = self._table.scanner(
            columns=["id", "mu", "kappa", *columns],
            nearest=nearest,
            filter=expression(conditions),
            prefilter=True,
            disable_scoring_autoprojection=True,
        ).to_table()
        return from_arrow([found], columns, self.schema)

    def _tuned(self, exact: bool) -> dict[str, Any]:
        """How widely the approximate index, if there is one, is searched; or that it is not to be used."""
        note = None if exact else table_metadata(self._table).get(_INDEX)
        if note is None:  # an index without a note is one whose builder died, or another's
            return {"use_index": False}
        index = json.loads(note)
        if index["kind"] == "hnsw":
            return {"use_index": True, "nprobes": 1, "ef": width_of(index["sizes"])}
        return {"use_index": True, "nprobes": probes_of(index["sizes"], index["lists"])}
