"""JSON bodies: counted before they are parsed, and large ones parsed in a bounded share of the time."""

import asyncio
import time
from typing import Any

import numpy as np

from aureole.serve._errors import ApiError

_MAX_KEYS = 1_000  # of all objects of a body: each unknown key is a validation error of its own
_MAX_CONTAINERS = 1_000  # lists and objects: a million of them are 100 MB
_MAX_VALUES = 2**18  # 256 vectors of 1,024 entries
_BLOCK = 2**16  # bytes that are counted at once
_LARGE = 2**16  # bytes of a body that is parsed in a thread, not on the event loop


class JsonSize:
    """Counts the keys, values, lists and objects of a JSON text that arrives in parts.

    Only ``:``, ``,``, ``[`` and ``{`` outside of strings count, and strings as values. Linear in time, with constant
    memory.

    Examples
    --------
    >>> size = JsonSize()
    >>> for part in (b'{"text": "[[', b'[[[", "mu', b'": [1, 2]}'):
    ...     size.add(part)
    >>> size.keys, size.values, size.containers, size.excess
    (2, 2, 2, None)
    """

    def __init__(self) -> None:
        self.keys = self.values = self.containers = 0
        self._quotes = 0
        self._in_string = False
        self._escape = b""  # a backslash at the end of the last part

    def add(self, part: bytes) -> None:
        """Count the next part of the text."""
        if b"\\" in part or self._escape:
            part = (self._escape + part).replace(b"\\\\", b"")
            self._escape = b"\\" if part.endswith(b"\\") else b""
            part = part.replace(b'\\"', b"")
        self._quotes += part.count(b'"')
        if self.excess is not None:
            return
        pieces = part.split(b'"')
        outside = b" ".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        text = np.frombuffer(outside, np.uint8)
        self.keys += _count(text, ":")
        self.values += _count(text, ",")
        self.containers += _count(text, "[") + _count(text, "{")

    @property
    def excess(self) -> str | None:
        """The limit that is exceeded, or None."""
        if self.keys > _MAX_KEYS:
            return f"{_MAX_KEYS:,} keys"
        if self.containers > _MAX_CONTAINERS:
            return f"{_MAX_CONTAINERS:,} lists and objects"
        too_many = self.values > _MAX_VALUES or self._quotes > 2 * _MAX_VALUES
        return f"{_MAX_VALUES:,} values" if too_many else None


def _count(text: "np.ndarray[Any, np.dtype[np.uint8]]", character: str) -> int:
    return int(np.count_nonzero(text == ord(character)))


def parse_json(body: bytes) -> Any:
    """The value of a JSON body; raises a 422 if it is too large to be parsed quickly, ``ValueError`` if it is not JSON.

    Examples
    --------
    >>> parse_json(b'{"limit": 10}')
    {'limit': 10}
    >>> parse_json(b"[" * 10_000)
    Traceback (most recent call last):
    aureole.serve._errors.ApiError: the body has more than 1,000 lists and objects.
    """
    from pydantic_core import from_json

    size = JsonSize()
    for start in range(0, len(body), _BLOCK):
        size.add(body[start : start + _BLOCK])
        if size.excess is not None:
            raise ApiError("invalid_input", f"the body has more than {size.excess}.")
    return from_json(body, cache_strings="none")


class JsonParser:
    """Parses the bodies of one service.

    Large bodies are parsed in a thread, one at a time. The parser holds the interpreter lock meanwhile, so it then
    waits as long as it has worked: whatever others send, small requests get half of the time.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def parse(self, body: bytes) -> Any:
        """As ``parse_json``."""
        if len(body) <= _LARGE:
            return parse_json(body)
        async with self._turn:
            await asyncio.sleep(self._free_at - time.monotonic())
            value, seconds = await asyncio.to_thread(_timed, body)
            self._free_at = time.monotonic() + seconds
        if isinstance(value, Exception):
            raise value
        return value


def _timed(body: bytes) -> tuple[Any, float]:
    """(The parsed value or the error, CPU seconds)."""
    start = time.thread_time()
    try:
        value = parse_json(body)
    except (ApiError, ValueError) as error:
        value = error
    return value, time.thread_time() - start
