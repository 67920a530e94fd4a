"""Arrays in ``.npy`` and ``.safetensors`` files, memory-mapped and never unpickled."""

import json
from pathlib import Path

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError

ARRAYS = (".npy", ".safetensors")
LARGEST_DIM = 65_536  # of a vector
_ROWS = 8192  # checked at a time
_TYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "U8": np.uint8, "I8": np.int8}
_TYPES |= {"I16": np.int16, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}


def map_array(path: Path, name: str | None = None) -> np.ndarray:
    """The array in a file, or the tensor of this name, mapped copy-on-write: the file is never modified.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "vectors.npy"
    >>> np.save(path, np.eye(3, dtype=np.float32))
    >>> map_array(path).shape
    (3, 3)
    """
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist or is not a file. Check the path.")
    if path.suffix != ".npy":
        return _map_safetensors(path, name)
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as an array of numbers or strings: {error}. Pickled objects are never loaded."
        ) from error


def map_vectors(path: Path, name: str | None = None, *, rows: slice | None = None) -> np.ndarray:
    """The vectors [n, d] in a file, float16, 32 or 64; an error names the first row that is not finite.

    ``rows`` limits the check to these rows.
    """
    vectors = map_array(path, name)
    if vectors.dtype not in (np.float16, np.float32, np.float64):
        raise InvalidInputError(
            f"{path} holds {vectors.dtype}, but vectors are float16, float32 or float64. Convert it with astype."
        )
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InvalidInputError(f"{path} must hold vectors [n, d], but has shape {vectors.shape}.")
    check_width(vectors.shape[1], str(path))
    start, stop, _ = (rows or slice(None)).indices(len(vectors))
    for first in range(start, stop, _ROWS):
        check_finite(vectors[first : min(first + _ROWS, stop)], first, str(path))
    return vectors


def check_width(dim: int, where: str) -> None:
    """Raise for vectors without entries or with more than 65,536."""
    if not 1 <= dim <= LARGEST_DIM:
        raise InvalidInputError(
            f"the vectors of {where} have {dim} entries, but must have 1 to {LARGEST_DIM}."
        )


def check_finite(rows: np.ndarray, first: int, where: str) -> None:
    """Raise for NaN and infinity; ``first`` is the number of the first row."""
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise InvalidInputError(
            f"the vector in row {first + int(bad.argmax())} of {where} (counted from 0) holds NaN or infinity. "
            "Drop such rows first."
        )


def _map_safetensors(path: Path, name: str | None) -> np.ndarray:
    from safetensors import SafetensorError, safe_open

    try:
        # checks the header, and that all offsets are inside the file
        with safe_open(path, framework="np") as handle:
            names = list(handle.keys())
    except (SafetensorError, OSError) as error:
        raise InvalidInputError(f"{path} cannot be read as safetensors: {error}.") from error
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        problem = "several tensors, so you must name one" if name is None else f"no tensor {name!r}"
        raise InvalidInputError(f"{path} has {problem}: {', '.join(map(repr, names[:20]))}.")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
    if entry["dtype"] not in _TYPES:
        raise InvalidInputError(
            f"{name!r} in {path} is {entry['dtype']}, which numpy does not support. Use one of {', '.join(_TYPES)}."
        )
    shape, start = tuple(entry["shape"]), 8 + length + entry["data_offsets"][0]
    if 0 in shape:
        return np.empty(shape, _TYPES[entry["dtype"]])
    return np.memmap(path, _TYPES[entry["dtype"]], "c", start, shape)
