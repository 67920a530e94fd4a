"""Checks of dimensions, sizes and shapes that all packages share."""

from numbers import Integral
from typing import Any

from torch import Tensor

from aureole.errors import InvalidInputError


def check_dim(dim: int) -> int:
    """The ambient dimension D itself; raises unless it is an integer of at least 2."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2:
        raise InvalidInputError(
            f"dim must be an integer of at least 2 (the sphere lies in R^dim), but is {dim!r}."
        )
    return dim


def check_size(name: str, value: Any, least: int) -> None:
    """Raise unless the value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InvalidInputError(f"{name} must be an integer of at least {least}, but is {value!r}.")


def first_index(mask: Tensor) -> str:
    """Index of the first true entry as text, such as ``[3, 0]``; empty for a scalar."""
    return str(mask.nonzero()[0].tolist()) if mask.dim() else ""
