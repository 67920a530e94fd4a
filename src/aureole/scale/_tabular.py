"""Tables as sources: Parquet and Arrow files, Hugging Face datasets as they are saved to disk, and Lance tables."""

import json
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from aureole.data import (
    PARQUET,
    RangeReader,
    columns_of,
    count_rows,
    fitting,
    listed,
    read_schema,
    short,
    values_of,
)
from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval import lance_package, table_exists
from aureole.scale._folder import walk
from aureole.scale._source import Broken, Chunk, Source, chunk_size

TABLES = (*PARQUET, ".arrow", ".feather")


class TableSource(Source):
    """The rows of a file, or of the files of a folder by name; ids are a column, or ``file:row``.

    Of one file the ids without a column are the row numbers from 0 on.
    """

    def __init__(
        self,
        path: Path,
        kind: Any,
        column: str | None = None,
        id_column: str | None = None,
        rows_per_chunk: int | None = None,
    ) -> None:
        self._root = path.parent if path.is_file() else path
        self._files = [path.name] if path.is_file() else _table_files(path)
        self._single, self._kind, self._id = path.is_file(), kind, id_column
        schema = read_schema(self._root / self._files[0])
        self.column = pick_column(schema, kind, column, id_column, str(path))
        _check_id(schema, id_column, str(path))
        self.named = id_column is not None
        self.rows_per_chunk = rows_per_chunk or chunk_size(self.rows())
        self._reader: tuple[str, RangeReader] | None = None

    @cached_property
    def _counts(self) -> list[int]:
        return [count_rows(self._root / name) for name in self._files]

    def chunks(self) -> Iterator[Chunk]:
        """So many rows of one file each; the key tells the file and its number of rows."""
        for name, rows in zip(self._files, self._counts, strict=True):
            digest = sha256(f"{name}\0{rows}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
            for first in range(0, rows, self.rows_per_chunk):
                count = min(self.rows_per_chunk, rows - first)
                yield Chunk(f"{digest}-{first}", [name, first, count], count)

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each row."""
        name, first, count = chunk.place
        columns = [self.column] + ([] if self._id is None else [self._id])
        if self._reader is None or self._reader[0] != name:
            self._reader = (name, RangeReader(self._root / name, columns))
        shown = name.encode("utf-8", "backslashreplace").decode()
        prefix = "" if self._single else f"{shown}:"
        for batch in self._reader[1].read(first, count):
            yield from _rows(batch, self.column, self._id, self._kind, prefix, first)
            first += len(batch)

    def rows(self) -> int:
        """The number of rows."""
        return sum(self._counts)


class LanceSource(Source):
    """The rows of a Lance table; ids are a column, or the row numbers from 0 on."""

    def __init__(
        self,
        where: str,
        kind: Any,
        column: str | None = None,
        id_column: str | None = None,
        rows_per_chunk: int | None = None,
    ) -> None:
        if not table_exists(where):
            raise MissingInputError(f"{where} is not there, or is no Lance table. Check the name.")
        self._table = lance_package().dataset(where)
        self._kind, self._id = kind, id_column
        self.column = pick_column(self._table.schema, kind, column, id_column, where)
        _check_id(self._table.schema, id_column, where)
        self.named = id_column is not None
        self._total = self._table.count_rows()
        self.rows_per_chunk = rows_per_chunk or chunk_size(self._total)

    def chunks(self) -> Iterator[Chunk]:
        """So many rows of one fragment each; the key tells the fragment, and how many rows it has and had."""
        before = 0
        for fragment in self._table.get_fragments():
            rows, had = fragment.count_rows(), fragment.physical_rows
            for first in range(0, rows, self.rows_per_chunk):
                count = min(self.rows_per_chunk, rows - first)
                key = f"{fragment.fragment_id}-{rows}-{had}-{first}"
                yield Chunk(key, [fragment.fragment_id, first, count, before + first], count)
            before += rows

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each row."""
        number, first, count, row = chunk.place
        columns = [self.column] + ([] if self._id is None else [self._id])
        scanner = self._table.get_fragment(number).scanner(
            columns=columns, offset=first, limit=count, batch_size=256
        )
        for batch in scanner.to_batches():
            yield from _rows(batch, self.column, self._id, self._kind, "", row)
            row += len(batch)

    def rows(self) -> int:
        """The number of rows."""
        return self._total


def pick_column(
    schema: Any, kind: Any, column: str | None, id_column: str | None, where: str
) -> str:
    """The column with the inputs: the one named, or the only one of a type that fits."""
    if column is not None:
        if column not in schema.names:
            raise InvalidInputError(
                f"{where} has no column {short(column)}; {listed(schema.names)}."
            )
        if not fitting(schema.field(column).type, kind):
            raise InvalidInputError(
                f"the column {short(column)} of {where} has {schema.field(column).type}, which are no {kind}s."
            )
        return column
    found = [name for name in columns_of(schema, kind) if name != id_column]
    if len(found) != 1:
        says = f"several can: {listed(found)[16:]}" if found else listed(schema.names)
        raise InvalidInputError(
            f"which column of {where} holds the {kind}s? Name it with --column; {says}."
        )
    return found[0]


def _check_id(schema: Any, column: str | None, where: str) -> None:
    if column is not None and column not in schema.names:
        raise InvalidInputError(f"{where} has no column {short(column)}; {listed(schema.names)}.")


def _rows(
    batch: Any, column: str, id_column: str | None, kind: Any, prefix: str, first: int
) -> Iterator[tuple[str, Any]]:
    inputs = values_of(batch.column(column), kind)
    if id_column is None:
        for i, value in enumerate(inputs):
            yield f"{prefix}{first + i}", value
        return
    for i, (name, value) in enumerate(
        zip(batch.column(id_column).to_pylist(), inputs, strict=True)
    ):
        if isinstance(name, str) or (isinstance(name, int) and not isinstance(name, bool)):
            yield str(name), value
        else:
            yield (
                f"row {prefix}{first + i}",
                Broken(f"its id is {short(name)}; ids are texts or whole numbers."),
            )


def _table_files(folder: Path) -> list[str]:
    """The table files below a folder by name; of a saved dataset those that its state names, without its caches."""
    found = list(walk(folder, TABLES))
    states = {name.rpartition("/")[0] for name in walk(folder, ("state.json",))}
    if not states:
        return found
    kept = []
    for place in sorted(states):
        path = folder / place / "state.json"
        try:
            files = [entry["filename"] for entry in json.loads(path.read_text())["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(
                f"{path} does not tell a dataset's files: {error!r}."
            ) from error
        kept += [f"{place}/{name}" if place else str(name) for name in files]
    known = set(found)  # a name that leads elsewhere is not among them
    lost = [name for name in kept if name not in known]
    if lost:
        raise InvalidInputError(f"{folder / lost[0]} is missing: the dataset is not whole.")
    return kept
