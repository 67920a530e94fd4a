"""Sources of inputs: pictures in a folder, rows of tables, samples of WebDatasets; cut into pieces for workers."""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from aureole.data._addresses import RemotePath, resolve
from aureole.data._arrow_columns import columns_of, fitting, holds_paths, values_of
from aureole.data._image_files import ENDINGS
from aureole.data._table_files import FILES, require_columns, table_parts, walk
from aureole.embed._embedder import Modality
from aureole.errors import InvalidInputError, MissingInputError

TARS = (".tar", ".tar.gz", ".tgz")
_SAMPLES = {"image": ENDINGS, "text": (".txt", ".text"), "vector": (".npy",)}
_PICTURES = 1024  # pictures in a piece
MAX_INPUT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class SourceSpec:
    """Describes a source in plain values, so that each worker can open it for itself.

    Attributes
    ----------
    path
        A folder of pictures, a CSV, TSV, JSON-lines, Parquet, Arrow or Lance table, a folder of such files, a dataset
        saved to disk by ``datasets``, or the ``.tar`` files of a WebDataset.
    modality
        "image", "text" or "vector"; default: what the model takes.
    column
        The column of a table, or the file ending in a WebDataset; default: the only one that fits.
    id_column
        The column of ids; default: row numbers.
    """

    path: str
    modality: Modality | None = None
    column: str | None = None
    id_column: str | None = None


@dataclass(frozen=True)
class Piece:
    """Some inputs, which one worker reads: pictures, a tar file, or ``count`` rows of a table's file."""

    names: list[str]  # below the source
    first: int = 0
    count: int | None = None


@dataclass(frozen=True)
class Broken:
    """An input that the source could not read, and why."""

    reason: str


