"""follow: keeps a table of posteriors up to date with its source, until it is stopped."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, EncoderError, InvalidInputError, WriteError
from aureole.retrieval import CredibleIndex, LanceStore
from aureole.scale._embed import EmbedOptions, job_of, origin_of
from aureole.scale._embedder import Embedder, ModelSpec
from aureole.scale._posterior_table import (
    Fault,
    PosteriorTable,
    absolute_address,
    check_address,
    exclusive,
    table_address,
)
from aureole.scale._sources import Chunk, Source, SourceSpec, check_source, open_source
from aureole.scale._watch import Watch, is_database, open_watch
from aureole.scale._worker import ChunkWorker, WorkOrder, input_digest, load_input

_KEY = "follow"  # chunk of the rows that are written here
_COMPARED = 256  # inputs whose stored hashes are looked up at once
_TIDY = 200  # commits after which small files are merged


@dataclass(frozen=True)
class FollowOptions:
    """How a source is followed.

    Attributes
    ----------
    every
        Seconds between two looks at the source (default 2).
    updated
        PostgreSQL: the column with the time of a row's last change (default: the id, which must grow; changed rows are
        not found then).
    """

    every: float = 2.0
    updated: str | None = None

    def __post_init__(self) -> None:
        if not 0.01 <= self.every <= 86_400:
            raise InvalidInputError(f"every must be 0.01 to 86400 seconds, but is {self.every}.")


@dataclass(frozen=True)
class FollowRound:
    """What one look at the source has changed.

    Attributes
    ----------
    added, replaced, rows
        The number of rows that are new, that were replaced, and in total.
    errors, reason
        The number of inputs that could not be read, and the first reason; or why the source could not be read.
    seconds
        From the beginning of the look to the last commit.
    """

    added: int
    replaced: int
    rows: int
    errors: int
    reason: str | None
    seconds: float


def follow(
    source: str | SourceSpec,
    model: Any,
    out: str,
    *,
    options: FollowOptions | None = None,
    work: EmbedOptions | None = None,
    stop: threading.Event | None = None,
    observer: Callable[[FollowRound], None] | None = None,
) -> None:
    """Embed inputs of a source that are new or have changed, again and again, until ``stop`` is set.

    The table is that of :func:`embed`, which is faster for the first rows of a large source. Rows are replaced if the
    SHA-256 of their input differs, so a run that was killed resumes. Each commit is visible at once to an open
    ``CredibleIndex`` and to a running service. Rows whose input was deleted stay. The first look reads every
    input; later ones those whose file or row has changed.

    An error of the source that may pass, such as a database that restarts or a file that is being written, is reported
    to the observer, and the next look tries again. In the first look it is raised.

    Parameters
    ----------
    source
        A folder of pictures, a table with an id column, or a table ``postgresql://user@host/database#table``.
    model
        As for :func:`embed`.
    out
        The address of the table; its name ends in ``.lance``.
    options
        The time between looks, and the column with the time of changes.
    work
        Batch size, decoding threads and the largest time between commits.
    stop
        Ends it, after a commit of what is done (default: it never ends).
    observer
        Called after each look that did something.
    """
    options, work, stop = (
        options or FollowOptions(),
        work or EmbedOptions(),
        stop or threading.Event(),
    )
    spec = source if isinstance(source, SourceSpec) else SourceSpec(source)
    check_address(out)
    guessed = None
    if not is_database(spec.path):
        spec = replace(spec, path=absolute_address(spec.path))
        guessed = check_source(spec)
    open_watch(
        spec, options.updated
    ).close()  # what can be refused is refused before a model is loaded
    model = (model if isinstance(model, ModelSpec) else ModelSpec(model)).absolute()
    embedder = model.load(spec.modality, guessed)
    spec = replace(spec, modality=embedder.modality)
    watch = open_watch(spec, options.updated)
    try:
        with exclusive(table_address(out, embedder.weights)):
            job = job_of(_with_chunks(spec, out, embedder), model, embedder)
            table = PosteriorTable.open(out, embedder.dim, origin_of(embedder), job)
            try:
                follower = _Follower(table, watch, spec, embedder, work)
                follower.run(options.every, stop, observer)
            except BaseException:
                table.remove_if_new()
                raise
    finally:
        watch.close()


def _with_chunks(spec: SourceSpec, out: str, embedder: Embedder) -> SourceSpec:
    """The source with the size of chunks that ``embed`` uses or used, so that either can resume the other."""
    held = PosteriorTable.held_job(out, embedder.weights) or {}
    spec = replace(spec, rows_per_chunk=spec.rows_per_chunk or held.get("rows_per_chunk"))
    if is_database(spec.path):
        return spec
    return replace(spec, rows_per_chunk=getattr(open_source(spec), "rows_per_chunk", None))


class _Follower:
    """The loop: look, embed what differs, commit, wait."""

    def __init__(
        self,
        table: PosteriorTable,
        watch: Watch,
        spec: SourceSpec,
        embedder: Embedder,
        work: EmbedOptions,
    ) -> None:
        self._table, self._watch, self._work = table, watch, work
        self._store, self._index = LanceStore.open(table.where), CredibleIndex.open(table.where)
        self._rows, self._model = _Memory(), embedder.weights[:12]
        order = WorkOrder(spec, ModelSpec(), self._rows, work.batch, work.decoders)
        self._worker = ChunkWorker(order, embedder, _Items())
        self._piece = work.batch * embedder.group
        self._commits = 0

    def run(
        self, every: float, stop: threading.Event, observer: Callable[[FollowRound], None] | None
    ) -> None:
        """Look until ``stop`` is set."""
        first, said = True, None
        while first or not stop.wait(every):
            started = time.monotonic()
            try:
                round_, said = self._round(stop), None
            except (EncoderError, WriteError):
                raise
            except AureoleError as error:
                if first:
                    raise
                if str(error) == said:  # reported already
                    continue
                said, seconds = str(error), time.monotonic() - started
                round_ = FollowRound(0, 0, self._index.count(), 0, said, seconds)
            if first:
                self._table.finish()  # the typical kappa
            if observer is not None and (first or round_.reason or round_.added + round_.replaced):
                observer(round_)
            first = False
        self._table.finish()

    def _round(self, stop: threading.Event) -> FollowRound:
        """Embed and store what has changed."""
        started = time.monotonic()
        added = replaced = 0
        faults: list[Fault] = []
        inputs = self._fresh(self._watch.changed())
        committed = time.monotonic()
        ended = False
        while not ended and not stop.is_set():
            items = list(islice(inputs, self._piece))
            ended = not items
            if items:
                faults += self._worker(Chunk(_KEY, items, len(items))).faults
            late = time.monotonic() - committed >= self._work.commit_seconds
            if len(self._rows) and (ended or late or stop.is_set()):
                new, old = self._commit()
                added, replaced = added + new, replaced + old
                committed = time.monotonic()
        if len(self._rows):
            new, old = self._commit()
            added, replaced = added + new, replaced + old
        if ended:
            self._watch.settle()
        reason = f"{faults[0].id[:60]}: {faults[0].reason}" if faults else None
        seconds = time.monotonic() - started
        return FollowRound(added, replaced, self._index.count(), len(faults), reason, seconds)

    def _fresh(self, inputs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The inputs whose hash is not that of their row."""
        while items := list(islice(inputs, _COMPARED)):
            stored = self._stored([name for name, _ in items])
            for name, raw in items:
                try:
                    data = load_input(raw)
                    same = stored.get(name) == input_digest(data)
                except Exception:  # reported with its reason when it is decoded
                    yield name, raw
                    continue
                if not same:
                    yield name, data

    def _stored(self, names: list[str]) -> dict[str, str]:
        """The hashes of the inputs that have a row."""
        rows = self._store.fetch(list(dict.fromkeys(names)), ["source"])
        return dict(zip(rows.ids.tolist(), rows.payload["source"].tolist(), strict=True))

    def _commit(self) -> tuple[int, int]:
        """Store the rows in memory, and return how many are new, and how many were replaced."""
        ids, sources, mu, kappa = self._rows.take()
        posterior = VonMisesFisher(
            torch.from_numpy(mu), torch.from_numpy(kappa), validate_args=False
        )
        constant = {"model": [self._model] * len(ids), "chunk": [_KEY] * len(ids)}
        replaced = self._index.upsert(posterior, ids, {"source": sources, **constant})
        self._commits += 1
        if self._commits % _TIDY == 0:
            self._table.tidy()
        return len(ids) - replaced, replaced


class _Items(Source):
    """A source whose chunks hold their inputs."""

    def chunks(self) -> Iterator[Chunk]:
        """No chunks of its own."""
        return iter(())

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each input of a chunk."""
        return iter(chunk.place)


class _Memory:
    """Rows that are embedded and not committed; the last one of an id counts."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, np.ndarray, float]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def write(self, key: str, ids: list[str], posterior: Any, sources: list[str]) -> list[str]:
        """Keep the rows of a chunk."""
        del key
        for name, source, mu, kappa in zip(ids, sources, *posterior, strict=True):
            self._rows[name] = (source, mu, kappa)
        return []

    def take(self) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
        """(Ids, hashes of inputs, mu, kappa) of all rows, which are forgotten."""
        rows, self._rows = self._rows, {}
        sources, mu, kappa = zip(*rows.values(), strict=True)
        return list(rows), list(sources), np.stack(mu), np.asarray(kappa, np.float32)
