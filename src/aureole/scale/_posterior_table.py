"""PosteriorTable: a Lance gallery that many workers fill chunk by chunk, and that records which chunks are done.

Workers write Lance fragments, which are invisible until one process commits them. Each row carries the key of its
chunk, so the rows and the record that the chunk is done are the same commit and cannot disagree. When a job starts, it
reads that one column (8 bytes per row) to find the finished chunks. Inputs that could not be read are committed to a
second table first; if the process dies in between, the next run drops them and repeats their chunk.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import compute_package, lance_options, pyarrow_package
from aureole.errors import InvalidInputError
from aureole.retrieval import (
    SCHEMA_KEY,
    LanceStore,
    Origin,
    Rows,
    Schema,
    is_local,
    lance_package,
    locked,
    open_table,
    shown_address,
    table_exists,
    to_arrow,
)

COLUMNS = {"source": "text", "model": "text", "chunk": "text"}
_JOB, _MODELS = "embed", "models"  # names of notes in the table's metadata
_MAX_COMPARED = 20_000_000  # rows whose ids are checked for duplicates
_KEEP = timedelta(hours=1)  # how long old versions stay readable


@dataclass(frozen=True)
class Fault:
    """An input without a posterior: its id, the reason, and the hash of its bytes if they could be read."""

    id: str
    reason: str
    source: str = ""


@dataclass(frozen=True)
class Done:
    """A finished chunk: the fragments with its rows, not yet committed, and its faults."""

    key: str
    rows: int
    fragments: list[str]
    faults: list[Fault]

    def to_json(self) -> str:
        """Serialise to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Done":
        """Parse the output of ``to_json``."""
        fields = json.loads(text)
        fields["faults"] = [Fault(**fault) for fault in fields["faults"]]
        return cls(**fields)


def absolute_address(where: str) -> str:
    """The absolute form of an address, as cluster workers run in another working directory."""
    return str(Path(where).absolute()) if is_local(where) else where


def errors_address(where: str) -> str:
    """The address of the table of the inputs that could not be read, such as photos.errors.lance."""
    return f"{where.removesuffix('/').removesuffix('.lance')}.errors.lance"


def check_address(out: str) -> None:
    """Raise unless an address can be that of a table of posteriors."""
    if not out.removesuffix("/").endswith(".lance") or out.endswith(".errors.lance"):
        raise InvalidInputError(
            f"the name of the output table must end in .lance, but is {shown_address(out)}."
        )


def table_address(out: str, weights: str) -> str:
    """The address of a model's rows: ``out`` for the first model, ``out-HASH`` for any other."""
    check_address(out)
    if not table_exists(out):
        return out
    store = LanceStore.open(out)
    written, origin = store.read_note(_JOB), store.read_note("origin")
    if written is None and store.count():
        raise InvalidInputError(
            f"{out} holds a gallery that aureole embed did not write. Choose another --out."
        )
    if written is None or (origin and Origin.from_json(origin).weights == weights):
        return out
    return f"{out.removesuffix('/').removesuffix('.lance')}-{weights[:12]}.lance"


