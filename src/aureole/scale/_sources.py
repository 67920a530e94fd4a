"""Sources of inputs: folders of pictures, tables, Lance tables and WebDataset shards, read chunk by chunk.

A source lists its inputs in a fixed order and cuts them into chunks. A chunk is the unit of work and of retry: any
worker can read it on its own, and its key identifies its contents.
"""

import io
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from aureole.data import (
    ENDINGS,
    FILES,
    RemotePath,
    columns_of,
    fitting,
    holds_paths,
    listed,
    reading,
    require_columns,
    resolve,
    short,
    table_parts,
    values_of,
    walk,
)
from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval import open_table, shown_address, table_exists
from aureole.scale._embedder import Modality

SHARDS = (".tar", ".tar.gz", ".tgz")
MAX_INPUT_BYTES = 256 * 2**20
_SHARD_ENDINGS = {"image": ENDINGS, "text": (".txt", ".text"), "vector": (".npy",)}
_MIN_CHUNK, _MAX_CHUNK, _TARGET_CHUNKS = 1024, 65_536, 256


@dataclass(frozen=True)
class SourceSpec:
    """Describes a source in plain values, so that each worker can open it for itself.

    Attributes
    ----------
    path
        A folder of pictures, a CSV, TSV, JSON-lines, Parquet, Arrow or Lance table, a folder of such files, a dataset
        saved to disk by ``datasets``, or the ``.tar`` files of a WebDataset.
    modality
        "image", "text" or "vector"; default: whatever the model takes.
    column
        The column of a table, or the file ending in a WebDataset; default: the only one that fits.
    id_column
        The column of ids; default: row numbers.
    rows_per_chunk
        Inputs per chunk; default: see ``chunk_size``.
    """

    path: str
    modality: Modality | None = None
    column: str | None = None
    id_column: str | None = None
    rows_per_chunk: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Consecutive inputs of a source: the unit of work and of retry."""

    key: str  # the same key means the same inputs, as long as the source is unchanged
    place: list[Any]  # where the inputs are, in plain values that can be sent to a worker
    rows: int | None = None  # unknown for shards


@dataclass(frozen=True)
class Broken:
    """An input that the source could not read, and why."""

    reason: str


class Source(ABC):
    """Inputs with ids, read chunk by chunk."""

    named: bool = True  # ids belong to the inputs (paths, keys, a column); row numbers shift when the source changes

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All chunks in order; existing chunks keep their keys when inputs are appended at the end."""

    @abstractmethod
    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each input of a chunk: bytes, a path, a text, a vector, None, or ``Broken``."""

    def rows(self) -> int | None:
        """The number of inputs, where it is known without reading them."""
        return None


def chunk_size(rows: int | None) -> int:
    """The default number of inputs per chunk: a few hundred chunks, none tiny and none too large to repeat.

    Examples
    --------
    >>> chunk_size(60_000), chunk_size(1_000_000), chunk_size(1_000_000_000)
    (1024, 4096, 65536)
    """
    size = _MIN_CHUNK
    while size < _MAX_CHUNK and (rows or 0) > size * _TARGET_CHUNKS:
        size *= 2
    return size


def open_source(spec: SourceSpec) -> Source:
    """Open the source that a spec describes; a missing modality is inferred from the type of the column."""
    kind = kind_of(spec.path)
    modality = spec.modality or guess_modality(spec.path, spec.column)
    if modality is None:
        raise InvalidInputError(
            f"cannot infer whether {spec.path} holds images, texts or vectors. Set the modality."
        )
    spec = replace(spec, modality=modality)
    if kind in ("folder", "shards") and spec.id_column is not None:
        raise InvalidInputError(
            f"{spec.path} has no columns: it is not a table, ids are file names."
        )
    if kind == "folder" and (modality != "image" or spec.column not in (None, "image")):
        raise InvalidInputError(
            f"{spec.path} is a folder of pictures, but {modality}s were requested. Put them in a table."
        )
    sources = {"lance": LanceSource, "table": TableSource, "shards": ShardSource}
    return sources.get(kind, FolderSource)(spec)


def check_source(spec: SourceSpec) -> Modality | None:
    """The modality of a source where it is unambiguous; raises if it does not exist or lacks a named column."""
    guess = spec.modality or guess_modality(spec.path, spec.column)
    named = (spec.column, spec.id_column)
    if any(named) and kind_of(spec.path) == "table":
        require_columns(table_parts(spec.path)[0], named)
    elif any(named) and kind_of(spec.path) == "lance":
        _require(open_table(spec.path).schema, spec)
    return guess


def kind_of(path: str) -> str:
    """What a path holds, by its ending or by the files below it: "lance", "table", "shards" or "folder"."""
    if path.removesuffix("/").endswith(".lance"):
        if not table_exists(path):
            raise MissingInputError(
                f"{shown_address(path)} does not exist or is not a Lance table. Check the name."
            )
        return "lance"
    place = resolve(path)
    if place.is_file():
        name = place.name.lower()
        if not name.endswith((*SHARDS, *FILES)):
            raise InvalidInputError(
                f"{path} is not a supported file type; supported: {', '.join((*FILES, *SHARDS, '.lance'))}."
            )
    elif place.is_dir():
        first = next(walk(place, (*FILES, *SHARDS, *ENDINGS)), None)
        if first is None:
            raise InvalidInputError(
                f"{path} contains no supported files; supported: {', '.join((*ENDINGS, *FILES, *SHARDS))}."
            )
        name = first.lower()
    else:
        raise MissingInputError(f"{shown_address(path)} does not exist. Check the name.")
    return "shards" if name.endswith(SHARDS) else "table" if name.endswith(FILES) else "folder"


def guess_modality(path: str, column: str | None) -> Modality | None:
    """The modality of a source where it is unambiguous: pictures in a folder, or the type of a table's column."""
    kind = kind_of(path)
    if kind in ("folder", "shards"):
        return "image" if kind == "folder" else None
    lance = kind == "lance"
    schema = open_table(path).schema if lance else require_columns(table_parts(path)[0], [])
    columns = {kind: columns_of(schema, kind) for kind in get_args(Modality)}
    fit = [kind for kind, names in columns.items() if column in names or (names and not column)]
    return fit[0] if len(fit) == 1 else None


