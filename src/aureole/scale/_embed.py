"""embed: the posteriors of all inputs of a source in a table, computed in this process or by Ray workers."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aureole.data import full_address
from aureole.errors import InvalidInputError
from aureole.retrieval import Origin, is_local
from aureole.scale._embedder import Embedder, ModelSpec
from aureole.scale._posterior_table import (
    Done,
    PosteriorTable,
    absolute_address,
    check_address,
    exclusive,
    table_address,
)
from aureole.scale._ray import check_parallel, map_chunks
from aureole.scale._sources import Chunk, Source, SourceSpec, check_source, open_source
from aureole.scale._worker import ChunkWorker, WorkOrder


@dataclass(frozen=True)
class EmbedOptions:
    """How to run a bulk embedding.

    Attributes
    ----------
    batch
        Inputs per call of the model (default 64; more is slower on a CPU, and may be faster on a GPU).
    decoders
        Threads per worker that decode inputs in parallel with the model (default 1).
    commit_seconds
        Seconds between commits (default 2): a crash loses the uncommitted chunks.
    """

    batch: int = 64
    decoders: int = 1
    commit_seconds: float = 2.0


@dataclass(frozen=True)
class Progress:
    """Progress of a job: inputs of this run and of earlier runs, the total if known, faults, and inputs per second."""

    done: int
    before: int
    total: int | None
    faults: int
    rate: float


@dataclass(frozen=True)
class EmbedReport:
    """The outcome of a job.

    Attributes
    ----------
    table, errors_table
        The addresses of the table of posteriors, and of the table of inputs that could not be read.
    rows, errors
        The number of rows in each.
    new_rows, new_errors
        The number of rows that this run added.
    model, dim
        The SHA-256 of the model's weights, and the dimension of its posteriors.
    repeated
        Rows whose id another row has, which only an id column can cause; None if it was not checked.
    seconds
        Duration of this run, without opening the model and the source.
    rows_per_second
        Measured after each worker's first chunk if there were more, as workers take seconds to start.
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
    source: str | Path | SourceSpec,
    model: Any,
    out: str | Path,
    *,
    workers: int = 1,
    address: str | None = None,
    options: EmbedOptions | None = None,
    observer: Callable[[Progress], None] | None = None,
) -> EmbedReport:
    """Write the posteriors of all inputs of a source to the Lance table ``out``, which ``CredibleIndex.open`` opens.

    Inputs that already have a row are skipped, so a job that died resumes when it is called again with the same
    arguments, and a source that grew at its end gets rows for the new inputs. The rows of a second model go to a
    separate table whose name contains the model's hash. ``errors_address(table)`` lists the inputs that could not be
    read, with the reason. With one worker and no address everything runs in this process, without Ray.

    Parameters
    ----------
    source
        What to embed: a path, or a ``SourceSpec`` to name columns, the modality or the chunk size.
    model
        What to embed with: a ``ModelSpec`` of an encoder and a head, or an encoder or head alone: see
        ``load_embedder``. Python objects need one worker.
    out
        The address of the table; its name ends in ``.lance``.
    workers, address
        The number of single-threaded processes (default 1), on this machine or on the Ray cluster at the address.
    options
        Batch size, decoding threads and commit interval: see ``EmbedOptions``.
    observer
        Called with the progress after each chunk.
    """
    options = options or EmbedOptions()
    spec = source if isinstance(source, SourceSpec) else SourceSpec(full_address(source))
    sizes = {"workers": workers, "batch": options.batch, "decoders": options.decoders}
    for name, value in (sizes | {"rows_per_chunk": spec.rows_per_chunk}).items():
        if value is not None and value < 1:
            raise InvalidInputError(f"{name} must be 1 or more, but is {value}.")
    spec = replace(spec, path=absolute_address(spec.path))
    model = (model if isinstance(model, ModelSpec) else ModelSpec(model)).absolute()
    parallel = workers > 1 or address is not None
    target = full_address(out)
    # all that can be refused is refused before a model is loaded and before anything is written
    guessed = check_source(spec)
    check_address(target)
    if parallel:
        check_parallel(model)
    embedder = model.load(spec.modality, guessed)
    spec = replace(spec, modality=embedder.modality)
    held = PosteriorTable.held_job(target, embedder.weights) or {}
    opened = open_source(
        replace(spec, rows_per_chunk=spec.rows_per_chunk or held.get("rows_per_chunk"))
    )
    # the first run fixes the chunk size, so that a source that grew keeps its chunks
    spec = replace(spec, rows_per_chunk=getattr(opened, "rows_per_chunk", None))
    with exclusive(table_address(target, embedder.weights)):
        table = PosteriorTable.open(
            target, embedder.dim, origin_of(embedder), job_of(spec, model, embedder)
        )
        try:
            done = table.recover()
            order = WorkOrder(
                spec, model, table.from_anywhere(),
                options.batch, options.decoders, _moved(opened, table, done),
            )  # fmt: skip
            run = _Run(table, opened, done, workers=workers, observer=observer)
            if parallel:
                results = map_chunks(order, run.missing(), workers=workers, address=address)
            else:
                results = ChunkWorker(order, embedder).run(run.missing())
            run.commit_all(results, options.commit_seconds)
        except BaseException:
            table.remove_if_new()
            raise
        table.finish()
        check_ids = spec.id_column is not None and run.rows > 0
        return run.report(embedder, table.repeated() if check_ids else None)


