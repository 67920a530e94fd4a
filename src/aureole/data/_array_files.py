"""Arrays in ``.npy`` and ``.safetensors`` files, memory-mapped and never unpickled."""

from pathlib import Path

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError

ARRAYS = (".npy", ".safetensors")
LARGEST_DIM = 65_536  # of a vector
_ROWS = 8192  # checked at a time


def map_array(path: Path, name: str | None = None) -> np.ndarray:
    """Return the array in a file, or the tensor of this name, mapped copy-on-write: the file is never modified.

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


def map_vectors(path: Path, name: str | None = None) -> np.ndarray:
    """Return the vectors [n, d] in a file, float16, 32 or 64; an error names the first invalid row."""
    vectors = map_array(path, name)
    if vectors.dtype not in (np.float16, np.float32, np.float64):
        raise InvalidInputError(
            f"{path} holds {vectors.dtype}, but vectors are float16, float32 or float64. Convert it with astype."
        )
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InvalidInputError(f"{path} must hold vectors [n, d], but has shape {vectors.shape}.")
    check_width(vectors.shape[1], str(path))
    for first in range(0, len(vectors), _ROWS):
        check_rows(vectors[first : first + _ROWS], first, str(path))
    return vectors


def check_width(dim: int, where: str) -> None:
    """Raise for vectors without entries or with more than 65,536."""
    if not 1 <= dim <= LARGEST_DIM:
        raise InvalidInputError(
            f"the vectors of {where} have {dim} entries, but must have 1 to {LARGEST_DIM}."
        )


def check_rows(rows: np.ndarray, first: int, where: str) -> None:
    """Raise for NaN, infinity and zero vectors, which have no direction; ``first`` is the number of the first row."""
    finite, nonzero = np.isfinite(rows).all(1), rows.any(1)
    for good, fault in (
        (finite, "holds NaN or infinity"),
        (nonzero, "is zero, so it has no direction"),
    ):
        if not good.all():
            raise InvalidInputError(
                f"the vector in row {first + int(good.argmin())} of {where} (counted from 0) {fault}. "
                "Drop such rows first."
            )


def _map_safetensors(path: Path, name: str | None) -> np.ndarray:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as handle:
            names = list(handle.keys())
            chosen = names[0] if name is None and len(names) == 1 else name
            if chosen not in names:
                problem = f"no tensor {name!r}" if name else "several tensors, so name one"
                raise InvalidInputError(
                    f"{path} has {problem}: {', '.join(map(repr, names[:20]))}."
                )
            return handle.get_tensor(chosen).numpy()  # mapped by torch, copy-on-write
    except (SafetensorError, OSError, TypeError) as error:  # numpy has no bfloat16
        raise InvalidInputError(f"{path} cannot be read as safetensors: {error}.") from error
