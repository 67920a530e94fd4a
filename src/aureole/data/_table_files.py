"""Tables in batches and bounded memory: CSV, TSV, JSON lines, Parquet, Arrow, Lance, pictures in folders.

A table consists of parts, such as the files of a folder. pyarrow's readers of single files are used instead of
``pyarrow.dataset``, which takes twice the memory for a file in one row group and does not read the Arrow streams of
Hugging Face datasets. JSON is parsed line by line by Python: nested deeply, it crashes pyarrow.
"""

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

from aureole.data._addresses import RemotePath, lance_options, resolve
from aureole.data._array_files import ARRAYS
from aureole.data._image_files import ENDINGS
from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError

PARQUET = (".parquet", ".pq")
_ARROW, _CSV, _JSON = (".arrow", ".feather"), (".csv", ".tsv"), (".jsonl", ".ndjson")
FILES = (*PARQUET, *_ARROW, *_CSV, *_JSON)
LANCE = ".lance"
BATCH = 2048  # rows read at a time
_LINE = 2**26  # bytes of a line of CSV or JSON at most
_HEADER = 2**21  # bytes of the header of a CSV file at most
_MOST_COLUMNS = 10_000  # a CSV file with a million aborts the process in pyarrow
_SNIFFED = 1000  # lines of JSON that decide the types of columns
_IMAGE, _LABEL = "image", "label"


class Part(ABC):
    """A file of a table, or the table itself: a name for messages, a schema, a length and its rows in batches.

    ``folder`` is what relative paths in the table refer to, and ``typed`` is false where all values are texts.
    """

    typed = True

    def __init__(self, path: Any, folder: Any = None) -> None:
        self.path, self.folder = path, path.parent if folder is None else folder

    def __str__(self) -> str:
        return str(self.path)

    @abstractmethod
    def schema(self) -> Any:
        """Return the Arrow schema."""

    @abstractmethod
    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        """Yield record batches of about ``rows`` rows from row ``first`` on."""

    def batches(
        self, columns: list[str], *, rows: int = BATCH, first: int = 0, count: int | None = None
    ) -> Iterator[Any]:
        """Yield record batches of some columns, of at most ``rows`` rows: ``count`` rows from row ``first`` on."""
        for batch in self._batches(columns, rows, first):
            taken = batch if count is None else batch.slice(0, count)
            yield taken
            if count is not None and (count := count - len(taken)) <= 0:
                return
        if count:
            raise InvalidInputError(f"{self} has {count} rows fewer than it had: it has changed.")

    def count(self) -> int:
        """Return the number of rows, in one pass unless the format stores it."""
        return sum(map(len, self.batches(self.schema().names[:1])))


class _Parquet(Part):
    def schema(self) -> Any:
        with self._file() as file:
            return file.schema_arrow

    def count(self) -> int:
        with self._file() as file:
            return int(file.metadata.num_rows)

    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        with self._file() as file:
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            group = 0
            while group < len(sizes) and first >= sizes[group]:
                first, group = first - sizes[group], group + 1
            groups = range(group, len(sizes))
            yield from _from(first, file.iter_batches(rows, groups, columns, use_threads=False))

    @contextmanager
    def _file(self) -> Iterator[Any]:
        from pyarrow.parquet import ParquetFile

        source = self.path.open() if isinstance(self.path, RemotePath) else nullcontext(self.path)
        # with pre_buffer, pyarrow would read ahead all row groups, and each as a whole
        with source as opened, ParquetFile(opened, pre_buffer=False, buffer_size=2**20) as file:
            yield file


class _Arrow(Part):
    """An Arrow file, or an Arrow stream saved as a file."""

    def schema(self) -> Any:
        with self._file() as file:
            return file.schema

    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        with self._file() as file:
            number = getattr(file, "num_record_batches", None)  # a stream has none
            batches = file if number is None else map(file.get_batch, range(number))
            for batch in _from(first, (batch.select(columns) for batch in batches)):
                batch.validate(full=True)  # offsets in a file are not checked by its reader
                yield from (batch.slice(i, rows) for i in range(0, len(batch), rows))

    @contextmanager
    def _file(self) -> Iterator[Any]:
        from pyarrow import ipc

        remote = isinstance(self.path, RemotePath)
        map_file = pyarrow_package().memory_map
        with self.path.open() if remote else map_file(str(self.path)) as source:
            try:
                file = ipc.open_file(source)
            except pyarrow_package().ArrowInvalid:
                source.seek(0)
                file = ipc.open_stream(source)
            yield file


