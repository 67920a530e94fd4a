"""ChunkWorker: what one worker does with one chunk, in this process or on a cluster: read, decode, embed, write."""

import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aureole.errors import AureoleError, InvalidInputError
from aureole.retrieval import MAX_ID_BYTES, stored_direction
from aureole.scale._embedder import Embedder, load_embedder
from aureole.scale._source import LARGEST_INPUT, Broken, Chunk
from aureole.scale._sources import SourceSpec, open_source
from aureole.scale._table import Done, Fault, PosteriorTable

_PART = 65_536  # rows in memory before they are written
_REASON = 500  # characters
_DEPTH = 2  # batches decoded ahead of the model

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkOrder:
    """All that a worker needs to know, in plain values: the source, the model, the table, and sizes."""

    source: SourceSpec
    encoder: str
    normalized: bool | None
    table: PosteriorTable
    batch: int
    decoders: int = 1
    skip: frozenset[str] = field(default_factory=frozenset)


class ChunkWorker:
    """An open source and a loaded model; a call makes the rows of one chunk."""

    def __init__(self, order: WorkOrder, embedder: Embedder | None = None) -> None:
        self._order = order
        self._source = open_source(order.source)
        self._embedder = embedder or load_embedder(
            order.encoder, order.source.modality, normalized=order.normalized
        )

    def __call__(self, chunk: Chunk) -> Done:
        """The chunk's rows as fragments, and its faults."""
        return next(self.run([chunk]))

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Done]:
        """The chunks one after the other; the first inputs of one are decoded while the last before are embedded."""
        faults: list[Fault] = []
        fragments: list[str] = []
        part = _Part()
        rows = 0
        for batch in ahead(self._decode, self._pieces(chunks), self._order.decoders):
            faults += batch.faults
            if batch.inputs:
                mu, kappa = self._embedded(batch, faults)
                part.add(batch, mu, kappa)
            if part.ids and (batch.last or len(part.ids) >= _PART):
                rows += len(part.ids)
                fragments += part.write(self._order.table, batch.chunk)
                part = _Part()
            if batch.last:
                yield Done(batch.chunk, rows, fragments, faults)
                faults, fragments, rows = [], [], 0

    def _pieces(self, chunks: Iterable[Chunk]) -> Iterator["_Piece"]:
        """The inputs of the chunks, some batches at a time; the last piece of a chunk has what was refused of it."""
        size = self._order.batch * self._embedder.group
        for chunk in chunks:
            faults: list[Fault] = []
            inputs = self._fresh(self._source.read(chunk), faults)
            while items := list(islice(inputs, size)):
                yield _Piece(chunk.key, items)
            yield _Piece(chunk.key, [], faults, last=True)

    def _fresh(
        self, inputs: Iterable[tuple[str, Any]], faults: list[Fault]
    ) -> Iterator[tuple[str, Any]]:
        """Inputs with an id that can be stored, is new in the chunk, and has no row yet."""
        seen: set[str] = set()
        for name, raw in inputs:
            fault = _id_fault(name, seen)
            if fault is not None:
                faults.append(fault)
                continue
            seen.add(name)
            if name not in self._order.skip:
                yield name, raw

    def _decode(self, piece: "_Piece") -> "_Batch":
        """What can be read of some inputs; beside the model, in a thread of its own."""
        batch = _Batch(piece.chunk, list(piece.faults), last=piece.last)
        for name, raw in piece.items:
            digest = ""
            try:
                data = _loaded(raw)
                digest = _digest(data)
                prepared = self._embedder.prepare(data)
            except Exception as error:
                if isinstance(error, AureoleError) and not isinstance(error, InvalidInputError):
                    raise  # a package that is missing is no fault of the input
                # hostile files raise almost anything in decoders
                batch.faults.append(Fault(name, _reason(error), digest))
                continue
            batch.ids.append(name)
            batch.sources.append(digest)
            batch.inputs.append(prepared)
        return batch

    def _embedded(self, batch: "_Batch", faults: list[Fault]) -> tuple[np.ndarray, np.ndarray]:
        """Directions [n, D] and kappa [n] of a batch, without the rows of which the model made no posterior."""
        posterior = self._embedder.embed(batch.inputs, batch=self._order.batch)
        mu, kappa = stored_direction(posterior.mu), posterior.kappa.numpy()
        length = np.linalg.norm(mu.astype(np.float64), axis=-1)
        good = (np.abs(length - 1) < 1e-4) & (kappa >= 0)
        for row in np.flatnonzero(~good).tolist():
            reason = f"the model gave mu of norm {length[row]:.4g} and kappa {kappa[row]:.4g}."
            faults.append(Fault(batch.ids[row], reason, batch.sources[row]))
        if not good.all():
            batch.ids = [name for name, kept in zip(batch.ids, good, strict=True) if kept]
            batch.sources = [text for text, kept in zip(batch.sources, good, strict=True) if kept]
        return mu[good], kappa[good]