class Source:
    """Inputs with ids: the path below a folder, ``tar/key`` of a sample, a column, or ``file:row``."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec, self._path = spec, resolve(spec.path)
        self.kind = _kind(self._path)
        self.named = self.kind != "table" or spec.id_column is not None  # rows are only numbered
        if self.kind != "table" and spec.id_column is not None:
            raise InvalidInputError(f"{self._path} has no columns: ids are the names of files.")
        if self.kind == "folder" and spec.modality not in (None, "image"):
            raise InvalidInputError(
                f"{self._path} is a folder of pictures, but {spec.modality}s were requested. Put them in a table."
            )
        if self.kind == "table":
            self._single = not self._path.is_dir() or self._path.suffix.lower() == ".lance"
            root = self._path.parent if self._single else self._path
            parts = table_parts(spec.path)
            self._parts = {part.path.relative_to(root).as_posix(): part for part in parts}
            self._schema = require_columns(parts[0], (spec.column, spec.id_column))

    def guess(self) -> Modality | None:
        """Return the modality where it is unambiguous: pictures in a folder, or by the types of the columns."""
        if self._spec.modality is not None or self.kind != "table":
            return self._spec.modality or ("image" if self.kind == "folder" else None)
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

    def rows(self) -> int | None:
        """Return the number of inputs; None for tar files, which would have to be read."""
        if self.kind == "table":
            return sum(part.count() for part in self._parts.values())
        return None if self.kind == "tars" else sum(1 for _ in walk(self._path, ENDINGS))

    def pieces(self, slices: int = 1) -> Iterator[Piece]:
        """Yield all pieces in order; a file of a table is cut into this many."""
        if self.kind == "table":
            for name, part in self._parts.items():
                if slices == 1:
                    yield Piece([name])
                    continue
                rows = part.count()
                size = max(1024, -(-rows // slices))
                for first in range(0, rows, size):
                    yield Piece([name], first, min(size, rows - first))
            return
        is_file = self._path.is_file()
        names = iter([self._path.name]) if is_file else walk(self._path, self._endings)
        while part := list(islice(names, 1 if self.kind == "tars" else _PICTURES)):
            yield Piece(part)

    def read(self, piece: Piece) -> Iterator[tuple[str, Any]]:
        """Yield (id, input) of each input: bytes, a path, a text, a vector, None, or ``Broken``."""
        if self.kind == "table":
            yield from self._read_rows(piece)
        elif self.kind == "tars":
            yield from self._read_samples(piece.names[0])
        else:
            yield from ((_printable(name), self._path / name) for name in piece.names)

    @property
    def _endings(self) -> tuple[str, ...]:
        return ENDINGS if self.kind == "folder" else TARS

    def _read_rows(self, piece: Piece) -> Iterator[tuple[str, Any]]:
        (name,), row, kind = piece.names, piece.first, self._spec.modality or "vector"
        part, id_column = self._parts[name], self._spec.id_column
        columns = [self.column] + ([] if id_column is None else [id_column])
        require_columns(part, columns)
        prefix = "" if self._single else f"{_printable(name)}:"
        for batch in part.batches(columns, rows=256, first=piece.first, count=piece.count):
            inputs = values_of(batch.column(self.column), kind, part.folder)
            numbers = [f"{prefix}{row + i}" for i in range(len(inputs))]
            ids = numbers if id_column is None else batch.column(id_column).to_pylist()
            for number, one, value in zip(numbers, ids, inputs, strict=True):
                if isinstance(one, str | int) and not isinstance(one, bool):
                    yield str(one), value
                else:
                    reason = f"its id is {one!r:.60}; ids must be strings or integers."
                    yield f"row {number}", Broken(reason)
            row += len(batch)

    def _read_samples(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the samples of a tar file, read from its start; the unreadable rest of a damaged file is ``Broken``."""
        path = self._path if self._path.is_file() else self._path / name
        shown, wanted = _printable(name), self._spec.column
        stem = next(shown[: -len(end)] for end in TARS if shown.lower().endswith(end))
        endings = _SAMPLES[self._spec.modality or "image"]
        if wanted is not None:
            endings = (f".{wanted.lstrip('.').lower()}",)
        key, value = "", None
        missing = Broken(f"the sample has no file that ends in {', '.join(endings)}.")
        try:
            with _bytes_of(path) as file, tarfile.open(fileobj=file, mode="r|*") as tar:
                for member in filter(tarfile.TarInfo.isfile, tar):
                    folder, _, last = member.name.removeprefix("./").rpartition("/")
                    start, _, ending = last.partition(".")
                    now = _printable(f"{folder}/{start}" if folder else start)
                    if key and now != key:
                        yield f"{stem}/{key}", missing if value is None else value
                        value = None
                    key = now if start else ""  # hidden files have no key
                    if key and value is None and f".{ending.lower()}".endswith(endings):
                        value = self._sample(tar, member)
            if key:
                yield f"{stem}/{key}", missing if value is None else value
        except (tarfile.TarError, OSError, EOFError) as error:
            if value is not None:
                yield f"{stem}/{key}", value
            yield shown, Broken(f"the file is damaged; the rest of it is unreadable: {error}.")

    def _sample(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
        if member.size > MAX_INPUT_BYTES:
            return Broken(too_large(member.size))
        data = tar.extractfile(member).read()  # pyright: ignore[reportOptionalMemberAccess]
        if len(data) < member.size:
            raise EOFError(f"{member.name} is truncated")
        if self._spec.modality == "image":
            return data or Broken("the file is empty.")
        try:
            if self._spec.modality == "text":
                return data.decode()
            return np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError) as error:
            return Broken(f"{member.name} cannot be read: {error}.")


def too_large(size: int) -> str:
    """Return the reason why a file of this size is not read."""
    return f"the file has {size:,} bytes; the limit is {MAX_INPUT_BYTES:,}."


def _kind(path: Path | RemotePath) -> str:
    """Return what a path holds, by its ending or the first file below it: "table", "tars" or "folder"."""
    if path.suffix.lower() == ".lance":
        return "table"
    if path.is_dir():
        found = next(walk(path, (*FILES, *TARS, *ENDINGS)), "").lower()
        return "tars" if found.endswith(TARS) else "folder" if found.endswith(ENDINGS) else "table"
    return "tars" if path.is_file() and path.name.lower().endswith(TARS) else "table"


def _bytes_of(path: Path | RemotePath) -> Any:
    return path.stream() if isinstance(path, RemotePath) else path.open("rb")


def _printable(name: str) -> str:
    """Return a file name as valid Unicode."""
    return name.encode("utf-8", "backslashreplace").decode()
