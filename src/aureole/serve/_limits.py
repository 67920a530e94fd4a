"""Limits of a service: sizes, times, rates and host names."""

import math
import time
from collections import OrderedDict
from dataclasses import dataclass

from aureole.serve._errors import ApiError

_MAX_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """Limits of a service.

    Attributes
    ----------
    body
        Maximum size of a request body in bytes (default 16 MiB).
    seconds
        Timeout of a request, from its first byte to the end of the response (default 30).
    rate, key_rate, burst
        Requests per second and client address, and per API key, on average (default: no limit), and at once (default
        100).
    in_flight
        Maximum number of requests that are processed at once; those whose body has not arrived are not counted (default
        512).
    body_idle, body_rate
        Seconds that a client may pause within a body (default 5), and the smallest rate in bytes per second after that
        time (default 1024).
    buffered
        Maximum size of all bodies in memory in bytes; small ones are always accepted (default 256 MiB).
    per_address, connections
        Open connections per client address (default 64; not for clients on this machine) and in total (default 4096).
        Above that, the connection that has waited longest for its client is closed.
    """

    body: int = 16 * 2**20
    seconds: float = 30.0
    rate: float = 0.0
    key_rate: float = 0.0
    burst: int = 100
    in_flight: int = 512
    body_idle: float = 5.0
    body_rate: float = 1024.0
    buffered: int = 256 * 2**20
    per_address: int = 64
    connections: int = 4096


class RateLimiter:
    """A token bucket per client: it refills at ``rate`` per second up to ``burst``, and each request takes one token.

    The 10,000 most recent clients are remembered, in constant time and memory.

    Examples
    --------
    >>> limiter = RateLimiter(rate=2.0, burst=2)
    >>> [limiter.take("a", now) for now in (0.0, 0.0, 0.0, 0.5)], limiter.take("b", 0.0)
    ([0.0, 0.0, 0.5, 0.0], 0.0)
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, max(1, burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None, *, rate: float | None = None) -> float:
        """0 if the request is allowed, else the seconds to wait; ``rate`` replaces the common rate and burst."""
        burst = float(self._burst if rate is None else max(1, math.ceil(rate)))
        rate = self._rate if rate is None else rate
        if rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        tokens, then = self._buckets.pop(client, (burst, now))
        tokens = min(burst, tokens + (now - then) * rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / rate
        self._buckets[client] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return wait


def host_name(header: bytes) -> str:
    """The name in a Host header, in lower case, without its port.

    Examples
    --------
    >>> [host_name(header) for header in (b"Example.org:8765", b"[::1]:8765", b"127.0.0.1", b"")]
    ['example.org', '::1', '127.0.0.1', '']
    """
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def check_host(headers: list[tuple[bytes, bytes]], allowed: frozenset[str] | None) -> None:
    """Raise a 421 unless the request has one Host header with an allowed name; None allows all.

    A page of another site can resolve its own name to this machine (DNS rebinding) and then read responses as if they
    were its own. Its requests have its name in the Host header.
    """
    if allowed is None:
        return
    names = [host_name(value) for name, value in headers if name == b"host"]
    if len(names) != 1 or names[0] not in allowed:
        message = "this service does not answer for the host of the request; see --allowed-host."
        raise ApiError("misdirected", message)