class _Csv(Part):
    """A CSV or TSV file with a header, in UTF-8: all values are texts, null where they are empty."""

    typed = False

    def schema(self) -> Any:
        text = pyarrow_package().string()
        self._check_header()
        with self._reader([]) as reader:
            return pyarrow_package().schema([(name, text) for name in reader.schema.names])

    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        with self._reader(columns) as reader:
            for batch in _from(first, reader):
                yield from (batch.slice(i, rows) for i in range(0, len(batch), rows))

    @property
    def _delimiter(self) -> str:
        return "\t" if self.path.suffix.lower() == ".tsv" else ","

    def _check_header(self) -> None:
        """Raise for a header with too many columns or without an end: pyarrow would abort the process."""
        columns, quotes, size = 1, 0, 0
        with _opened(self.path) as file:
            while line := file.readline(_HEADER):
                columns += line.count(self._delimiter.encode())
                _check_number(self, columns)
                quotes, size = quotes + line.count(b'"'), size + len(line)
                if size >= _HEADER:
                    raise InvalidInputError(
                        f"{self} has a header of more than {_HEADER >> 20} MiB."
                    )
                if quotes % 2 == 0:
                    return

    def _reader(self, columns: list[str]) -> Any:
        from pyarrow import csv

        types = dict.fromkeys(columns, pyarrow_package().string())
        convert = csv.ConvertOptions(
            include_columns=columns, column_types=types, strings_can_be_null=True, null_values=[""]
        )
        parse = csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        read = csv.ReadOptions(block_size=_LINE, use_threads=False)
        source = self.path.stream() if isinstance(self.path, RemotePath) else self.path
        return csv.open_csv(source, read, parse, convert)


