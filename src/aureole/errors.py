"""The errors that aureole raises: each says what is wrong, where, how far, and what to do."""

__all__ = [
    "AureoleError",
    "AureoleWarning",
    "ConvergenceWarning",
    "InvalidInputError",
    "MissingInputError",
    "MissingPackageError",
]


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
