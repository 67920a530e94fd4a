"""Checks of dimensions and shapes that all packages share."""

import math

from torch import Tensor

from aureole.errors import InvalidInputError


def check_dim(dim: int) -> int:
    """The ambient dimension D itself, if the sphere in R^D is one: an integer of at least 2."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2:
        raise InvalidInputError(
            f"dim must be an integer of at least 2 (the sphere lies in R^dim), but is {dim!r}."
        )
    return dim


def first_index(mask: Tensor) -> str:
    """Index of the first true entry as text, such as ``[3, 0]``; empty for a scalar."""
    if mask.dim() == 0:
        return ""
    flat = int(mask.flatten().int().argmax())
    index = []
    for size in reversed(mask.shape):
        flat, position = divmod(flat, size)
        index.append(position)
    assert math.prod(mask.shape) > 0
    return str(index[::-1])
