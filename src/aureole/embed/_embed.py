"""embed: the posteriors of all inputs of a source in a table, computed in this process or with Ray."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aureole.data._addresses import full_address
from aureole.embed._embedder import Embedder, ModelSpec
from aureole.embed._posterior_table import PosteriorTable
from aureole.embed._ray import check_parallel, run_ray
from aureole.embed._sources import Source, SourceSpec
from aureole.embed._worker import Order, Worker
from aureole.engines._addresses import is_local
from aureole.errors import InvalidInputError


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
        Seconds between commits (default 2): a crash loses the rows since the last one.
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
        The addresses of the table of posteriors, and of the table of inputs without one.
    rows, errors
        The number of rows in each.
    new_rows, new_errors
        The number of rows that this run added.
    model, dim
        The SHA-256 of the model's weights, and the dimension of its posteriors.
    seconds
        Duration of this run, without opening the model and the source.
    rows_per_second
        Measured from the first rows on, as workers take seconds to start.
    """

    table: str
    errors_table: str
    rows: int
    errors: int
    new_rows: int
    new_errors: int
    model: str
    dim: int
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
    arguments, and inputs that a source gained get rows. The rows of a second model go to a separate table whose name
    contains the model's hash. The table ``….errors.lance`` lists the inputs that could not be read, with the reason.
    With one worker and no address everything runs in this process, without Ray.

    Parameters
    ----------
    source
        What to embed: a path, or a ``SourceSpec`` to name columns or the modality.
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
        Called with the progress after each batch.
    """
    options = options or EmbedOptions()
    spec = source if isinstance(source, SourceSpec) else SourceSpec(full_address(source))
    sizes = {"workers": workers, "batch": options.batch, "decoders": options.decoders}
    for name, value in sizes.items():
        if value < 1:
            raise InvalidInputError(f"{name} must be 1 or more, but is {value}.")
    spec = replace(spec, path=_absolute(spec.path))
    model = (model if isinstance(model, ModelSpec) else ModelSpec(model)).absolute()
    guess = Source(spec).guess()
    parallel = workers > 1 or address is not None
    if parallel:
        check_parallel(model)
    embedder = model.load(spec.modality, guess)
    spec = replace(spec, modality=embedder.modality)
    opened = Source(spec)
    job = {**asdict(spec), "normalized": model.normalized, "encoder": embedder.fingerprint}
    with PosteriorTable(full_address(out), embedder, job, options.commit_seconds) as table:
        order = Order(spec, model, options.batch, options.decoders, table.done, table.contents)
        if parallel:
            results = run_ray(order, opened, workers=workers, address=address)
        else:
            results = Worker(order, embedder, opened).run(opened.pieces())
        run = _Run(table, None if observer is None else opened.rows(), observer)
        for rows in results:
            run.add(rows)
        table.finish()
        return run.report(embedder)


def _absolute(where: str) -> str:
    """Return the absolute form of an address, as workers run in another working directory."""
    return str(Path(where).resolve()) if is_local(where) else where


class _Run:
    """The counts and the rate of one run."""

    def __init__(
        self, table: PosteriorTable, total: int | None, observer: Callable[[Progress], None] | None
    ) -> None:
        self._table, self._total, self._observer = table, total, observer
        self._before, self._started = sum(table.counts()), time.monotonic()
        self._rows = self._faults = 0
        self._warm: tuple[float, int] | None = None

    def add(self, rows: Any) -> None:
        """Add a worker's rows to the table."""
        good, faults = self._table.add(rows)
        self._rows, self._faults = self._rows + good, self._faults + faults
        done = self._rows + self._faults
        self._warm = self._warm or (time.monotonic(), done)
        if self._observer is not None:
            progress = Progress(done, self._before, self._total, self._faults, self._rate())
            self._observer(progress)

    def report(self, embedder: Embedder) -> EmbedReport:
        """Return the report of this run."""
        seconds, table = time.monotonic() - self._started, self._table
        counts = (*table.counts(), self._rows, self._faults)
        about = (embedder.weights, embedder.dim, seconds, self._rate())
        return EmbedReport(table.where, table.errors, *counts, *about)

    def _rate(self) -> float:
        """Return the inputs per second since the first rows came; of a single batch, since the start."""
        now, done = time.monotonic(), self._rows + self._faults
        start, before = self._warm or (self._started, 0)
        if done <= before:
            start, before = self._started, 0
        return (done - before) / max(now - start, 1e-9)