class FolderSource(Source):
    """The pictures below a folder, ordered by name; the id is the path below the folder. Hidden files are skipped.

    Only the names of one chunk, and of the folders on the way to it, are in memory.
    """

    def __init__(self, spec: SourceSpec) -> None:
        self._path = resolve(spec.path)
        self.rows_per_chunk = spec.rows_per_chunk or chunk_size(self.rows())

    def chunks(self) -> Iterator[Chunk]:
        """``rows_per_chunk`` files each; the key is a hash of their names."""
        files, number = walk(self._path, ENDINGS), 0
        while names := list(islice(files, self.rows_per_chunk)):
            yield Chunk(f"{number:08d}-{_digest(*names)[:16]}", names, len(names))
            number += 1

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Path | RemotePath]]:
        """(Path below the folder, path); the worker reads the file when it decodes it."""
        for name in chunk.place:
            yield _printable(name), self._path / name

    def rows(self) -> int:
        """The number of files, counted by walking the folders."""
        return sum(1 for _ in walk(self._path, ENDINGS))


class _ColumnSource(Source):
    """What the two table sources share: the column of inputs, the column of ids, and the size of chunks."""

    _folder: Path | RemotePath = Path()  # relative paths of pictures refer to it

    def _set_columns(self, spec: SourceSpec, schema: Any) -> None:
        self._spec = spec
        _require(schema, spec)
        self.column = _pick_column(spec, schema)
        self.named = spec.id_column is not None
        self._columns = [self.column] + ([] if spec.id_column is None else [spec.id_column])
        self.rows_per_chunk = spec.rows_per_chunk or chunk_size(self.rows())

    def _pairs(self, batch: Any, prefix: str, first: int) -> Iterator[tuple[str, Any]]:
        """(Id, input) of the rows of an Arrow batch, whose first row has the number ``first``."""
        column, kind = batch.column(self.column), self._spec.modality or "image"
        inputs = values_of(column, kind, self._folder)
        rows = [f"{prefix}{first + i}" for i in range(len(inputs))]
        if self._spec.id_column is None:
            yield from zip(rows, inputs, strict=True)
            return
        names = batch.column(self._spec.id_column).to_pylist()
        for row, name, value in zip(rows, names, inputs, strict=True):
            if isinstance(name, str | int) and not isinstance(name, bool):
                yield str(name), value
            else:
                reason = f"its id is {short(name)}; ids must be strings or integers."
                yield f"row {row}", Broken(reason)


