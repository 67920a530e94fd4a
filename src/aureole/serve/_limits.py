"""Limits of a service: sizes, times, rates, and the shape of a JSON body, which is counted before it is parsed."""

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
    rate, burst
        Requests per second and client address, on average and at once (default: no limit; 100).
    in_flight
        Maximum number of concurrent requests (default 512).
    """

    body: int = 16 * 2**20
    seconds: float = 30.0
    rate: float = 0.0
    burst: int = 100
    in_flight: int = 512


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

    def take(self, client: str, now: float | None = None) -> float:
        """0 if the request is allowed, else the seconds to wait."""
        if self._rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        tokens, then = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[client] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return wait


def check_json_size(body: bytes) -> None:
    """Raise a 422 if a JSON body has too many keys, values, lists or objects to be parsed quickly.

    Counts ``:``, ``,``, ``[`` and ``{``, and only if there are too many of them, those outside of strings. Linear in time,
    with constant memory.

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
    """The value of a JSON body; raises ``ValueError`` if it is not JSON, and a 422 if it is too large to be parsed quickly."""
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
