"""API keys with names: from a file that is read again when it changes, each with its own rate limit."""

import base64
import binascii
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aureole.errors import InvalidInputError, MissingInputError
from aureole.serve._errors import LOG

_MAX_FILE = 2**20  # bytes
_MAX_NAME = 64  # characters
_INTERVAL = 1.0  # seconds between looks at the file


@dataclass(frozen=True)
class ApiKey:
    """The name of a key, which is logged, and its limit in requests per second (None: the default)."""

    name: str
    rate: float | None = None


class ApiKeys:
    """The keys of a service by the SHA-256 of each, so that neither a comparison nor a dump of memory reveals one.

    Examples
    --------
    >>> keys = ApiKeys({"alice": "alices-secret"})
    >>> keys.find(b"Bearer alices-secret"), keys.find(b"Bearer bobs-secret"), keys.find(None)
    (ApiKey(name='alice', rate=None), None, None)
    """

    def __init__(self, keys: Mapping[str, Any], *, source: str = "the keys") -> None:
        self._file: Path | None = None
        self._checked, self._state = 0.0, (0, 0, 0)
        self._keys = _by_digest(keys, source)  # errors name the source

    @classmethod
    def read(cls, file: Path) -> "ApiKeys":
        """The keys in a file, which is read again within a second of each change.

        A line is ``NAME KEY`` or ``NAME KEY RATE``; empty lines and those that start with ``#`` are ignored. Or the
        file is a JSON object ``{"NAME": "KEY"}``, or ``{"NAME": {"key": "KEY", "rate": 5}}``.
        """
        keys = cls(_read_keys(file), source=str(file))
        keys._file, keys._state, keys._checked = file, _file_state(file), time.monotonic()
        return keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, header: bytes | None) -> ApiKey | None:
        """The key in an Authorization header, or None if it has none that is known."""
        self._refresh()
        presented = presented_key(header)
        return None if presented is None else self._keys.get(hashlib.sha256(presented).digest())

    def _refresh(self) -> None:
        """Read the file again if it has changed; an invalid or missing file leaves the keys as they are."""
        now = time.monotonic()
        if self._file is None or now - self._checked < _INTERVAL:
            return
        self._checked = now
        try:
            state = _file_state(self._file)
            if state == self._state:
                return
            self._state = state
            self._keys = _by_digest(_read_keys(self._file), str(self._file))
        except (InvalidInputError, MissingInputError) as error:
            LOG.error("the API keys were not reloaded: %s", error)
        else:
            LOG.info("reloaded %d API keys", len(self._keys))


def presented_key(header: bytes | None) -> bytes | None:
    """The key in an Authorization header: ``Bearer KEY``, or the password of ``Basic``, which browsers send.

    Examples
    --------
    >>> [presented_key(header) for header in (b"Bearer secret", b"Basic OnNlY3JldA==", b"Digest a", None)]
    [b'secret', b'secret', None, None]
    """
    scheme, _, value = (header or b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() != b"basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2].strip()
    except (binascii.Error, ValueError):
        return None


def check_key(key: Any, where: str) -> str:
    """A key without surrounding white space; raises if it is too short or has other characters than printable ASCII."""
    text = key.strip() if isinstance(key, str) else ""
    if len(text) < 8 or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidInputError(
            f"the API key in {where} must have at least 8 printable ASCII characters and no spaces."
        )
    return text


def _by_digest(keys: Mapping[str, Any], where: str) -> dict[bytes, ApiKey]:
    found: dict[bytes, ApiKey] = {}
    for name, entry in keys.items():
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or " " in name:
            raise InvalidInputError(
                f"the name of a key in {where} must have 1 to {_MAX_NAME} printable characters and no spaces."
            )
        values = entry if isinstance(entry, dict) else {"key": entry}
        if not set(values) <= {"key", "rate"}:
            raise InvalidInputError(
                f"the entry {name!r} in {where} may only have 'key' and 'rate'."
            )
        rate = values.get("rate")
        if rate is not None and not _is_rate(rate):
            raise InvalidInputError(
                f"the rate of {name!r} in {where} must be a number of requests per second above 0."
            )
        key = check_key(values.get("key"), f"{where}, entry {name!r},")
        digest = hashlib.sha256(key.encode()).digest()
        if digest in found:
            raise InvalidInputError(
                f"{found[digest].name!r} and {name!r} in {where} are the same key."
            )
        found[digest] = ApiKey(name, None if rate is None else float(rate))
    if not found:
        raise InvalidInputError(f"{where} has no API key: write one NAME KEY per line.")
    return found


def _is_rate(rate: Any) -> bool:
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    return number and math.isfinite(rate) and rate > 0


def _file_state(file: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(file)
    except OSError as error:
        raise MissingInputError(f"the file of API keys {file} cannot be read: {error}.") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_keys(file: Path) -> dict[str, Any]:
    """The keys by name, as a file has them."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_FILE + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise MissingInputError(f"the file of API keys {file} cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file of API keys {file} is not UTF-8 text.") from error
    if len(content) > _MAX_FILE:
        raise InvalidInputError(f"the file of API keys {file} exceeds {_MAX_FILE:,} bytes.")
    return _json_keys(text, file) if text.lstrip().startswith("{") else _line_keys(text, file)


def _json_keys(text: str, file: Path) -> dict[str, Any]:
    try:
        keys = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the file of API keys {file} is not valid JSON.") from error
    return keys


def _line_keys(text: str, file: Path) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        # the message must not quote the line, which may have a key
        if len(parts) not in (2, 3) or parts[0] in keys:
            raise InvalidInputError(
                f"line {number} of {file} must be NAME KEY or NAME KEY RATE, with a new name."
            )
        keys[parts[0]] = {"key": parts[1]}
        if len(parts) == 3:
            try:
                keys[parts[0]]["rate"] = float(parts[2])
            except ValueError as error:
                raise InvalidInputError(
                    f"line {number} of {file} has a rate that is not a number."
                ) from error
    return keys
