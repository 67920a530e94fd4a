"""One reader of tables: CSV, TSV, JSON lines, Parquet, Arrow, Lance, Hugging Face datasets, pictures, DataFrames.

A table consists of parts, such as the files of a folder, which are read in batches and bounded memory. pyarrow's
readers of single files are used instead of ``pyarrow.dataset``, which decodes whole row groups (540 MB for a file of
200 MB in one row group) and does not read Arrow streams.
"""

import gzip
import io
import json
import os
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any

from aureole.data._addresses import RemotePath, lance_options, resolve
from aureole.data._array_files import ARRAYS
from aureole.data._image_files import ENDINGS
from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError

PARQUET = (".parquet", ".pq")
_ARROW, _CSV, _JSON = (".arrow", ".feather"), (".csv", ".tsv"), (".jsonl", ".ndjson")
_ZIPPED = tuple(f"{ending}.gz" for ending in (*_CSV, *_JSON))
FILES = (*PARQUET, *_ARROW, *_CSV, *_JSON, *_ZIPPED)
LANCE = ".lance"
_STATE = "state.json"  # of a saved Hugging Face dataset
_BATCH = 2048  # rows read at a time
_RANGE_BATCH = 256  # rows read at a time by RangeReader: images are large
_LINE = 2**26  # bytes of a line of CSV or JSON at most
_SNIFFED = 1000  # lines of JSON that decide the types of columns
_IMAGE, _LABEL = "image", "label"


class Part(ABC):
    """A file of a table, or the table itself: a name for messages, a schema, a length and its rows in batches."""

    typed = True  # whether a column has a type of its own; CSV has only texts

    def __init__(self, path: Path | RemotePath) -> None:
        self.path: Any = path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def folder(self) -> Path | RemotePath:
        """The folder that relative paths in the table refer to."""
        return self.path.parent

    @abstractmethod
    def schema(self) -> Any:
        """The Arrow schema."""

    @abstractmethod
    def count(self) -> int:
        """The number of rows."""

    @abstractmethod
    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Record batches of some columns, of about ``rows`` rows, from ``starts()[start]`` on."""

    def starts(self) -> list[int]:
        """The rows at which reading can start."""
        return [0]


class ParquetPart(Part):
    """A Parquet file."""

    def schema(self) -> Any:
        """The schema in its footer."""
        from pyarrow import parquet

        with _parquet_file(self.path) as file:
            return parquet.read_schema(file)

    def count(self) -> int:
        """The number of rows in its footer."""
        from pyarrow import parquet

        with _parquet_file(self.path) as file:
            return int(parquet.read_metadata(file).num_rows)

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Batches from a row group on."""
        from pyarrow import parquet

        # with pre_buffer, pyarrow would read ahead all row groups, and each as a whole
        options = {"pre_buffer": False, "buffer_size": 2**20}
        with _parquet_file(self.path) as file, parquet.ParquetFile(file, **options) as table:
            groups = range(start, table.num_row_groups)
            yield from table.iter_batches(rows, groups, columns, use_threads=False)

    def starts(self) -> list[int]:
        """The first row of each row group."""
        from pyarrow import parquet

        with _parquet_file(self.path) as file:
            metadata = parquet.read_metadata(file)
        sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        return [0, *accumulate(sizes)][:-1] or [0]


class ArrowPart(Part):
    """An Arrow file, or an Arrow stream saved as a file."""

    def schema(self) -> Any:
        """The schema at its start."""
        with _random_access(self.path) as source:
            return _open_ipc(source).schema

    def count(self) -> int:
        """The number of rows of all batches."""
        with _random_access(self.path) as source:
            return sum(len(batch) for batch in _ipc_batches(source))

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Slices of its batches."""
        del start
        with _random_access(self.path) as source:
            for batch in _ipc_batches(source):
                for first in range(0, len(batch), rows):
                    yield batch.select(columns).slice(first, rows)


class CsvPart(Part):
    """A CSV or TSV file with a header, in UTF-8: all values are texts, null where they are empty."""

    typed = False

    def schema(self) -> Any:
        """The columns of the header, all of texts."""
        pa = pyarrow_package()
        with self._reader(None) as reader:
            return pa.schema([(name, pa.string()) for name in reader.schema.names])

    def count(self) -> int:
        """The number of rows, in one pass."""
        name = self.schema().names[0]
        return sum(len(batch) for batch in self.batches([name]))

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Slices of blocks of the file."""
        del start
        with self._reader(columns) as reader:
            for batch in reader:
                yield from (batch.slice(i, rows) for i in range(0, len(batch), rows))

    def _reader(self, columns: list[str] | None) -> Any:
        from pyarrow import csv

        convert = csv.ConvertOptions()
        if columns is not None:
            types = dict.fromkeys(columns, pyarrow_package().string())
            convert = csv.ConvertOptions(
                include_columns=columns,
                column_types=types,
                strings_can_be_null=True,
                null_values=[""],
            )
        tabs = ".tsv" in self.path.suffixes[-2:]
        parse = csv.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True)
        read = csv.ReadOptions(block_size=_LINE, use_threads=False)
        source = self.path.stream("detect") if isinstance(self.path, RemotePath) else self.path
        return csv.open_csv(source, read, parse, convert)


