"""Worker: reads, decodes and embeds pieces of a source, in this process or on a cluster."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data._addresses import RemotePath
from aureole.embed._embedder import Embedder, ModelSpec
from aureole.embed._posterior_table import Known, content_key
from aureole.embed._sources import MAX_INPUT_BYTES, Broken, Piece, Source, SourceSpec, too_large
from aureole.encoders._bulk import ahead
from aureole.engines._directions import stored_direction
from aureole.engines._schema import MAX_ID_BYTES
from aureole.errors import AureoleError, EncoderError, InvalidInputError, MissingInputError


@dataclass(frozen=True)
class Order:
    """Everything a worker needs: the source, the model, sizes, and what is done already."""

    source: SourceSpec
    model: ModelSpec
    batch: int
    decoders: int
    done: Known
    contents: Known  # of ids that are row numbers, with the hash of the row


@dataclass
class _Batch:
    """Inputs with their ids and hashes, and the reason for each that has no posterior."""

    ids: list[str]
    inputs: list[Any]
    sources: list[str] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)


class Worker:
    """An open source and a loaded model."""

    def __init__(
        self, order: Order, embedder: Embedder | None = None, source: Source | None = None
    ) -> None:
        self._order, self._source = order, source or Source(order.source)
        self._embedder = embedder or order.model.load(order.source.modality)

    def run(self, pieces: Iterable[Piece]) -> Iterator[Any]:
        """Yield the rows of inputs that are not done, a batch at a time; inputs are decoded while the model runs.

        Rows are Arrow tables of id, mu, kappa, the hash of the input, and the reason if there is no posterior.
        """
        for batch in ahead(self._decode, self._batches(pieces), self._order.decoders):
            if batch.ids:
                yield self._rows(batch)

    def _batches(self, pieces: Iterable[Piece]) -> Iterator[list[tuple[str, Any]]]:
        size = self._order.batch * self._embedder.group
        for piece in pieces:
            inputs = self._source.read(piece)
            while batch := list(islice(inputs, size)):
                yield batch

    def _decode(self, items: list[tuple[str, Any]]) -> _Batch:
        """Decode the inputs that are not done; runs in a separate thread, in parallel with the model."""
        batch = _Batch([], [])
        known = self._order.done.has([storable(name) for name, _ in items])
        for (name, raw), is_known in zip(items, known.tolist(), strict=True):
            if is_known and self._source.named:
                continue
            prepared, digest, reason = self._prepared(name, raw)
            if is_known:
                self._check_unchanged(name, digest)
                continue
            batch.ids.append(storable(name))
            batch.inputs.append(prepared)
            batch.sources.append(digest)
            batch.reasons.append(reason)
        return batch

    def _check_unchanged(self, name: str, digest: str) -> None:
        if not self._order.contents.has([content_key(name, digest)])[0]:
            raise InvalidInputError(
                f"row {name} of {self._order.source.path} has changed since it was embedded, and rows are identified "
                "by their numbers alone. Choose an --id-column and another --out."
            )

    def _prepared(self, name: str, raw: Any) -> tuple[Any, str, str | None]:
        """Return (decoded input, hash, reason why there is none)."""
        digest = ""
        try:
            data = load_input(raw)
            digest = input_digest(data)
            _check_id(name)
            return self._embedder.prepare(data), digest, None
        except Exception as error:
            fault = isinstance(error, InvalidInputError) and not isinstance(error, EncoderError)
            if isinstance(error, AureoleError) and not fault:
                raise  # such as a missing package: not a fault of this input
            return None, digest, _reason(error)  # decoders raise almost anything

    def _rows(self, batch: _Batch) -> Any:
        import pyarrow as pa

        dim, n = self._embedder.dim, len(batch.ids)
        mu, kappa = np.zeros((n, dim), np.float32), np.zeros(n, np.float32)
        self._embed(batch, [i for i in range(n) if batch.reasons[i] is None], mu, kappa)
        columns = {
            "id": pa.array(batch.ids, pa.string()),
            "mu": pa.FixedSizeListArray.from_arrays(pa.array(mu.reshape(-1)), dim),
            "kappa": pa.array(kappa),
            "source": pa.array(batch.sources, pa.string()),
            "reason": pa.array(batch.reasons, pa.string()),
        }
        return pa.table(columns)

    def _embed(self, batch: _Batch, rows: list[int], mu: np.ndarray, kappa: np.ndarray) -> None:
        """Fill in the posteriors of some rows; if the model refuses an input, embed one by one to find it."""
        if not rows:
            return
        try:
            found = self._embedder.embed([batch.inputs[i] for i in rows], batch=self._order.batch)
        except EncoderError:
            raise
        except InvalidInputError as error:
            if len(rows) == 1:
                batch.reasons[rows[0]] = _reason(error)
            else:
                for row in rows:
                    self._embed(batch, [row], mu, kappa)
            return
        mu[rows], kappa[rows] = stored_direction(found.mu), found.kappa.numpy()
        length = np.linalg.norm(mu[rows].astype(np.float64), axis=-1)
        good = (np.abs(length - 1) < 1e-4) & (kappa[rows] >= 0)
        for at in np.flatnonzero(~good).tolist():
            shown = f"mu with norm {length[at]:.4g} and kappa {kappa[rows[at]]:.4g}"
            batch.reasons[rows[at]] = f"the model returned {shown}."


def load_input(raw: Any) -> Any:
    """Return a raw input; a path is read to bytes."""
    if isinstance(raw, Broken):
        raise InvalidInputError(raw.reason)
    if raw is None:
        raise InvalidInputError("the row has no value.")
    if not isinstance(raw, Path | RemotePath):
        return raw
    data = _fetched(raw) if isinstance(raw, RemotePath) else _read(raw)
    if not data:
        raise InvalidInputError("the file is empty.")
    return data


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not block
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise InvalidInputError("it is not a regular file.")
        if about.st_size > MAX_INPUT_BYTES:
            raise InvalidInputError(too_large(about.st_size))
        return file.read()


def _fetched(path: RemotePath) -> bytes:
    """Return the bytes of a file on an object store; a store that fails ends the run, as the input may be fine."""
    path.check()
    try:
        size = path.state()[1]
        if size is not None and size <= MAX_INPUT_BYTES:
            return path.read(MAX_INPUT_BYTES)
    except MissingInputError:
        raise
    except InvalidInputError as error:
        raise AureoleError(f"{error} Run the same command again to resume.") from error
    if size is None:
        raise MissingInputError(f"{path} does not exist any more.")
    raise InvalidInputError(too_large(size))


def input_digest(data: Any) -> str:
    """Return the SHA-256 of a raw input, truncated to 128 bits."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    elif isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).view(np.uint8).data
    return sha256(data).hexdigest()[:32]


def storable(name: str) -> str:
    """Return an id as it is stored; one that is refused is shortened to its first 60 characters."""
    try:
        _check_id(name)
    except InvalidInputError:
        return name[:60].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return name


def _check_id(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInputError("its id is not valid Unicode.") from None
    if size > MAX_ID_BYTES or "\0" in name:
        raise InvalidInputError(
            f"its id has {size} bytes or contains NUL; the limit is {MAX_ID_BYTES} bytes."
        )


def _reason(error: Exception) -> str:
    text = "".join(str(error).splitlines()[:1])
    text = text if isinstance(error, InvalidInputError) else f"{type(error).__name__}: {text}"
    return text[:500].encode("utf-8", "backslashreplace").decode()
