"""Tables: vectors, groups, pairs and ids in Parquet, Arrow, CSV and array files, and a writer of columns.

Vectors are read in bounded memory: they are streamed to an unnamed temporary file, which is memory-mapped and deleted
with the array. A vector has at most 65,536 entries. Other columns are held in memory if they are needed as a whole, up
to 2 GiB; ids are streamed. Nothing is ever unpickled.
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
from aureole.data import _arrow_files as arrow
from aureole.data._array_files import ARRAYS, map_array, map_vectors
from aureole.errors import AureoleError, InvalidInputError

_JSON = (".jsonl", ".ndjson")
_PIECE_ROWS, _PIECE_BYTES = 65_536, 2**26
_LARGEST_COLUMN = 2**31  # bytes of a column held in memory


def read_vectors(
    path: Path | str,
    column: str | None = None,
    *,
    work: Path | None = None,
    observer: Callable[[int], None] | None = None,
) -> np.ndarray:
    """The vectors [n, d] of a column of lists of floats, or of an ``.npy`` or ``.safetensors`` file, memory-mapped.

    Parameters
    ----------
    path
        A Parquet, Arrow or Feather file, a folder of them (rows in the order of the files' names), ``.npy``, or
        ``.safetensors``.
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
    path = Path(path)
    if path.suffix in ARRAYS:
        return map_vectors(path, column)
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
            raise InvalidInputError(f"{path} has no rows.")
        file.flush()
        return np.memmap(file, kind, "c", shape=(total, dim))


def read_column(path: Path | str, column: str | None = None) -> np.ndarray:
    """The values [n] of a column of numbers, strings or times, with None for missing values.

    ``path`` is as in ``read_vectors``, or a CSV file with a header, whose values are all strings.
    """
    path = Path(path)
    if path.suffix in ARRAYS:
        return _array_column(path, column)
    values = _whole_column(path, column)
    if not values.null_count:
        return values.to_numpy()
    return np.fromiter(values.to_pylist(), object, len(values))


def read_groups(path: Path | str, column: str | None = None) -> np.ndarray:
    """Group numbers [n]: the rank of each row's value among the sorted distinct values. None may be missing."""
    path = Path(path)
    if path.suffix in ARRAYS:
        labels = _array_column(path, column)
        codes = np.unique(labels, return_inverse=True)[1]
        missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)
    else:
        codes, missing = arrow.ordered_codes(_whole_column(path, column))
    if missing.any():
        place = f"{path}" if column is None else f"the column {column!r} of {path}"
        raise InvalidInputError(
            f"row {int(missing.argmax())} (counted from 0) of {place} has no group. Drop such rows, or give each its "
            "own group."
        )
    return codes


def read_pairs(
    path: Path | str, columns: tuple[str, str], *, ids: tuple[Path, str] | None = None
) -> np.ndarray:
    """Pairs of rows [p, 2] from two columns: row numbers from 0, or ids to look up in the column ``ids``.

    ``ids`` is (table, column); its values must be unique.
    """
    path = Path(path)
    known = None if ids is None else _whole_column(*ids).combine_chunks()
    if ids and known is not None and len(known.unique()) < len(known):
        raise InvalidInputError(f"ids must be unique, but {ids[0]} has duplicates in {ids[1]!r}.")
    sides = []
    for column in columns:
        values = _whole_column(path, column)
        try:
            rows = arrow.row_numbers(values, known)
        except InvalidInputError as error:
            raise InvalidInputError(f"in the column {column!r} of {path}, {error}") from error
        if (rows < 0).any():
            row = int((rows < 0).argmax())
            expected = "a row number" if known is None else "an id of the vectors"
            raise InvalidInputError(
                f"row {row} of {path} (counted from 0) has {arrow.short(values[row].as_py())} as {column!r}, which "
                f"is not {expected}."
            )
        sides.append(rows)
    return np.stack(sides, 1)


def table_files(path: Path | str) -> list[Path]:
    """The files of a path: the file itself, or those of a folder in reading order."""
    path = Path(path)
    return [path] if path.suffix in ARRAYS and path.is_file() else arrow.files(path)


def scan_column(path: Path | str, column: str | None = None) -> Iterator[Any]:
    """The values of a column in pieces of about 65,536 rows or 64 MiB: Arrow or numpy arrays of one type."""
    path = Path(path)
    if path.suffix in ARRAYS:
        values = _array_column(path, column)
        yield from (values[i : i + _PIECE_ROWS] for i in range(0, len(values), _PIECE_ROWS))
        return
    join = arrow.pyarrow_package().chunked_array
    arrays, rows, size = [], 0, 0
    for array in _scalar_pieces(path, column):
        arrays.append(array)
        rows, size = rows + len(array), size + array.nbytes
        if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
            yield join(arrays)
            arrays, rows, size = [], 0, 0
    if rows:
        yield join(arrays)


def pick_rows(path: Path | str, column: str | None, rows: Iterable[int]) -> dict[int, Any]:
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


def pick_vector(path: Path | str, column: str | None, row: int) -> np.ndarray:
    """The vector [d] of one row, counted from 0; rows after it are not read."""
    path, first = Path(path), 0
    if path.suffix in ARRAYS:
        vectors = map_vectors(path, column, rows=slice(row, row + 1))
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


def _no_row(path: Path | str, rows: int, row: int) -> InvalidInputError:
    return InvalidInputError(f"{path} has {rows} rows, so there is no row {row} (counted from 0).")


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
        if self.path.suffix not in (*arrow.PARQUET, *arrow.CSV, *_JSON):
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
        csv = self.path.suffix in arrow.CSV
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


def _only_lists(path: Path) -> str:
    """The name of the only column of lists."""
    names = arrow.list_columns(path)
    if len(names) != 1:
        kind = "several columns" if names else "no column"
        raise InvalidInputError(
            f"{path} has {kind} of lists, so the column of vectors must be named; "
            f"{arrow.listed(arrow.column_names(path))}."
        )
    return names[0]


def _scalar_pieces(path: Path, column: str | None) -> Iterator[Any]:
    """Arrow arrays of a column with one scalar per row."""
    if column is None:
        names = arrow.listed(arrow.column_names(path))
        raise InvalidInputError(f"name a column of {path}; {names}.")
    for where, _, array in arrow.pieces(path, column):
        if arrow.pyarrow_package().types.is_nested(array.type):
            raise InvalidInputError(
                f"the column {column!r} of {where} has {array.type}, but one scalar per row is needed."
            )
        yield array


def _whole_column(path: Path, column: str | None) -> Any:
    """A column of scalars in memory, as an Arrow chunked array."""
    arrays, size = [], 0
    for array in _scalar_pieces(path, column):
        arrays.append(array)
        size += array.nbytes
        if size > _LARGEST_COLUMN:
            raise InvalidInputError(
                f"the column {column!r} of {path} has more than {_LARGEST_COLUMN >> 30} GiB, the limit for a column "
                "held in memory. Use shorter values, such as numbers."
            )
    if not sum(map(len, arrays)):
        raise InvalidInputError(f"{path} has no rows.")
    return arrow.pyarrow_package().chunked_array(arrays)


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
