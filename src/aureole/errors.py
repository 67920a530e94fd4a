"""The errors that aureole raises. Messages state what is wrong, where, by how much, and what to do."""

from collections.abc import Mapping

__all__ = [
    "AureoleError",
    "AureoleWarning",
    "ConvergenceWarning",
    "DamagedGalleryError",
    "DivergenceError",
    "EncoderError",
    "InvalidInputError",
    "MissingInputError",
    "MissingPackageError",
    "NotFittedError",
    "WriteError",
    "error_from_dict",
    "error_to_dict",
]

_LONGEST = 100_000  # characters of a message that goes to another process


class AureoleError(Exception):
    """Base of every error that aureole raises on purpose."""


class InvalidInputError(AureoleError, ValueError):
    """An argument has a wrong value or shape; the message names it, the offending entry and a remedy."""


class MissingInputError(InvalidInputError):
    """A file or folder does not exist; the message names it and how to get it."""


class EncoderError(InvalidInputError):
    """An encoder cannot be loaded, does not answer, or does not fit its head or gallery; the message has a remedy."""


class DamagedGalleryError(InvalidInputError):
    """A gallery is incomplete or holds impossible values; the message names the file and the problem."""


class WriteError(AureoleError, OSError):
    """A file cannot be written: the disk is full or read-only; the message names the file and a remedy."""


class MissingPackageError(AureoleError, ImportError):
    """An optional package is not installed; the message names the extra of aureole that installs it."""


class DivergenceError(AureoleError):
    """The loss of a training step became infinite or NaN."""


class NotFittedError(AureoleError, ValueError):
    """A head or calibrator is used before it was fitted."""


class AureoleWarning(UserWarning):
    """Base of every warning that aureole issues."""


class ConvergenceWarning(AureoleWarning):
    """An iteration stopped at its limit before it converged; the result is the last iterate."""


def error_to_dict(error: BaseException) -> dict[str, str]:
    """The error as plain data, to send to another process: its message and the closest of the classes above.

    Examples
    --------
    >>> error_to_dict(MissingInputError("photos does not exist."))
    {'error': 'photos does not exist.', 'kind': 'MissingInputError'}
    >>> error_to_dict(ZeroDivisionError("division by zero"))
    {'error': 'ZeroDivisionError: division by zero', 'kind': 'AureoleError'}
    """
    kind = next((k.__name__ for k in type(error).__mro__ if k in _KINDS), None)
    text = str(error) if kind else f"{type(error).__name__}: {error}"
    return {"error": text[:_LONGEST], "kind": kind or AureoleError.__name__}


def error_from_dict(values: Mapping[str, str]) -> AureoleError:
    """The inverse of ``error_to_dict``; an unknown class becomes ``AureoleError``.

    Examples
    --------
    >>> error_from_dict({"error": "photos does not exist.", "kind": "MissingInputError"})
    MissingInputError('photos does not exist.')
    """
    kinds = {kind.__name__: kind for kind in _KINDS}
    return kinds.get(values["kind"], AureoleError)(values["error"])


_KINDS = (
    AureoleError,
    InvalidInputError,
    MissingInputError,
    EncoderError,
    DamagedGalleryError,
    WriteError,
    MissingPackageError,
)
