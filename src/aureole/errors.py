"""The errors that aureole raises: each says what is wrong, where, how far, and what to do."""

__all__ = ["AureoleError", "AureoleWarning", "ConvergenceWarning", "InvalidInputError"]


class AureoleError(Exception):
    """Base of every error that aureole raises on purpose."""


class InvalidInputError(AureoleError, ValueError):
    """An argument has a wrong value or shape; the message names it, the offending entry and a remedy."""


class AureoleWarning(UserWarning):
    """Base of every warning that aureole gives."""


class ConvergenceWarning(AureoleWarning):
    """An iteration stopped at its limit before it converged; the result is the last iterate."""
