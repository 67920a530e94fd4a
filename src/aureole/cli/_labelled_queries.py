"""Queries with known matches, and the items they match, from tables: for ``aureole calibrate``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aureole as au
from aureole.cli._lazy import np
from aureole.errors import InvalidInputError, MissingInputError

FEWEST = 20  # labelled queries of a calibrator
_MOST_MADE = 4000  # queries that are made from a gallery
_FEWEST_WORDS = 4  # of a text that a query is made from
_MOST_MATCHES = 10_000  # ids in one cell
_SEPARATORS = re.compile(r"[\s,;|]+")


@dataclass(frozen=True)
class Items:
    """The items of a gallery: their ids (None for row numbers) and, where they are needed, their texts."""

    count: int
    ids: list[Any] | None = None
    texts: list[str] | None = None

    def rows(self) -> dict[str, int]:
        """The row of each id, as text: a CSV file has no numbers."""
        ids = range(self.count) if self.ids is None else self.ids
        return {str(name): row for row, name in enumerate(ids)}


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

    def check(self, source: Path) -> None:
        """Raise if there are too few labelled queries."""
        if len(self.rows) < FEWEST:
            raise MissingInputError(
                f"{source} has {len(self.rows)} labelled queries, but at least {FEWEST} are needed, and a few hundred "
                "for useful guarantees. Label more, or use --made."
            )


def read_texts(table: Path, column: str, *, optional: bool = False) -> list[str]:
    """The texts of a column; raises for an empty one unless they are optional ("" then)."""
    texts = []
    for where, text in au.data.scan_inputs(table, column, "text"):
        if not (text and text.strip()) and not optional:
            raise InvalidInputError(f"{where} has no text in the column {au.data.short(column)}.")
        texts.append(text or "")
    if not texts:
        raise InvalidInputError(f"{table} has no rows.")
    return texts


def read_ids(table: Path, column: str | None) -> list[Any] | None:
    """Unique ids; None if they are the row numbers. Ids of a CSV file become integers if all are whole numbers."""
    values = au.data.read_column(table, column).tolist()
    if any(value is None or value != value for value in values):
        row = next(i for i, value in enumerate(values) if value is None or value != value)
        raise InvalidInputError(f"row {row} of {table} (counted from 0) has no id.")
    if not all(isinstance(value, int | str) for value in values):
        raise InvalidInputError(f"ids must be texts or whole numbers: {table} has others.")
    values = _whole_numbers(values)
    if len(set(map(str, values))) < len(values):
        raise InvalidInputError(f"ids must be unique, but {table} has duplicates in {column!r}.")
    return None if values == list(range(len(values))) else values


def _whole_numbers(values: list[Any]) -> list[Any]:
    """Texts as integers if all of them are written as Python writes integers: not 007, which another id may equal."""
    try:
        numbers = [int(value) for value in values]
    except ValueError:
        return values
    return (
        numbers if all(str(n) == str(v) for n, v in zip(numbers, values, strict=True)) else values
    )


def read_cells(table: Path, column: str) -> list[Any]:
    """The values of a column, which may be lists."""
    cells: list[Any] = []
    for part in au.data.table_parts(table):
        au.data.require_columns(part, [column])
        with au.data.reading(part):
            for batch in part.batches([column]):
                cells += batch.column(column).to_pylist()
    return cells


def labels_by_id(
    keys: Sequence[Any], cells: Sequence[Any], items: Items, *, source: Path, column: str
) -> Labels:
    """The labels of a column of ids; rows with equal keys are one query.

    A cell holds one id, a list, or several ids separated by spaces, commas, semicolons or bars.
    """
    known = items.rows()
    groups = []
    for row, cell in enumerate(cells):
        names = _names(cell, known)
        if len(names) > _MOST_MATCHES:
            raise InvalidInputError(
                f"row {row} of {source} (counted from 0) has {len(names)} matches; the limit is {_MOST_MATCHES}."
            )
        absent = next((name for name in names if name not in known), None)
        if absent is not None:
            raise MissingInputError(
                f"row {row} of {source} (counted from 0) has {au.data.short(absent)} in {column!r}, which is not an id "
                "of the gallery. Check --id-column, or drop the row."
            )
        groups.append([known[name] for name in names])
    return _merged(keys, groups)


def labels_by_text(
    keys: Sequence[Any], cells: Sequence[str], items: Items, *, source: Path, column: str
) -> Labels:
    """The labels of a column of matching texts; rows with equal keys are one query."""
    known: dict[str, list[int]] = {}
    for row, text in enumerate(items.texts or []):
        known.setdefault(text, []).append(row)
    groups = []
    for row, text in enumerate(cells):
        if text.strip() and text not in known:
            raise MissingInputError(
                f"row {row} of {source} (counted from 0) has {au.data.short(text)} in {column!r}, which is not a text "
                "of the gallery. Drop the row, or leave --gallery out."
            )
        groups.append(known[text] if text.strip() else [])
    return _merged(keys, groups)


def items_of_pairs(table: Path, text_column: str, id_column: str | None) -> Items:
    """The distinct matching texts of a table of pairs; their ids are from a column, or the texts themselves."""
    texts = read_texts(table, text_column, optional=True)
    filled = [row for row, text in enumerate(texts) if text.strip()]
    if not filled:
        raise InvalidInputError(f"the column {text_column!r} of {table} has no texts.")
    if id_column is None:
        distinct = list(dict.fromkeys(texts[row] for row in filled))
        return Items(len(distinct), list(distinct), distinct)
    cells, text_of = read_cells(table, id_column), {}
    for row in filled:
        name = cells[row]
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise InvalidInputError(
                f"row {row} of {table} (counted from 0) needs one id in {id_column!r}, because the gallery is made of "
                "this table. Name the gallery with --gallery."
            )
        if text_of.setdefault(name, texts[row]) != texts[row]:
            raise InvalidInputError(
                f"row {row} of {table} (counted from 0) has the id {au.data.short(name)}, which has another "
                "text before."
            )
    return Items(len(text_of), _whole_numbers(list(text_of)), list(text_of.values()))


def made_labels(items: Items, seed: int) -> Labels:
    """Queries made from the gallery: half of a text, from a random word on, matches that text.

    Equal texts all match. Texts of fewer than four words give no query.
    """
    texts = items.texts or []
    rows_of: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows_of.setdefault(text, []).append(row)
    rng = np.random.default_rng(seed)
    long = [text for text in rows_of if len(text.split()) >= _FEWEST_WORDS]
    chosen = [long[i] for i in rng.permutation(len(long))[:_MOST_MADE]]
    queries = []
    for text in chosen:
        words = text.split()
        length = len(words) // 2
        first = int(rng.integers(len(words) - length + 1))
        queries.append(" ".join(words[first : first + length]))
    merged = _merged(queries, [rows_of[text] for text in chosen])
    return Labels(merged.rows, merged.matches, [], queries)


def _merged(keys: Sequence[Any], groups: Sequence[list[int]]) -> Labels:
    """One query for all rows with the same key, with the matches of all of them."""
    first: dict[Any, int] = {}
    union: dict[int, dict[int, None]] = {}
    for row, (key, group) in enumerate(zip(keys, groups, strict=True)):
        at = first.setdefault(key, row)
        union.setdefault(at, {}).update(dict.fromkeys(group))
    labelled = [row for row, group in union.items() if group]
    without = [row for row, group in union.items() if not group]
    return Labels(labelled, [list(union[row]) for row in labelled], without)


def _names(cell: Any, known: dict[str, int]) -> list[str]:
    """The ids in a cell, as text."""
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
    """An id as text; 7.0 is 7, since whole numbers become floats where a column has missing values."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)
