"""Tables: vectors, inputs, groups, pairs and ids of any table that ``_table_files`` reads, and a writer of columns.

Vectors are read in bounded memory: they are streamed to an unnamed temporary file, which is memory-mapped and deleted
with the array. Other columns are held in memory. Nothing is ever unpickled.
"""

import json
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_file
from aureole.data import _columns as arrow, _table_files as files
from aureole.data._addresses import RemotePath, resolve
from aureole.data._array_files import ARRAYS, check_rows, map_array, map_vectors
from aureole.errors import AureoleError, InvalidInputError, MissingInputError

_CSV, _JSON = (".csv",), (".jsonl", ".ndjson")
_INPUTS = 256  # inputs read at a time: pictures are large
_PIECE_ROWS = 65_536


def read_vectors(
    path: Path | str,
    column: str | None = None,
    *,
    work: Path | None = None,
    observer: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Return the vectors [n, d] of a column of lists of floats, or of an array file, memory-mapped.

    Missing entries, NaN, infinity and zero vectors raise an error that names the row.

    Parameters
    ----------
    path
        A table: a Parquet, Arrow, Feather or JSON-lines file, a Lance table, a folder of such files (rows in the order
        of the files' names), a saved Hugging Face dataset; or ``.npy`` or ``.safetensors``.
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
        for where, first, array in _pieces(path, name):
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


def read_column(
    path: Path | str, column: str | None = None, *, numbers: bool = False
) -> np.ndarray:
    """Return the values [n] of a column of numbers, strings or times, with None for missing values.

    ``path`` is as in ``read_vectors``, or a CSV or TSV file with a header, whose values are all strings, unless
    ``numbers`` is true and all are numbers.
    """
    if _is_array(path):
        return _array_column(Path(path), column)
    values = whole_column(path, column, numbers=numbers)
    if not values.null_count:
        return values.to_numpy()
    return np.fromiter(values.to_pylist(), object, len(values))


def scan_inputs(path: Path | str, column: str, kind: arrow.InputKind) -> Iterator[tuple[str, Any]]:
    """Yield (where, input) of each row of a column of texts or pictures: a str, bytes or a path, None if it is missing.

    ``where`` names the row in error messages. Paths of pictures refer to the folder of the table, and must lie in it.

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
    for first, _, batch, part in _batches(path, column, _INPUTS):
        for row, value in enumerate(arrow.values_of(batch, kind, part.folder), first):
            yield f"row {row} of {part} (counted from 0)", value


def pick_inputs(
    path: Path | str, column: str | None, kind: arrow.InputKind | None, rows: Iterable[int]
) -> dict[int, Any]:
    """Return some rows of a column by row number: inputs as in ``scan_inputs``, or scalars if ``kind`` is None."""
    wanted, first = sorted(set(rows)), 0
    picked: dict[int, Any] = {}
    if _is_array(path):
        values = map_array(Path(path), column)
        first = len(values)
        picked = {row: values[row].tolist() for row in wanted if 0 <= row < first}
    else:
        name = _named(path, column)
        for _, start, batch, part in _batches(path, name, _INPUTS):
            first = start + len(batch)
            here = wanted[slice(*(bisect_left(wanted, edge) for edge in (start, first)))]
            if here:
                chosen = batch.take([row - start for row in here])
                picked |= zip(here, arrow.values_of(chosen, kind, part.folder), strict=True)
    absent = [row for row in wanted if row not in picked]
    if absent:
        raise InvalidInputError(
            f"{path} has {first} rows, so there is no row {absent[0]} (counted from 0)."
        )
    return picked


def pick_vector(path: Path | str, column: str | None, row: int) -> np.ndarray:
    """Return the vector [d] of one row, counted from 0."""
    if not _is_array(path) and column is None:
        column = _only_lists(path)
    vector = np.asarray(pick_inputs(path, column, "vector", [row])[row], np.float32)
    if vector.ndim != 1:
        raise InvalidInputError(f"row {row} of {path} (counted from 0) holds no vector.")
    check_rows(vector[None], row, str(path))
    return vector


def check_columns(path: Path | str, *columns: str | None) -> None:
    """Raise if a table does not exist or does not have these columns; None is ignored. No row is read."""
    if not _is_array(path):
        for part in files.table_parts(path):
            files.require_columns(part, columns)
    elif not Path(path).is_file():
        raise MissingInputError(f"{path} does not exist or is not a file. Check the path.")


def read_groups(path: Path | str, column: str | None = None) -> np.ndarray:
    """Return group numbers [n]: the rank of each row's value among the sorted distinct values. None may be missing."""
    if _is_array(path):
        labels = _array_column(Path(path), column)
        codes, missing = np.unique(labels, return_inverse=True)[1], labels != labels
    else:
        codes, missing = arrow.ordered_codes(whole_column(path, column))
    if missing.any():
        place = "" if column is None else f"the column {column!r} of "
        raise InvalidInputError(
            f"row {int(missing.argmax())} (counted from 0) of {place}{path} has no group. Drop such rows, "
            "or give each its own group."
        )
    return codes


def read_pairs(
    path: Path | str, columns: tuple[str, str], *, ids: tuple[Path | str, str] | None = None
) -> np.ndarray:
    """Return pairs of rows [p, 2] from two columns: row numbers from 0, or ids to look up in the column ``ids``.

    ``ids`` is (table, column); its values must be unique.
    """
    known = None if ids is None else unique_ids(*ids)
    return np.stack([rows_by_id(path, column, known) for column in columns], 1)


def unique_ids(path: Path | str, column: str) -> Any:
    """Return a column of ids as an Arrow array; raise if two are the same."""
    known = whole_column(path, column).combine_chunks()
    if len(known.unique()) < len(known):
        raise InvalidInputError(f"ids must be unique, but {path} has duplicates in {column!r}.")
    return known


def rows_by_id(path: Path | str, column: str, known: Any | None) -> np.ndarray:
    """Return the row number [n] of each value of a column: its place among the known ids, or without them itself."""
    values = whole_column(path, column)
    try:
        rows = arrow.row_numbers(values, known)
    except InvalidInputError as error:
        raise InvalidInputError(f"in the column {column!r} of {path}, {error}") from error
    if (rows < 0).any():
        row = int((rows < 0).argmax())
        expected = "a row number" if known is None else "an id of the vectors"
        raise InvalidInputError(
            f"row {row} of {path} (counted from 0) has {files.short(values[row].as_py())} as {column!r}, "
            f"which is not {expected}."
        )
    return rows


def table_files(path: Path | str) -> list[Path | RemotePath]:
    """Return the files of a path: the file itself, or those of a folder or Lance table in reading order."""
    if _is_array(path) and Path(path).is_file():
        return [Path(path)]
    return [file for part in files.table_parts(path) for file in files.part_files(part)]


def scan_column(path: Path | str, column: str | None = None) -> Iterator[Any]:
    """Yield the values of a column in pieces of 65,536 rows: Arrow or numpy arrays of one type."""
    values = _array_column(Path(path), column) if _is_array(path) else whole_column(path, column)
    yield from (values[i : i + _PIECE_ROWS] for i in range(0, len(values), _PIECE_ROWS))


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
        batch = arrow.arrow_table(columns, flat=self.path.suffix in _CSV)
        if self.path.suffix in _JSON:
            for row in batch.to_pylist():
                line = json.dumps(_plain(row), allow_nan=False, ensure_ascii=False)
                self._file.write(line.encode() + b"\n")
            return
        if self._sink is None:
            self._sink = _sink(self._file, batch.schema, csv=self.path.suffix in _CSV)
            self._stack.callback(self._sink.close)
        self._sink.write_table(batch)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def write_columns(path: Path | str, columns: Mapping[str, Any]) -> Path:
    """Write columns of equal length to a Parquet, CSV or JSON-lines file, and return its path."""
    with ColumnWriter(path) as table:
        table.write(columns)
    return Path(path)


def _sink(file: Any, schema: Any, *, csv: bool) -> Any:
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    return (CSVWriter if csv else ParquetWriter)(file, schema)


def _is_array(path: Path | str) -> bool:
    """Return whether a source is a file with a single array instead of a table."""
    if Path(path).suffix not in ARRAYS:
        return False
    if isinstance(resolve(path), RemotePath):
        raise InvalidInputError(
            f"{resolve(path)} is an array, which must be a local file. Copy it, or use a Parquet table."
        )
    return True


def _schema(path: Path | str) -> Any:
    return files.require_columns(files.table_parts(path)[0], [])


def _only_lists(path: Path | str) -> str:
    """Return the name of the only column of lists."""
    schema = _schema(path)
    names = [field.name for field in schema if arrow.is_list(field.type)]
    if len(names) != 1:
        kind = "several columns" if names else "no column"
        raise MissingInputError(
            f"{path} has {kind} of lists, so the column of vectors must be named (texts and pictures need "
            f"an --encoder); {files.listed(schema.names)}."
        )
    return names[0]


def _named(path: Path | str, column: str | None) -> str:
    if column is None:
        columns = files.listed(_schema(path).names)
        raise MissingInputError(f"name a column of {path}; {columns}.")
    return column


def _batches(
    path: Path | str, column: str, rows: int
) -> Iterator[tuple[int, int, Any, files.Part]]:
    """Yield (first row in its part, first row in the table, Arrow array, part) of a column."""
    total = 0
    for part in files.table_parts(path):
        files.require_columns(part, [column])
        first = 0
        with files.reading(part):
            for batch in part.batches([column], rows=rows):
                yield first, total, batch.column(column), part
                first, total = first + len(batch), total + len(batch)


def _pieces(path: Path | str, column: str) -> Iterator[tuple[str, int, Any]]:
    """Yield (part, number of the first row, Arrow array) of a column, all with the type of the first piece."""
    expected = None
    for first, _, column_part, part in _batches(path, column, files.BATCH):
        array = arrow.storage(column_part)
        expected = array.type if expected is None else expected
        if len(array):
            with files.reading(part):
                array = array.cast(expected)
            yield str(part), first, array


def whole_column(path: Path | str, column: str | None, *, numbers: bool = False) -> Any:
    """Return a column of scalars in memory, as an Arrow chunked array; texts of CSV as numbers if asked for."""
    arrays = []
    for where, _, array in _pieces(path, _named(path, column)):
        if files.pyarrow_package().types.is_nested(array.type):
            raise InvalidInputError(
                f"the column {column!r} of {where} has {array.type}, but one scalar per row is needed."
            )
        arrays.append(array)
    if not arrays:
        raise InvalidInputError(f"{path} has no rows.")
    values = files.pyarrow_package().chunked_array(arrays)
    return arrow.numbers(values) if numbers and not files.table_parts(path)[0].typed else values


def _array_column(path: Path, name: str | None) -> np.ndarray:
    values = map_array(path, name)
    if values.ndim != 1 or not len(values):
        raise InvalidInputError(f"{path} must hold one value per row, not shape {values.shape}.")
    return values


def _plain(value: Any) -> Any:
    """Return the value as JSON can represent it."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@contextmanager
def _staging(work: Path | None) -> Iterator[Any]:
    """Open an unnamed temporary file in the folder; errors name the folder."""
    place = Path(tempfile.gettempdir()) if work is None else work
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            yield file
    except OSError as error:
        raise AureoleError(
            f"the vectors cannot be copied to {place}: {error.strerror}. Choose a work folder with more space."
        ) from error
