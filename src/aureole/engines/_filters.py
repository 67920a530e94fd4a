"""Filters on payload columns. Values are passed to engines as parameters, never as text that an engine would run.

``{"shop": "north", "colour": ["red", "blue"], "price": (10, 20)}``: a value means equality, a list means any of its
values, and a tuple (low, high) is an inclusive range, where None is unbounded. A row must meet all of them.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aureole.engines._schema import Schema, check_value
from aureole.errors import InvalidInputError

_MOST_VALUES = 1000
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Condition:
    """A condition on one column: any of ``values``, or between ``values[0]`` and ``values[1]`` (None: unbounded)."""

    column: str
    kind: Literal["any", "between"]
    values: tuple[Any, ...]


def check_filter(filter: Mapping[str, Any] | None, schema: Schema) -> list[Condition]:
    """The conditions of a filter, each value checked against its column's type.

    Examples
    --------
    >>> check_filter({"price": (10, None)}, Schema(3, {"price": "number"}))
    [Condition(column='price', kind='between', values=(10.0, None))]
    """
    conditions = []
    for name, wanted in (filter or {}).items():
        kind = schema.columns.get(name)
        if kind is None:
            raise InvalidInputError(
                f"there is no payload column {name!r} to filter by. Columns: {sorted(schema.columns)}."
            )
        where = f"filter {name!r}"
        if isinstance(wanted, tuple):
            if len(wanted) != 2 or kind == "boolean":
                raise InvalidInputError(
                    f"{where} must be a range (low, high) of an ordered column, but is {wanted!r}. To match any of "
                    "several values, use a list."
                )
            ends = tuple(None if end is None else check_value(end, kind, where) for end in wanted)
            conditions.append(Condition(name, "between", ends))
            continue
        several = wanted if isinstance(wanted, list) else [wanted]
        if len(several) > _MOST_VALUES:
            raise InvalidInputError(
                f"{where} lists {len(several)} values; the limit is {_MOST_VALUES}."
            )
        values = tuple(check_value(value, kind, where) for value in several)
        conditions.append(Condition(name, "any", values))
    return conditions


def parse_filter(texts: Sequence[str], schema: Schema) -> dict[str, Any]:
    """Parse filters written as text, such as ``shop=north``, ``colour=red,blue`` or ``price=10..20``.

    The part after ``=`` is parsed by the type of its column. Either end of a range may be omitted. Quote text that
    contains a comma, a quote or two dots with double quotes, as in CSV.

    Examples
    --------
    >>> schema = Schema(3, {"price": "number", "colour": "text"})
    >>> parse_filter(["price=10..", 'colour=red,"blue, dark"'], schema)
    {'price': (10.0, None), 'colour': ['red', 'blue, dark']}
    """
    filter: dict[str, Any] = {}
    for text in texts:
        name, sign, wanted = text.partition("=")
        if not sign or name not in schema.columns:
            raise InvalidInputError(
                f"a filter is COLUMN=VALUE with a payload column, but got {text[:60]!r}. Columns: "
                f"{sorted(schema.columns)}."
            )
        if name in filter:
            raise InvalidInputError(
                f"there are two filters on {name!r}. Use one: a list {name}=a,b or a range {name}=a..b."
            )
        kind, where = schema.columns[name], f"filter {name!r}"
        if ".." in wanted and '"' not in wanted:
            ends = wanted.split("..")
            if len(ends) != 2 or ends == ["", ""]:
                raise InvalidInputError(
                    f"{where} must be a range LOW..HIGH, but is {wanted[:60]!r}. Quote text that contains dots."
                )
            filter[name] = tuple(_parsed(end, kind, where) if end else None for end in ends)
            continue
        values = [_parsed(part, kind, where) for part in _parts(wanted, where)]
        filter[name] = values[0] if len(values) == 1 else values
    return filter


def matches(
    conditions: Sequence[Condition], payload: Mapping[str, np.ndarray], n: int
) -> np.ndarray:
    """Which of n rows meet all conditions; text is ordered by its UTF-8 bytes."""
    kept = np.ones(n, dtype=bool)
    for condition in conditions:
        column = payload[condition.column]
        if condition.kind == "any":
            equal = np.zeros(n, dtype=bool)
            for value in condition.values:
                equal |= column == value
            kept &= equal
            continue
        low, high = condition.values
        if low is not None:
            kept &= column >= low
        if high is not None:
            kept &= column <= high
    return kept


def _parts(text: str, where: str) -> list[str]:
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise InvalidInputError(
            f"{where} cannot be parsed ({error}). Put text that contains commas in double quotes."
        ) from error
    return rows[0] if rows and rows[0] else [""]


def _parsed(text: str, kind: str, where: str) -> Any:
    """Parse a value by the type of its column."""
    value: Any = text
    if kind == "boolean":
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif kind == "integer" and _INTEGER.fullmatch(text):
        value = int(text)
    elif kind == "number" and _NUMBER.fullmatch(text):
        value = float(text)
    elif kind != "text":
        value = text[:60]  # not a number: the error of check_value quotes it
    return check_value(value, kind, where)