@dataclass(frozen=True)
class _Piece:
    """Some inputs of a chunk as they come, or its end with what was refused before it was decoded."""

    chunk: str
    items: list[tuple[str, Any]]
    faults: list[Fault] = field(default_factory=list)
    last: bool = False


class _Batch:
    """Decoded inputs of a chunk, and those that could not be."""

    def __init__(self, chunk: str, faults: list[Fault], *, last: bool) -> None:
        self.chunk, self.faults, self.last = chunk, faults, last
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.inputs: list[Any] = []


class _Part:
    """Rows that wait to be written."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._sources: list[str] = []
        self._mu: list[np.ndarray] = []
        self._kappa: list[np.ndarray] = []

    def add(self, batch: _Batch, mu: np.ndarray, kappa: np.ndarray) -> None:
        self.ids += batch.ids
        self._sources += batch.sources
        self._mu.append(mu)
        self._kappa.append(kappa)

    def write(self, table: PosteriorTable, key: str) -> list[str]:
        posterior = np.concatenate(self._mu), np.concatenate(self._kappa)
        return table.write(key, self.ids, posterior, self._sources)


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = 1
) -> Iterator[Result]:
    """The results for all items in their order, made in threads a few ahead of the one that is asked for.

    An error of the items comes after the results of those before it.

    Examples
    --------
    >>> list(ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    broken: Exception | None = None
    try:
        found = iter(items)
        while True:
            try:
                item = next(found)
            except StopIteration:
                break
            except Exception as error:
                broken = error
                break
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads + _DEPTH - 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if broken is not None:
            raise broken
    finally:
        pool.shutdown(cancel_futures=True)


def _loaded(raw: Any) -> Any:
    """The input itself: the bytes of a file, what else is given as it is."""
    if isinstance(raw, Broken):
        raise InvalidInputError(raw.reason)
    if raw is None:
        raise InvalidInputError("there is nothing in this row.")
    if not isinstance(raw, Path):
        return raw
    handle = os.open(raw, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name must not hold us up
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise InvalidInputError("it is no file.")
        if about.st_size > LARGEST_INPUT:
            raise InvalidInputError(
                f"it has {about.st_size:,} bytes; at most {LARGEST_INPUT:,} are read."
            )
        return file.read() or _empty()


def _empty() -> Any:
    raise InvalidInputError("it is empty.")


def _digest(data: Any) -> str:
    """The SHA-256 of an input as it was read, cut to 128 bits."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    elif isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).view(np.uint8).data
    return sha256(data).hexdigest()[:32]


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    known = isinstance(error, InvalidInputError)
    text = text if known else f"{type(error).__name__}: {text}"
    return text[:_REASON].encode("utf-8", "backslashreplace").decode()


def _id_fault(name: str, seen: set[str]) -> Fault | None:
    """Why an id cannot be stored, if it cannot."""
    short = name[:60].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return Fault(short, "its id is not valid Unicode.")
    if size > MAX_ID_BYTES or "\0" in name:
        return Fault(short, f"its id has {size} bytes or NUL; at most {MAX_ID_BYTES} are stored.")
    return Fault(name, "another input of the chunk has the same id.") if name in seen else None
