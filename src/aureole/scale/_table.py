"""PosteriorTable: a gallery in Lance that many workers fill, chunk by chunk, and that knows which chunks are in it.

Workers write fragments, files that nobody sees; one process commits them. A chunk's rows carry its key, so they and the
word that it is done are one commit: there is no other bookkeeping that could disagree. What is done is read from that
one column, which is all but free to store: 8 bytes a row pass through memory when a job starts, and a key for each
chunk stays. Inputs that could not be read are committed to a second table first; if the process dies in between, they
are dropped when the next one starts, and made again.
"""

import fcntl
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import compute_package, pyarrow_package
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
    shown_address,
    table_exists,
    to_arrow,
)

COLUMNS = {"source": "text", "model": "text", "chunk": "text"}
_JOB, _MODELS = "embed", "models"
_COMPARED = 20_000_000
_KEEP = timedelta(hours=1)  # how long versions that are no longer the newest can be read


@dataclass(frozen=True)
class Fault:
    """An input without a posterior: its id, why, and the hash of what was read, if something was."""

    id: str
    reason: str
    source: str = ""


@dataclass(frozen=True)
class Done:
    """A chunk that a worker has finished: the fragments with its rows, not yet committed, and its faults."""

    key: str
    rows: int
    fragments: list[str]
    faults: list[Fault]

    def to_json(self) -> str:
        """As text, to be sent."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Done":
        """From text of ``to_json``."""
        found = json.loads(text)
        faults = [Fault(**fault) for fault in found["faults"]]
        return cls(found["key"], found["rows"], found["fragments"], faults)


def absolute_address(where: str) -> str:
    """The address from anywhere: workers of a cluster do not run in the folder of the process that asks them.

    Examples
    --------
    >>> absolute_address("/data/../data/photos.lance"), absolute_address("s3://shop/photos.lance")
    ('/data/../data/photos.lance', 's3://shop/photos.lance')
    """
    return str(Path(where).absolute()) if is_local(where) else where


def errors_address(where: str) -> str:
    """The address of the table with the inputs that could not be read.

    Examples
    --------
    >>> errors_address("photos.lance")
    'photos.errors.lance'
    """
    return f"{where.removesuffix('/').removesuffix('.lance')}.errors.lance"


def table_address(out: str, weights: str) -> str:
    """The address of a model's rows: ``out`` for the first model, ``out-HASH`` beside it for any other."""
    if not out.removesuffix("/").endswith(".lance") or out.endswith(".errors.lance"):
        raise InvalidInputError(
            f"the table's name must end in .lance, but is {shown_address(out)}."
        )
    if not table_exists(out):
        return out
    store = LanceStore.open(out)
    note, origin = store.read_note(_JOB), _origin(store)
    if note is None and store.count():
        raise InvalidInputError(
            f"{out} holds a gallery that aureole embed did not make. Choose another place."
        )
    if note is None or origin.weights == weights:
        return out
    return f"{out.removesuffix('/').removesuffix('.lance')}-{weights[:12]}.lance"


