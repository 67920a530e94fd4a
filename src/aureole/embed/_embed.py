"""embed: the posteriors of all inputs of a source in a table, computed in this process or with Ray."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aureole.data._addresses import full_address
from aureole.embed._embedder import ModelSpec
from aureole.embed._posterior_table import PosteriorTable
from aureole.embed._ray import check_parallel, run_ray
from aureole.embed._worker import Order, Source, SourceSpec, Worker
from aureole.engines._addresses import is_local
from aureole.errors import InvalidInputError


@dataclass(frozen=True)
class Progress:
    """Progress of a job: inputs of this run and of earlier runs, the total, faults, and inputs per second."""

    done: int
    before: int
    total: int
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
    batch: int = 64,
    workers: int = 1,
    address: str | None = None,
    observer: Callable[[Progress], None] | None = None,
) -> EmbedReport:
    """Write the posteriors of all inputs of a source to the Lance table ``out``, which ``CredibleIndex.open`` opens.

    Inputs that already have a row are skipped, so a job that died resumes when it is called again with the same
    arguments, and inputs that a source gained get rows. Rows are committed every two seconds. The rows of a second
    model go to a separate table whose name contains the model's hash. The table ``….errors.lance`` lists the inputs
    that could not be read, with the reason. With one worker and no address everything runs in this process, without
    Ray.

    Parameters
    ----------
    source
        What to embed: a path, or a ``SourceSpec`` to name columns or the modality.
    model
        What to embed with: a ``ModelSpec`` of an encoder and a head, or an encoder or head alone: see
        ``load_embedder``. Python objects need one worker.
    out
        The address of the table; its name ends in ``.lance``.
    batch
        Inputs per call of the model (default 64; more is slower on a CPU, and may be faster on a GPU).
    workers, address
        The number of single-threaded processes (default 1), on this machine or on the Ray cluster at the address.
    observer
        Called with the progress after each batch.
    """
    for name, value in (("workers", workers), ("batch", batch)):
        if value < 1:
            raise InvalidInputError(f"{name} must be 1 or more, but is {value}.")
    spec = source if isinstance(source, SourceSpec) else SourceSpec(full_address(source))
    if is_local(spec.path):  # workers run in another working directory
        spec = replace(spec, path=str(Path(spec.path).resolve()))
    model = (model if isinstance(model, ModelSpec) else ModelSpec(model)).absolute()
    guess = Source(spec).guess()
    parallel = workers > 1 or address is not None
    if parallel:
        check_parallel(model)
    embedder = model.load(spec.modality, guess)
    spec = replace(spec, modality=embedder.modality)
    opened = Source(spec)
    job = {**asdict(spec), "normalized": model.normalized, "encoder": embedder.fingerprint}
    with PosteriorTable(full_address(out), embedder, job) as table:
        order = Order(spec, model, batch, table.done, table.contents)
        if parallel:
            results = run_ray(order, opened, workers=workers, address=address)
        else:
            results = Worker(order, embedder, opened).run(opened.pieces())
        before, total = sum(table.counts()), 0 if observer is None else opened.rows()
        good = faults = 0
        marks = [(time.monotonic(), 0)]  # the start, the first rows and the last rows
        for rows in results:
            more, bad = table.add(rows)
            good, faults = good + more, faults + bad
            marks = [*marks[:2], (time.monotonic(), good + faults)]
            if observer is not None:
                observer(Progress(good + faults, before, total, faults, _rate(marks)))
        table.finish()
        return EmbedReport(
            table.where,
            table.errors,
            *table.counts(),
            new_rows=good,
            new_errors=faults,
            model=embedder.weights,
            dim=embedder.dim,
            seconds=time.monotonic() - marks[0][0],
            rows_per_second=_rate(marks),
        )


def _rate(marks: list[tuple[float, int]]) -> float:
    """Return the inputs per second since the first rows came; of a single batch, since the start."""
    (start, before), (end, done) = marks[max(0, len(marks) - 2)], marks[-1]
    return (done - before) / max(end - start, 1e-9)
