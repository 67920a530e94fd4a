"""Tables: vectors, inputs, groups, pairs and ids of any table that ``_table_files`` reads, and a writer of columns.

A table is a path, or a DataFrame of pandas, polars or pyarrow. Vectors are read in bounded memory: they are streamed to
an unnamed temporary file, which is memory-mapped and deleted with the array. A vector has at most 65,536 entries. Other
columns are held in memory if they are needed as a whole, up to 2 GiB; ids are streamed. Nothing is ever unpickled.
"""

import json
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from aureole._io import atomic_file
from aureole.data import _arrow_columns as arrow, _table_files as files
from aureole.data._addresses import RemotePath, resolve
from aureole.data._array_files import ARRAYS, map_array, map_vectors
from aureole.errors import AureoleError, InvalidInputError, MissingInputError

_CSV, _JSON = (".csv",), (".jsonl", ".ndjson")
_PIECE_ROWS, _PIECE_BYTES = 65_536, 2**26
_LARGEST_COLUMN = 2**31  # bytes of a column held in memory


def read_vectors(
    path: Any,
    column: str | None = None,
    *,
    work: Path | None = None,
    observer: Callable[[int], None] | None = None,
) -> np.ndarray:
    """The vectors [n, d] of a column of lists of floats, or of an ``.npy`` or ``.safetensors`` file, memory-mapped.

    Parameters
    ----------
    path
        A table: a Parquet, Arrow, Feather or JSON-lines file, a Lance table, a folder of such files (rows in the order
        of the files' names), a saved Hugging Face dataset, a DataFrame; or ``.npy`` or ``.safetensors``.
    column
        Name of the column or tensor (default: the only one of a suitable type).
    work
        Folder with room for a copy of a table's vectors (default: the folder for temporary files). The copy is deleted
        with the array, or when the process ends.
    observer
        Called with the number of rows read so far.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp()) / "vectors.parquet"
    >>> _ = write_columns(path, {"v": np.eye(3, dtype=np.float32), "g": np.array(["b", "a", "b"])})
    >>> read_vectors(path, "v").shape, read_groups(path, "g").tolist()
    ((3, 3), [1, 0, 1])
    """
    if _is_array(path):
        return map_vectors(Path(path), column)
    name = _only_lists(path) if column is None else column
    total, dim, kind = 0, None, np.dtype(np.float32)
    with _staging(work) as file:
        for where, first, array in arrow.pieces(path, name):
            if not len(array):
                continue
            rows = arrow.matrix(array, dim, first, where)
            dim, kind = rows.shape[1], rows.dtype
            file.write(rows.data)
            total += len(rows)
            if observer is not None:
                observer(total)
        if dim is None:
            raise InvalidInputError(f"{table_name(path)} has no rows.")
        file.flush()
        return np.memmap(file, kind, "c", shape=(total, dim))


def read_column(path: Any, column: str | None = None, *, numbers: bool = False) -> np.ndarray:
    """The values [n] of a column of numbers, strings or times, with None for missing values.

    ``path`` is as in ``read_vectors``, or a CSV or TSV file with a header, whose values are all strings, unless
    ``numbers`` is true and all are numbers.
    """
    if _is_array(path):
        return _array_column(Path(path), column)
    values = whole_column(path, column)
    if numbers and not files.table_parts(path)[0].typed:
        values = arrow.numbers(values)
    if not values.null_count:
        return values.to_numpy()
    return np.fromiter(values.to_pylist(), object, len(values))


def scan_inputs(path: Any, column: str, kind: arrow.InputKind) -> Iterator[tuple[str, Any]]:
    """(Where, input) of each row of a column of texts or pictures: a str, bytes or a path, None if it is missing.

    ``where`` names the row in error messages. Relative paths of pictures refer to the folder of the table.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp()) / "texts.csv"
    >>> _ = write_columns(path, {"group": np.array([1]), "text": np.array(["a dog"])})
    >>> [value for _, value in scan_inputs(path, "text", "text")]
    ['a dog']
    """
    for part in files.table_parts(path):
        type = files.require_columns(part, [column]).field(column).type
        if not arrow.fitting(type, kind) and not arrow.holds_paths(type, kind):
            raise MissingInputError(
                f"the column {files.short(column)} of {part} has type {type}, which does not hold {kind}s."
            )
        row = 0
        with files.reading(part):
            for batch in part.batches([column], rows=256):
                for value in arrow.values_of(batch.column(column), kind, part.folder):
                    yield f"row {row} of {part} (counted from 0)", value
                    row += 1


