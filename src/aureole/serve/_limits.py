"""Limits: how large, how often and how long, and who may ask at all."""

import base64
import binascii
import hmac
import time
from collections import OrderedDict
from dataclasses import dataclass

_MOST_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """The limits of a service.

    Attributes
    ----------
    body
        Bytes of a request at most.
    seconds
        From the first byte of a request to the end of its answer.
    rate, burst
        Requests a second of one address in the long run, and at once; a rate of 0 is no limit.
    flying
        Requests that may be answered at the same time.
    """

    body: int = 16 * 2**20
    seconds: float = 30.0
    rate: float = 0.0
    burst: int = 100
    flying: int = 512


class Buckets:
    """A bucket of tokens for each client: it fills at ``rate`` a second up to ``burst``, and a request takes one.

    The 10,000 clients seen last are remembered, in constant time and memory.

    Examples
    --------
    >>> buckets = Buckets(rate=2.0, burst=2)
    >>> [buckets.take("a", now) for now in (0.0, 0.0, 0.0, 0.5)], buckets.take("b", 0.0)
    ([0.0, 0.0, 0.5, 0.0], 0.0)
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, max(1, burst)
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> float:
        """0 if the client may go on, else the seconds to wait."""
        if self._rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        tokens, then = self._held.pop(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._held[client] = (tokens if wait else tokens - 1, now)
        if len(self._held) > _MOST_CLIENTS:
            self._held.popitem(last=False)
        return wait


def allowed(header: bytes | None, key: str | None) -> bool:
    """Whether an Authorization header holds the key, compared in constant time; without a key all may pass.

    ``Bearer KEY``, or what a browser makes of a password: ``Basic`` with the key after any name.

    Examples
    --------
    >>> allowed(b"Bearer secret", "secret"), allowed(b"Basic OnNlY3JldA==", "secret"), allowed(None, "secret")
    (True, True, False)
    """
    if key is None:
        return True
    scheme, _, value = (header or b"").partition(b" ")
    if scheme.lower() == b"basic":
        try:
            value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), key.encode())
