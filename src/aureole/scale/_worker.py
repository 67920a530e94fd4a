"""ChunkWorker: reads, decodes, embeds and writes one chunk, in this process or on a cluster."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import compress, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from aureole.data import RemotePath
from aureole.encoders import ahead
from aureole.errors import AureoleError, EncoderError, InvalidInputError, MissingInputError
from aureole.retrieval import MAX_ID_BYTES, stored_direction
from aureole.scale._embedder import Embedder, ModelSpec
from aureole.scale._posterior_table import Done, Fault
from aureole.scale._sources import (
    MAX_INPUT_BYTES,
    Broken,
    Chunk,
    Source,
    SourceSpec,
    open_source,
    too_large,
)

_BUFFERED_ROWS = 65_536  # in memory before they are written
_MAX_REASON = 500  # characters


@runtime_checkable
class RowWriter(Protocol):
    """Where a worker puts the rows of a chunk: a ``PosteriorTable``, or memory."""

    def write(self, key: str, ids: list[str], posterior: Any, sources: list[str]) -> list[str]:
        """Keep a chunk's rows, and return the names of what was written."""
        ...


@dataclass(frozen=True)
class WorkOrder:
    """Everything a worker needs, in plain values: the source, the model, the table, sizes, and ids to skip."""

    source: SourceSpec
    model: ModelSpec
    table: RowWriter
    batch: int
    decoders: int = 1
    skip: frozenset[str] = field(default_factory=frozenset)


class ChunkWorker:
    """An open source and a loaded model; a call embeds one chunk."""

    def __init__(
        self, order: WorkOrder, embedder: Embedder | None = None, source: Source | None = None
    ) -> None:
        self._order = order
        self._source = open_source(order.source) if source is None else source
        self._embedder = embedder or order.model.load(order.source.modality)

    def __call__(self, chunk: Chunk) -> Done:
        """Embed one chunk: the fragments with its rows, and its faults."""
        return next(self.run([chunk]))

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Done]:
        """Embed chunks one after the other; the next inputs are decoded while the model runs."""
        faults: list[Fault] = []
        fragments: list[str] = []
        buffer, rows = _Buffer(), 0
        for batch in ahead(self._decode, self._pieces(chunks), self._order.decoders):
            faults += batch.faults
            for part in self._embeddable(batch, faults) if batch.inputs else ():
                mu, kappa = self._checked(part, faults)
                buffer.add(part, mu, kappa)
            if buffer.ids and (batch.last or len(buffer.ids) >= _BUFFERED_ROWS):
                rows += len(buffer.ids)
                fragments += buffer.write(self._order.table, batch.chunk)
                buffer = _Buffer()
            if batch.last:
                yield Done(batch.chunk, rows, fragments, faults)
                faults, fragments, rows = [], [], 0

    def _pieces(self, chunks: Iterable[Chunk]) -> Iterator["_Piece"]:
        """The inputs of the chunks, a few batches at a time; a chunk ends with an empty piece that has its faults."""
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
        """The inputs whose id is valid, unique in the chunk, and has no row yet."""
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
        """Decode some inputs; runs in a separate thread, in parallel with the model."""
        batch = _Batch(piece.chunk, list(piece.faults), piece.last)
        for name, raw in piece.items:
            digest = ""
            try:
                data = load_input(raw)
                digest = input_digest(data)
                prepared = self._embedder.prepare(data)
            except Exception as error:
                fault = isinstance(error, InvalidInputError) and not isinstance(error, EncoderError)
                if isinstance(error, AureoleError) and not fault:
                    raise  # such as a missing package: not a fault of this input
                # decoders raise almost anything on malformed files
                batch.faults.append(Fault(name, _reason(error), digest))
                continue
            batch.ids.append(name)
            batch.sources.append(digest)
            batch.inputs.append(prepared)
        return batch

    def _embeddable(self, batch: "_Batch", faults: list[Fault]) -> Iterator["_Batch"]:
        """The batch with its posteriors; if the model refuses an input, inputs one by one and a fault for that one."""
        try:
            batch.posterior = self._embedder.embed(batch.inputs, batch=self._order.batch)
        except EncoderError:
            raise
        except InvalidInputError as error:
            if len(batch.inputs) == 1:
                faults.append(Fault(batch.ids[0], _reason(error), batch.sources[0]))
                return
            for single in batch.singles():
                yield from self._embeddable(single, faults)
            return
        yield batch

    def _checked(self, batch: "_Batch", faults: list[Fault]) -> tuple[np.ndarray, np.ndarray]:
        """Directions [n, D] and kappa [n] of a batch; rows where the model gave no valid posterior become faults."""
        mu, kappa = stored_direction(batch.posterior.mu), batch.posterior.kappa.numpy()
        length = np.linalg.norm(mu.astype(np.float64), axis=-1)
        good = (np.abs(length - 1) < 1e-4) & (kappa >= 0)
        for row in np.flatnonzero(~good).tolist():
            posterior = f"mu with norm {length[row]:.4g} and kappa {kappa[row]:.4g}"
            reason = f"the model returned {posterior}."
            faults.append(Fault(batch.ids[row], reason, batch.sources[row]))
        batch.ids = list(compress(batch.ids, good))
        batch.sources = list(compress(batch.sources, good))
        return mu[good], kappa[good]