class JsonPart(Part):
    """A file with one JSON object per line; the first thousand lines decide the types of columns."""

    def __init__(self, path: Path | RemotePath) -> None:
        super().__init__(path)
        self._schema: Any = None

    def schema(self) -> Any:
        """The keys of the first lines, with their types."""
        if self._schema is None:
            pa = pyarrow_package()
            rows = list(islice(self._objects(), _SNIFFED))
            names = dict.fromkeys(name for row in rows for name in row)
            self._schema = pa.schema([(n, self._array(rows, n, None).type) for n in names])
        return self._schema

    def count(self) -> int:
        """The number of lines that are not blank."""
        return sum(1 for _ in self._lines())

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Some lines at a time."""
        del start
        schema = pyarrow_package().schema([self.schema().field(name) for name in columns])
        objects = self._objects()
        while part := list(islice(objects, rows)):
            arrays = [self._array(part, field.name, field.type) for field in schema]
            yield pyarrow_package().record_batch(arrays, schema=schema)

    def _array(self, rows: list[dict[str, Any]], name: str, type: Any) -> Any:
        pa = pyarrow_package()
        try:
            array = pa.array([row.get(name) for row in rows], type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise InvalidInputError(
                f"the column {short(name)} of {self} has values of different types: {reason(error)}"
            ) from error
        return array.cast(pa.string()) if pa.types.is_null(array.type) else array

    def _objects(self) -> Iterator[dict[str, Any]]:
        for number, line in self._lines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                kind = (
                    "is nested too deeply" if isinstance(error, RecursionError) else reason(error)
                )
                raise InvalidInputError(f"line {number} of {self} is not JSON: {kind}") from error
            if not isinstance(row, dict):
                raise InvalidInputError(
                    f'line {number} of {self} is not a JSON object such as {{"text": ...}}.'
                )
            yield row

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with _lines_of(self.path) as file:
            for number in count(1):
                line = file.readline(_LINE + 1)
                if len(line) > _LINE:
                    raise InvalidInputError(
                        f"line {number} of {self} has more than {_LINE >> 20} MiB, the limit for a line."
                    )
                if not line:
                    return
                if line.strip():
                    yield number, line


class LancePart(Part):
    """A Lance table in a folder."""

    def _table(self) -> Any:
        os.environ.setdefault("LANCE_LOG", "error")
        try:
            import lance
        except ImportError as error:
            raise MissingPackageError(
                "Lance tables need pylance: pip install 'aureole[retrieval]'."
            ) from error
        try:
            where = str(self.path)
            return lance.dataset(where, storage_options=lance_options(where))
        except ValueError as error:
            raise InvalidInputError(f"{self} cannot be read: {reason(error)}") from error

    def schema(self) -> Any:
        """The schema of its latest version."""
        return self._table().schema

    def count(self) -> int:
        """The number of rows."""
        return int(self._table().count_rows())

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Batches of the latest version."""
        del start
        yield from self._table().scanner(columns=columns, batch_size=rows).to_batches()


