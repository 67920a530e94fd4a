"""Features that are computed once and kept in a folder: in parts, so that an interrupted run goes on where it was."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aureole._io import atomic_file
from aureole.errors import InvalidInputError

Progress = Callable[[str, int, int], None]


def cache_folder(given: Path | None = None) -> Path:
    """Where features are kept: the folder given, else $AUREOLE_CACHE, else ~/.cache/aureole."""
    named = os.environ.get("AUREOLE_CACHE")
    return given or (Path(named) if named else Path.home() / ".cache" / "aureole")


def cached_features(
    path: Path,
    n: int,
    encode: Callable[[slice], np.ndarray],
    *,
    chunk: int,
    progress: Progress | None = None,
) -> np.ndarray:
    """The features [n, d] in a .npy file, memory-mapped; computed and written there first if they are not there.

    Of several processes that need the same features at once, one computes them and the others wait.

    Parameters
    ----------
    path
        Its name must say all that decides the features: a hash of weights, inputs and preparation.
    n
        How many there are.
    encode
        The features of a part of the inputs.
    chunk
        How many are written at a time.
    progress
        Called with (what, done, in all) after each part.
    """
    if path.is_file():
        return _read(path, n, mapped=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    guard = path.with_suffix(".lock")
    with guard.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, or the process ends
        if not path.is_file():  # another process may have made it meanwhile
            _make(path, n, encode, chunk, progress)
        guard.unlink(missing_ok=True)  # whoever comes now finds the features
    return _read(path, n, mapped=True)


def _make(
    path: Path,
    n: int,
    encode: Callable[[slice], np.ndarray],
    chunk: int,
    progress: Progress | None,
) -> None:
    """Compute the features in parts, and put them together; parts that are there are not computed again."""
    parts: list[tuple[Path, slice]] = [
        (path.with_suffix(f".{start}.npy"), slice(start, min(start + chunk, n)))
        for start in range(0, n, chunk)
    ]
    for part, rows in parts:
        if not part.is_file():
            _write(part, encode(rows))
        if progress is not None:
            progress(path.stem, rows.stop, n)
    _write(path, np.concatenate([_read(part, r.stop - r.start) for part, r in parts]))
    for part, _ in parts:
        part.unlink(missing_ok=True)


def _read(path: Path, n: int, *, mapped: bool = False) -> np.ndarray:
    try:
        found = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}. Delete it.") from error
    if found.ndim != 2 or len(found) != n or not np.issubdtype(found.dtype, np.floating):
        raise InvalidInputError(
            f"{path} holds {found.dtype} of shape {found.shape}, not features of {n} inputs. Delete it."
        )
    return found


def _write(path: Path, values: np.ndarray) -> None:
    """Write an array whole or not at all."""
    with atomic_file(path) as file:
        np.save(file, values)