class TableSource(_ColumnSource):
    """The rows of a file, or of all table files in a folder or saved Hugging Face dataset.

    Ids are a column, or ``file:row``; for a single file without an id column, row numbers from 0. CSV and JSON lines
    are read from their start to reach a row, so many workers are faster on Parquet.
    """

    def __init__(self, spec: SourceSpec) -> None:
        path = resolve(spec.path)
        self._single = path.is_file()
        root = path.parent if self._single else path
        parts = table_parts(spec.path)
        self._parts = {part.path.relative_to(root).as_posix(): part for part in parts}
        first = next(iter(self._parts.values()))
        self._folder = root
        self._set_columns(spec, require_columns(first, []))

    @cached_property
    def _counts(self) -> dict[str, int]:
        counts = {}
        for name, part in self._parts.items():
            with reading(part):
                counts[name] = part.count()
        return counts

    def chunks(self) -> Iterator[Chunk]:
        """``rows_per_chunk`` rows of one file each; the key has the file's name, its row count and the first row."""
        for name, rows in self._counts.items():
            for first in range(0, rows, self.rows_per_chunk):
                key = f"{_digest(name, str(rows))[:16]}-{first}"
                count = min(self.rows_per_chunk, rows - first)
                yield Chunk(key, [name, first, count], count)

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each row."""
        name, first, count = chunk.place
        part = self._parts[name]
        require_columns(part, self._columns)
        prefix = "" if self._single else f"{_printable(name)}:"
        with reading(part):
            for batch in part.batches(self._columns, rows=256, first=first, count=count):
                yield from self._pairs(batch, prefix, first)
                first += len(batch)

    def rows(self) -> int:
        """The number of rows."""
        return sum(self._counts.values())


class LanceSource(_ColumnSource):
    """The rows of a Lance table; ids are a column, or row numbers from 0."""

    def __init__(self, spec: SourceSpec) -> None:
        self._table = open_table(spec.path)
        self._total = self._table.count_rows()
        self._set_columns(spec, self._table.schema)

    def chunks(self) -> Iterator[Chunk]:
        """``rows_per_chunk`` rows of one fragment each; the key has the fragment and its row counts."""
        before = 0
        for fragment in self._table.get_fragments():
            rows, physical = fragment.count_rows(), fragment.physical_rows
            for first in range(0, rows, self.rows_per_chunk):
                count = min(self.rows_per_chunk, rows - first)
                key = f"{fragment.fragment_id}-{rows}-{physical}-{first}"
                yield Chunk(key, [fragment.fragment_id, first, count, before + first], count)
            before += rows

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each row."""
        number, first, count, row = chunk.place
        scanner = self._table.get_fragment(number).scanner(
            columns=self._columns, offset=first, limit=count, batch_size=256
        )
        for batch in scanner.to_batches():
            yield from self._pairs(batch, "", row)
            row += len(batch)

    def rows(self) -> int:
        """The number of rows."""
        return self._total


