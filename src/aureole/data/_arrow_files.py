"""Parquet, Arrow and CSV files, read in bounded memory. The only file of ``data`` that imports pyarrow.

pyarrow's readers of single files are used instead of ``pyarrow.dataset``, which decodes whole row groups (540 MB for a
file of 200 MB in one row group) and does not read Arrow streams.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from aureole.data._array_files import ARRAYS, check_finite, check_width
from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError

PARQUET, CSV = (".parquet", ".pq"), (".csv",)
_ARROW = (".arrow", ".feather")
_BATCH = 2048  # rows read at a time
_RANGE_BATCH = 256  # rows read at a time by RangeReader: images are large
_CSV_BLOCK = 2**26  # bytes; no line may be longer

InputKind = Literal["image", "text", "vector"]


def files(path: Path) -> list[Path]:
    """The file itself, or the table files below a folder by name, without those that start with ``.`` or ``_``."""
    endings = (*PARQUET, *_ARROW, *CSV)
    if path.is_dir():
        tables = [file for file in path.rglob("*") if file.suffix in endings and file.is_file()]
        shown = [f for f in tables if not any(p[0] in "._" for p in f.relative_to(path).parts)]
        if not shown:
            raise InvalidInputError(f"no file in {path} ends in {', '.join(endings)}.")
        return sorted(shown)
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist. Check the path.")
    if path.suffix not in endings:
        raise InvalidInputError(
            f"{path} has an unknown format; its name must end in {', '.join((*endings, *ARRAYS))}."
        )
    return [path]


def read_schema(file: Path) -> Any:
    """The Arrow schema of a file."""
    with reading(file):
        if file.suffix in PARQUET:
            from pyarrow import parquet

            return parquet.read_schema(file)
        if file.suffix in CSV:
            from pyarrow import csv

            with csv.open_csv(file, csv.ReadOptions(block_size=_CSV_BLOCK)) as reader:
                return reader.schema
        with pyarrow_package().memory_map(str(file)) as source:
            return _open_ipc(source).schema


def count_rows(file: Path) -> int:
    """The number of rows of a Parquet or Arrow file, from its metadata where it has any."""
    with reading(file):
        if file.suffix in PARQUET:
            from pyarrow import parquet

            return int(parquet.read_metadata(file).num_rows)
        with pyarrow_package().memory_map(str(file)) as source:
            return sum(len(batch) for batch in _ipc_batches(source))


def column_names(path: Path) -> list[str]:
    """The names of the columns of a file, or of the first file of a folder."""
    return read_schema(files(path)[0]).names


def list_columns(path: Path) -> list[str]:
    """The names of the columns of lists."""
    schema = read_schema(files(path)[0])
    types = {field.name: getattr(field.type, "storage_type", field.type) for field in schema}
    return [name for name, type in types.items() if _is_list(type)]


def columns_of(schema: Any, kind: InputKind) -> list[str]:
    """The columns of a schema that can hold inputs of a kind."""
    return [field.name for field in schema if fitting(field.type, kind)]


def fitting(type: Any, kind: InputKind) -> bool:
    """Whether a column of this Arrow type can hold inputs of a kind: bytes or a struct with ``bytes``, text, lists."""
    types = pyarrow_package().types
    type = getattr(type, "storage_type", type)
    if kind == "text":
        return types.is_string(type) or types.is_large_string(type)
    if kind == "vector":
        return _is_list(type) and types.is_floating(type.value_type)
    if types.is_struct(type):
        place = type.get_field_index("bytes")
        return place >= 0 and fitting(type.field(place).type, "image")
    return types.is_binary(type) or types.is_large_binary(type)


def pieces(path: Path, column: str) -> Iterator[tuple[str, int, Any]]:
    """(File, number of the first row, Arrow array) of pieces of a column, all with the type of the first piece."""
    expected = None
    for file in files(path):
        names, first = read_schema(file).names, 0
        if column not in names:
            raise InvalidInputError(f"{file} has no column {short(column)}; {listed(names)}.")
        with reading(file):
            for batch in _record_batches(file, [column], rows=_BATCH):
                array = _storage(batch.column(column))
                expected = array.type if expected is None else expected
                yield str(file), first, array if array.type == expected else array.cast(expected)
                first += len(array)


class RangeReader:
    """Reads ranges of rows of one file: forward ranges continue the same pass, earlier ones start a new pass."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self._file, self._columns = file, list(columns)
        self._at, self._rest = 0, None
        self._stream: Iterator[Any] = iter(())
        self._starts: list[int] = []  # the first row of each row group; empty before the first pass

    def __repr__(self) -> str:
        return f"RangeReader({str(self._file)!r}, columns={self._columns}, row={self._at})"

    def read(self, first: int, count: int) -> Iterator[Any]:
        """Arrow record batches of ``count`` rows, starting at row ``first``."""
        with reading(self._file):
            self._seek(first)
            while count > 0:
                batch = self._rest or next(self._stream, None)
                if batch is None:
                    raise InvalidInputError(f"{self._file} ends at row {self._at}: it has changed.")
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
                raise InvalidInputError(f"{self._file} has no row {first}: it has changed.")
            skipped = min(first - self._at, len(self._rest))
            self._rest = self._rest.slice(skipped)
            self._at += skipped

    def _open(self, first: int) -> None:
        """Start a pass at the row group that holds a row."""
        self._starts = self._starts or _row_group_starts(self._file)
        group, size = bisect(self._starts, first) - 1, _RANGE_BATCH
        self._stream = _record_batches(self._file, self._columns, rows=size, first_group=group)
        self._at, self._rest = self._starts[group], None


