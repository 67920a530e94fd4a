"""Queries with known matches, and the items they match, from tables: the inputs of ``aureole calibrate``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

import aureole as au
from aureole.cli._lazy import np
from aureole.cli._options import InputOptions, VectorColumn, option
from aureole.errors import InvalidInputError, MissingInputError

_FEWEST = 20  # labelled queries of a calibrator
_MOST_MADE = 4000  # queries that are made from a gallery
_FEWEST_WORDS = 4  # of a text that a query is made from
_MOST_MATCHES = 10_000  # ids in one cell
_SEPARATORS = re.compile(r"[\s,;|]+")


@dataclass(frozen=True)
class QueryOptions:
    """Queries and their matches."""

    text_column: str | None = option("Column of texts to encode.")
    image_column: str | None = option("Column of pictures to encode: bytes or paths.")
    vector_column: VectorColumn = None
    match_column: str | None = option(
        "Column of matching ids: one, a list, or several separated by spaces or commas."
    )
    match_text_column: str | None = option(
        "Column of matching texts, one per row, which make the gallery."
    )
    made: bool = option(
        "Without labels: the table is the gallery, and halves of its texts are the queries.",
        False,
        "--made",
    )

    def check(self, encoder: str | None, gallery: Path | None) -> None:
        """Raise for options that cannot be used together."""
        by_id, by_text, made = self.match_column, self.match_text_column, self.made
        texts = encoder is not None and self.text_column is not None
        wrong = None
        if made and (by_id or by_text or gallery):
            wrong = "--made takes neither matches nor --gallery: the table is the gallery."
        elif not (made or by_id or by_text):
            wrong = "name the matches with --match-column or --match-text-column, or use --made."
        elif (made or gallery is None) and not texts:
            wrong = "without --gallery, queries and items are texts: name an --encoder and a --text-column."
        elif gallery is None and not (made or by_text):
            wrong = "--match-column needs --gallery or --match-text-column."
        elif gallery is not None and by_text:
            wrong = "--match-text-column makes the gallery: with --gallery, use --match-column."
        elif encoder is None and (self.text_column or self.image_column):
            wrong = "--text-column and --image-column need an --encoder."
        if wrong is not None:
            raise typer.BadParameter(wrong)


@dataclass(frozen=True)
class GalleryOptions:
    """The gallery."""

    gallery: Path | None = option(
        "Table of the items that queries are matched with (default: the matching texts)."
    )
    gallery_column: str | None = option(
        "Its column of texts, pictures or vectors (default: as for the queries)."
    )
    id_column: str | None = option("Its column of ids (default: row numbers from 0).")


@dataclass(frozen=True)
class Items:
    """The items of a gallery: their ids (None for row numbers) and, where they are needed, their texts."""

    count: int
    ids: list[Any] | None = None
    texts: list[str] | None = None

    def named(self, rows: list[int]) -> list[Any]:
        """Return the ids of rows."""
        return rows if self.ids is None else [self.ids[row] for row in rows]


@dataclass(frozen=True)
class Labels:
    """Distinct queries and the gallery rows that match each; queries without a label are listed apart.

    ``rows`` and ``unlabelled`` are the rows of the table in which a query occurs first. ``texts`` are all texts of the
    table, None for vectors and pictures.
    """

    rows: list[int]
    matches: list[list[int]]
    unlabelled: list[int]
    texts: list[str] | None = None


@dataclass(frozen=True)
class Sources:
    """The inputs of a run: the tables, their columns, and the encoder."""

    table: Path
    queries: QueryOptions
    gallery: GalleryOptions
    inputs: InputOptions

    @property
    def item_column(self) -> str | None:
        """Return the column of the gallery."""
        same = self.inputs.column(self.gallery.gallery or self.table) or self.queries.vector_column
        return self.gallery.gallery_column or same

    def check(self) -> None:
        """Raise if a table or column does not exist, before a model is loaded."""
        queries, items = self.queries, self.gallery
        self.inputs.check(
            self.table,
            *(queries.vector_column, queries.match_column, queries.match_text_column),
            vector_column=queries.vector_column,
        )
        if queries.made:
            au.data._tables.check_columns(self.table, items.id_column)
        elif items.gallery is not None:
            au.data._tables.check_columns(items.gallery, self.item_column, items.id_column)

    def files(self) -> list[Path | au.data._addresses.RemotePath]:
        """Return all files that are read."""
        paths = (self.table, self.gallery.gallery)
        return [file for path in paths if path for file in au.data._tables.table_files(path)]

    def has_vectors(self, path: Path) -> bool:
        """Return whether the gallery holds vectors, not inputs of the encoder."""
        if path.suffix in au.data._array_files.ARRAYS or self.inputs.encoder is None:
            return True
        schema = au.data._table_files.require_columns(
            au.data._table_files.table_parts(path)[0], [self.item_column]
        )
        return au.data._columns.fitting(schema.field(self.item_column).type, "vector")

    def read(self) -> tuple[Items, Labels]:
        """Return the items and the labels; vectors are read, but nothing is encoded."""
        items = self._items()
        labels = _made_labels(items) if self.queries.made else self._labels(items)
        if len(labels.rows) < _FEWEST:
            raise MissingInputError(
                f"{self.table} has {len(labels.rows)} labelled queries, but at least {_FEWEST} are needed, and a few "
                "hundred for useful guarantees. Label more, or use --made."
            )
        return items, labels

    def _labels(self, items: Items) -> Labels:
        queries, table, texts = self.queries, self.table, None
        if queries.match_text_column is not None:
            cells: Sequence[Any] = _read_texts(table, queries.match_text_column, optional=True)
            known = _rows_by(items.texts or [])
            groups = [known.get(text, []) for text in cells]
        else:
            assert queries.match_column is not None  # checked
            cells = _read_cells(table, queries.match_column)
            where = f"{table} (counted from 0) has {{}} in {queries.match_column!r}"
            groups = _rows_of_ids(cells, items, where)
        keys: Sequence[Any] = range(len(cells))
        if self.inputs.encoder is None:
            vectors = au.data.read_vectors(table, queries.vector_column)
            keys = [row.tobytes() for row in vectors]
        elif self.inputs.text_column is not None:
            keys = texts = _read_texts(table, self.inputs.text_column)
        return replace(_merged(keys, groups), texts=texts)

    def _items(self) -> Items:
        queries, path, id_column = self.queries, self.gallery.gallery, self.gallery.id_column
        if path is None and not queries.made:
            assert queries.match_text_column is not None  # checked
            return _items_of_pairs(self.table, queries.match_text_column, queries.match_column)
        path = path or self.table
        ids, texts = id_column and read_ids(path, id_column), None
        if queries.made:
            assert queries.text_column is not None  # checked
            texts = _read_texts(path, queries.text_column)
        if path.suffix in au.data._array_files.ARRAYS:
            count = len(au.data.read_vectors(path, self.item_column))
        else:
            count = sum(part.count() for part in au.data._table_files.table_parts(path))
        return Items(count, ids or None, texts)


def _read_texts(table: Path, column: str, *, optional: bool = False) -> list[str]:
    """Return the texts of a column; raises for an empty one unless they are optional ("" then)."""
    texts = []
    for where, text in au.data._tables.scan_inputs(table, column, "text"):
        if not (text and text.strip()) and not optional:
            raise InvalidInputError(f"{where} has no text in the column {_short(column)}.")
        texts.append(text or "")
    if not texts:
        raise InvalidInputError(f"{table} has no rows.")
    return texts


def read_ids(table: Path, column: str) -> list[Any] | None:
    """Return unique ids; None if they are the row numbers. Whole numbers of a CSV file become integers."""
    values = au.data.read_column(table, column).tolist()
    for row, value in enumerate(values):
        if value is None or value != value:
            raise InvalidInputError(f"row {row} of {table} (counted from 0) has no id.")
        if not isinstance(value, int | str):
            raise InvalidInputError(f"ids must be texts or whole numbers: {table} has others.")
    values = _whole_numbers(values)
    if len(set(map(str, values))) < len(values):
        raise InvalidInputError(f"ids must be unique, but {table} has duplicates in {column!r}.")
    return None if values == list(range(len(values))) else values


def _whole_numbers(values: list[Any]) -> list[Any]:
    """Return texts as integers if all are written as Python writes integers: not 007, which another id may equal."""
    try:
        numbers = [int(value) for value in values]
    except ValueError:
        return values
    return numbers if [str(n) for n in numbers] == [str(v) for v in values] else values


def _read_cells(table: Path, column: str) -> list[Any]:
    """Return the values of a column, which may be lists."""
    cells: list[Any] = []
    for part in au.data._table_files.table_parts(table):
        au.data._table_files.require_columns(part, [column])
        with au.data._table_files.reading(part):
            for batch in part.batches([column]):
                cells += batch.column(column).to_pylist()
    return cells


def _rows_of_ids(cells: Sequence[Any], items: Items, where: str) -> list[list[int]]:
    """Return the rows of the items that cells name, each one id, a list, or several ids as text."""
    ids = range(items.count) if items.ids is None else items.ids
    known = {str(name): row for row, name in enumerate(ids)}  # as text: a CSV file has no numbers
    groups = []
    for row, cell in enumerate(cells):
        names = _names(cell, known)
        if len(names) > _MOST_MATCHES:
            count = f"{len(names)} matches; the limit is {_MOST_MATCHES}"
            raise InvalidInputError(f"row {row} of {where.format(count)}.")
        for name in names:
            if name not in known:
                raise MissingInputError(
                    f"row {row} of {where.format(_short(name))}, which is not an id of the gallery. "
                    "Check --id-column, or drop the row."
                )
        groups.append([known[name] for name in names])
    return groups


def _rows_by(texts: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(text, []).append(row)
    return rows


def _items_of_pairs(table: Path, text_column: str, id_column: str | None) -> Items:
    """Return the distinct matching texts of a table of pairs; their ids are from a column, or the texts themselves."""
    texts = _read_texts(table, text_column, optional=True)
    filled = [row for row, text in enumerate(texts) if text.strip()]
    if not filled:
        raise InvalidInputError(f"the column {text_column!r} of {table} has no texts.")
    if id_column is None:
        distinct = list(dict.fromkeys(texts[row] for row in filled))
        return Items(len(distinct), list(distinct), distinct)
    cells, text_of = _read_cells(table, id_column), {}
    for row in filled:
        name = cells[row]
        where = f"row {row} of {table} (counted from 0)"
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise InvalidInputError(
                f"{where} needs one id in {id_column!r}, because the gallery is made of this table. Name the gallery "
                "with --gallery."
            )
        if text_of.setdefault(name, texts[row]) != texts[row]:
            raise InvalidInputError(
                f"{where} has the id {_short(name)}, which has another text before."
            )
    return Items(len(text_of), _whole_numbers(list(text_of)), list(text_of.values()))


def _made_labels(items: Items) -> Labels:
    """Return queries made from the gallery: half of a text, from a random word on, matches that text.

    Equal texts all match. Texts of fewer than four words give no query.
    """
    rows_of, rng = _rows_by(items.texts or []), np.random.default_rng(0)
    long = [text for text in rows_of if len(text.split()) >= _FEWEST_WORDS]
    chosen = [long[i] for i in rng.permutation(len(long))[:_MOST_MADE]]
    queries = []
    for text in chosen:
        words = text.split()
        length = len(words) // 2
        first = int(rng.integers(len(words) - length + 1))
        queries.append(" ".join(words[first : first + length]))
    merged = _merged(queries, [rows_of[text] for text in chosen])
    return replace(merged, unlabelled=[], texts=queries)


def _merged(keys: Sequence[Any], groups: Sequence[list[int]]) -> Labels:
    """Return one query for all rows with the same key, with the matches of all of them."""
    first: dict[Any, int] = {}
    union: dict[int, dict[int, None]] = {}
    for row, (key, group) in enumerate(zip(keys, groups, strict=True)):
        union.setdefault(first.setdefault(key, row), {}).update(dict.fromkeys(group))
    labelled = [row for row, group in union.items() if group]
    without = [row for row, group in union.items() if not group]
    return Labels(labelled, [list(union[row]) for row in labelled], without)


def _names(cell: Any, known: dict[str, int]) -> list[str]:
    """Return the ids in a cell, as text."""
    if cell is None or cell == "" or cell != cell:
        return []
    if isinstance(cell, list):
        return _distinct(cell)
    text = _name(cell)
    if text in known or not isinstance(cell, str):
        return [text]
    if text.lstrip().startswith("["):  # as pandas and json write lists
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if isinstance(values, list):
            return _distinct(values)
    return _distinct(part for part in _SEPARATORS.split(text) if part)


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(_name(value) for value in values if value is not None))


def _name(value: Any) -> str:
    """Return an id as text; 7.0 is 7, since whole numbers become floats where a column has missing values."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)


def _short(value: Any) -> str:
    return au.data._table_files.short(value)
