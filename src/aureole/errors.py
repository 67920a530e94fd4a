"""The errors that aureole raises: each says what is wrong, where, how far, and what to do."""

from collections.abc import Mapping

__all__ = [
    "AureoleError",
    "AureoleWarning",
    "ConvergenceWarning",
    "InvalidInputError",
    "MissingInputError",
    "MissingPackageError",
    "tell_error",
    "told_error",
]

_LONGEST = 100_000  # characters of a message that goes to another process


class AureoleError(Exception):
    """Base of every error that aureole raises on purpose."""


class InvalidInputError(AureoleError, ValueError):
    """An argument has a wrong value or shape; the message names it, the offending entry and a remedy."""


class MissingInputError(InvalidInputError):
    """A file or folder is not there; the message names it, and says where it could come from."""


class MissingPackageError(AureoleError, ImportError):
    """An optional package is not installed; the message names the extra of aureole that brings it."""


class AureoleWarning(UserWarning):
    """Base of every warning that aureole gives."""


class ConvergenceWarning(AureoleWarning):
    """An iteration stopped at its limit before it converged; the result is the last iterate."""


def tell_error(error: BaseException) -> dict[str, str]:
    """The error as plain data, for another process: its message, and the nearest of the kinds above.

    Examples
    --------
    >>> tell_error(MissingInputError("photos is not there."))
    {'error': 'photos is not there.', 'kind': 'MissingInputError'}
    >>> tell_error(ZeroDivisionError("division by zero"))
    {'error': 'ZeroDivisionError: division by zero', 'kind': 'AureoleError'}
    """
    kind = next((k.__name__ for k in type(error).__mro__ if k in _KINDS), None)
    text = str(error) if kind else f"{type(error).__name__}: {error}"
    return {"error": text[:_LONGEST], "kind": kind or AureoleError.__name__}


def told_error(told: Mapping[str, str]) -> AureoleError:
    """The error that ``tell_error`` told; of a kind that nobody knows, an ``AureoleError``.

    Examples
    --------
    >>> told_error({"error": "photos is not there.", "kind": "MissingInputError"})
    MissingInputError('photos is not there.')
    """
    kinds = {kind.__name__: kind for kind in _KINDS}
    return kinds.get(told["kind"], AureoleError)(told["error"])


_KINDS = (AureoleError, InvalidInputError, MissingInputError, MissingPackageError)
