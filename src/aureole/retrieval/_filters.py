"""Filters: a small, safe expression over payload columns, never text that an engine would run.

``{"shop": "north", "colour": ["red", "blue"], "price": (10, 20)}``: a value is equality, a list is any of them, and a
tuple (low, high) is a range with both ends in it, where None is open. All columns must agree.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aureole.errors import InvalidInputError
from aureole.retrieval._rows import Schema, check_value

_MOST_VALUES = 1000
_INTEGER, _NUMBER = (
    re.compile(r"[+-]?[0-9]{1,20}"),
    re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"),
)
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Condition:
    """One column's demand: any of some values, or a range from ``values[0]`` to ``values[1]`` (None is open)."""

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
    for name, demand in (filter or {}).items():
        kind = schema.columns.get(name)
        if kind is None:
            raise InvalidInputError(
                f"there is no payload column {name!r} to filter by; there are {sorted(schema.columns)}."
            )
        where = f"filter {name!r}"
        if isinstance(demand, tuple):
            if len(demand) != 2 or kind == "boolean":
                raise InvalidInputError(
                    f"{where} must be a range (low, high) of an ordered column, but is {demand!r}. For any of several "
                    "values use a list."
                )
            ends = tuple(None if end is None else check_value(end, kind, where) for end in demand)
            conditions.append(Condition(name, "between", ends))
            continue
        several = demand if isinstance(demand, list) else [demand]
        if len(several) > _MOST_VALUES:
            raise InvalidInputError(
                f"{where} lists {len(several)} values; at most {_MOST_VALUES} are taken."
            )
        values = tuple(check_value(value, kind, where) for value in several)
        conditions.append(Condition(name, "any", values))
    return conditions


def parse_filter(texts: Sequence[str], schema: Schema) -> dict[str, Any]:
    """The filter that texts such as ``shop=north``, ``colour=red,blue`` or ``price=10..20`` stand for.

    What comes after ``=`` is read by the type of its column, and never run. Either end of a range may be left out.
    A text with a comma, a quote or two dots in it stands in double quotes, as in CSV.

    Examples
    --------
    >>> schema = Schema(3, {"price": "number", "colour": "text"})
    >>> parse_filter(["price=10..", 'colour=red,"blue, dark"'], schema)
    {'price': (10.0, None), 'colour': ['red', 'blue, dark']}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, demand = text.partition("=")
        if not sign or name not in schema.columns:
            raise InvalidInputError(
                f"a filter is COLUMN=VALUE with a payload column, but got {text[:60]!r}; there are "
                f"{sorted(schema.columns)}."
            )
        if name in found:
            raise InvalidInputError(
                f"there are two filters on {name!r}. Give one: a list {name}=a,b or a range {name}=a..b."
            )
        kind, where = schema.columns[name], f"filter {name!r}"
        if ".." in demand and '"' not in demand:
            ends = demand.split("..")
            if len(ends) != 2 or ends == ["", ""]:
                raise InvalidInputError(
                    f"{where} must be a range LOW..HIGH, but is {demand[:60]!r}. Put a text with dots in quotes."
                )
            found[name] = tuple(_parsed(end, kind, where) if end else None for end in ends)
            continue
        values = [_parsed(part, kind, where) for part in _parts(demand, where)]
        found[name] = values[0] if len(values) == 1 else values
    return found


def matches(
    conditions: Sequence[Condition], payload: Mapping[str, np.ndarray], n: int
) -> np.ndarray:
    """Which of n rows meet all conditions; text is ordered by its UTF-8 bytes."""
    kept = np.ones(n, dtype=bool)
    for condition in conditions:
        column = payload[condition.column]
        if condition.kind == "any":
            found = np.zeros(n, dtype=bool)
            for value in condition.values:
                found |= column == value
            kept &= found
            continue
        low, high = condition.values
        if low is not None:
            kept &= column >= low
        if high is not None:
            kept &= column <= high
    return kept


def _parts(demand: str, where: str) -> list[str]:
    try:
        rows = list(csv.reader([demand], strict=True))
    except csv.Error as error:
        raise InvalidInputError(
            f"{where} cannot be read, {error}: put a text with commas in double quotes."
        ) from error
    return rows[0] if rows and rows[0] else [""]


def _parsed(text: str, kind: str, where: str) -> Any:
    """A value from text, by the type of its column."""
    value: Any = text
    if kind == "boolean":
        value = _BOOLEANS.get(text.lower(), text)
    elif kind == "integer" and _INTEGER.fullmatch(text):
        value = int(text)
    elif kind == "number" and _NUMBER.fullmatch(text):
        value = float(text)
    elif kind != "text":
        value = text[:60]  # no number: an error quotes it
    return check_value(value, kind, where)
