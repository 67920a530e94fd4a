"""Encoding of many inputs in bounded memory: decoded ahead of the model, vectors on disk."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aureole.encoders._encoder import Encoder
from aureole.errors import AureoleError, InvalidInputError

_PREFETCHED = 2  # batches decoded ahead of the model

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = 1
) -> Iterator[Result]:
    """Map a function over items in threads, in order, a few items ahead of the consumer.

    An error raised by the items iterator comes after the results of the items before it.
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    broken: Exception | None = None
    try:
        iterator = iter(items)
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                broken = error
                break
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads + _PREFETCHED - 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if broken is not None:
            raise broken
    finally:
        pool.shutdown(cancel_futures=True)


def encode_all(
    encoder: Encoder,
    inputs: Iterable[tuple[str, Any]],
    *,
    batch: int = 64,
    work: Path | None = None,
    resume: Path | None = None,
    observer: Callable[[int], None] | None = None,
) -> np.ndarray:
    """The vectors [n, dim] of a stream of (where, input), memory-mapped from a file.

    ``where`` names an input in the error about it, such as "row 3 of table.csv". The next inputs are decoded while the
    model runs.

    Parameters
    ----------
    encoder, inputs
        The encoder, and the stream.
    batch
        Inputs per call of the model (default 64).
    work
        Folder for the file, which has no name and is deleted with the array (default: that for temporary files).
    resume
        A file to keep the vectors in instead: rows that it already has are not encoded again.
    observer
        Called with the number of rows done.
    """
    size, iterator = batch * encoder.group, iter(inputs)
    pieces = iter(lambda: list(islice(iterator, size)), [])

    def prepared(piece: list[tuple[str, Any]]) -> list[Any]:
        return [_prepare(encoder, where, raw) for where, raw in piece]

    with _opened(work, resume) as file:
        done = file.seek(0, 2) // (4 * encoder.dim)
        file.truncate(done * 4 * encoder.dim)  # a row that was cut off
        file.seek(0, 2)
        next(islice(iterator, done, done), None)  # skips these rows
        for part in ahead(prepared, pieces):
            file.write(encoder.vectors(part, batch=batch).data)
            done += len(part)
            if observer is not None:
                observer(done)
        if not done:
            raise InvalidInputError("there are no rows to encode.")
        file.flush()
        return np.memmap(file, np.float32, "c", shape=(done, encoder.dim))


@contextmanager
def _opened(work: Path | None, resume: Path | None) -> Iterator[Any]:
    """The file for the vectors; one that stays empty is removed again."""
    place = (work or Path(tempfile.gettempdir())) if resume is None else resume.parent
    place.mkdir(parents=True, exist_ok=True)
    if resume is None:
        with tempfile.TemporaryFile(dir=place) as file:
            yield file
        return
    try:
        with open(resume, "a+b") as file:
            yield file
    finally:
        if resume.exists() and not resume.stat().st_size:
            resume.unlink()
            if not any(place.iterdir()):
                place.rmdir()


def _prepare(encoder: Encoder, where: str, raw: Any) -> Any:
    try:
        return encoder.prepare(raw)
    except InvalidInputError as error:
        raise type(error)(f"{where}: {error}") from error
    except AureoleError:
        raise
    except Exception as error:  # decoders raise almost anything on malformed files
        raise InvalidInputError(f"{where}: {type(error).__name__}: {error}.") from error