def pick_inputs(
    path: Any, column: str, kind: arrow.InputKind, rows: Iterable[int]
) -> dict[int, Any]:
    """The inputs of some rows of a column of texts or pictures, as in ``scan_inputs``, by row number."""
    wanted, first = sorted(set(rows)), 0
    inputs: dict[int, Any] = {}
    for part in files.table_parts(path):
        files.require_columns(part, [column])
        with files.reading(part):
            for batch in part.batches([column], rows=256):
                start, stop = (bisect_left(wanted, first + n) for n in (0, len(batch)))
                here = wanted[start:stop]
                if here:
                    chosen = batch.column(column).take([row - first for row in here])
                    values = arrow.values_of(chosen, kind, part.folder)
                    inputs |= zip(here, values, strict=True)
                first += len(batch)
    absent = [row for row in wanted if row not in inputs]
    if absent:
        raise _no_row(path, first, absent[0])
    return inputs


def check_columns(path: Any, *columns: str | None) -> None:
    """Raise if a table does not exist or does not have these columns; None is ignored. No row is read."""
    if not _is_array(path):
        for part in files.table_parts(path):
            files.require_columns(part, columns)
    elif not Path(path).is_file():
        raise MissingInputError(f"{path} does not exist. Check the path.")


def read_groups(path: Any, column: str | None = None) -> np.ndarray:
    """Group numbers [n]: the rank of each row's value among the sorted distinct values. None may be missing."""
    if _is_array(path):
        labels = _array_column(Path(path), column)
        codes = np.unique(labels, return_inverse=True)[1]
        missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)
    else:
        codes, missing = arrow.ordered_codes(whole_column(path, column))
    if missing.any():
        place = (
            table_name(path) if column is None else f"the column {column!r} of {table_name(path)}"
        )
        raise InvalidInputError(
            f"row {int(missing.argmax())} (counted from 0) of {place} has no group. Drop such rows, or give each its "
            "own group."
        )
    return codes


def read_pairs(
    path: Any, columns: tuple[str, str], *, ids: tuple[Any, str] | None = None
) -> np.ndarray:
    """Pairs of rows [p, 2] from two columns: row numbers from 0, or ids to look up in the column ``ids``.

    ``ids`` is (table, column); its values must be unique.
    """
    known = None if ids is None else unique_ids(*ids)
    return np.stack([rows_by_id(path, column, known) for column in columns], 1)


def unique_ids(path: Any, column: str) -> Any:
    """A column of ids as an Arrow array; raise if two are the same."""
    known = whole_column(path, column).combine_chunks()
    if len(known.unique()) < len(known):
        raise InvalidInputError(
            f"ids must be unique, but {table_name(path)} has duplicates in {column!r}."
        )
    return known


def rows_by_id(path: Any, column: str, known: Any | None) -> np.ndarray:
    """The row number [n] of each value of a column: its place among the known ids, or the value itself without them."""
    values = whole_column(path, column)
    try:
        rows = arrow.row_numbers(values, known)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"in the column {column!r} of {table_name(path)}, {error}"
        ) from error
    if (rows < 0).any():
        row = int((rows < 0).argmax())
        expected = "a row number" if known is None else "an id of the vectors"
        raise InvalidInputError(
            f"row {row} of {table_name(path)} (counted from 0) has {files.short(values[row].as_py())} as {column!r}, "
            f"which is not {expected}."
        )
    return rows