@dataclass(frozen=True)
class _Piece:
    """Some raw inputs of a chunk, or its end with the inputs rejected before decoding."""

    chunk: str
    items: list[tuple[str, Any]]
    faults: list[Fault] = field(default_factory=list)
    last: bool = False


@dataclass
class _Batch:
    """Decoded inputs of a chunk, and the faults of the others."""

    chunk: str
    faults: list[Fault]
    last: bool
    ids: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    posterior: Any = None

    def singles(self) -> Iterator["_Batch"]:
        """Batches of one input each."""
        for name, source, one in zip(self.ids, self.sources, self.inputs, strict=True):
            yield _Batch(self.chunk, [], False, [name], [source], [one])


@dataclass
class _Buffer:
    """Rows that are not written yet."""

    ids: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    mu: list[np.ndarray] = field(default_factory=list)
    kappa: list[np.ndarray] = field(default_factory=list)

    def add(self, batch: _Batch, mu: np.ndarray, kappa: np.ndarray) -> None:
        self.ids += batch.ids
        self.sources += batch.sources
        self.mu.append(mu)
        self.kappa.append(kappa)

    def write(self, table: RowWriter, key: str) -> list[str]:
        posterior = np.concatenate(self.mu), np.concatenate(self.kappa)
        return table.write(key, self.ids, posterior, self.sources)


def load_input(raw: Any) -> Any:
    """The raw input; a path is read to bytes."""
    if isinstance(raw, Broken):
        raise InvalidInputError(raw.reason)
    if raw is None:
        raise InvalidInputError("the row has no value.")
    if isinstance(raw, RemotePath):
        return _fetched(raw)
    if not isinstance(raw, Path):
        return raw
    handle = os.open(raw, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not block
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise InvalidInputError("it is not a regular file.")
        if about.st_size > MAX_INPUT_BYTES:
            raise InvalidInputError(too_large(about.st_size))
        data = file.read()
    if not data:
        raise InvalidInputError("the file is empty.")
    return data


def _fetched(path: RemotePath) -> bytes:
    """The bytes of a file on an object store; a store that fails ends the run, as the input may be fine."""
    path.check()
    try:
        size = path.state()[1]
        data = path.read(MAX_INPUT_BYTES) if size and size <= MAX_INPUT_BYTES else b""
    except MissingInputError:
        raise
    except InvalidInputError as error:
        raise AureoleError(f"{error} Run the same command again to resume.") from error
    if size is None:
        raise MissingInputError("the file does not exist.")
    if size > MAX_INPUT_BYTES:
        raise InvalidInputError(too_large(size))
    if not data:
        raise InvalidInputError("the file is empty.")
    return data


def input_digest(data: Any) -> str:
    """The SHA-256 of a raw input, truncated to 128 bits."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    elif isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).view(np.uint8).data
    return sha256(data).hexdigest()[:32]


def _reason(error: Exception) -> str:
    text = "".join(str(error).splitlines()[:1])
    text = text if isinstance(error, InvalidInputError) else f"{type(error).__name__}: {text}"
    return text[:_MAX_REASON].encode("utf-8", "backslashreplace").decode()


def _id_fault(name: str, seen: set[str]) -> Fault | None:
    """Why an id cannot be stored, or None."""
    short = name[:60].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return Fault(short, "its id is not valid Unicode.")
    if size > MAX_ID_BYTES or "\0" in name:
        limit = f"the limit is {MAX_ID_BYTES} bytes."
        return Fault(short, f"its id has {size} bytes or contains NUL; {limit}")
    return Fault(name, "another input of this chunk has the same id.") if name in seen else None
