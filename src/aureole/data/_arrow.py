"""Columns of Parquet, Arrow and CSV files, piece by piece. Of ``data``, this file and ``ranges`` import pyarrow."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from aureole.data._arrays import ARRAYS, check_finite, check_width
from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError

PARQUET, CSV = (".parquet", ".pq"), (".csv",)
_ARROW = (".arrow", ".feather")
_BATCH = 2048  # rows read at a time
_CSV_BLOCK = 2**26  # bytes; no line may be longer


def column_names(path: Path) -> list[str]:
    """The names of the columns of a file, or of the first file of a folder."""
    return _schema(files(path)[0]).names


def list_columns(path: Path) -> list[str]:
    """The names of the columns of lists."""
    kinds = {
        field.name: getattr(field.type, "storage_type", field.type)
        for field in _schema(files(path)[0])
    }
    return [name for name, kind in kinds.items() if is_list(kind)]


def pieces(path: Path, column: str) -> Iterator[tuple[str, int, Any]]:
    """(File, number of its first row, Arrow array) of pieces of a column, all of the type that the first has."""
    wanted = None
    for file in files(path):
        names, first = _schema(file).names, 0
        if column not in names:
            raise InvalidInputError(f"{file} has no column {short(column)}; {listed(names)}.")
        with reading(file):
            for dressed in _read(file, column):
                array = _undressed(dressed)
                wanted = array.type if wanted is None else wanted
                yield str(file), first, array if array.type == wanted else array.cast(wanted)
                first += len(array)


def matrix(array: Any, dim: int | None, first: int, where: str) -> np.ndarray:
    """An Arrow array of lists as an array [n, d], not copied; an error names the first row that does not fit."""
    array = _undressed(array)
    if not is_list(array.type) or not pyarrow_package().types.is_floating(array.type.value_type):
        raise InvalidInputError(
            f"vectors are lists of float16, float32 or float64, but {where} has {array.type}."
        )

    def refuse(bad: np.ndarray, what: str) -> None:
        if bad.any():
            row = first + int(bad.argmax())
            raise InvalidInputError(f"the vector in row {row} of {where} (counted from 0) {what}.")

    if array.null_count:
        refuse(array.is_null().to_numpy(zero_copy_only=False), "is missing (null)")
    fixed = pyarrow_package().types.is_fixed_size_list(array.type)
    lengths = (
        np.full(len(array), array.type.list_size)
        if fixed
        else array.value_lengths().to_numpy(zero_copy_only=False)
    )
    dim = int(lengths[0]) if dim is None else dim
    check_width(dim, where)
    refuse(lengths != dim, f"has not as many entries as those before, {dim}")
    values = array.flatten()
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False).reshape(-1, dim)
        refuse(missing.any(1), "has an entry that is missing (null)")
    rows = values.to_numpy().reshape(-1, dim)
    check_finite(rows, first, where)
    return rows


def from_protocol(vectors: Any) -> Any | None:
    """The Arrow array of what speaks Arrow's protocol, such as a column of pyarrow or polars; None for other things."""
    if hasattr(vectors, "__arrow_c_array__"):
        return pyarrow_package().array(vectors)
    if hasattr(vectors, "__arrow_c_stream__"):
        return pyarrow_package().chunked_array(vectors).combine_chunks()
    return None


def is_plain(array: Any) -> bool:
    """Whether the array has one value a row: no list, no struct."""
    return not pyarrow_package().types.is_nested(array.type)


def joined(arrays: Sequence[Any]) -> Any:
    """The pieces of a column as one."""
    return pyarrow_package().chunked_array(arrays)


