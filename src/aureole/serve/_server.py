"""The server: uvicorn with a graceful shutdown. The only file that imports uvicorn.

uvicorn's own ``timeout_graceful_shutdown`` closes idle keep-alive connections and the listening socket at once, so that
requests already on their way to either are lost (``tests/serve/test_server.py`` shows it): hence the subclass.
"""

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from aureole.errors import AureoleError
from aureole.serve._connections import ConnectionTable
from aureole.serve._errors import LOG, ApiError
from aureole.serve._middleware import LimitsMiddleware

# in seconds
_CLOSING = 0.5  # during which responses close their connections, before the socket is closed
_GRACE = 7  # for requests in flight
_SWITCH_INTERVAL = 0.0002  # a thread may hold the interpreter lock while the event loop waits
_OTHER_FILES = 128  # open files that are not connections
_HEADER_TIMEOUT = 10  # seconds to send the headers of a request
_IDLE = 2.0  # seconds in which an idle connection may still send a request during shutdown
_LINGER = 5.0  # seconds to read the rest of a response after its connection was closed
_MAX_HEADER = 64 * 1024  # bytes of a request that are not its body
_MAX_PIPELINED = 16  # requests sent ahead on one connection
_SLICE = 64 * 1024  # bytes that are parsed before they are counted


class Server(uvicorn.Server):
    """uvicorn with a graceful shutdown: every request that reached the socket is answered.

    On SIGTERM or SIGINT the socket stays open for 0.5 s, during which every response closes its connection. Then it is
    closed and its accept queue drained; idle connections have 2 s to send a request, and requests in flight 7 s to
    finish. A second signal stops the server at once. ``on_ready`` is called when the server accepts requests.
    """

    def __init__(self, app: LimitsMiddleware, on_ready: Callable[[], None] | None = None) -> None:
        limits = app.limits
        table = ConnectionTable(limits.per_address, _file_limit(limits.connections))
        self._protocol: Any = partial(LimitedProtocol, table=table)
        config = uvicorn.Config(
            app,
            http=self._protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE,
        )
        super().__init__(config)
        self._app, self._on_ready = app, on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Signal handler: start the graceful shutdown, or stop at once on the second signal."""
        if self._app.draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        LOG.info("stopping (signal %s)", sig)
        self.stop()

    def stop(self) -> None:
        """Start the graceful shutdown. Thread-safe."""
        self._app.draining = True
        loop = self._loop
        if loop is None:
            self.should_exit = True
            return
        exit_later = lambda: loop.call_later(_CLOSING, setattr, self, "should_exit", True)  # noqa: E731
        loop.call_soon_threadsafe(exit_later)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then call ``on_ready``."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain the accept queue before closing the listening socket, then wait for requests in flight."""
        copies = [listening.dup() for listening in sockets or []]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        state = (self.config, self.server_state, self.lifespan.state)
        for connection in _drain_accept_queue(copies):
            await loop.connect_accepted_socket(lambda: self._protocol(*state), connection)
        await super().shutdown(sockets)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets until stopped."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        gc.collect()
        gc.freeze()  # the gallery and models are never garbage: collections skip them
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(interval)


def _drain_accept_queue(listening: list[socket.socket]) -> list[socket.socket]:
    """Accept all connections that the kernel has queued, and close the sockets."""
    connections = []
    for listener in listening:
        listener.setblocking(False)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the queue is empty
                break
            connection.setblocking(False)
            connections.append(connection)
        listener.close()
    return connections


def _file_limit(connections: int) -> int:
    """The number of connections that the limit on open files allows; raises the limit if that is possible."""
    try:
        import resource
    except ImportError:  # Windows
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(connections, soft - _OTHER_FILES))
    return connections


class LimitedProtocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn with limits on headers and connections, and a delay before idle ones are closed.

    httptools itself has no limit on headers. Here all bytes of a request that are not its body (headers, trailers,
    chunk sizes) are counted, less one for each byte of the body: more than 64 KiB get a 431.
    """

    def __init__(self, *arguments: Any, table: ConnectionTable, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._table = table
        self._timer: asyncio.TimerHandle | None = None
        self._overhead = self._part = (
            0  # bytes of the request that are not body, bytes being parsed
        )

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()
        surplus = self._table.add(self, self.client[0] if self.client else "")
        if surplus is not None:
            self._table.remove(surplus)
            surplus.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle() and self._timer is None:
            self._start_timer()  # blank lines do not keep a connection open
        for start in range(0, len(data), _SLICE):
            if self.transport.is_closing():
                return
            part = data[start : start + _SLICE]
            self._part = len(part)
            self._overhead += self._part
            super().data_received(part)
            if self._overhead > _MAX_HEADER:
                message = f"the headers of the request exceed {_MAX_HEADER:,} bytes."
                self._refuse(ApiError("headers_too_large", message))
                return

    def on_message_begin(self) -> None:
        self._overhead = self._part
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many pipelined requests")  # a 400 that closes the connection
        # for responses that the client does not read
        self.scope["extensions"] = {"aureole.abort": {"call": self.transport.abort}}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = max(0, self._overhead - 2 * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._table.set_busy(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            self._table.set_waiting(self)
        if self.transport.is_closing():
            self.loop.call_later(_LINGER, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(_LINGER, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError("malformed", msg))

    def shutdown(self) -> None:
        # a request may be on its way on a connection that looks idle
        if self._is_idle() and not self.transport.is_closing():
            self.loop.call_later(_IDLE, super().shutdown)
        else:
            super().shutdown()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self, error: ApiError) -> None:
        """Send an error and close the connection; without a response if another one is being sent."""
        if not self._is_idle():
            self.transport.abort()
            return
        body = error.body()
        headers = [*error.headers(), (b"content-length", str(len(body)).encode())]
        headers.append((b"connection", b"close"))
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(_HEADER_TIMEOUT, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free port."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise AureoleError(f"cannot listen on {host} port {port}: {error}.") from error


def address_of(listening: socket.socket) -> tuple[str, int]:
    """(Host, port) of a socket."""
    host, port, *_ = listening.getsockname()
    return host, port
