"""Worker: reads, decodes and embeds pieces of a source, in this process or on a cluster."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from aureole.data._addresses import RemotePath, is_remote, resolve
from aureole.data._columns import columns_of, fitting, holds_paths, values_of
from aureole.data._table_files import is_picture_folder, require_columns, table_parts
from aureole.embed._embedder import Embedder, Modality, ModelSpec
from aureole.embed._posterior_table import Known, content_key
from aureole.encoders._bulk import ahead
from aureole.engines._schema import MAX_ID_BYTES, stored_direction
from aureole.errors import (
    AureoleError,
    EncoderError,
    InvalidInputError,
    MissingInputError,
)

_SMALLEST_PIECE = 1024  # rows
_MAX_INPUT_BYTES = 256 * 2**20
_REMOTE_READERS = (
    16  # threads per worker that read from an object store, which takes milliseconds to respond
)


@dataclass(frozen=True)
class SourceSpec:
    """Describes a source in plain values, so that each worker can open it for itself.

    Attributes
    ----------
    path
        A folder of pictures, a CSV, TSV, JSON-lines, Parquet, Arrow or Lance table, a folder of such files, or a
        dataset saved to disk by ``datasets``.
    modality
        "image", "text" or "vector"; default: what the model takes.
    column
        The column of a table; default: the only one that fits.
    id_column
        The column of ids; default: row numbers, and the paths of pictures in a folder.
    """

    path: str
    modality: Modality | None = None
    column: str | None = None
    id_column: str | None = None


@dataclass(frozen=True)
class Piece:
    """Some inputs, which one worker reads: ``count`` rows of a file of the source; None for all."""

    name: str  # below the source
    first: int = 0
    count: int | None = None


@dataclass(frozen=True)
class _Broken:
    """An input that the source could not read, and why."""

    reason: str


class Source:
    """Inputs with ids: the path below a folder, a column, or ``file:row``."""

    def __init__(self, spec: SourceSpec) -> None:
        path = resolve(spec.path)
        if is_picture_folder(spec.path):
            if spec.id_column is not None:
                raise InvalidInputError(f"{path} has no columns: ids are the names of files.")
            if spec.modality not in (None, "image"):
                raise InvalidInputError(
                    f"{path} is a folder of pictures, but {spec.modality}s were requested. Put them in a table."
                )
            spec = replace(spec, modality="image", column="image", id_column="image")
        self._spec, self._path = spec, path
        self.named = spec.id_column is not None  # rows are only numbered
        self._single = not path.is_dir() or path.suffix.lower() == ".lance"
        parts = table_parts(spec.path)
        root = path.parent if self._single else path
        self._parts = {part.path.relative_to(root).as_posix(): part for part in parts}
        self._schema = require_columns(parts[0], (spec.column, spec.id_column))

    def guess(self) -> Modality | None:
        """Return the modality where it is unambiguous: pictures in a folder, or by the types of the columns."""
        if self._spec.modality is not None:
            return self._spec.modality
        columns = {kind: columns_of(self._schema, kind) for kind in get_args(Modality)}
        wanted = self._spec.column
        fit = [kind for kind, names in columns.items() if wanted in names or (names and not wanted)]
        return fit[0] if len(fit) == 1 else None

    @cached_property
    def column(self) -> str:
        """The column of inputs: the one named, or the only one with a fitting type."""
        kind, wanted = self._spec.modality or "vector", self._spec.column
        if wanted is not None:
            type = self._schema.field(wanted).type
            if not fitting(type, kind) and not holds_paths(type, kind):
                raise MissingInputError(
                    f"the column {wanted!r} of {self._path} has type {type}, which does not hold {kind}s."
                )
            return wanted
        names = [name for name in columns_of(self._schema, kind) if name != self._spec.id_column]
        if len(names) != 1:
            raise MissingInputError(
                f"cannot infer which column of {self._path} holds the {kind}s. Name it with --{kind}-column; "
                f"candidates: {', '.join(names) or 'none'}."
            )
        return names[0]

    def rows(self) -> int:
        """Return the number of inputs."""
        return sum(part.count() for part in self._parts.values())

    def pieces(self, slices: int = 1) -> Iterator[Piece]:
        """Yield all pieces in order; each file is cut into this many."""
        for name, part in self._parts.items():
            if slices == 1:
                yield Piece(name)
                continue
            rows = part.count()
            size = max(_SMALLEST_PIECE, -(-rows // slices))
            for first in range(0, rows, size):
                yield Piece(name, first, min(size, rows - first))

    def read(self, piece: Piece) -> Iterator[tuple[str, Any]]:
        """Yield (id, input) of each input: bytes, a path, a text, a vector, None, or ``_Broken``."""
        name, row, kind = piece.name, piece.first, self._spec.modality or "vector"
        part, id_column = self._parts[name], self._spec.id_column
        columns = list(dict.fromkeys([self.column, id_column or self.column]))
        require_columns(part, columns)
        prefix = "" if self._single else f"{name.encode('utf-8', 'backslashreplace').decode()}:"
        for batch in part.batches(columns, rows=256, first=piece.first, count=piece.count):
            inputs = values_of(batch.column(self.column), kind, part.folder)
            numbers = [f"{prefix}{row + i}" for i in range(len(inputs))]
            ids = numbers if id_column is None else batch.column(id_column).to_pylist()
            for number, one, value in zip(numbers, ids, inputs, strict=True):
                if isinstance(one, str | int) and not isinstance(one, bool):
                    yield str(one), value
                else:
                    reason = f"its id is {one!r:.60}; ids must be strings or integers."
                    yield f"row {number}", _Broken(reason)
            row += len(batch)


@dataclass(frozen=True)
class Order:
    """Everything a worker needs: the source, the model, the batch, and what is done already."""

    source: SourceSpec
    model: ModelSpec
    batch: int
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
        threads = _REMOTE_READERS if is_remote(self._order.source.path) else 1
        for batch in ahead(self._decode, self._batches(pieces), threads):
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
        known = self._order.done.has([_storable(name) for name, _ in items])
        for (name, raw), is_known in zip(items, known.tolist(), strict=True):
            if is_known and self._source.named:
                continue
            prepared, digest, reason = self._prepared(name, raw)
            if is_known:
                self._check_unchanged(name, digest)
                continue
            batch.ids.append(_storable(name))
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
            data = _load(raw)
            digest = _digest(data)
            if _storable(name) != name:
                raise InvalidInputError(
                    f"its id has {len(name.encode('utf-8', 'replace'))} bytes, contains NUL or is not valid Unicode; "
                    f"the limit is {MAX_ID_BYTES} bytes."
                )
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


def _load(raw: Any) -> Any:
    """Return a raw input; a path is read to bytes."""
    if isinstance(raw, _Broken):
        raise InvalidInputError(raw.reason)
    if raw is None:
        raise InvalidInputError("the row has no value.")
    if not isinstance(raw, Path | RemotePath):
        return raw
    data = _read(raw)
    if not data:
        raise InvalidInputError("the file is empty.")
    return data


def _read(path: Path | RemotePath) -> bytes:
    """Return the bytes of a file; an object store that fails ends the run, as the input may be fine."""
    if isinstance(path, Path):
        size = path.stat().st_size if path.is_file() else None  # a named pipe must not block
    else:
        path.check()
        size = _from_store(lambda: path.state()[1])
    if size is None:
        raise MissingInputError("the file does not exist or is not a regular file.")
    if size > _MAX_INPUT_BYTES:
        raise InvalidInputError(f"the file has {size:,} bytes; the limit is {_MAX_INPUT_BYTES:,}.")
    if isinstance(path, Path):
        return path.read_bytes()
    return _from_store(lambda: path.read(_MAX_INPUT_BYTES))


def _from_store(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except MissingInputError:
        raise
    except InvalidInputError as error:
        raise AureoleError(f"{error} Run the same command again to resume.") from error


def _digest(data: Any) -> str:
    """Return the SHA-256 of a raw input, truncated to 128 bits."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    elif isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).view(np.uint8).data
    return sha256(data).hexdigest()[:32]


def _storable(name: str) -> str:
    """Return an id as it is stored: one that is refused is escaped, and shortened to its first 60 characters."""
    valid = name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return valid if len(valid.encode()) <= MAX_ID_BYTES else valid[:60]


def _reason(error: Exception) -> str:
    text = "".join(str(error).splitlines()[:1])
    text = text if isinstance(error, InvalidInputError) else f"{type(error).__name__}: {text}"
    return text[:500].encode("utf-8", "backslashreplace").decode()