class _Json(Part):
    """A file with one JSON object per line; the first thousand lines decide the types of columns."""

    def schema(self) -> Any:
        rows = list(islice(self._objects(), _SNIFFED))
        names = dict.fromkeys(name for row in rows for name in row)
        _check_number(self, len(names))
        fields = [(name, self._array(rows, name).type) for name in names]
        return pyarrow_package().schema(fields)

    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        schema, objects = self.schema(), islice(self._objects(), first, None)
        while part := list(islice(objects, rows)):
            arrays = [self._array(part, name, schema.field(name).type) for name in columns]
            yield pyarrow_package().record_batch(arrays, names=columns)

    def _array(self, rows: list[dict[str, Any]], name: str, type: Any = None) -> Any:
        pa = pyarrow_package()
        try:
            array = pa.array([row.get(name) for row in rows], type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise InvalidInputError(
                f"the column {short(name)} of {self} has values of different types: {reason(error)}"
            ) from error
        return array.cast(pa.string()) if pa.types.is_null(array.type) else array

    def _objects(self) -> Iterator[dict[str, Any]]:
        with _opened(self.path) as file:
            for number in count(1):
                line = file.readline(_LINE + 1)
                if not line:
                    return
                try:
                    if len(line) > _LINE:
                        raise ValueError(
                            f"it has more than {_LINE >> 20} MiB, the limit for a line"
                        )
                    row = json.loads(line) if line.strip() else {}
                    if not isinstance(row, dict):
                        raise ValueError('write {"text": ...}')
                except (ValueError, RecursionError) as error:
                    raise InvalidInputError(
                        f"line {number} of {self} is not a JSON object: {reason(error)}"
                    ) from error
                if row:
                    yield row


class _Lance(Part):
    def _table(self) -> Any:
        os.environ.setdefault("LANCE_LOG", "error")
        try:
            import lance
        except ImportError as error:
            raise MissingPackageError(
                "Lance tables need pylance: pip install 'aureole[search]'."
            ) from error
        try:
            return lance.dataset(str(self), storage_options=lance_options(str(self)))
        except ValueError as error:
            raise InvalidInputError(f"{self} cannot be read: {reason(error)}") from error

    def schema(self) -> Any:
        return self._table().schema

    def count(self) -> int:
        return int(self._table().count_rows())

    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        yield from (
            self._table().scanner(columns=columns, batch_size=rows, offset=first).to_batches()
        )


class _Pictures(Part):
    """A folder of pictures as a table: ``image``, the path below the folder, and ``label``, the class folder.

    Rows are in the order of the paths. A picture that is not in a subfolder has no label.
    """

    def schema(self) -> Any:
        text = pyarrow_package().string()
        return pyarrow_package().schema([(_IMAGE, text), (_LABEL, text)])

    def _batches(self, columns: list[str], rows: int, first: int) -> Iterator[Any]:
        names = islice(walk(self.path, ENDINGS), first, None)
        while part := list(islice(names, rows)):
            unreadable = next((name for name in part if not name.isprintable()), None)
            if unreadable is not None:
                raise InvalidInputError(f"the name {short(unreadable)} in {self} is not printable.")
            labels = [name.partition("/")[0] if "/" in name else None for name in part]
            batch = pyarrow_package().record_batch([part, labels], schema=self.schema())
            yield batch.select(columns)


def table_parts(source: Path | str) -> list[Part]:
    """Return the parts of a table.

    The parts of a folder are its table files in the order of their names, without those that start with ``.`` or ``_``,
    and without the caches that ``datasets`` keeps beside a saved dataset. A folder without tables is a table of its
    pictures.
    """
    path = resolve(source)
    if not path.is_dir():
        return [_file_part(path)]
    if path.suffix.lower() == LANCE:
        return [_Lance(path)]
    names = [name for name in walk(path, FILES) if not name.rpartition("/")[2].startswith("cache-")]
    names = [name for name in names if not any(place[0] in "._" for place in name.split("/"))]
    if names:
        return [_file_part(path / name) for name in names]
    if next(walk(path, ENDINGS), None) is not None:
        return [_Pictures(path, path)]
    raise InvalidInputError(
        f"{path} contains no table and no picture; supported: {', '.join((*FILES, LANCE, *ENDINGS))}."
    )


def is_picture_folder(source: Path | str) -> bool:
    """Return whether a source is a folder of pictures without tables."""
    return isinstance(table_parts(source)[0], _Pictures)


def part_files(part: Part) -> list[Any]:
    """Return the files of a part: the file itself, or those of a folder of pictures or a Lance table."""
    if isinstance(part, _Lance | _Pictures):
        return [part.path / name for name in walk(part.path, ("",))]
    return [part.path]


def _file_part(path: Path | RemotePath) -> Part:
    if not path.is_file():  # as a FIFO or a device, from which reading might never end
        raise MissingInputError(f"{path} does not exist or is not a regular file. Check the path.")
    name = path.name.lower()
    kinds = {PARQUET: _Parquet, _ARROW: _Arrow, _CSV: _Csv, _JSON: _Json}
    for endings, kind in kinds.items():
        if name.endswith(endings):
            return kind(path)
    raise InvalidInputError(
        f"{path} has an unknown format; its name must end in {', '.join((*FILES, *ARRAYS, LANCE))}."
    )


def walk(folder: Path | RemotePath, endings: tuple[str, ...], prefix: str = "") -> Iterator[str]:
    """Yield the sorted paths, below a folder, of the regular files with these endings; hidden files are skipped.

    Links to files are followed, links to folders are not.
    """
    for name, is_folder, is_file in _entries(folder):
        if name.startswith("."):
            continue
        if is_folder:
            yield from walk(folder / name, endings, f"{prefix}{name}/")
        elif is_file and name.lower().endswith(endings):
            yield prefix + name


def _entries(folder: Path | RemotePath) -> list[tuple[str, bool, bool]]:
    """Return (name, whether it is a folder, whether it is a file) of what lies in a folder, sorted."""
    if isinstance(folder, RemotePath):
        found = folder.entries()
        return [(info.base_name, info.type.name == "Directory", info.is_file) for info in found]
    with os.scandir(folder) as scan:
        return sorted((e.name, e.is_dir(follow_symlinks=False), e.is_file()) for e in scan)


def _from(first: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches from row ``first`` on."""
    for batch in batches:
        kept = batch.slice(first)
        first = max(0, first - len(batch))
        if len(kept):
            yield kept


def _opened(path: Path | RemotePath) -> Any:
    return io.BufferedReader(path.stream()) if isinstance(path, RemotePath) else path.open("rb")


def require_columns(part: Part, names: Sequence[str | None]) -> Any:
    """Return the schema of a part, which must have each of these columns once; None is ignored."""
    with reading(part):
        schema = part.schema()
    _check_number(part, len(schema))
    for name in names:
        if name is not None and name not in schema.names:
            raise MissingInputError(f"{part} has no column {short(name)}; {listed(schema.names)}.")
        if name is not None and schema.names.count(name) > 1:
            raise InvalidInputError(
                f"{part} has several columns named {short(name)}. Rename all but one of them."
            )
    return schema


def _check_number(part: Part, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise InvalidInputError(
            f"{part} has {columns:,} columns; the limit is {_MOST_COLUMNS:,}. Store vectors in one column of lists."
        )


def listed(names: Sequence[str]) -> str:
    """Return the existing columns, for an error message."""
    shown = ", ".join(short(name) for name in names[:20])
    return f"its columns are {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def short(value: Any) -> str:
    """Return a value for an error message, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def reading(part: Any) -> Iterator[None]:
    """Turn errors of pyarrow and of the disk into one sentence that names the file."""
    errors = (pyarrow_package().ArrowException, OSError, EOFError)
    try:
        yield
    except errors as error:
        raise InvalidInputError(f"{part} cannot be read: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, with a full stop, in at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{(lines or [type(error).__name__])[0][:300].rstrip('.')}."


def pyarrow_package() -> Any:
    """Return the package pyarrow, imported on first use; raises with an install command if it is missing."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError("tables need pyarrow: pip install 'aureole[search]'.") from error
    return pyarrow