def origin_of(embedder: Embedder) -> Origin:
    return Origin(embedder.kappa_pos, embedder.weights, embedder.fingerprint)


def job_of(spec: SourceSpec, model: ModelSpec, embedder: Embedder) -> dict[str, Any]:
    """What a later run must repeat to add rows to the same table."""
    path = str(Path(spec.path).resolve()) if is_local(spec.path) else spec.path
    job = {**asdict(spec), "path": path, "normalized": model.normalized}
    if embedder.fingerprint is not None:
        job["encoder"] = embedder.fingerprint
    return job


class _Run:
    """Bookkeeping of one run: which chunks are missing, counts, rates and commits."""

    def __init__(
        self,
        table: PosteriorTable,
        source: Source,
        done: set[str],
        *,
        workers: int,
        observer: Callable[[Progress], None] | None,
    ) -> None:
        self._table, self._source, self._done, self._observer = table, source, done, observer
        self._total, self._workers = source.rows(), workers
        self._chunks = None if self._total is not None else sum(1 for _ in source.chunks())
        self._before, self._started = sum(table.counts()), time.monotonic()
        self._received = self.rows = self._faults = 0
        self._warm: tuple[float, int] | None = None

    def missing(self) -> Iterator[Chunk]:
        """The chunks that are not done."""
        return (chunk for chunk in self._source.chunks() if chunk.key not in self._done)

    def commit_all(self, results: Iterator[Done], commit_seconds: float) -> None:
        """Commit finished chunks every few seconds, and the rest at the end or when an error stops the run."""
        waiting: list[Done] = []
        last = time.monotonic()
        try:
            for done in results:
                if done.key in self._done:
                    continue  # Ray may run a chunk twice; the second fragments are never committed
                self._done.add(done.key)
                waiting.append(done)
                self._count(done)
                if time.monotonic() - last >= commit_seconds:
                    ready, waiting = waiting, []
                    self._table.commit(ready)
                    last = time.monotonic()
        finally:
            self._table.commit(waiting)

    def report(self, embedder: Embedder, repeated: int | None) -> EmbedReport:
        """The report of this run."""
        seconds = time.monotonic() - self._started
        rows, faults = self._table.counts()
        return EmbedReport(
            self._table.where, self._table.errors, rows, faults, self.rows, self._faults,
            embedder.weights, embedder.dim, repeated, seconds, self._rate(),
        )  # fmt: skip

    def _count(self, done: Done) -> None:
        self._received += 1
        self.rows += done.rows
        self._faults += len(done.faults)
        if self._received == self._workers:  # each worker has had its first chunk
            self._warm = (time.monotonic(), self.rows + self._faults)
        if self._observer is None:
            return
        now, total = self.rows + self._faults, self._total
        if self._chunks is not None:  # unknown total: extrapolate from the chunks so far
            total = round((self._before + now) / max(1, len(self._done)) * self._chunks)
        self._observer(Progress(now, self._before, total, self._faults, self._rate()))

    def _rate(self) -> float:
        """Inputs per second since each worker has had its first chunk; before that, since the start."""
        now, done = time.monotonic(), self.rows + self._faults
        start, before = self._warm or (self._started, 0)
        if done <= before:
            start, before = self._started, 0
        return (done - before) / (now - start) if now > start else 0.0


def _moved(source: Source, table: PosteriorTable, done: set[str]) -> frozenset[str]:
    """The ids that already have a row, under a chunk that the changed source no longer has."""
    if not done:
        return frozenset()
    foreign = done - {chunk.key for chunk in source.chunks()}
    if foreign and not source.named:
        raise InvalidInputError(
            f"the source has changed since {table.where} was started, and its rows are identified by row numbers "
            "alone. Choose an --id-column and another --out."
        )
    return frozenset(table.ids(foreign))
