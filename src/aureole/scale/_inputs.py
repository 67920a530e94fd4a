"""Inputs: one picture, text or vector as it comes, checked and decoded for a model, which none of this needs."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from aureole.data import read_square
from aureole.errors import InvalidInputError

SIDE = 32  # pixels: what the image networks of this library were made for
_LARGEST_TEXT = 100_000  # characters; MiniLM reads the first 256 tokens


def prepare_picture(raw: Any) -> Tensor:
    """The middle square of a picture in bytes or in a file, as uint8 [3, 32, 32]."""
    if not isinstance(raw, bytes | Path):
        raise InvalidInputError(
            f"a picture is the bytes of a file or a path, not {type(raw).__name__}."
        )
    return read_square(raw, SIDE)


def prepare_text(raw: Any) -> str:
    """The text itself, if it says something.

    Examples
    --------
    >>> prepare_text("  ")
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: a text has 1 to 100000 characters, but got 2 characters.
    """
    if not isinstance(raw, str) or not raw.strip() or len(raw) > _LARGEST_TEXT:
        got = f"{len(raw)} characters" if isinstance(raw, str) else type(raw).__name__
        raise InvalidInputError(f"a text has 1 to {_LARGEST_TEXT} characters, but got {got}.")
    return raw


def prepare_vector(raw: Any, features: int) -> np.ndarray:
    """The vector as float32, finite and with so many features.

    Examples
    --------
    >>> prepare_vector([1, 2], features=2)
    array([1., 2.], dtype=float32)
    """
    try:
        vector = np.asarray(raw, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"a vector is a list of numbers: {error}.") from error
    if vector.shape != (features,):
        raise InvalidInputError(f"a vector of shape {(features,)} is wanted, not {vector.shape}.")
    if not np.isfinite(vector).all():
        raise InvalidInputError("the vector holds a number that is not finite.")
    return vector