class PicturePart(Part):
    """A folder of pictures as a table: ``image``, the path below the folder, and ``label``, the class folder.

    Rows are in the order of the paths. A picture that is not in a subfolder has no label.
    """

    @property
    def folder(self) -> Path | RemotePath:
        """The folder itself."""
        return self.path

    def schema(self) -> Any:
        """Two columns of texts."""
        text = pyarrow_package().string()
        return pyarrow_package().schema([(_IMAGE, text), (_LABEL, text)])

    def count(self) -> int:
        """The number of pictures."""
        return sum(1 for _ in walk(self.path, ENDINGS))

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Some paths at a time."""
        del start
        pa, names = pyarrow_package(), walk(self.path, ENDINGS)
        while part := list(islice(names, rows)):
            unreadable = next((name for name in part if not name.isprintable()), None)
            if unreadable is not None:
                raise InvalidInputError(f"the name {short(unreadable)} in {self} is not printable.")
            labels = [name.partition("/")[0] if "/" in name else None for name in part]
            arrays = {_IMAGE: pa.array(part), _LABEL: pa.array(labels, pa.string())}
            yield pa.record_batch({name: arrays[name] for name in columns})


class MemoryPart(Part):
    """A DataFrame of pandas or polars, or a table of pyarrow."""

    def __init__(self, table: Any) -> None:
        super().__init__(Path())
        pa = pyarrow_package()
        if type(table).__module__.startswith("pandas"):
            table = pa.Table.from_pandas(table, preserve_index=False)
        table = pa.table(table)
        # the views of polars are types that few functions of pyarrow support
        views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
        fields = [field.with_type(views.get(field.type, field.type)) for field in table.schema]
        self._table = table.cast(pa.schema(fields))

    def __str__(self) -> str:
        return "the table in memory"

    def schema(self) -> Any:
        """The schema of the table."""
        return self._table.schema

    def count(self) -> int:
        """The number of rows."""
        return int(self._table.num_rows)

    def batches(self, columns: list[str], *, rows: int = _BATCH, start: int = 0) -> Iterator[Any]:
        """Slices of the table."""
        del start
        yield from self._table.select(columns).to_batches(max_chunksize=rows)


def table_parts(source: Any) -> list[Part]:
    """The parts of a table: a path, or an object with Arrow's C data interface, such as a DataFrame.

    The parts of a folder are its table files in the order of their names, without those that start with ``.`` or ``_``;
    of a saved Hugging Face dataset, the files that it lists. A folder without tables is a table of its pictures.
    """
    if not isinstance(source, str | Path):
        if hasattr(source, "__arrow_c_stream__") or hasattr(source, "to_arrow"):
            return [MemoryPart(source)]
        raise InvalidInputError(
            f"a table must be a path or a DataFrame of pandas, polars or pyarrow, not {type(source).__name__}."
        )
    path = resolve(source)
    if path.is_dir():
        if path.suffix.lower() == LANCE:
            return [LancePart(path)]
        found = list(walk(path, (*FILES, _STATE)))
        names = _dataset_files(path, found) or [
            name
            for name in found
            if name.lower().endswith(FILES) and not any(p[0] in "._" for p in name.split("/"))
        ]
        if names:
            return [_file_part(path / name) for name in names]
        if next(walk(path, ENDINGS), None) is not None:
            return [PicturePart(path)]
        raise InvalidInputError(
            f"{path} contains no table and no picture; supported: {', '.join((*FILES, LANCE, *ENDINGS))}."
        )
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist. Check the path.")
    return [_file_part(path)]


def is_picture_folder(source: Any) -> bool:
    """Whether a source is a folder of pictures without tables."""
    return isinstance(source, str | Path) and isinstance(table_parts(source)[0], PicturePart)


def _file_part(path: Path | RemotePath) -> Part:
    kinds = {PARQUET: ParquetPart, _ARROW: ArrowPart, _CSV: CsvPart, _JSON: JsonPart}
    name = path.name.lower()
    for endings, kind in kinds.items():
        zipped = () if kind in (ParquetPart, ArrowPart) else tuple(f"{e}.gz" for e in endings)
        if name.endswith((*endings, *zipped)):
            return kind(path)
    raise InvalidInputError(
        f"{path} has an unknown format; its name must end in {', '.join((*FILES, *ARRAYS, LANCE))}."
    )


def _dataset_files(folder: Path | RemotePath, found: list[str]) -> list[str]:
    """The files that the state.json of a saved Hugging Face dataset lists, not its caches; empty for other folders."""
    listed_files = []
    for state in [name for name in found if name.rpartition("/")[2] == _STATE]:
        place, path = state.rpartition("/")[0], folder / state
        try:
            text = path.read(_LINE) if isinstance(path, RemotePath) else path.read_bytes()
            names = [entry["filename"] for entry in json.loads(text)["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidInputError(f"{path} lists no files of a dataset: {error!r}.") from error
        listed_files += [f"{place}/{name}" if place else str(name) for name in names]
    missing = [name for name in listed_files if name not in found]  # or points outside the folder
    if missing:
        raise InvalidInputError(f"{folder / missing[0]} is missing: the dataset is incomplete.")
    return listed_files


def walk(folder: Path | RemotePath, endings: tuple[str, ...]) -> Iterator[str]:
    """Sorted paths, below a folder, of the files with these endings; links to folders are not followed."""

    def below(place: Path | RemotePath, prefix: str) -> Iterator[str]:
        for name, is_folder in _entries(place):
            if name.startswith("."):
                continue
            if is_folder:
                yield from below(place / name, f"{prefix}{name}/")
            elif name.lower().endswith(endings):
                yield prefix + name

    yield from below(folder, "")


def _entries(folder: Path | RemotePath) -> list[tuple[str, bool]]:
    """(Name, whether it is a folder) of what lies in a folder, sorted."""
    if isinstance(folder, RemotePath):
        return folder.entries()
    with os.scandir(folder) as scan:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan)


def _parquet_file(path: Path | RemotePath) -> Any:
    """What pyarrow reads a Parquet file from: a path, which is not memory-mapped, or an open file."""
    return path.open() if isinstance(path, RemotePath) else nullcontext(path)


def _random_access(path: Path | RemotePath) -> Any:
    """A file of pyarrow for random access, memory-mapped if it is local."""
    if isinstance(path, RemotePath):
        return path.open()
    return pyarrow_package().memory_map(str(path))


@contextmanager
def _lines_of(path: Path | RemotePath) -> Iterator[Any]:
    """A file of lines, decompressed if its name ends in ``.gz``."""
    if isinstance(path, RemotePath):
        with path.stream("detect") as stream, io.BufferedReader(stream) as file:
            yield file
        return
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        yield file


def require_columns(part: Part, names: Sequence[str | None]) -> Any:
    """The schema of a part, which must have these columns; None is ignored."""
    with reading(part):
        schema = part.schema()
    for name in names:
        if name is not None and name not in schema.names:
            raise MissingInputError(f"{part} has no column {short(name)}; {listed(schema.names)}.")
    return schema


class RangeReader:
    """Reads ranges of rows of one part: forward ranges continue the same pass, earlier ones start a new pass."""

    def __init__(self, part: Part, columns: Sequence[str]) -> None:
        self._part, self._columns = part, list(columns)
        self._at, self._rest = 0, None
        self._stream: Iterator[Any] = iter(())
        self._starts: list[int] = []  # where a pass can start; empty before the first pass

    def __repr__(self) -> str:
        return f"RangeReader({str(self._part)!r}, columns={self._columns}, row={self._at})"

    def read(self, first: int, count: int) -> Iterator[Any]:
        """Arrow record batches of ``count`` rows, starting at row ``first``."""
        with reading(self._part):
            self._seek(first)
            while count > 0:
                batch = self._rest or next(self._stream, None)
                if batch is None:
                    raise InvalidInputError(f"{self._part} ends at row {self._at}: it has changed.")
                taken = batch.slice(0, count)
                self._rest = batch.slice(len(taken))
                self._at += len(taken)
                count -= len(taken)
                if len(taken):
                    yield taken

    def _seek(self, first: int) -> None:
        """Go to a row: forward from the current one, or by a new pass if it is behind or in another row group."""
        ahead = self._at <= first and bisect(self._starts, self._at) == bisect(self._starts, first)
        if not self._starts or not (ahead or first == self._at):
            self._open(first)
        while self._at < first:
            self._rest = self._rest or next(self._stream, None)
            if self._rest is None:
                raise InvalidInputError(f"{self._part} has no row {first}: it has changed.")
            skipped = min(first - self._at, len(self._rest))
            self._rest = self._rest.slice(skipped)
            self._at += skipped

    def _open(self, first: int) -> None:
        """Start a pass at the last possible row before a row."""
        self._starts = self._starts or self._part.starts()
        start = bisect(self._starts, first) - 1
        self._stream = self._part.batches(self._columns, rows=_RANGE_BATCH, start=start)
        self._at, self._rest = self._starts[start], None


def _open_ipc(source: Any) -> Any:
    """A reader of an Arrow file, or of an Arrow stream saved as a file."""
    from pyarrow import ipc

    try:
        return ipc.open_file(source)
    except pyarrow_package().ArrowInvalid:
        source.seek(0)
        return ipc.open_stream(source)


def _ipc_batches(source: Any) -> Iterator[Any]:
    reader = _open_ipc(source)
    count = getattr(reader, "num_record_batches", None)  # unknown for a stream
    yield from reader if count is None else map(reader.get_batch, range(count))


def listed(names: Sequence[str]) -> str:
    """The existing columns, for an error message."""
    shown = ", ".join(short(name) for name in names[:20])
    return f"its columns are {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def short(value: Any) -> str:
    """A value for an error message, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def reading(part: Any) -> Iterator[None]:
    """Turn errors of pyarrow and of the disk into one sentence that names the file."""
    try:
        yield
    except (pyarrow_package().ArrowException, OSError, EOFError) as error:
        raise InvalidInputError(f"{part} cannot be read: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The first line of an error's message, with a full stop."""
    lines = str(error).splitlines() or [type(error).__name__]
    return f"{lines[0][:300].rstrip('.')}."


def pyarrow_package() -> Any:
    """The package pyarrow, imported on first use; raises with an install command if it is missing."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError("tables need pyarrow: pip install 'aureole[tables]'.") from error
    return pyarrow