def ordered_codes(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """(Numbers of the distinct values in their order, from 0 on; which rows have none: null or NaN)."""
    pc = compute_package()
    missing = pc.is_null(values, nan_is_null=True).to_numpy()
    if missing.any():
        return np.zeros(len(values), dtype=np.int64), missing
    coded = values.combine_chunks().dictionary_encode()
    rank = np.empty(len(coded.dictionary), dtype=np.int64)
    rank[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(len(rank))
    return rank[coded.indices.to_numpy()], missing


def places(values: Any, known: Any | None) -> np.ndarray:
    """Where each value stands among the known ones, -1 for nowhere; without these, the values as row numbers."""
    pa, pc = pyarrow_package(), compute_package()
    try:
        if known is None:
            return values.cast("int64").fill_null(-1).to_numpy()
        at = pc.index_in(values.cast(known.type), value_set=known, skip_nulls=True)
        return at.fill_null(-1).to_numpy().astype(np.int64)
    except pa.ArrowException as error:
        wanted = "whole numbers" if known is None else f"ids of type {known.type}"
        raise InvalidInputError(
            f"{wanted} are needed, not {values.type}: {_reason(error)}"
        ) from error


def arrow_table(columns: Mapping[str, Any], *, flat: bool) -> Any:
    """An Arrow table of columns; ``flat`` makes a column of each entry of a vector."""
    pa = pyarrow_package()
    found = {}
    for name, given in columns.items():
        values = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
        if isinstance(values, np.ndarray) and values.ndim == 2:
            if flat:
                found |= {f"{name}_{i}": pa.array(values[:, i]) for i in range(values.shape[1])}
                continue
            entries = pa.array(np.ascontiguousarray(values).reshape(-1))
            found[name] = pa.FixedSizeListArray.from_arrays(entries, values.shape[1])
        else:
            ours = isinstance(values, pa.Array | pa.ChunkedArray)
            found[name] = values if ours else pa.array(values)
    return pa.table(found)


def arrow_writer(file: Any, schema: Any, *, csv: bool) -> Any:
    """A writer of Arrow tables to an open file."""
    if csv:
        from pyarrow.csv import CSVWriter

        return CSVWriter(file, schema)
    from pyarrow.parquet import ParquetWriter

    return ParquetWriter(file, schema)


def listed(names: Sequence[str]) -> str:
    """The columns there are, for an error."""
    shown = ", ".join(short(name) for name in names[:20])
    return f"its columns are {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def short(value: Any) -> str:
    """A value for an error, in 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def files(path: Path) -> list[Path]:
    """The file, or those of a folder and its folders by name; names with a dot or a _ in front are no data."""
    known = (*PARQUET, *_ARROW, *CSV)
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.suffix in known
            and not any(part[0] in "._" for part in file.relative_to(path).parts)
            and file.is_file()
        ]
        if not found:
            raise InvalidInputError(f"no file in {path} ends in {', '.join(known)}.")
        return sorted(found)
    if not path.is_file():
        raise MissingInputError(f"{path} is not there. Check the name.")
    if path.suffix not in known:
        raise InvalidInputError(
            f"{path} is of no kind that can be read here; its name must end in {', '.join((*known, *ARRAYS))}."
        )
    return [path]


def _schema(file: Path) -> Any:
    with reading(file):
        if file.suffix in PARQUET:
            from pyarrow import parquet

            return parquet.read_schema(file)
        if file.suffix in CSV:
            from pyarrow import csv

            with csv.open_csv(file, csv.ReadOptions(block_size=_CSV_BLOCK)) as reader:
                return reader.schema
        with pyarrow_package().memory_map(str(file)) as source:
            return open_ipc(source).schema


def _read(file: Path, column: str) -> Iterator[Any]:
    """Arrow arrays of some rows of a column of a file."""
    if file.suffix in PARQUET:
        from pyarrow import parquet

        # otherwise pyarrow reads ahead all row groups, and each as a whole
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20) as table:
            for batch in table.iter_batches(_BATCH, columns=[column], use_threads=False):
                yield batch.column(column)
    elif file.suffix in CSV:
        yield from _read_csv(file, column)
    else:
        with pyarrow_package().memory_map(str(file)) as source:
            reader = open_ipc(source)
            count = getattr(reader, "num_record_batches", None)  # a stream does not know
            batches = reader if count is None else map(reader.get_batch, range(count))
            for batch in batches:
                values = batch.column(column)
                for first in range(0, len(values), _BATCH):
                    yield values.slice(first, _BATCH)


def open_ipc(source: Any) -> Any:
    """A reader of an Arrow file, or of a stream in a file, as some write it."""
    from pyarrow import ipc

    try:
        return ipc.open_file(source)
    except pyarrow_package().ArrowInvalid:
        source.seek(0)
        return ipc.open_stream(source)


def _read_csv(file: Path, column: str) -> Iterator[Any]:
    """Strings as they are, null where there is nothing."""
    from pyarrow import csv

    reader = csv.open_csv(
        file,
        csv.ReadOptions(block_size=_CSV_BLOCK, use_threads=False),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            include_columns=[column],
            column_types={column: pyarrow_package().string()},
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    with reader:
        for batch in reader:
            yield batch.column(0)


def _undressed(array: Any) -> Any:
    """The array without a dictionary or an extension type around it, such as that for tensors."""
    pa = pyarrow_package()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is one of lists."""
    types = pyarrow_package().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Errors of pyarrow, and of the disk, as one sentence that names the file."""
    try:
        yield
    except (pyarrow_package().ArrowException, OSError) as error:
        raise InvalidInputError(f"{file} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return f"{lines[0][:300].rstrip('.')}."


def pyarrow_package() -> Any:
    """The package, imported when it is used; an error says how to get it."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError("tables need pyarrow: pip install 'aureole[tables]'.") from error
    return pyarrow


def compute_package() -> Any:
    """Arrow's functions; they are made at import, so that type checkers do not know them."""
    pyarrow_package()
    import pyarrow.compute

    return pyarrow.compute
