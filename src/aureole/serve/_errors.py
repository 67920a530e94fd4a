"""Error responses: one JSON shape for every error of the API, and the mapping of internal failures to it."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from aureole.errors import DamagedGalleryError, EncoderError, InvalidInputError

LOG = logging.getLogger("aureole.serve")
STATUS = {
    "invalid_input": 422,
    "not_found": 404,
    "not_allowed": 405,
    "unauthorized": 401,
    "conflict": 409,
    "too_large": 413,
    "timeout": 504,
    "unavailable": 503,
    "internal": 500,
}
_MAX_MESSAGE = 500  # characters


class ApiError(Exception):
    """An error response: ``code`` is a key of ``STATUS``, ``field`` names the offending part of the request.

    Examples
    --------
    >>> ApiError("not_found", "no such route.").body()
    b'{"error": {"code": "not_found", "message": "no such route.", "field": null}}'
    """

    def __init__(
        self, code: str, message: str, *, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message[:_MAX_MESSAGE], field
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self) -> bytes:
        """The JSON body."""
        error = {"code": self.code, "message": self.message, "field": self.field}
        return json.dumps({"error": error}).encode()

    def headers(self) -> dict[str, str]:
        """The response headers."""
        headers = {"content-type": "application/json", "cache-control": "no-store"}
        return (
            headers
            if self.retry_after is None
            else headers | {"retry-after": str(self.retry_after)}
        )


def internal_error() -> ApiError:
    """The response to an unexpected exception; details are logged, never sent to the client."""
    return ApiError("internal", "internal error; see the service's log.")


def item_not_found(name: str, field: str | None = None) -> ApiError:
    """The response to a request for an unknown item."""
    return ApiError("not_found", f"item {name[:60]!r} not found.", field=field)


@contextmanager
def map_failures(component: str) -> Iterator[None]:
    """Map exceptions of a component to error responses: invalid input to a 422, the rest to a logged 503.

    Examples
    --------
    >>> with map_failures("engine"):
    ...     raise InvalidInputError("mass must be between 0 and 1.")
    Traceback (most recent call last):
    aureole.serve._errors.ApiError: mass must be between 0 and 1.
    """
    try:
        yield
    except (ApiError, asyncio.CancelledError):
        raise
    except Exception as error:
        # an encoder that fails, such as an API that is down, or a damaged gallery is not the client's fault
        ours = isinstance(error, EncoderError | DamagedGalleryError)
        if isinstance(error, InvalidInputError) and not ours:
            raise ApiError("invalid_input", str(error)) from error
        LOG.error("the %s failed", component, exc_info=error)
        message = f"the {component} failed on this request; see the service's log. Try again."
        raise ApiError("unavailable", message, retry_after=1) from error
