"""Columns of Arrow: vectors, inputs of encoders, groups and row numbers from them, and tables to write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from aureole.data._addresses import RemotePath
from aureole.data._array_files import check_rows, check_width
from aureole.data._table_files import pyarrow_package, reason, short
from aureole.errors import InvalidInputError

InputKind = Literal["image", "text", "vector"]


def columns_of(schema: Any, kind: InputKind) -> list[str]:
    """Return the columns of a schema that can hold inputs of a kind."""
    return [field.name for field in schema if fitting(field.type, kind)]


def fitting(type: Any, kind: InputKind) -> bool:
    """Return whether a column of this type can hold inputs of a kind: bytes or a struct with ``bytes``, text, lists.

    A column of texts can also hold the paths of pictures: see ``holds_paths``.
    """
    types = pyarrow_package().types
    type = getattr(type, "storage_type", type)
    type = type.value_type if types.is_dictionary(type) else type
    if kind == "text":
        return types.is_string(type) or types.is_large_string(type)
    if kind == "vector":
        return is_list(type) and types.is_floating(type.value_type)
    if types.is_struct(type):
        place = type.get_field_index("bytes")
        return place >= 0 and fitting(type.field(place).type, "image")
    return types.is_binary(type) or types.is_large_binary(type)


def matrix(array: Any, dim: int | None, first: int, where: str) -> np.ndarray:
    """Return an Arrow array of lists as an array [n, d], without a copy; an error names the first invalid row."""
    array = storage(array)
    types = pyarrow_package().types
    if not is_list(array.type) or not types.is_floating(array.type.value_type):
        raise InvalidInputError(
            f"vectors must be lists of float16, float32 or float64, but {where} has {array.type}."
        )

    def refuse(bad: Any, fault: str) -> None:
        bad = np.asarray(bad)
        if bad.any():
            row = f"row {first + int(bad.argmax())} of {where} (counted from 0)"
            raise InvalidInputError(f"the vector in {row} {fault}.")

    refuse(array.is_null(), "is missing (null)")
    fixed = types.is_fixed_size_list(array.type)
    lengths = np.full(len(array), array.type.list_size) if fixed else array.value_lengths()
    lengths = np.asarray(lengths)
    dim = int(lengths[0]) if dim is None else dim
    check_width(dim, where)
    wrong = lengths != dim
    refuse(wrong, f"has {lengths[wrong.argmax()]} entries, but earlier rows have {dim}")
    values = array.flatten()
    if values.null_count:
        refuse(np.asarray(values.is_null()).reshape(-1, dim).any(1), "has a missing entry (null)")
    rows = values.to_numpy().reshape(-1, dim)
    check_rows(rows, first, where)
    return rows


def holds_paths(type: Any, kind: InputKind) -> bool:
    """Return whether a column of pictures holds their paths."""
    return kind == "image" and fitting(type, "text")


def values_of(array: Any, kind: InputKind | None, folder: Path | RemotePath = Path()) -> list[Any]:
    """Return the inputs of a column, one per row: bytes, a path, str or a vector; None where the value is missing.

    Paths of pictures refer to the folder, and must lie in it: a table of strangers may name any file. With ``kind``
    None, values are returned as they are.
    """
    pa = pyarrow_package()
    array = storage(array)
    if kind == "image" and holds_paths(array.type, kind):
        return [None if name is None else _inside(folder, name) for name in array.to_pylist()]
    if kind == "image" and pa.types.is_struct(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    if kind != "vector" or not is_list(array.type):
        return array.to_pylist()
    return [row.values.to_numpy(zero_copy_only=False) if row.is_valid else None for row in array]


def _inside(folder: Path | RemotePath, name: str) -> Path | RemotePath:
    path = folder / name
    if isinstance(path, RemotePath):
        path.check()
        inside = path.is_relative_to(folder)
    else:
        inside = "\0" not in name and path.resolve().is_relative_to(Path(folder).resolve())
    if not inside:
        raise InvalidInputError(f"the picture {short(name)} lies outside of {folder}.")
    return path


def as_vectors(vectors: Any) -> Tensor | np.ndarray:
    """Return vectors as a tensor or an array [n, d]; an Arrow column is not copied unless it has several chunks.

    Takes tensors, arrays, and objects with Arrow's C data interface, such as columns of pyarrow and polars.
    """
    if isinstance(vectors, Tensor | np.ndarray):
        return vectors
    if hasattr(vectors, "__arrow_c_array__"):
        column = pyarrow_package().array(vectors)
    elif hasattr(vectors, "__arrow_c_stream__"):
        column = pyarrow_package().chunked_array(vectors).combine_chunks()
    else:
        raise InvalidInputError(
            f"vectors must be a tensor, an array or an Arrow column, but are {type(vectors).__name__}. "
            "numpy.asarray converts a list of lists."
        )
    if not len(column):
        raise InvalidInputError("the column has no rows.")
    return matrix(column, None, 0, "the column")


def ordered_codes(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank of each value among the sorted distinct values, and the mask of the rows that are null or NaN."""
    pc = compute_package()
    missing = pc.is_null(values, nan_is_null=True).to_numpy()
    if missing.any():
        return np.zeros(len(values), dtype=np.int64), missing
    return pc.rank(values.combine_chunks(), tiebreaker="dense").to_numpy().astype(
        np.int64
    ) - 1, missing


def numbers(values: Any) -> Any:
    """Return a column of texts as whole numbers or floats if all of its values are; unchanged otherwise."""
    for type in ("int64", "float64"):
        try:
            return values.cast(type)
        except pyarrow_package().ArrowException:
            continue
    return values


def row_numbers(values: Any, ids: Any | None) -> np.ndarray:
    """Return the position of each value among the ids, -1 if absent; without ids, the values as row numbers."""
    try:
        if ids is None:
            return values.cast("int64").fill_null(-1).to_numpy()
        at = compute_package().index_in(values.cast(ids.type), value_set=ids, skip_nulls=True)
        return at.fill_null(-1).to_numpy().astype(np.int64)
    except pyarrow_package().ArrowException as error:
        expected = "whole numbers" if ids is None else f"ids of type {ids.type}"
        message = f"{expected} are expected, not {values.type}: {reason(error)}"
        raise InvalidInputError(message) from error


def arrow_table(columns: Mapping[str, Any], *, flat: bool) -> Any:
    """Return an Arrow table of columns; with ``flat``, one column for each entry of a vector."""
    pa = pyarrow_package()
    arrays = {}
    for name, column in columns.items():
        values = column.detach().cpu().numpy() if isinstance(column, Tensor) else column
        if not isinstance(values, np.ndarray) or values.ndim != 2:
            is_arrow = isinstance(values, pa.Array | pa.ChunkedArray)
            arrays[name] = values if is_arrow else pa.array(values)
        elif flat:
            arrays |= {f"{name}_{i}": pa.array(values[:, i]) for i in range(values.shape[1])}
        else:
            entries = pa.array(np.ascontiguousarray(values).reshape(-1))
            arrays[name] = pa.FixedSizeListArray.from_arrays(entries, values.shape[1])
    return pa.table(arrays)


def storage(array: Any) -> Any:
    """Return the plain array inside an extension type (such as tensors) or a dictionary."""
    pa = pyarrow_package()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def is_list(type: Any) -> bool:
    """Return whether an Arrow type is one of lists."""
    types = pyarrow_package().types
    type = getattr(type, "storage_type", type)
    return types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type)


def compute_package() -> Any:
    """Return pyarrow.compute, whose functions are created at import and unknown to type checkers."""
    pyarrow_package()
    import pyarrow.compute

    return pyarrow.compute
