"""Columns of Arrow: vectors, inputs of encoders, groups and row numbers from them, and tables to write."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from aureole.data._addresses import RemotePath
from aureole.data._array_files import check_finite, check_width
from aureole.data._table_files import pyarrow_package, reading, reason, require_columns, table_parts
from aureole.errors import InvalidInputError

InputKind = Literal["image", "text", "vector"]


def list_columns(source: Any) -> list[str]:
    """The names of the columns of lists."""
    schema = require_columns(table_parts(source)[0], [])
    types = {field.name: getattr(field.type, "storage_type", field.type) for field in schema}
    return [name for name, type in types.items() if _is_list(type)]


def columns_of(schema: Any, kind: InputKind) -> list[str]:
    """The columns of a schema that can hold inputs of a kind."""
    return [field.name for field in schema if fitting(field.type, kind)]


def fitting(type: Any, kind: InputKind) -> bool:
    """Whether a column of this Arrow type can hold inputs of a kind: bytes or a struct with ``bytes``, text, lists.

    A column of texts can also hold the paths of pictures: see ``holds_paths``.
    """
    types = pyarrow_package().types
    type = getattr(type, "storage_type", type)
    type = type.value_type if types.is_dictionary(type) else type
    if kind == "text":
        return types.is_string(type) or types.is_large_string(type)
    if kind == "vector":
        return _is_list(type) and types.is_floating(type.value_type)
    if types.is_struct(type):
        place = type.get_field_index("bytes")
        return place >= 0 and fitting(type.field(place).type, "image")
    return types.is_binary(type) or types.is_large_binary(type)


def pieces(source: Any, column: str) -> Iterator[tuple[str, int, Any]]:
    """(Part, number of the first row, Arrow array) of pieces of a column, all with the type of the first piece."""
    expected = None
    for part in table_parts(source):
        require_columns(part, [column])
        first = 0
        with reading(part):
            for batch in part.batches([column]):
                array = _storage(batch.column(column))
                expected = array.type if expected is None else expected
                yield str(part), first, array if array.type == expected else array.cast(expected)
                first += len(array)


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


def holds_paths(type: Any, kind: InputKind) -> bool:
    """Whether a column of pictures holds their paths."""
    return kind == "image" and fitting(type, "text")


def values_of(array: Any, kind: InputKind, folder: Path | RemotePath = Path()) -> list[Any]:
    """The inputs of a column, one per row: bytes, a path, str or a vector; None where the value is missing.

    Relative paths of pictures refer to the folder.
    """
    pa = pyarrow_package()
    array = _storage(array)
    if holds_paths(array.type, kind):
        return [None if name is None else folder / name for name in array.to_pylist()]
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


def numbers(values: Any) -> Any:
    """A column of texts as whole numbers or floats if all of its values are; unchanged otherwise."""
    for type in ("int64", "float64"):
        try:
            return values.cast(type)
        except pyarrow_package().ArrowException:
            continue
    return values


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
        message = f"{expected} are expected, not {values.type}: {reason(error)}"
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


def _storage(array: Any) -> Any:
    """The plain array inside an extension type (such as tensors) or a dictionary."""
    pa = pyarrow_package()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _is_list(type: Any) -> bool:
    types = pyarrow_package().types
    return types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type)


def compute_package() -> Any:
    """The module pyarrow.compute, whose functions are created at import and unknown to type checkers."""
    pyarrow_package()
    import pyarrow.compute

    return pyarrow.compute
