"""The guard before the application: key, limits, time, headers, and a typed answer to whatever goes wrong."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aureole.serve._failures import LOG
from aureole.serve._faults import Fault
from aureole.serve._limits import Buckets, Limits, allowed
from aureole.serve._metrics import Metrics

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_OPEN = "/healthz"


class Guard:
    """An ASGI application around another.

    ``draining`` is set when the service stops: every answer then closes its connection, so that clients leave, and
    /healthz says 503.
    """

    def __init__(
        self, app: Any, *, limits: Limits, key: str | None = None, metrics: Metrics | None = None
    ) -> None:
        self._app, self._limits, self._key, self._metrics = app, limits, key, metrics
        self._buckets = Buckets(limits.rate, limits.burst)
        self.draining = False
        self.flying = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request; what is no HTTP request goes to the application, sockets are closed."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._limits.body)
        answer = _Answer(send, self, scope["path"], body)
        start = time.perf_counter()
        self.flying += 1
        if self._metrics:
            self._metrics.begin()
        try:
            await self._answer(scope, body, answer)
        finally:
            self.flying -= 1
            if self._metrics:
                route = getattr(scope.get("route"), "path", "other")
                seconds = time.perf_counter() - start
                self._metrics.end(_method(scope), route, answer.status, seconds)

    async def _answer(self, scope: Any, body: "_Body", answer: "_Answer") -> None:
        try:
            self._admit(scope)
            async with asyncio.timeout(self._limits.seconds):
                await self._app(scope, body, answer)
            if body.fault is not None and not answer.started:
                raise body.fault
        except Fault as fault:
            await answer.fault(fault, close=not body.ended)
        except TimeoutError:
            fault = Fault(
                "timeout",
                f"there was no answer within {self._limits.seconds:g} s.",
                retry_after=1,
            )
            await answer.fault(fault, close=not body.ended)
        except Exception as error:
            if body.fault is not None:
                await answer.fault(body.fault, close=True)
                return
            LOG.error("an answer to %s failed", scope["path"], exc_info=error)
            if not answer.ended:
                await answer.fault(Fault("internal", "an error of the service; it is in its log."))

    def _admit(self, scope: Any) -> None:
        """Refuse what is not to be answered, before any of its body is read."""
        if scope["path"] == _OPEN:
            if self.draining:
                raise Fault("unavailable", "the service is stopping.", retry_after=5)
            return
        client = scope.get("client")
        wait = self._buckets.take(client[0] if client else "")
        if wait:
            raise Fault(
                "rate_limited",
                f"more than {self._limits.rate:g} requests a second from one address.",
                retry_after=wait,
            )
        headers = dict(scope["headers"])
        if not allowed(headers.get(b"authorization"), self._key):
            raise Fault("unauthorized", "this service asks for its key: Authorization: Bearer KEY.")
        if self.flying > self._limits.flying:
            raise Fault(
                "unavailable", f"{self._limits.flying} requests are being answered.", retry_after=1
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limits.body:
            raise _too_large(self._limits.body)


class _Body:
    """The body of a request, which ends in a fault when it is larger than allowed."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._got = receive, most, 0
        self.ended = False
        self.fault: Fault | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._got += len(message.get("body", b""))
            self.ended = not message.get("more_body", False)
            if self._got > self._most:
                self.fault = _too_large(self._most)
                raise self.fault
        return message


class _Answer:
    """What is sent, with the headers that every answer has."""

    def __init__(self, send: Send, guard: Guard, path: str, body: _Body) -> None:
        self._send, self._guard, self._path, self._body = send, guard, path, body
        self.status, self.started, self.ended = 499, False, False

    async def __call__(self, message: Message) -> None:
        if self._body.fault is not None and not self.started:
            return  # the application's own word for it does not matter
        await self._pass(message)

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = [*message.get("headers", []), *_ALWAYS]
            if self._guard.draining:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")

    async def fault(self, fault: Fault, *, close: bool = False) -> None:
        """Send a fault; if an answer has begun it can only break off."""
        if self.started:
            raise fault
        body, headers = fault.body(), fault.headers()
        headers.append((b"content-length", str(len(body)).encode()))
        if fault.code == "unauthorized":
            # a browser asks for a password by itself where the page is opened, and not when its script asks
            opened = self._path == "/" or self._path.startswith("/assets/")
            challenge = b'Basic realm="aureole", charset="UTF-8"' if opened else b"Bearer"
            headers.append((b"www-authenticate", challenge))
        if close and not self._guard.draining:
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": fault.status, "headers": headers}
        await self._pass(start)
        await self._pass({"type": "http.response.body", "body": body})


def _too_large(most: int) -> Fault:
    return Fault("too_large", f"a request may have {most:,} bytes at most.")


def _method(scope: Any) -> str:
    known = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
    return scope["method"] if scope["method"] in known else "other"
