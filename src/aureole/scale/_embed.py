"""embed: all inputs of a source as posteriors in a table, in this process or by workers over Ray."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aureole.errors import InvalidInputError
from aureole.retrieval import Origin, is_local
from aureole.scale._embedder import Embedder, Modality, load_embedder, modality_of
from aureole.scale._source import Chunk, Source
from aureole.scale._sources import SourceSpec, guess_modality, open_source
from aureole.scale._table import Done, PosteriorTable, absolute_address, exclusive, table_address
from aureole.scale._worker import ChunkWorker, WorkOrder


@dataclass(frozen=True)
class Progress:
    """How far a job is: inputs of this run, and before it, of how many where that is known; faults, inputs a second."""

    done: int
    before: int
    total: int | None
    faults: int
    rate: float


@dataclass(frozen=True)
class EmbedReport:
    """What a job did.

    Attributes
    ----------
    table, errors_table
        Where the rows are, and the inputs that could not be read.
    rows, errors
        How many are there now.
    new_rows, new_errors
        How many of them this run made.
    model, dim
        The SHA-256 of the model's weights, and the dimension of its posteriors.
    repeated
        Rows whose id another row has, which only an id column can cause; None where that was not looked at.
    seconds
        Of this run, once model and source were open.
    rows_per_second
        Once each worker has had its first chunk, where there were more: they take some seconds to start.
    """

    table: str
    errors_table: str
    rows: int
    errors: int
    new_rows: int
    new_errors: int
    model: str
    dim: int
    repeated: int | None
    seconds: float
    rows_per_second: float


def embed(
    source: str | Path,
    encoder: str | Path,
    out: str | Path,
    *,
    modality: Modality | None = None,
    column: str | None = None,
    id_column: str | None = None,
    normalized: bool | None = None,
    workers: int = 1,
    address: str | None = None,
    batch: int = 128,
    decoders: int = 1,
    rows_per_chunk: int | None = None,
    commit_seconds: float = 2.0,
    observer: Callable[[Progress], None] | None = None,
) -> EmbedReport:
    """Posteriors of all inputs of a source in the Lance table ``out``, which ``CredibleIndex.open`` opens.

    What is there already is not made again, so a job that died goes on when it is called again with the same
    arguments; one that grew at its end gets the new inputs. The rows of another model go to a table beside, whose name
    has its hash. Inputs that cannot be read are in ``errors_address(table)`` with the reason. With one worker and no
    address everything happens in this process and Ray is not needed.

    Parameters
    ----------
    source, modality, column, id_column, rows_per_chunk
        What to embed: see ``SourceSpec``.
    encoder, normalized
        The folder of a saved model: see ``load_embedder``.
    out
        The table; its name ends in ``.lance``.
    workers, address
        Processes of one thread each, on this machine or on the Ray cluster at the address.
    batch
        Inputs that go through the model at once.
    decoders
        Threads that decode beside the model in each worker.
    commit_seconds
        How often rows become part of the table: what a crash can lose, besides chunks that were begun.
    observer
        Told the progress after each chunk.
    """
    for name, value in (("workers", workers), ("batch", batch), ("decoders", decoders)):
        if value < 1:
            raise InvalidInputError(f"{name} must be 1 or more, but is {value}.")
    if rows_per_chunk is not None and rows_per_chunk < 1:
        raise InvalidInputError(f"rows_per_chunk must be 1 or more, but is {rows_per_chunk}.")
    place = absolute_address(str(source))
    modality = modality or _modality(str(place), Path(encoder), column)
    embedder = load_embedder(encoder, modality, normalized=normalized)
    target = str(out)
    with exclusive(table_address(target, embedder.weights)):
        held = PosteriorTable.held_job(target, embedder.weights) or {}
        spec = SourceSpec(place, embedder.modality, column, id_column)
        spec = replace(spec, rows_per_chunk=rows_per_chunk or held.get("rows_per_chunk"))
        opened = open_source(spec)
        # the size is settled by the first run: a source that grew keeps its chunks
        spec = replace(spec, rows_per_chunk=getattr(opened, "rows_per_chunk", None))
        job = {**asdict(spec), "path": _kept(place), "normalized": normalized}
        origin = Origin(embedder.kappa_pos, embedder.weights)
        table = PosteriorTable.open(target, embedder.dim, origin, job)
        done = table.recover()
        order = WorkOrder(
            spec, str(Path(encoder).absolute()), normalized, table.from_anywhere(), batch,
            decoders, _moved(opened, table, done),
        )  # fmt: skip
        run = _Run(table, opened, done, commit_seconds, workers, observer)
        if workers == 1 and address is None:
            run.take(_here(order, embedder, run.missing()))
        else:
            from aureole.scale._ray import map_chunks

            run.take(map_chunks(order, run.missing(), workers=workers, address=address))
        table.settle()
        named = id_column is not None and run.made_rows()
        return run.report(embedder, table.repeated() if named else None)


class _Run:
    """The books of one run: what is missing, what came in, when to commit."""

    def __init__(
        self,
        table: PosteriorTable,
        source: Source,
        done: set[str],
        commit_seconds: float,
        workers: int,
        observer: Callable[[Progress], None] | None,
    ) -> None:
        self._table, self._source, self._done, self._observer = table, source, done, observer
        self._commit_seconds, self._total = commit_seconds, source.rows()
        self._chunks = None if self._total is not None else sum(1 for _ in source.chunks())
        self._before, self._started = sum(table.counts()), time.monotonic()
        self._workers = workers
        self._taken = self._rows = self._faults = 0
        self._first: tuple[float, int] | None = None

    def missing(self) -> Iterator[Chunk]:
        """The chunks that are not done."""
        return (chunk for chunk in self._source.chunks() if chunk.key not in self._done)

    def take(self, results: Iterator[Done]) -> None:
        """Commit what comes in, every few seconds; at the end of it, and when it breaks off, what is left."""
        waiting: list[Done] = []
        last = time.monotonic()
        try:
            for done in results:
                if done.key in self._done:
                    continue  # an engine may do a chunk twice; its second fragments are never seen
                self._done.add(done.key)
                waiting.append(done)
                self._count(done)
                if time.monotonic() - last >= self._commit_seconds:
                    ready, waiting = waiting, []
                    self._table.commit(ready)
                    last = time.monotonic()
        finally:
            self._table.commit(waiting)

    def made_rows(self) -> bool:
        """Whether this run made any."""
        return self._rows > 0

    def report(self, embedder: Embedder, repeated: int | None) -> EmbedReport:
        """What was done."""
        seconds = time.monotonic() - self._started
        rows, faults = self._table.counts()
        return EmbedReport(
            self._table.where, self._table.errors, rows, faults, self._rows, self._faults,
            embedder.weights, embedder.dim, repeated, seconds, self._rate(),
        )  # fmt: skip

    def _count(self, done: Done) -> None:
        self._taken += 1
        self._rows += done.rows
        self._faults += len(done.faults)
        if self._taken == self._workers:  # each has had its first
            self._first = (time.monotonic(), self._rows + self._faults)
        if self._observer is None:
            return
        now, total = self._rows + self._faults, self._total
        if (
            self._chunks is not None
        ):  # inputs unknown: as many in the chunks to come as in those so far
            total = round((self._before + now) / max(1, len(self._done)) * self._chunks)
        self._observer(Progress(now, self._before, total, self._faults, self._rate()))

    def _rate(self) -> float:
        """Inputs a second since each worker has had its first chunk; before that, since the start."""
        now, done = time.monotonic(), self._rows + self._faults
        start, before = self._first or (self._started, 0)
        if done <= before:
            start, before = self._started, 0
        return (done - before) / (now - start) if now > start else 0.0


def _here(order: WorkOrder, embedder: Embedder, chunks: Iterator[Chunk]) -> Iterator[Done]:
    """The chunks one after the other in this process."""
    return ChunkWorker(order, embedder).run(chunks)


def _moved(source: Source, table: PosteriorTable, done: set[str]) -> frozenset[str]:
    """The ids that have a row under a chunk which the source no longer has, since it changed."""
    if not done:
        return frozenset()
    foreign = done - {chunk.key for chunk in source.chunks()}
    if foreign and not source.named:
        raise InvalidInputError(
            f"the source has changed since {table.where} was begun, and its rows are told apart by numbers "
            "alone. Give an --id-column and another --out."
        )
    return frozenset(table.ids(foreign))


def _modality(source: str, encoder: Path, column: str | None) -> Modality:
    """What to embed: what the model takes, unless it is a head and the source has texts alone."""
    own = modality_of(encoder)
    found = guess_modality(source, column)
    return "text" if own == "vector" and found == "text" else own


def _kept(place: str) -> str:
    """The source as a table remembers it."""
    return str(Path(place).resolve()) if is_local(place) else place