def _row_group_starts(file: Path) -> list[int]:
    """The first row of each row group of a Parquet file; Arrow files count as one group."""
    if file.suffix not in PARQUET:
        return [0]
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return [0, *accumulate(sizes)][:-1] or [0]


def _record_batches(
    file: Path, columns: list[str], *, rows: int, first_group: int = 0
) -> Iterator[Any]:
    """Record batches of at most ``rows`` rows, of a Parquet file from a row group on."""
    if file.suffix in PARQUET:
        from pyarrow import parquet

        # with pre_buffer, pyarrow would read ahead all row groups, and each as a whole
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20) as table:
            groups = range(first_group, table.num_row_groups)
            yield from table.iter_batches(rows, groups, columns, use_threads=False)
    elif file.suffix in CSV:
        yield from _csv_batches(file, columns)
    else:
        with pyarrow_package().memory_map(str(file)) as source:
            for batch in _ipc_batches(source):
                for first in range(0, len(batch), rows):
                    yield batch.select(columns).slice(first, rows)


def _csv_batches(file: Path, columns: list[str]) -> Iterator[Any]:
    """Columns of unconverted strings, null where a value is empty."""
    from pyarrow import csv

    options = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pyarrow_package().string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    read = csv.ReadOptions(block_size=_CSV_BLOCK, use_threads=False)
    with csv.open_csv(file, read, csv.ParseOptions(newlines_in_values=True), options) as reader:
        yield from reader


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


def matrix(array: Any, dim: int | None, first: int, where: str) -> np.ndarray:
    """An Arrow array of lists as an array [n, d], without a copy; an error names the first invalid row."""
    array = _storage(array)
    types = pyarrow_package().types
    if not _is_list(array.type) or not types.is_floating(array.type.value_type):
        raise InvalidInputError(
            f"vectors must be lists of float16, float32 or float64, but {where} has {array.type}."
        )

    def refuse(bad: np.ndarray, reason: str) -> None:
        if bad.any():
            row = f"row {first + int(bad.argmax())} of {where} (counted from 0)"
            raise InvalidInputError(f"the vector in {row} {reason}.")

    if array.null_count:
        refuse(array.is_null().to_numpy(zero_copy_only=False), "is missing (null)")
    lengths = (
        np.full(len(array), array.type.list_size)
        if types.is_fixed_size_list(array.type)
        else array.value_lengths().to_numpy(zero_copy_only=False)
    )
    dim = int(lengths[0]) if dim is None else dim
    check_width(dim, where)
    wrong = lengths != dim
    refuse(wrong, f"has {lengths[wrong.argmax()]} entries, but earlier rows have {dim}")
    values = array.flatten()
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False).reshape(-1, dim)
        refuse(missing.any(1), "has a missing entry (null)")
    rows = values.to_numpy().reshape(-1, dim)
    check_finite(rows, first, where)
    return rows


