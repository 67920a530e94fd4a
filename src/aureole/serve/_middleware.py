"""ASGI middleware: API key, rate and size limits, timeouts, security headers and Prometheus metrics.

The only file that imports prometheus_client.
"""

import asyncio
import base64
import binascii
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aureole.serve._batching import Batcher
from aureole.serve._errors import LOG, ApiError, internal_error
from aureole.serve._limits import Limits, RateLimiter

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
_HEALTH = "/healthz"  # needs no key and has no rate limit
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def is_authorized(header: bytes | None, key: str | None) -> bool:
    """Whether an Authorization header holds the API key, compared in constant time; without a key, always.

    Accepts ``Bearer KEY``, and ``Basic`` with the key as the password, which browsers send.

    Examples
    --------
    >>> [is_authorized(header, "secret") for header in (b"Bearer secret", b"Basic OnNlY3JldA==", None)]
    [True, True, False]
    """
    if key is None:
        return True
    scheme, _, value = (header or b"").partition(b" ")
    if scheme.lower() == b"basic":
        try:
            value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), key.encode())


class Metrics:
    """The metrics of one service, in their own Prometheus registry."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        labels = ["method", "route", "status"]
        self._requests = Counter(
            "aureole_requests", "Responses by route and status.", labels, **own
        )
        self._seconds = Histogram(
            "aureole_request_seconds", "Duration of requests.", ["route"], buckets=_SECONDS, **own
        )
        self._in_flight = Gauge("aureole_requests_in_flight", "Requests in progress.", **own)
        self._sizes = Histogram(
            "aureole_batch_size", "Requests per batch.", ["worker"], buckets=_SIZES, **own
        )
        self._batch_seconds = Histogram(
            "aureole_batch_seconds", "Duration of batches.", ["worker"], buckets=_SECONDS, **own
        )
        self._waiting = Gauge("aureole_waiting", "Requests queued for a worker.", ["worker"], **own)
        self._rows = Gauge("aureole_rows", "Items of the gallery at startup.", **own)

    def begin(self) -> None:
        """Count the start of a request."""
        self._in_flight.inc()

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count the end of a request."""
        self._in_flight.dec()
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def watch(self, name: str, queue: Batcher[Any, Any]) -> None:
        """Export the length of a worker's queue, and the size and duration of each batch."""
        sizes, durations = self._sizes.labels(name), self._batch_seconds.labels(name)

        def on_batch(count: int, seconds: float) -> None:
            sizes.observe(count)
            durations.observe(seconds)

        queue.on_batch = on_batch
        self._waiting.labels(name).set_function(queue.__len__)

    def set_rows(self, rows: int) -> None:
        """Export the size of the gallery."""
        self._rows.set(rows)

    def text(self) -> bytes:
        """All metrics in Prometheus text format."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


class LimitsMiddleware:
    """An ASGI application around another that enforces limits and turns every failure into a JSON error.

    ``draining`` is set on shutdown: responses then close their connection and /healthz returns 503.
    """

    def __init__(self, app: Any, *, limits: Limits, key: str | None, metrics: Metrics) -> None:
        self._app, self._limits, self._key, self._metrics = app, limits, key, metrics
        self._rate_limiter = RateLimiter(limits.rate, limits.burst)
        self.draining = False
        self._in_flight = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Handle an HTTP request; websockets are closed, other scopes passed on."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._limits.body)
        response = _Response(send, self, scope["path"], body)
        start = time.perf_counter()
        self._in_flight += 1
        self._metrics.begin()
        try:
            await self._respond(scope, body, response)
        finally:
            self._in_flight -= 1
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.end(method, route, response.status, time.perf_counter() - start)

    async def _respond(self, scope: Any, body: "_Body", response: "_Response") -> None:
        try:
            self._admit(scope)
            async with asyncio.timeout(self._limits.seconds):
                await self._app(scope, body, response)
            if body.error is not None and not response.started:
                raise body.error
        except ApiError as error:
            await response.send_error(error, close=not body.ended)
        except TimeoutError:
            message = f"the request timed out after {self._limits.seconds:g} s."
            error = ApiError("timeout", message, retry_after=1)
            await response.send_error(error, close=not body.ended)
        except Exception as error:
            if body.error is not None:
                await response.send_error(body.error, close=True)
                return
            LOG.error("request to %s failed", scope["path"], exc_info=error)
            if not response.ended:
                await response.send_error(internal_error())

    def _admit(self, scope: Any) -> None:
        """Reject a request that exceeds a limit or has no key, before its body is read."""
        if scope["path"] == _HEALTH:
            if self.draining:
                raise ApiError("unavailable", "the service is shutting down.", retry_after=5)
            return
        client = scope.get("client")
        wait = self._rate_limiter.take(client[0] if client else "")
        if wait:
            raise ApiError(
                "rate_limited",
                f"more than {self._limits.rate:g} requests per second from one address.",
                retry_after=wait,
            )
        headers = dict(scope["headers"])
        if not is_authorized(headers.get(b"authorization"), self._key):
            raise ApiError("unauthorized", "API key required: Authorization: Bearer KEY.")
        if self._in_flight > self._limits.in_flight:
            raise ApiError(
                "unavailable",
                f"{self._limits.in_flight} requests are already in progress.",
                retry_after=1,
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limits.body:
            raise _too_large(self._limits.body)


class _Body:
    """A request body; reading more than the limit raises an error."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive, self._max_bytes, self._received = receive, max_bytes, 0
        self.ended = False
        self.error: ApiError | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            self.ended = not message.get("more_body", False)
            if self._received > self._max_bytes:
                self.error = _too_large(self._max_bytes)
                raise self.error
        return message


class _Response:
    """Sends a response with the security headers."""

    def __init__(self, send: Send, middleware: LimitsMiddleware, path: str, body: _Body) -> None:
        self._send, self._middleware, self._path, self._body = send, middleware, path, body
        self.status, self.started, self.ended = 499, False, False

    async def __call__(self, message: Message) -> None:
        if self._body.error is not None and not self.started:
            return  # the body's error replaces the application's response
        await self._forward(message)

    async def _forward(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = [*message.get("headers", []), *_SECURITY_HEADERS]
            if self._middleware.draining:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")

    async def send_error(self, error: ApiError, *, close: bool = False) -> None:
        """Send an error response; raises it if a response has already started."""
        if self.started:
            raise error
        body, headers = error.body(), error.headers()
        headers.append((b"content-length", str(len(body)).encode()))
        if error.code == "unauthorized":
            # with Basic the browser itself prompts for the key when the page is opened; scripts handle Bearer
            is_page = self._path == "/" or self._path.startswith("/assets/")
            challenge = b'Basic realm="aureole", charset="UTF-8"' if is_page else b"Bearer"
            headers.append((b"www-authenticate", challenge))
        if close and not self._middleware.draining:
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": error.status, "headers": headers}
        await self._forward(start)
        await self._forward({"type": "http.response.body", "body": body})


def _too_large(max_bytes: int) -> ApiError:
    return ApiError("too_large", f"the request body exceeds {max_bytes:,} bytes.")
