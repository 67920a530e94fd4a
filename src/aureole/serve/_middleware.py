"""ASGI middleware: Host names, the API key, limits of size and time, and security headers."""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from aureole.errors import InvalidInputError
from aureole.serve._errors import LOG, ApiError, internal_error

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PROBES = ("/healthz", "/readyz")  # answered for any host, without the key, and under load
# the program alone, which asks for the key
_PAGE = ("/", "/assets/explorer.js", "/assets/explorer.css")


@dataclass(frozen=True)
class Access:
    """Which requests are answered.

    Parameters
    ----------
    key
        The API key; None answers without one.
    hosts
        Names that the Host header may have besides those of the loopback interface; ``*`` allows all.
    body
        Maximum size of a request body in bytes (default 4 MiB).
    seconds
        Timeout of a request, from its headers to the end of the response (default 30).
    in_flight
        Maximum number of requests in progress (default 512).
    """

    key: str | None = None
    hosts: Sequence[str] = ()
    body: int = 4 * 2**20
    seconds: float = 30.0
    in_flight: int = 512


class GuardMiddleware:
    """An ASGI application around another that enforces ``Access`` and turns every failure into a JSON error."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access
        hosts = [*LOOPBACK, *access.hosts]
        self._checked = TrustedHostMiddleware(app, allowed_hosts=hosts, www_redirect=False)
        self._in_flight = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Handle an HTTP request; other scopes are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def respond(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message.get("headers", ()), *_SECURITY_HEADERS]
                if all(name != b"cache-control" for name, _ in headers):
                    cached = b"no-cache" if scope["path"] in _PAGE else b"no-store"
                    headers.append((b"cache-control", cached))
                message["headers"] = headers
            await send(message)

        self._in_flight += 1
        try:
            error = await self._handle(scope, receive, respond)
            if error is not None and not started:
                await _error_response(error)(scope, receive, respond)
        finally:
            self._in_flight -= 1

    async def _handle(self, scope: Any, receive: Receive, respond: Send) -> ApiError | None:
        """Answer a request, or return the error that it gets instead."""
        probe, seconds = scope["path"] in _PROBES, self._access.seconds
        try:
            async with asyncio.timeout(seconds):
                if not probe:
                    self._admit(scope["path"], dict(scope["headers"]))
                body = await _read_body(receive, 0 if probe else self._access.body)
                await (self._app if probe else self._checked)(
                    scope, _replay(body, receive), respond
                )
        except ApiError as error:
            return error
        except TimeoutError:
            return ApiError("timeout", f"the request timed out after {seconds:g} s.", retry_after=1)
        except asyncio.CancelledError:  # uvicorn's graceful shutdown has ended
            return ApiError("unavailable", "the service is shutting down.", retry_after=5)
        except ConnectionError:
            return None
        except Exception as error:
            LOG.error("request to %r failed", scope["path"], exc_info=error)
            return internal_error()
        return None

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Reject a request without the key, or one that is too large or too many, before its body is read."""
        access, length = self._access, headers.get(b"content-length", b"0")
        given = headers.get(b"authorization")
        if access.key is not None and path not in _PAGE and not is_key(given, access.key):
            raise ApiError("unauthorized", "API key required: Authorization: Bearer KEY.")
        if self._in_flight > access.in_flight:
            message = f"{access.in_flight} requests are already in progress."
            raise ApiError("unavailable", message, retry_after=1)
        if length.isdigit() and (len(length) > 18 or int(length) > access.body):
            raise _too_large(access.body)


async def _read_body(receive: Receive, limit: int) -> bytes:
    """The whole body of a request; raise if it exceeds the limit, or if the client has disconnected."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionError
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that returns a body that has been read, then what follows it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _too_large(limit: int) -> ApiError:
    return ApiError("too_large", f"the request body exceeds {limit:,} bytes.")


def _error_response(error: ApiError) -> Response:
    """The response of an error; the connection is closed if the rest of the body is on its way."""
    headers = error.headers()
    if error.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    if error.code in ("too_large", "timeout", "unauthorized"):
        headers["connection"] = "close"
    return Response(error.body(), error.status, headers)


def check_key(text: str, source: str) -> str:
    """Return a key without surrounding white space; raise unless it has 8 to 256 printable ASCII characters."""
    key = text.strip()
    if not (8 <= len(key) <= 256 and key.isascii() and key.isprintable()):
        raise InvalidInputError(f"{source} must hold 8 to 256 printable ASCII characters.")
    return key


def is_key(header: bytes | None, key: str) -> bool:
    """Return True if an Authorization header is ``Bearer KEY``; compares digests in constant time.

    A browser never adds this header by itself, so a page of another site cannot use the key.

    Examples
    --------
    >>> [is_key(header, "alices-secret") for header in (b"Bearer alices-secret", b"Bearer bobs-secret", None)]
    [True, False, False]
    """
    scheme, _, given = (header or b"").strip().partition(b" ")
    digests = (hashlib.sha256(one).digest() for one in (given.strip(), key.encode()))
    return hmac.compare_digest(*digests) and scheme.lower() == b"bearer"
