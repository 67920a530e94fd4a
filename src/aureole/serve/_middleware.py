"""ASGI middleware: API keys, rate and size limits, timeouts, security headers and Prometheus metrics.

The only file that imports prometheus_client.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aureole.serve._batching import Batcher
from aureole.serve._errors import LOG, ApiError, internal_error
from aureole.serve._json_bodies import JsonSize
from aureole.serve._keys import ApiKeys
from aureole.serve._limits import Limits, RateLimiter, check_host
from aureole.serve._request_log import REQUEST_ID, log_request, request_id

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
_PROBES = ("/healthz", "/readyz")  # need no key and have no rate limit
_SMALL_BODY = 2**16  # bytes that are accepted whatever others send
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


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

    ``draining`` is set on shutdown: responses then close their connection, and /healthz and /readyz return 503.
    """

    def __init__(
        self,
        app: Any,
        *,
        limits: Limits,
        keys: ApiKeys | None,
        metrics: Metrics,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app, self.limits, self._keys, self._metrics = app, limits, keys, metrics
        self._hosts = hosts
        self._addresses = RateLimiter(limits.rate, limits.burst)
        self._key_rates = RateLimiter(limits.key_rate, limits.burst)
        self.draining = False
        self.buffered = 0  # bytes of all bodies in memory
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
        headers = dict(scope["headers"])
        identity = request_id(headers.get(b"x-request-id"))
        REQUEST_ID.set(identity)
        body = _Body(receive, self)
        response = _Response(send, self, scope, identity)
        start = time.perf_counter()
        self._metrics.begin()
        try:
            await self._respond(scope, headers, body, response)
        finally:
            self.buffered -= body.received
            seconds = time.perf_counter() - start
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.end(method, route, response.status, seconds)
            log_request(
                scope,
                status=response.status,
                seconds=seconds,
                received=body.received,
                key=response.key,
                code=response.code,
            )

    async def _respond(
        self, scope: Any, headers: dict[bytes, bytes], body: "_Body", response: "_Response"
    ) -> None:
        try:
            self._admit(scope, headers, response)
            async with asyncio.timeout(self.limits.seconds):
                if await body.read():
                    await self._process(scope, body, response)
        except ApiError as error:
            await response.send_error(error, close=not body.ended)
        except TimeoutError:
            message = f"the request timed out after {self.limits.seconds:g} s."
            error = ApiError("timeout", message, retry_after=1)
            await response.send_error(error, close=not body.ended)
        except Exception as error:
            LOG.error("request to %r failed", scope["path"], exc_info=error)
            if not response.ended:
                await response.send_error(internal_error())

    async def _process(self, scope: Any, body: "_Body", response: "_Response") -> None:
        """Call the application, unless too many requests are in progress."""
        if self._in_flight >= self.limits.in_flight and scope["path"] not in _PROBES:
            message = f"{self.limits.in_flight} requests are already in progress."
            raise ApiError("unavailable", message, retry_after=1)
        self._in_flight += 1
        try:
            await self._app(scope, body, response)
        finally:
            self._in_flight -= 1

    def _admit(self, scope: Any, headers: dict[bytes, bytes], response: "_Response") -> None:
        """Reject a request that exceeds a limit or has no key, before its body is read."""
        length = headers.get(b"content-length", b"0")
        if scope["path"] in _PROBES:
            if self.draining:
                raise ApiError("unavailable", "the service is shutting down.", retry_after=5)
            if length != b"0" or b"transfer-encoding" in headers:
                raise ApiError("invalid_input", "this route takes no body.")
            return
        check_host(scope["headers"], self._hosts)
        client = scope.get("client")
        wait = self._addresses.take(client[0] if client else "")
        if wait:
            message = f"more than {self.limits.rate:g} requests per second from one address."
            raise ApiError("rate_limited", message, retry_after=wait)
        if self._keys is not None:
            key = self._keys.find(headers.get(b"authorization"))
            if key is None:
                raise ApiError("unauthorized", "API key required: Authorization: Bearer KEY.")
            response.key = scope["aureole.key"] = key.name
            rate = self.limits.key_rate if key.rate is None else key.rate
            wait = self._key_rates.take(key.name, rate=rate)
            if wait:
                message = f"more than {rate:g} requests per second with one key."
                raise ApiError("rate_limited", message, retry_after=wait)
        if length.isdigit() and (len(length) > 18 or int(length) > self.limits.body):
            raise _too_large(self.limits.body)


class _Body:
    """A request body. ``read`` buffers it, within limits of size and time; called, it passes the body on."""

    def __init__(self, receive: Receive, middleware: LimitsMiddleware) -> None:
        self._receive, self._middleware = receive, middleware
        self._content: bytes | None = None
        self.received, self.ended = 0, False

    async def read(self) -> bool:
        """Whether the whole body has arrived; False if the client has disconnected."""
        limits, start = self._middleware.limits, time.monotonic()
        parts: list[bytes] = []
        size = (
            JsonSize()
        )  # what comes after an excess is read, but not kept: the parser refuses the rest
        while not self.ended:
            try:
                async with asyncio.timeout(limits.body_idle):
                    message = await self._receive()
            except TimeoutError as error:
                raise _slow_body(f"no data for {limits.body_idle:g} s") from error
            if message["type"] != "http.request":
                return False
            part = message.get("body", b"")
            self.ended = not message.get("more_body", False)
            self._count(len(part))
            if size.excess is None:
                size.add(part)
                parts.append(part)
            seconds = time.monotonic() - start
            if (
                not self.ended
                and seconds > limits.body_idle
                and self.received < limits.body_rate * seconds
            ):
                raise _slow_body(f"less than {limits.body_rate:g} bytes per second")
        self._content = parts[0] if len(parts) == 1 else b"".join(parts)
        return True

    async def __call__(self) -> Message:
        if self._content is None:
            return await self._receive()
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    def _count(self, size: int) -> None:
        middleware = self._middleware
        self.received += size
        middleware.buffered += size
        if self.received > middleware.limits.body:
            raise _too_large(middleware.limits.body)
        if self.received > _SMALL_BODY and middleware.buffered > middleware.limits.buffered:
            message = "too many large requests are being received at once."
            raise ApiError("unavailable", message, retry_after=1)


class _Response:
    """Sends a response with the security headers and the id of the request."""

    def __init__(self, send: Send, middleware: LimitsMiddleware, scope: Any, identity: str) -> None:
        self._send, self._middleware, self._scope = send, middleware, scope
        self._identity = (b"x-request-id", identity.encode())
        self.status, self.started, self.ended = 499, False, False
        self.key: str | None = None  # its name
        self.code: str | None = None  # of an error

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = [*message.get("headers", []), *_SECURITY_HEADERS, self._identity]
            if self._middleware.draining:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")

    async def send_error(self, error: ApiError, *, close: bool = False) -> None:
        """Send an error response; if a response has already started, the connection is closed instead."""
        self.code = error.code
        if self.started:
            abort = self._scope.get("extensions", {}).get("aureole.abort")
            if abort is None:
                raise error
            LOG.warning("the client did not read the response: %s", error.message)
            abort["call"]()
            return
        body, headers = error.body(), error.headers()
        headers.append((b"content-length", str(len(body)).encode()))
        if error.code == "unauthorized":
            # with Basic the browser itself prompts for the key when the page is opened; scripts handle Bearer
            path = self._scope["path"]
            is_page = path == "/" or path.startswith("/assets/")
            challenge = b'Basic realm="aureole", charset="UTF-8"' if is_page else b"Bearer"
            headers.append((b"www-authenticate", challenge))
        if close and not self._middleware.draining:
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": error.status, "headers": headers}
        await self(start)
        await self({"type": "http.response.body", "body": body})


def _too_large(max_bytes: int) -> ApiError:
    return ApiError("too_large", f"the request body exceeds {max_bytes:,} bytes.")


def _slow_body(reason: str) -> ApiError:
    return ApiError("slow_body", f"the request body arrived too slowly: {reason}.")
