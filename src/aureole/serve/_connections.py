"""Connections: how many a client may hold, and the HTTP protocol with limits on the size and time of headers."""

import asyncio
import ipaddress
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from aureole.serve._errors import ApiError

_HEADER_TIMEOUT = 10  # seconds to send the headers of a request
_IDLE = 2.0  # seconds in which an idle connection may still send a request during shutdown
_LINGER = 5.0  # seconds to read the rest of a response after its connection was closed
_MAX_HEADER = 64 * 1024  # bytes of a request that are not its body
_MAX_PIPELINED = 16  # requests sent ahead on one connection
_SLICE = 16 * 1024  # bytes that are parsed before they are counted


class ConnectionTable:
    """The open connections by client address.

    A connection that waits for its client (to send a request, or the rest of one) can be closed in favour of a new one:
    above a limit, the connection that has waited longest is closed. Slow clients can therefore not keep others out. A
    connection whose request is complete is never closed. Clients on this machine, such as a proxy, are limited in total
    only.

    Examples
    --------
    >>> table = ConnectionTable(per_address=2, total=100)
    >>> [table.add(name, "192.0.2.1") for name in ("a", "b", "c")]
    [None, None, 'a']
    >>> table.set_busy("b")
    >>> table.remove("a"), table.add("d", "192.0.2.1"), table.add("e", "192.0.2.2")
    (None, 'c', None)
    """

    def __init__(self, per_address: int, total: int) -> None:
        self._per_address, self._total = per_address, total
        self._address: dict[Any, str] = {}
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, OrderedDict[Any, None]] = {}
        self._all_waiting: OrderedDict[Any, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._address)

    def add(self, connection: Any, address: str) -> Any | None:
        """Add a connection; returns the one to close instead, if there are too many."""
        self._address[connection] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self.set_waiting(connection)
        if self._counts[address] > self._per_address and not _is_loopback(address):
            return next(iter(self._waiting[address]))
        return next(iter(self._all_waiting)) if len(self._address) > self._total else None

    def set_waiting(self, connection: Any) -> None:
        """From now on the connection waits for its client."""
        address = self._address.get(connection)
        if address is not None:
            self._waiting.setdefault(address, OrderedDict())[connection] = None
            self._all_waiting[connection] = None

    def set_busy(self, connection: Any) -> None:
        """The connection has a complete request."""
        self._all_waiting.pop(connection, None)
        address = self._address.get(connection, "")
        if address in self._waiting:
            self._waiting[address].pop(connection, None)
            if not self._waiting[address]:
                del self._waiting[address]

    def remove(self, connection: Any) -> None:
        """Forget a connection; unknown ones are ignored."""
        self.set_busy(connection)
        address = self._address.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # a Unix socket
        return True


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
