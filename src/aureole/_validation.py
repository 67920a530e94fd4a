"""Checks of dimensions and shapes that all packages share."""

from torch import Tensor

from aureole.errors import InvalidInputError


def check_dim(dim: int) -> int:
    """The ambient dimension D itself; raises unless it is an integer of at least 2."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2:
        raise InvalidInputError(
            f"dim must be an integer of at least 2 (the sphere lies in R^dim), but is {dim!r}."
        )
    return dim


def first_index(mask: Tensor) -> str:
    """Index of the first true entry as text, such as ``[3, 0]``; empty for a scalar."""
    return str(mask.nonzero()[0].tolist()) if mask.dim() else ""