def table_files(path: Path | str) -> list[Path | RemotePath]:
    """The files of a path: the file itself, or those of a folder or Lance table in reading order."""
    if _is_array(path) and Path(path).is_file():
        return [Path(path)]
    parts = files.table_parts(path)
    folders = (files.LancePart, files.PicturePart)
    return [
        file
        for part in parts
        for file in (
            [part.path / name for name in files.walk(part.path, ("",))]
            if isinstance(part, folders)
            else [part.path]
        )
    ]


def scan_column(path: Any, column: str | None = None) -> Iterator[Any]:
    """The values of a column in pieces of about 65,536 rows or 64 MiB: Arrow or numpy arrays of one type."""
    if _is_array(path):
        values = _array_column(Path(path), column)
        yield from (values[i : i + _PIECE_ROWS] for i in range(0, len(values), _PIECE_ROWS))
        return
    join = files.pyarrow_package().chunked_array
    arrays, rows, size = [], 0, 0
    for array in _scalar_pieces(path, column):
        arrays.append(array)
        rows, size = rows + len(array), size + array.nbytes
        if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
            yield join(arrays)
            arrays, rows, size = [], 0, 0
    if rows:
        yield join(arrays)


def pick_rows(path: Any, column: str | None, rows: Iterable[int]) -> dict[int, Any]:
    """The values of some rows of a column, by row number."""
    rows = list(rows)
    wanted, first = sorted(set(rows)), 0
    values: dict[int, Any] = {}
    for piece in scan_column(path, column):
        for row in wanted[bisect_left(wanted, first) : bisect_left(wanted, first + len(piece))]:
            value = piece[row - first]
            values[row] = value.item() if isinstance(value, np.generic) else value.as_py()
        first += len(piece)
    absent = [row for row in wanted if not 0 <= row < first]
    if absent:
        raise _no_row(path, first, absent[0])
    return {row: values[row] for row in rows}


def pick_vector(path: Any, column: str | None, row: int) -> np.ndarray:
    """The vector [d] of one row, counted from 0; rows after it are not read."""
    first = 0
    if _is_array(path):
        vectors = map_vectors(Path(path), column, rows=slice(row, row + 1))
        if 0 <= row < len(vectors):
            return vectors[row]
        first = len(vectors)
    else:
        name = _only_lists(path) if column is None else column
        for where, start, array in arrow.pieces(path, name):
            if 0 <= row - first < len(array):
                at = row - first
                return arrow.matrix(array.slice(at, 1), None, start + at, where)[0]
            first += len(array)
    raise _no_row(path, first, row)


def _is_array(path: Any) -> bool:
    """Whether a source is a file with a single array instead of a table."""
    if not isinstance(path, str | Path) or Path(path).suffix not in ARRAYS:
        return False
    if isinstance(resolve(path), RemotePath):
        raise InvalidInputError(
            f"{resolve(path)} is an array, which must be a local file. Copy it, or use a Parquet table."
        )
    return True


def table_name(path: Any) -> str:
    """A table for an error message."""
    return str(path) if isinstance(path, str | Path) else "the table in memory"


def _no_row(path: Any, rows: int, row: int) -> InvalidInputError:
    return InvalidInputError(
        f"{table_name(path)} has {rows} rows, so there is no row {row} (counted from 0)."
    )


def as_vectors(vectors: Any) -> Tensor | np.ndarray:
    """The vectors as a tensor or an array [n, d]; an Arrow column is not copied unless it has several chunks.

    Takes tensors, arrays, and objects with Arrow's C data interface, such as columns of pyarrow and polars.
    """
    if isinstance(vectors, Tensor | np.ndarray):
        return vectors
    column = arrow.from_protocol(vectors)
    if column is None:
        raise InvalidInputError(
            f"vectors must be a tensor, an array or an Arrow column, but are {type(vectors).__name__}. "
            "numpy.asarray converts a list of lists."
        )
    if not len(column):
        raise InvalidInputError("the column has no rows.")
    return arrow.matrix(column, None, 0, "the column")