class ShardSource(Source):
    """The samples of a WebDataset's tar files, one chunk per file; ids are ``shard/key``.

    The input of a sample is its first file with a fitting ending, or with the ending that ``column`` names. Shards are
    read sequentially, so compressed files and pipes work. Nothing is ever unpickled.
    """

    def __init__(self, spec: SourceSpec) -> None:
        path, column = resolve(spec.path), spec.column
        self._kind: Any = spec.modality
        self._endings = _SHARD_ENDINGS[self._kind]
        if column is not None:
            self._endings = (f".{column.lstrip('.').lower()}",)
        self._files = [path.name] if path.is_file() else list(walk(path, SHARDS))
        self._root = path.parent if path.is_file() else path

    def chunks(self) -> Iterator[Chunk]:
        """One per tar file; the key is a hash of its name and size."""
        for name in self._files:
            size = _size(self._root / name)
            yield Chunk(_digest(name, str(size))[:24], [name])

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Shard/key, input) of each sample; the unreadable rest of a damaged shard is one ``Broken``."""
        (name,) = chunk.place
        shown = _printable(name)
        stem = next(shown[: -len(end)] for end in SHARDS if shown.lower().endswith(end))
        missing = Broken(f"the sample has no file that ends in {', '.join(self._endings)}.")
        key, value = None, None
        try:
            with (
                _byte_stream(self._root / name) as file,
                tarfile.open(fileobj=file, mode="r|*") as shard,
            ):
                for member in shard:
                    if not member.isfile() or member.name.split("/")[-1].startswith("."):
                        continue
                    member_key, ending = _split(member.name)
                    if member_key != key:
                        if key is not None:
                            yield f"{stem}/{key}", missing if value is None else value
                        key, value = member_key, None
                    if value is None and ending.endswith(self._endings):
                        value = self._input(shard, member)
            if key is not None:
                yield f"{stem}/{key}", missing if value is None else value
        except (tarfile.TarError, OSError, EOFError) as error:
            if key is not None and value is not None:
                yield f"{stem}/{key}", value
            yield shown, Broken(f"the shard is damaged; the rest of it is unreadable: {error}.")

    def _input(self, shard: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
        if member.size > MAX_INPUT_BYTES:
            return Broken(too_large(member.size))
        handle = shard.extractfile(member)
        assert handle is not None  # it is a regular file
        data = handle.read()
        if len(data) < member.size:
            raise EOFError(f"{member.name} is truncated")
        if self._kind == "image":
            return data or Broken("the file is empty.")
        try:
            if self._kind == "text":
                return data.decode()
            return np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            return Broken(f"{member.name.split('/')[-1]} cannot be read: {error}.")


def _size(path: Path | RemotePath) -> int:
    return path.state()[1] if isinstance(path, RemotePath) else path.stat().st_size


def _byte_stream(path: Path | RemotePath) -> Any:
    """The bytes of a file, from its start on."""
    return path.stream() if isinstance(path, RemotePath) else path.open("rb")


def too_large(size: int) -> str:
    """The reason why a file of this size is not read."""
    return f"the file has {size:,} bytes; the limit is {MAX_INPUT_BYTES:,}."


def _digest(*texts: str) -> str:
    """The SHA-256 of texts, which may contain file names that are not valid Unicode."""
    return sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


def _printable(name: str) -> str:
    """A file name as valid Unicode."""
    return name.encode("utf-8", "backslashreplace").decode()


def _require(schema: Any, spec: SourceSpec) -> None:
    """Raise if a schema lacks a named column."""
    for name in (spec.column, spec.id_column):
        if name is not None and name not in schema.names:
            names = listed(schema.names)
            place = shown_address(spec.path)
            raise MissingInputError(f"{place} has no column {short(name)}; {names}.")


def _pick_column(spec: SourceSpec, schema: Any) -> str:
    """The column of inputs: the one named, or the only one with a fitting type."""
    kind: Any = spec.modality
    if spec.column is not None:
        type = schema.field(spec.column).type
        if not fitting(type, kind) and not holds_paths(type, kind):
            raise MissingInputError(
                f"the column {short(spec.column)} of {spec.path} has type {type}, which does not hold {kind}s."
            )
        return spec.column
    names = [name for name in columns_of(schema, kind) if name != spec.id_column]
    if len(names) != 1:
        choices = f"candidates: {', '.join(map(short, names))}" if names else listed(schema.names)
        raise MissingInputError(
            f"cannot infer which column of {spec.path} holds the {kind}s. Name it with --column; {choices}."
        )
    return names[0]


def _split(name: str) -> tuple[str, str]:
    """(Key, ending): a name up to the first dot of its last part, and the rest in lower case."""
    folder, _, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    key = f"{folder}/{stem}" if folder else stem
    return _printable(key.removeprefix("./")), f".{ending.lower()}"
