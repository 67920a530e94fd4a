"""Connections: how many a client may hold, and which one is closed when there are too many."""

import ipaddress
from collections import OrderedDict
from typing import Any


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
