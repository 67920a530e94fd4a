"""Damaged galleries: untrusted notes, errors of engines as ``DamagedGalleryError``, and rows that a search returns."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError

LARGEST_NOTE = 2**24  # characters
MAX_DIM = 2**20
_UNIT = 1e-3  # how far the squared length of a stored mu may be from 1
_LARGEST_LISTS = 2**31
_SIZES = {"ivf": {"lists", "probes"}, "hnsw": {"links", "width"}}
_SOURCE = re.compile(r",? /\S+\.(rs|cpp|h):\d+(:\d+)?")  # places in the source of other packages
_SHOWN = 200  # characters of another package's message


def parse_note(text: str, what: str) -> Any:
    """The value of untrusted JSON text; ``what`` names it in the error. NaN, Infinity and deep nesting are refused.

    Examples
    --------
    >>> parse_note('{"dim": 3}', "gallery.faiss")
    {'dim': 3}
    >>> parse_note("[" * 100_000, "gallery.faiss")
    Traceback (most recent call last):
    aureole.errors.DamagedGalleryError: gallery.faiss is damaged: its JSON is nested too deeply.
    """
    if len(text) > LARGEST_NOTE:
        raise DamagedGalleryError(
            f"{what} is damaged: it has {len(text):,} characters, but the limit is {LARGEST_NOTE:,}."
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise DamagedGalleryError(f"{what} is damaged: its JSON is nested too deeply.") from error
    except ValueError as error:
        raise DamagedGalleryError(f"{what} is damaged: it is not JSON ({error}).") from error


def parse_index_note(value: Any, what: str) -> dict[str, Any]:
    """The kind, lists and sizes of an approximate index from an untrusted note.

    Examples
    --------
    >>> parse_index_note({"kind": "ivf", "lists": 4, "sizes": {"probes": 2}}, "gallery.lance")
    {'kind': 'ivf', 'lists': 4, 'sizes': {'probes': 2}}
    """
    valid = isinstance(value, dict)
    valid = valid and value.keys() == {"kind", "lists", "sizes"}
    valid = valid and isinstance(value["kind"], str) and value["kind"] in _SIZES
    if not valid or not isinstance(value["sizes"], dict):
        raise DamagedGalleryError(
            f"{what} is damaged: the note of its approximate index is invalid."
        )
    numbers = {"lists": value["lists"], **value["sizes"]}
    for name, number in numbers.items():
        if name not in _SIZES[value["kind"]] | {"lists"} or not _is_size(number):
            raise DamagedGalleryError(
                f"{what} is damaged: the note of its approximate index has {str(name)[:40]!r} = {str(number)[:40]}."
            )
    return value


@contextmanager
def reading(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise exceptions of another package that reads ``what`` as ``DamagedGalleryError``.

    ``kinds`` are the exceptions that the package raises for damaged files. A panic of Rust code, which is not an
    ``Exception``, is recognised by its name.
    """
    try:
        yield
    except AureoleError:
        raise
    except kinds as error:
        raise _unreadable(what, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise _unreadable(what, error) from None


def check_returned(rows: Any, where: str) -> Any:
    """The rows that an engine returned for a search; raises if one has an impossible id, mu or kappa."""
    valid = valid_kappa(rows.kappa).all() and has_unit_length(rows.mu).all()
    if not (valid and set(map(type, rows.ids.tolist())) <= {str}):
        raise DamagedGalleryError(
            f"{where} is damaged: a row has no id, a mu whose length is not 1, or a kappa that is negative or NaN. "
            "`aureole index check` lists the problems; restore it from a copy, or rebuild it."
        )
    return rows


def has_unit_length(mu: np.ndarray) -> np.ndarray:
    """Whether each row of float32 vectors has length 1, within rounding.

    Examples
    --------
    >>> has_unit_length(np.array([[0.6, 0.8], [0, 0], [1e30, 0], [np.nan, 1]], np.float32))
    array([ True, False, False, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(np.einsum("ij,ij->i", mu, mu) - 1) < _UNIT


def valid_kappa(kappa: np.ndarray) -> np.ndarray:
    """Whether concentrations are at least 0; inf is a point.

    Examples
    --------
    >>> valid_kappa(np.array([0.0, 3.0, np.inf, -1.0, np.nan]))
    array([ True,  True,  True, False, False])
    """
    with np.errstate(invalid="ignore"):
        return kappa >= 0


def _is_size(number: Any) -> bool:
    return (
        isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= _LARGEST_LISTS
    )


def _unreadable(what: str, error: BaseException) -> InvalidInputError:
    text = _SOURCE.sub("", " ".join(f"{type(error).__name__}: {error}".split()))[:_SHOWN]
    return DamagedGalleryError(
        f"{what} cannot be read; it may be damaged ({text}). `aureole index check` lists problems; restore it from a "
        "copy, or rebuild it."
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
