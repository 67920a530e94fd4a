"""The server: uvicorn on one port, with an end at which nobody is left without an answer. It imports uvicorn."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from aureole.errors import AureoleError
from aureole.serve._guard import Guard

_LEAVING = 0.5  # seconds in which clients are told to leave, before the port is closed
_LAST = 2.0  # seconds in which whoever was let in may still send a request
_GRACE = 7  # seconds for the answers that are on their way
_HEADERS = 10  # seconds for the headers of a request
_SWITCH = 0.0002  # seconds a thread may hold the interpreter while the loop waits for it


class Server(uvicorn.Server):
    """uvicorn with a gentle end; ``ready`` is called when it serves.

    At SIGTERM or SIGINT the port stays open for half a second, in which every answer closes its connection. Then it is
    closed, all that were let in before are taken in, connections without a request have 2 s to send theirs, and
    what is on its way has 7 s to be answered. A second signal ends it at once.
    """

    def __init__(self, guard: Guard, ready: Callable[[], None] | None = None) -> None:
        config = uvicorn.Config(
            guard,
            http=_protocol(),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE,
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        self._guard, self._ready = guard, ready
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin the end; called by a signal."""
        if self._guard.draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        logging.getLogger("aureole.serve").info("stopping (signal %s)", sig)
        self.leave()

    def leave(self) -> None:
        """Begin the end, from any thread."""
        self._guard.draining = True
        loop = self._loop
        if loop is None:
            self.should_exit = True
            return

        def close() -> None:
            self.should_exit = True

        loop.call_soon_threadsafe(lambda: loop.call_later(_LEAVING, close))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, and say so: from here on signals end it gently."""
        await super().startup(sockets)
        if self._ready is not None:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port when nobody waits at it any more, and then what is left."""
        spare = [listening.dup() for listening in sockets or []]
        for server in self.servers:
            server.close()
        await self._take_in(spare)
        await super().shutdown(sockets)

    async def _take_in(self, listening: list[socket.socket]) -> None:
        """Accept all whom the system has let in and who would find the door shut."""
        loop = asyncio.get_running_loop()
        pending = []
        for door in listening:
            door.setblocking(False)
            while True:
                try:
                    visitor, _ = door.accept()
                except OSError:  # nobody is left
                    break
                visitor.setblocking(False)
                pending.append(visitor)
            door.close()
        for visitor in pending:
            await loop.connect_accepted_socket(self._connection, visitor)

    def _connection(self) -> Any:
        """A protocol for one more connection."""
        kind: Any = self.config.http_protocol_class
        return kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets, in this thread."""
        switch = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        gc.collect()
        gc.freeze()  # what was loaded stays: the collector need not look at it again, not even at the end
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(switch)


def _protocol() -> Any:
    """Uvicorn's protocol, with an end to connections that say nothing or never finish their headers."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Patient(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def _wait(self) -> None:
            self._rest()
            self._timer = self.loop.call_later(_HEADERS, self.transport.close)

        def _rest(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def on_message_begin(self) -> None:
            self._wait()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._rest()
            super().on_headers_complete()

        def shutdown(self) -> None:
            # a request may be on its way on a connection that looks idle
            idle = self.cycle is None or self.cycle.response_complete
            if idle and not self.transport.is_closing():
                self.loop.call_later(_LAST, super().shutdown)
            else:
                super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

    return Patient


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
            made.listen(1024)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise AureoleError(f"{host} port {port} cannot be used: {error}.") from error
    return made


def address_of(made: socket.socket) -> tuple[str, int]:
    """(Host, port) of a socket."""
    name: Any = made.getsockname()
    return name[0], name[1]
