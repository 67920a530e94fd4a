"""Filters: a small, safe expression over payload columns, never text that an engine would run.

``{"shop": "north", "colour": ["red", "blue"], "price": (10, 20)}``: a value is equality, a list is any of them, and a
tuple (low, high) is a range with both ends in it, where None is open. All columns must agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aureole.errors import InvalidInputError
from aureole.retrieval.rows import Schema, check_value

__all__ = ["Condition", "check_filter", "matches"]

_MOST_VALUES = 1000


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