class PosteriorTable:
    """The posteriors of one source by one model: a gallery with the columns source, model and chunk.

    ``source`` is the SHA-256 of the input's bytes, truncated to 128 bits; ``model`` the first 12 hex digits of the
    SHA-256 of the weights, which the gallery's provenance stores in full.
    """

    def __init__(self, where: str, schema: Schema, weights: str) -> None:
        self.where, self.errors = where, errors_address(where)
        self._schema, self._weights = schema, weights
        self._is_new = False

    @classmethod
    def open(cls, out: str, dim: int, origin: Origin, job: dict[str, Any]) -> "PosteriorTable":
        """Open the table for a model's rows, creating it if needed; raises if it holds the rows of another job."""
        weights = origin.weights or ""
        where = table_address(out, weights)
        schema = Schema(dim, COLUMNS)
        is_new = not table_exists(where)
        if is_new:
            mu, kappa = np.zeros((0, dim), np.float32), np.zeros(0, np.float32)
            texts = np.zeros(0, object)
            no_rows = Rows(texts, mu, kappa, dict.fromkeys(COLUMNS, texts))
            LanceStore.create(where, schema, no_rows)
        store = LanceStore.open(where)
        held = store.read_note(_JOB)
        if held is None:  # new, or the process that created it died at once
            store.write_note("origin", origin.to_json())
            store.write_note(_JOB, json.dumps(job))
        elif (before := json.loads(held)) != job:
            name = next(name for name in {**before, **job} if before.get(name) != job.get(name))
            raise InvalidInputError(
                f"{where} was written with {name} {before.get(name)!r}, not {job.get(name)!r}. Repeat the original "
                "command to resume it, or choose another --out."
            )
        if where != out:
            first = LanceStore.open(out)
            models = json.loads(first.read_note(_MODELS) or "{}")
            if models.get(weights) != Path(where).name:
                models[weights] = Path(where).name
                first.write_note(_MODELS, json.dumps(models))
        table = cls(where, store.schema, weights)
        table._is_new = is_new
        return table

    def remove_if_new(self) -> None:
        """Remove a local table that this run created and that has neither rows nor faults."""
        if self._is_new and is_local(self.where) and not any(self.counts()):
            shutil.rmtree(self.where, ignore_errors=True)
            Path(f"{self.where.removesuffix('/')}.lock").unlink(missing_ok=True)

    @staticmethod
    def held_job(out: str, weights: str) -> dict[str, Any] | None:
        """The job recorded in the table for a model's rows, if that table exists."""
        where = table_address(out, weights)
        if not table_exists(where):
            return None
        note = LanceStore.open(where).read_note(_JOB)
        return None if note is None else json.loads(note)

    def from_anywhere(self) -> "PosteriorTable":
        """The same table by its absolute address, for workers in another working directory."""
        return PosteriorTable(absolute_address(self.where), self._schema, self._weights)

    def counts(self) -> tuple[int, int]:
        """The numbers of committed rows and faults."""
        faults = open_table(self.errors).count_rows() if table_exists(self.errors) else 0
        return open_table(self.where).count_rows(), faults

    def recover(self) -> set[str]:
        """The keys of the finished chunks; drops the faults of unfinished ones."""
        done = _distinct(open_table(self.where), None)
        if table_exists(self.errors):
            table = open_table(self.errors)
            done |= _distinct(table, "whole")  # chunks without a single row
            stale = sorted(_distinct(table, None) - done)
            if stale:
                with locked(self.errors):
                    table.delete(compute_package().field("chunk").isin(stale))
        return done

    def ids(self, keys: Iterable[str]) -> set[str]:
        """The ids of the rows and faults of some chunks, all in memory."""
        wanted, ids = sorted(keys), set()
        for where in (self.where, self.errors):
            if wanted and table_exists(where):
                chosen = compute_package().field("chunk").isin(wanted)
                scanner = open_table(where).scanner(columns=["id"], filter=chosen)
                for batch in scanner.to_batches():
                    ids.update(batch.column("id").to_pylist())
        return ids

    def write(self, key: str, ids: list[str], posterior: Any, sources: list[str]) -> list[str]:
        """Write a chunk's rows to disk and return the fragments as JSON; they are not part of the table yet."""
        constant = {"model": self._weights[:12], "chunk": key}
        payload = {name: np.full(len(ids), text, object) for name, text in constant.items()}
        payload["source"] = np.asarray(sources, object)
        mu, kappa = posterior
        rows = to_arrow(Rows(np.asarray(ids, object), mu, kappa, payload), self._schema)
        options = lance_options(self.where)
        written = lance_package().fragment.write_fragments(
            rows, self.where, mode="append", storage_options=options
        )
        return [json.dumps(fragment.to_json()) for fragment in written]

    def commit(self, chunks: list[Done]) -> None:
        """Commit finished chunks to the table."""
        self._commit_faults(chunks)
        lance = lance_package()
        parse = lance.fragment.FragmentMetadata.from_json
        fragments = [parse(text) for done in chunks for text in done.fragments]
        if fragments:
            with locked(self.where):
                version = open_table(self.where).version
                append = lance.LanceOperation.Append(fragments)
                lance.LanceDataset.commit(
                    self.where,
                    append,
                    read_version=version,
                    storage_options=lance_options(self.where),
                )

    def _commit_faults(self, chunks: list[Done]) -> None:
        model, rows = self._weights[:12], []
        for done in chunks:
            more = {"model": model, "chunk": done.key, "whole": not done.rows}
            rows += [asdict(fault) | more for fault in done.faults]
        if not rows:
            return
        pa = pyarrow_package()
        texts = dict.fromkeys(("id", "reason", "source", "model", "chunk"), pa.string())
        data = pa.Table.from_pylist(rows, pa.schema({**texts, "whole": pa.bool_()}))
        with locked(self.errors):
            mode = "append" if table_exists(self.errors) else "create"
            options = lance_options(self.errors)
            lance_package().write_dataset(data, self.errors, mode=mode, storage_options=options)

    def repeated(self) -> int | None:
        """The number of rows whose id an earlier row has; None for more than 20 million rows.

        Compares 8-byte hashes, so it needs 8 bytes of memory per row.
        """
        table = open_table(self.where)
        rows = table.count_rows()
        if rows > _MAX_COMPARED:
            return None
        hashes, first = np.empty(rows, np.int64), 0
        for batch in table.scanner(columns=["id"]).to_batches():
            names = batch.column("id").to_pylist()
            hashes[first : first + len(names)] = np.fromiter(map(hash, names), np.int64, len(names))
            first += len(names)
        return rows - len(np.unique(hashes))

    def finish(self) -> None:
        """Store the median kappa of all rows as the typical kappa, and remove versions older than an hour."""
        table = open_table(self.where)

        def kappas() -> Iterator[np.ndarray]:
            for batch in table.scanner(columns=["kappa"]).to_batches():
                yield batch.column("kappa").to_numpy()

        typical = lower_median(kappas)
        if typical is None or typical == self._schema.typical_kappa:
            return
        self._schema = replace(self._schema, typical_kappa=min(typical, 1e30))
        with locked(self.where):
            table.checkout_latest()
            table.update_schema_metadata({SCHEMA_KEY: json.dumps(self._schema.to_json())})
            table.cleanup_old_versions(older_than=_KEEP)

    def tidy(self) -> None:
        """Merge the small files of many commits, and remove versions older than an hour."""
        with locked(self.where):
            table = open_table(self.where)
            table.optimize.compact_files()
            table.cleanup_old_versions(older_than=_KEEP)


