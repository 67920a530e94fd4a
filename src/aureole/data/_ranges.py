"""Ranges of rows of Parquet and Arrow files, and what one input is in a column: bytes, a text or a vector."""

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aureole.data._arrow import PARQUET, is_list, open_ipc, pyarrow_package, reading
from aureole.errors import InvalidInputError

_BATCH = 256  # rows read at a time: pictures are large

Kind = Literal["image", "text", "vector"]


def count_rows(file: Path) -> int:
    """The rows of a file, by its metadata where it has them."""
    with reading(file):
        if file.suffix in PARQUET:
            from pyarrow import parquet

            return int(parquet.read_metadata(file).num_rows)
        with pyarrow_package().memory_map(str(file)) as source:
            return sum(len(batch) for batch in _batches(open_ipc(source)))


def read_schema(file: Path) -> Any:
    """The Arrow schema of a file."""
    with reading(file):
        if file.suffix in PARQUET:
            from pyarrow import parquet

            return parquet.read_schema(file)
        with pyarrow_package().memory_map(str(file)) as source:
            return open_ipc(source).schema


def columns_of(schema: Any, kind: Kind) -> list[str]:
    """The columns of a schema that can hold inputs of a kind."""
    return [field.name for field in schema if fitting(field.type, kind)]


def fitting(found: Any, kind: Kind) -> bool:
    """Whether a column of this type holds inputs of a kind: bytes (or ``bytes`` of a struct), texts, or lists."""
    types = pyarrow_package().types
    found = getattr(found, "storage_type", found)
    if kind == "text":
        return types.is_string(found) or types.is_large_string(found)
    if kind == "vector":
        return is_list(found) and types.is_floating(found.value_type)
    if types.is_struct(found):
        place = found.get_field_index("bytes")
        return place >= 0 and fitting(found.field(place).type, "image")
    return types.is_binary(found) or types.is_large_binary(found)


class RangeReader:
    """Rows of one file, range by range; ranges further on are read in the same pass, those before in a new one."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self._file, self._columns = file, list(columns)
        self._at, self._rest = 0, None
        self._stream: Iterator[Any] = iter(())
        self._starts: list[int] = []  # the first row of each row group; none before the first pass

    def read(self, first: int, count: int) -> Iterator[Any]:
        """Arrow record batches of the rows from ``first`` on."""
        with reading(self._file):
            self._seek(first)
            while count > 0:
                batch = self._rest
                if batch is None or not len(batch):
                    batch = next(self._stream, None)
                    if batch is None:
                        raise InvalidInputError(
                            f"{self._file} ends at row {self._at}: it has changed."
                        )
                taken = batch.slice(0, count)
                self._rest = batch.slice(len(taken))
                self._at += len(taken)
                count -= len(taken)
                if len(taken):
                    yield taken

    def _seek(self, first: int) -> None:
        """Go to a row: forwards from where the reader is, unless it lies behind, or a row group begins in between."""
        on = self._at <= first and bisect(self._starts, self._at) == bisect(self._starts, first)
        if not self._starts or not (on or first == self._at):
            self._open(first)
        while self._at < first:
            if self._rest is None or not len(self._rest):
                self._rest = next(self._stream, None)
            if self._rest is None:
                raise InvalidInputError(f"{self._file} has no row {first}: it has changed.")
            skipped = min(first - self._at, len(self._rest))
            self._rest = self._rest.slice(skipped)
            self._at += skipped

    def _open(self, first: int) -> None:
        """Begin a pass at the row group that holds a row."""
        if self._file.suffix not in PARQUET:
            source = pyarrow_package().memory_map(str(self._file))
            reader = open_ipc(source)
            # a slice for each turn, so that one large batch does not become many Python values at once
            self._stream = (
                batch.select(self._columns).slice(start, _BATCH)
                for batch in _batches(reader)
                for start in range(0, len(batch), _BATCH)
            )
            self._at, self._rest, self._starts = 0, None, [0]
            return
        from pyarrow import parquet

        table = parquet.ParquetFile(self._file, pre_buffer=False, buffer_size=2**20)
        sizes = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
        self._starts = [0, *accumulate(sizes)][:-1] or [0]
        group = bisect(self._starts, first) - 1
        self._stream = iter(
            table.iter_batches(
                _BATCH,
                row_groups=range(group, len(sizes)),
                columns=self._columns,
                use_threads=False,
            )
        )
        self._at, self._rest = self._starts[group], None


def values_of(array: Any, kind: Kind) -> list[Any]:
    """The inputs of a column, one for each row: bytes, str, or a vector; None where there is nothing."""
    pa = pyarrow_package()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if kind == "image" and pa.types.is_struct(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    if kind != "vector" or not is_list(array.type):
        return array.to_pylist()
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(array.type):
        ends = np.arange(array.offset, array.offset + len(array) + 1) * array.type.list_size
    else:
        ends = array.offsets.to_numpy()
    values = array.values.to_numpy(zero_copy_only=False)
    return [
        None if missing[row] else values[ends[row] : ends[row + 1]] for row in range(len(array))
    ]


def _batches(reader: Any) -> Iterator[Any]:
    """The record batches of a file or of a stream."""
    count = getattr(reader, "num_record_batches", None)  # a stream does not know
    yield from reader if count is None else map(reader.get_batch, range(count))