class ColumnWriter:
    """Writes a table piece by piece to a Parquet, CSV or JSON-lines file, atomically.

    Each piece is a dict of columns: arrays [n], arrays [n, d] (lists; in CSV one column for each entry), tensors, or
    Arrow arrays. Infinity and NaN become null in JSON.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp()) / "scored.csv"
    >>> with ColumnWriter(path) as table:
    ...     table.write({"id": np.array(["a", "b"]), "kappa": np.array([3.5, 4.0])})
    >>> path.read_text().split()
    ['"id","kappa"', '"a",3.5', '"b",4']
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.suffix not in (*files.PARQUET, *_CSV, *_JSON):
            raise InvalidInputError(f"{self.path} must end in .parquet, .csv or .jsonl.")
        self._stack = ExitStack()
        self._file: Any = None
        self._sink: Any = None

    def __repr__(self) -> str:
        return f"ColumnWriter({str(self.path)!r})"

    def __enter__(self) -> "ColumnWriter":
        self._file = self._stack.enter_context(atomic_file(self.path))
        return self

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows; the columns must be the same each time."""
        csv = self.path.suffix in _CSV
        batch = arrow.arrow_table(columns, flat=csv)
        if self.path.suffix in _JSON:
            for row in batch.to_pylist():
                line = json.dumps(_plain(row), allow_nan=False, ensure_ascii=False)
                self._file.write(line.encode() + b"\n")
            return
        if self._sink is None:
            self._sink = arrow.arrow_writer(self._file, batch.schema, csv=csv)
            self._stack.callback(self._sink.close)
        self._sink.write_table(batch)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def write_columns(path: Path | str, columns: Mapping[str, Any]) -> Path:
    """Write columns of equal length to a Parquet, CSV or JSON-lines file, and return its path."""
    with ColumnWriter(path) as table:
        table.write(columns)
    return Path(path)


def _only_lists(path: Any) -> str:
    """The name of the only column of lists."""
    names = arrow.list_columns(path)
    if len(names) != 1:
        kind = "several columns" if names else "no column"
        raise MissingInputError(
            f"{table_name(path)} has {kind} of lists, so the column of vectors must be named (texts and pictures need "
            f"an --encoder); {_listed(path)}."
        )
    return names[0]


def _listed(path: Any) -> str:
    """The columns of a table, for an error message."""
    return files.listed(files.require_columns(files.table_parts(path)[0], []).names)


def _scalar_pieces(path: Any, column: str | None) -> Iterator[Any]:
    """Arrow arrays of a column with one scalar per row."""
    if column is None:
        raise MissingInputError(f"name a column of {table_name(path)}; {_listed(path)}.")
    for where, _, array in arrow.pieces(path, column):
        if files.pyarrow_package().types.is_nested(array.type):
            raise InvalidInputError(
                f"the column {column!r} of {where} has {array.type}, but one scalar per row is needed."
            )
        yield array


def whole_column(path: Any, column: str | None) -> Any:
    """A column of scalars in memory, as an Arrow chunked array."""
    arrays, size = [], 0
    for array in _scalar_pieces(path, column):
        arrays.append(array)
        size += array.nbytes
        if size > _LARGEST_COLUMN:
            raise InvalidInputError(
                f"the column {column!r} of {table_name(path)} has more than {_LARGEST_COLUMN >> 30} GiB, the limit for "
                "a column held in memory. Use shorter values, such as numbers."
            )
    if not sum(map(len, arrays)):
        raise InvalidInputError(f"{table_name(path)} has no rows.")
    return files.pyarrow_package().chunked_array(arrays)


def _array_column(path: Path, name: str | None) -> np.ndarray:
    values = map_array(path, name)
    if values.ndim != 1 or not len(values):
        raise InvalidInputError(f"{path} must hold one value per row, not shape {values.shape}.")
    return values


def _plain(value: Any) -> Any:
    """The value as JSON can represent it."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@contextmanager
def _staging(work: Path | None) -> Iterator[Any]:
    """An unnamed temporary file in the folder; errors name the folder."""
    place = Path(tempfile.gettempdir()) if work is None else work
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            yield file
    except OSError as error:
        raise AureoleError(
            f"the vectors cannot be copied to {place}: {error.strerror}. Choose a work folder with more space."
        ) from error
