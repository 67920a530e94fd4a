"""The server: uvicorn with a graceful shutdown. Its protocol is in ``_connections.py``.

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

from aureole.errors import AureoleError
from aureole.serve._connections import ConnectionTable, LimitedProtocol
from aureole.serve._errors import LOG
from aureole.serve._middleware import LimitsMiddleware

# in seconds
_CLOSING = 0.5  # during which responses close their connections, before the socket is closed
_GRACE = 7  # for requests in flight
_SWITCH_INTERVAL = 0.0002  # a thread may hold the interpreter lock while the event loop waits
_OTHER_FILES = 128  # open files that are not connections


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
