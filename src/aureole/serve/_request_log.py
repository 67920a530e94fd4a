"""Structured logs: one line of JSON per request, with an id that is also in the response; never a key or a body."""

import json
import logging
import re
import secrets
import time
from contextvars import ContextVar
from typing import Any

REQUESTS = logging.getLogger("aureole.requests")
REQUEST_ID: ContextVar[str | None] = ContextVar("aureole_request_id", default=None)
_VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_MAX_PATH = 200  # characters


def request_id(header: bytes | None) -> str:
    """The id that a proxy has given in ``X-Request-ID``, if it is a short word; otherwise a new one.

    Examples
    --------
    >>> request_id(b"from-the-proxy.7"), len(request_id(None)), request_id(b"two words") == "two words"
    ('from-the-proxy.7', 16, False)
    """
    if header is not None and _VALID_ID.fullmatch(header):
        return header.decode()
    return secrets.token_hex(8)


def log_request(
    scope: Any, *, status: int, seconds: float, received: int, key: str | None, code: str | None
) -> None:
    """Log a request that has been answered. The query string is left out: it may have labels of items."""
    if not REQUESTS.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    fields = {
        "method": scope["method"],
        "path": scope["path"][:_MAX_PATH],
        "route": getattr(scope.get("route"), "path", None),
        "status": status,
        "error": code,
        "ms": round(1000 * seconds, 2),
        "bytes_received": received,
        "client": client[0] if client else None,
        "key": key,
    }
    message = "%s %r %d"
    REQUESTS.info(
        message, scope["method"], fields["path"], status, extra={"aureole_fields": fields}
    )


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON, with the id of the request during which it was written."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        current = REQUEST_ID.get()
        if current is not None:
            line["request_id"] = current
        line |= getattr(record, "aureole_fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_log(*, as_json: bool) -> None:
    """Log to stderr: as plain lines, or as JSON lines with one line per request."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    levels = {
        "aureole.serve": logging.INFO,
        "uvicorn.error": logging.ERROR,  # malformed requests are warnings
        "aureole.requests": logging.INFO if as_json else logging.WARNING,
    }
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(level)
