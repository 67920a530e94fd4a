"""Failures of the encoder or the engine: a typed 503 for who asked, the whole story for the log."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from aureole.errors import InvalidInputError
from aureole.serve._faults import Fault

LOG = logging.getLogger("aureole.serve")


@contextmanager
def shielded(who: str) -> Iterator[None]:
    """A block whose errors become faults: what was asked wrongly a 422, anything else a 503 and a line in the log.

    Examples
    --------
    >>> with shielded("engine"):
    ...     raise InvalidInputError("mass must be between 0 and 1.")
    Traceback (most recent call last):
    aureole.serve._faults.Fault: mass must be between 0 and 1.
    """
    try:
        yield
    except (Fault, asyncio.CancelledError):
        raise
    except InvalidInputError as error:
        raise Fault("invalid_input", str(error)) from error
    except Exception as error:
        LOG.error("the %s failed", who, exc_info=error)
        raise Fault(
            "unavailable",
            f"the {who} failed on this request; it is in the service's log. Try again.",
            retry_after=1,
        ) from error