class PosteriorTable:
    """The rows that one model made of one source: a gallery with the columns source, model and chunk.

    ``source`` is the SHA-256 of the input's bytes, cut to 128 bits; ``model`` the first 12 digits of that of the
    weights, which the gallery's origin has in full.
    """

    def __init__(self, where: str, schema: Schema, weights: str) -> None:
        self.where, self.errors = where, errors_address(where)
        self._schema, self._weights = schema, weights

    @classmethod
    def open(cls, out: str, dim: int, origin: Origin, job: dict[str, Any]) -> "PosteriorTable":
        """The table for a model's rows, made if need be; refused where it holds the rows of another job."""
        weights = origin.weights or ""
        where = table_address(out, weights)
        schema = Schema(dim, COLUMNS)
        if not table_exists(where):
            none = Rows(
                np.zeros(0, object),
                np.zeros((0, dim), np.float32),
                np.zeros(0, np.float32),
                {name: np.zeros(0, object) for name in COLUMNS},
            )
            LanceStore.create(where, schema, none)
        store = LanceStore.open(where)
        held = store.read_note(_JOB)
        if held is None:  # new, or its maker died at once
            store.write_note("origin", origin.to_json())
            store.write_note(_JOB, json.dumps(job))
        elif json.loads(held) != job:
            _refuse(where, json.loads(held), job)
        if where != out:
            first = LanceStore.open(out)
            models = json.loads(first.read_note(_MODELS) or "{}")
            if models.get(weights) != Path(where).name:
                models[weights] = Path(where).name
                first.write_note(_MODELS, json.dumps(models))
        return cls(where, store.schema, weights)

    @staticmethod
    def held_job(out: str, weights: str) -> dict[str, Any] | None:
        """What was embedded into the table for a model's rows, if there is one."""
        where = table_address(out, weights)
        if not table_exists(where):
            return None
        note = LanceStore.open(where).read_note(_JOB)
        return None if note is None else json.loads(note)

    def from_anywhere(self) -> "PosteriorTable":
        """The same table by its absolute address, for workers in other folders."""
        return PosteriorTable(absolute_address(self.where), self._schema, self._weights)

    def counts(self) -> tuple[int, int]:
        """(Rows, faults) that are committed."""
        lance = lance_package()
        faults = lance.dataset(self.errors).count_rows() if table_exists(self.errors) else 0
        return lance.dataset(self.where).count_rows(), faults

    def recover(self) -> set[str]:
        """The keys of the chunks that are done; faults of chunks that were not are dropped."""
        lance = lance_package()
        done = _distinct(lance.dataset(self.where), None)
        if table_exists(self.errors):
            table = lance.dataset(self.errors)
            done |= _distinct(table, "whole")
            stale = sorted(_distinct(table, None) - done)
            if stale:
                with locked(self.errors):
                    table.delete(compute_package().field("chunk").isin(stale))
        return done

    def ids(self, keys: Iterable[str]) -> set[str]:
        """The ids of the rows, and of the faults, of some chunks; all are in memory."""
        wanted, found = sorted(keys), set()
        for where in (self.where, self.errors):
            if wanted and table_exists(where):
                scanner = (
                    lance_package()
                    .dataset(where)
                    .scanner(columns=["id"], filter=compute_package().field("chunk").isin(wanted))
                )
                for batch in scanner.to_batches():
                    found.update(batch.column("id").to_pylist())
        return found

    def write(self, key: str, ids: list[str], posterior: Any, sources: list[str]) -> list[str]:
        """The fragments, as texts, with a chunk's rows: written to the disk, but in no version of the table yet."""
        n = len(ids)
        constant = {"model": self._weights[:12], "chunk": key}
        payload = {name: np.full(n, text, object) for name, text in constant.items()}
        payload["source"] = np.asarray(sources, object)
        mu, kappa = posterior
        rows = to_arrow(Rows(np.asarray(ids, object), mu, kappa, payload), self._schema)
        written = lance_package().fragment.write_fragments(rows, self.where, mode="append")
        return [json.dumps(fragment.to_json()) for fragment in written]

    def commit(self, chunks: list[Done]) -> None:
        """Make finished chunks part of the table."""
        self._commit_faults([done for done in chunks if done.faults])
        lance = lance_package()
        fragments = [
            lance.fragment.FragmentMetadata.from_json(text)
            for done in chunks
            for text in done.fragments
        ]
        if fragments:
            with locked(self.where):
                version = lance.dataset(self.where).version
                append = lance.LanceOperation.Append(fragments)
                lance.LanceDataset.commit(self.where, append, read_version=version)

    def _commit_faults(self, chunks: list[Done]) -> None:
        if not chunks:
            return
        pa = pyarrow_package()
        found = [(done, fault) for done in chunks for fault in done.faults]
        data = pa.table(
            {
                "id": pa.array([fault.id for _, fault in found], pa.string()),
                "reason": pa.array([fault.reason for _, fault in found], pa.string()),
                "source": pa.array([fault.source for _, fault in found], pa.string()),
                "model": pa.array([self._weights[:12]] * len(found), pa.string()),
                "chunk": pa.array([done.key for done, _ in found], pa.string()),
                "whole": pa.array([not done.rows for done, _ in found], pa.bool_()),
            }
        )
        with locked(self.errors):
            mode = "append" if table_exists(self.errors) else "create"
            lance_package().write_dataset(data, self.errors, mode=mode)

    def repeated(self) -> int | None:
        """How many rows have an id that a row before them has; None where there are more than 20 million rows.

        Hashes of 8 bytes are compared, so that memory is 8 bytes a row.
        """
        table = lance_package().dataset(self.where)
        rows = table.count_rows()
        if rows > _COMPARED:
            return None
        hashes, first = np.empty(rows, np.int64), 0
        for batch in table.scanner(columns=["id"]).to_batches():
            names = batch.column("id").to_pylist()
            hashes[first : first + len(names)] = np.fromiter(map(hash, names), np.int64, len(names))
            first += len(names)
        return rows - len(np.unique(hashes))

    def settle(self) -> None:
        """Note the median kappa of all rows as the typical one, and let go of versions that are an hour old."""
        lance = lance_package()
        table = lance.dataset(self.where)

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


def lower_median(pieces: Callable[[], Iterable[np.ndarray]]) -> float | None:
    """The median of float32 values from 0 on, the lower of the two if they are even; two passes, no growing memory.

    Such floats are in the order of their bits: the first pass finds the upper 16 bits, the second the lower.

    Examples
    --------
    >>> lower_median(lambda: [np.float32([5, 1]), np.float32([3, 2])])
    2.0
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
    """The right to fill a table; refused while another process of this machine has it. Not kept on object stores."""
    if not is_local(where):
        yield
        return
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    with open(f"{where.removesuffix('/')}.embed.lock", "a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(
                f"another aureole embed is filling {where}. Wait for it, or stop it."
            ) from error
        yield


def _distinct(table: Any, where: str | None) -> set[str]:
    found: set[str] = set()
    for batch in table.scanner(columns=["chunk"], filter=where).to_batches():
        found.update(batch.column("chunk").unique().to_pylist())
    return found


def _origin(store: LanceStore) -> Origin:
    text = store.read_note("origin")
    return Origin() if text is None else Origin.from_json(text)


def _refuse(where: str, held: dict[str, Any], job: dict[str, Any]) -> None:
    name = next(name for name in {**held, **job} if held.get(name) != job.get(name))
    raise InvalidInputError(
        f"{where} was filled with {name} {held.get(name)!r}, not {job.get(name)!r}. Give the same command again to go "
        "on, or another --out."
    )
