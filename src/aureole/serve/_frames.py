"""Frames between the service and the process of its encoder: a length and JSON or safetensors, never pickle."""

import json
import struct
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from safetensors.numpy import load, save
from torch import Tensor

_HEAD = struct.Struct("<cQ")  # what follows, and how many bytes of it
_JSON, _ARRAYS = b"J", b"A"


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Write arrays by their names as safetensors, anything else as JSON.

    Examples
    --------
    >>> from io import BytesIO
    >>> stream = BytesIO()
    >>> write_frame(stream, ["a text"])
    >>> write_frame(stream, {"kappa": np.array([2.0])})
    >>> _ = stream.seek(0)
    >>> read_frame(stream), read_frame(stream)
    (['a text'], {'kappa': array([2.])})
    """
    arrays = isinstance(value, dict) and any(isinstance(v, np.ndarray) for v in value.values())
    content = save(value) if arrays else json.dumps(value).encode()
    stream.write(_HEAD.pack(_ARRAYS if arrays else _JSON, len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """What was written; an ``EOFError`` where the other end is gone."""
    kind, length = _HEAD.unpack(_read(stream, _HEAD.size))
    content = _read(stream, length)
    return load(content) if kind == _ARRAYS else json.loads(content)


def pack_inputs(prepared: Sequence[Any]) -> Any:
    """Prepared inputs as one frame's value: texts as they are, pictures and vectors stacked."""
    if isinstance(prepared[0], str):
        return list(prepared)
    parts = [one.numpy() if isinstance(one, Tensor) else one for one in prepared]
    return {"inputs": np.ascontiguousarray(np.stack(parts))}


def unpack_inputs(value: Any) -> list[Any]:
    """The inputs that were packed; pictures and vectors as arrays."""
    return list(value["inputs"]) if isinstance(value, dict) else value


def _read(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found