def lower_median(pieces: Callable[[], Iterable[np.ndarray]]) -> float | None:
    """The (lower) median of non-negative float32 values, in two passes and constant memory.

    Non-negative floats sort like their bits: the first pass finds the upper 16 bits, the second the lower 16.
    """
    prefix = None
    rank = 0
    for shift in (16, 0):
        counts = np.zeros(2**16, np.int64)
        for piece in pieces():
            bits = np.ascontiguousarray(piece, np.float32).view(np.uint32)
            if prefix is not None:
                bits = bits[bits >> np.uint32(16) == prefix]
            counts += np.bincount((bits >> np.uint32(shift)) & np.uint32(0xFFFF), minlength=2**16)
        if prefix is None:
            if not counts.sum():
                return None
            rank = (int(counts.sum()) + 1) // 2
        place = int(np.searchsorted(counts.cumsum(), rank))
        rank -= int(counts[:place].sum())
        prefix = place if prefix is None else (prefix << 16) | place
    return float(np.uint32(prefix).view(np.float32))


@contextmanager
def exclusive(where: str) -> Iterator[None]:
    """Lock a table against other processes of this machine; raises if it is locked. Object stores are not locked."""
    if not is_local(where):
        yield
        return
    path = Path(f"{where.removesuffix('/')}.embed.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(path, "a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InvalidInputError(
                    f"another aureole embed is writing to {where}. Wait until it ends, or stop it."
                ) from error
            try:
                held = os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
            except FileNotFoundError:
                held = False
            if not held:  # its last holder has removed it meanwhile
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _distinct(table: Any, where: str | None) -> set[str]:
    keys: set[str] = set()
    for batch in table.scanner(columns=["chunk"], filter=where).to_batches():
        keys.update(batch.column("chunk").unique().to_pylist())
    return keys
