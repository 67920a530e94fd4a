"""Faults: what a request is answered with when it cannot be served, one shape for all of them."""

from typing import Any, Literal

from aureole.serve._wire import to_json

Code = Literal[
    "invalid_input",
    "not_found",
    "not_allowed",
    "unauthorized",
    "too_large",
    "rate_limited",
    "timeout",
    "unavailable",
    "internal",
]
STATUS: dict[str, int] = {
    "invalid_input": 422,
    "not_found": 404,
    "not_allowed": 405,
    "unauthorized": 401,
    "too_large": 413,
    "rate_limited": 429,
    "timeout": 504,
    "unavailable": 503,
    "internal": 500,
}
_LONGEST = 500  # characters of a message


class Fault(Exception):  # noqa: N818  it is an answer
    """An answer that is an error: its ``code`` decides the status, ``message`` is for people, ``field`` says where.

    Examples
    --------
    >>> Fault("not_found", "there is no item x.").body()
    b'{"error":{"code":"not_found","message":"there is no item x.","field":null}}'
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message[:_LONGEST], field
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self) -> bytes:
        """The JSON that is sent."""
        error: dict[str, Any] = {"code": self.code, "message": self.message, "field": self.field}
        return to_json({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that go with it."""
        found = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if self.retry_after is not None:
            found.append((b"retry-after", str(max(1, round(self.retry_after))).encode()))
        return found