def values_of(array: Any, kind: InputKind) -> list[Any]:
    """The inputs of a column, one per row: bytes, str or a vector; None where the value is missing."""
    pa = pyarrow_package()
    array = _storage(array)
    if kind == "image" and pa.types.is_struct(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    if kind != "vector" or not _is_list(array.type):
        return array.to_pylist()
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(array.type):
        ends = np.arange(array.offset, array.offset + len(array) + 1) * array.type.list_size
    else:
        ends = array.offsets.to_numpy()
    values = array.values.to_numpy(zero_copy_only=False)
    bounds = zip(missing, ends, ends[1:], strict=False)
    return [None if absent else values[start:end] for absent, start, end in bounds]


def from_protocol(vectors: Any) -> Any | None:
    """The Arrow array of an object with Arrow's C data interface, such as a polars column; None for others."""
    if hasattr(vectors, "__arrow_c_array__"):
        return pyarrow_package().array(vectors)
    if hasattr(vectors, "__arrow_c_stream__"):
        return pyarrow_package().chunked_array(vectors).combine_chunks()
    return None


def ordered_codes(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """(Rank of each value among the sorted distinct values, from 0; mask of the rows that are null or NaN)."""
    pc = compute_package()
    missing = pc.is_null(values, nan_is_null=True).to_numpy()
    if missing.any():
        return np.zeros(len(values), dtype=np.int64), missing
    coded = values.combine_chunks().dictionary_encode()
    rank = np.empty(len(coded.dictionary), dtype=np.int64)
    rank[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(len(rank))
    return rank[coded.indices.to_numpy()], missing


def row_numbers(values: Any, ids: Any | None) -> np.ndarray:
    """The position of each value among the ids, -1 if absent; without ids, the values as row numbers."""
    pa, pc = pyarrow_package(), compute_package()
    try:
        if ids is None:
            return values.cast("int64").fill_null(-1).to_numpy()
        at = pc.index_in(values.cast(ids.type), value_set=ids, skip_nulls=True)
        return at.fill_null(-1).to_numpy().astype(np.int64)
    except pa.ArrowException as error:
        expected = "whole numbers" if ids is None else f"ids of type {ids.type}"
        message = f"{expected} are expected, not {values.type}: {_reason(error)}"
        raise InvalidInputError(message) from error


def arrow_table(columns: Mapping[str, Any], *, flat: bool) -> Any:
    """An Arrow table of columns; with ``flat``, one column for each entry of a vector."""
    pa = pyarrow_package()
    arrays = {}
    for name, column in columns.items():
        values = column.detach().cpu().numpy() if isinstance(column, Tensor) else column
        if isinstance(values, np.ndarray) and values.ndim == 2:
            if flat:
                arrays |= {f"{name}_{i}": pa.array(values[:, i]) for i in range(values.shape[1])}
                continue
            entries = pa.array(np.ascontiguousarray(values).reshape(-1))
            arrays[name] = pa.FixedSizeListArray.from_arrays(entries, values.shape[1])
        else:
            is_arrow = isinstance(values, pa.Array | pa.ChunkedArray)
            arrays[name] = values if is_arrow else pa.array(values)
    return pa.table(arrays)


def arrow_writer(file: Any, schema: Any, *, csv: bool) -> Any:
    """A writer of Arrow tables to an open file."""
    if csv:
        from pyarrow.csv import CSVWriter

        return CSVWriter(file, schema)
    from pyarrow.parquet import ParquetWriter

    return ParquetWriter(file, schema)


def listed(names: Sequence[str]) -> str:
    """The existing columns, for an error message."""
    shown = ", ".join(short(name) for name in names[:20])
    return f"its columns are {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def short(value: Any) -> str:
    """A value for an error message, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _storage(array: Any) -> Any:
    """The plain array inside an extension type (such as tensors) or a dictionary."""
    pa = pyarrow_package()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _is_list(type: Any) -> bool:
    types = pyarrow_package().types
    return types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn errors of pyarrow and of the disk into one sentence that names the file."""
    try:
        yield
    except (pyarrow_package().ArrowException, OSError) as error:
        raise InvalidInputError(f"{file} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return f"{lines[0][:300].rstrip('.')}."


def pyarrow_package() -> Any:
    """The package pyarrow, imported on first use; raises with an install command if it is missing."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError("tables need pyarrow: pip install 'aureole[tables]'.") from error
    return pyarrow


def compute_package() -> Any:
    """The module pyarrow.compute, whose functions are created at import and unknown to type checkers."""
    pyarrow_package()
    import pyarrow.compute

    return pyarrow.compute
