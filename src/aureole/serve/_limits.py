"""Limits of a service: sizes, times, rates, and the shape of a JSON body, which is counted before it is parsed."""

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from aureole.serve._errors import ApiError

_MAX_CLIENTS = 10_000
_MAX_KEYS = 1_000  # of all objects of a body: each unknown key is a validation error of its own
_MAX_CONTAINERS = 1_000  # lists and objects: a million of them are 100 MB
_MAX_VALUES = 2**20  # 256 vectors of 4,096 entries
_BLOCK = 2**20  # bytes that are counted at once, which bounds memory
_KEY, _VALUE, _CONTAINER = b":", b",", (b"[", b"{")


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


def check_json_size(body: bytes) -> None:
    """Raise a 422 if a JSON body has too many keys, values, lists or objects to be parsed quickly.

    Counts ``:``, ``,``, ``[`` and ``{``, and only if there are too many of them, those outside of strings. Linear in
    time, with constant memory.

    Examples
    --------
    >>> check_json_size(b'{"text": "' + b"[" * 10_000 + b'"}')
    >>> check_json_size(b"[" * 10_000)
    Traceback (most recent call last):
    aureole.serve._errors.ApiError: the body has more than 1,000 lists and objects.
    """
    counts = _Counts(
        body.count(_KEY), body.count(_VALUE), sum(body.count(one) for one in _CONTAINER)
    )
    if counts.excess() is not None:
        counts = _count_outside_strings(body)
    excess = counts.excess()
    if excess is not None:
        raise ApiError("invalid_input", f"the body has more than {excess}.")


def parse_json(body: bytes) -> Any:
    """The value of a JSON body; raises ``ValueError`` if it is not JSON, and as ``check_json_size``."""
    from pydantic_core import from_json

    check_json_size(body)
    return from_json(body, cache_strings="none")


@dataclass(frozen=True)
class _Counts:
    """Keys, values and containers of a JSON text."""

    keys: int
    values: int
    containers: int

    def excess(self) -> str | None:
        """The limit that is exceeded, or None."""
        if self.keys > _MAX_KEYS:
            return f"{_MAX_KEYS:,} keys"
        if self.containers > _MAX_CONTAINERS:
            return f"{_MAX_CONTAINERS:,} lists and objects"
        return f"{_MAX_VALUES:,} values" if self.values > _MAX_VALUES else None


def _count_outside_strings(body: bytes) -> _Counts:
    text = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    inside, counts = 0, np.zeros(128, np.int64)
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        quoted = np.bitwise_xor.accumulate((block == ord('"')).view(np.uint8)) ^ np.uint8(inside)
        inside = int(quoted[-1])
        outside = block[(quoted == 0) & (block < 128)]
        counts += np.bincount(outside, minlength=128)
    opened = sum(int(counts[ord(one)]) for one in _CONTAINER)
    return _Counts(int(counts[ord(_KEY)]), int(counts[ord(_VALUE)]), opened)


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
