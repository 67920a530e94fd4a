"""Child processes: the encoder's model, and the decoder of strangers' pictures, which has little memory and time.

The model would compete with the HTTP server for the interpreter lock at each of its layers; in its own process it does
not. A picture of a few bytes may take gigabytes or minutes to decode; the decoder's process then ends, not the service.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole.data._image_files import count_pixels, read_rgb, read_square
from aureole.embed import Embedder, ModelSpec
from aureole.errors import AureoleError, InvalidInputError

_MAX_PIXELS = 2**25  # of one picture: 134 MB in memory
_SIMILAR = 8  # texts of similar length per call of a local model: on a CPU, padding costs more than small batches
_LOADING = 1800.0  # seconds to load a model: an API that does not answer is tried for minutes
_ATTRIBUTES = ("modality", "dim", "kappa_pos", "weights", "fingerprint", "features", "resolution")
_ATTRIBUTES += ("squares",)
_loaded: Any = None  # the model and its batch size, in the model's process


class WorkerError(AureoleError):
    """A child process died or was killed at its timeout; the next call starts a new one."""


class Worker:
    """A child process that runs one call at a time, and is started again after it died or exceeded its timeout.

    Parameters
    ----------
    start
        Function of ``arguments`` that prepares the process, before its first call.
    timeout
        Seconds per call.
    """

    def __init__(self, start: Callable[..., Any], *arguments: Any, timeout: float) -> None:
        self._start, self._arguments, self._timeout = start, arguments, timeout
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self.pid: int | None = None
        self.state: Any = None  # what ``start`` returned

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of a module in the process. Thread-safe."""
        with self._lock:
            pool = self._pool or self._open()
            return self._result(pool, self._timeout, function, *arguments)

    def open(self) -> Any:
        """Start the process, and return what ``start`` returned."""
        with self._lock:
            if self._pool is None:
                self._open()
            return self.state

    def close(self) -> None:
        """Kill the process."""
        pool, self._pool = self._pool, None
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
            self.pid = None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _open(self) -> ProcessPoolExecutor:
        # spawned, not forked: a fork copies the locks of other threads
        self._pool = pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.pid = self._result(pool, _LOADING, _follow_parent)
        try:
            self.state = self._result(pool, _LOADING, self._start, *self._arguments)
        except BaseException:
            self.close()
            raise
        return pool

    def _result(self, pool: ProcessPoolExecutor, timeout: float, *call: Any) -> Any:
        future = pool.submit(*call)
        try:
            return future.result(timeout)
        except BrokenProcessPool as error:
            self.close()
            raise WorkerError("the process died.") from error
        except TimeoutError as error:
            self.close()
            raise WorkerError(f"the process did not answer within {timeout:g} s.") from error


def _follow_parent() -> int:
    """Prepare a child process: it ends with its parent, which alone handles signals. Return its id."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    return os.getpid()


class ModelProcess(Worker):
    """An encoder and a head in a child process; ``modality``, ``dim`` and so on are those of the ``Embedder``."""

    modality: Any
    dim: int
    kappa_pos: float | None
    weights: str
    fingerprint: str | None
    features: int | None
    resolution: int | None
    squares: bool

    def __init__(self, spec: ModelSpec, modality: Any = None, *, timeout: float = 120.0) -> None:
        super().__init__(_load_model, spec.absolute(), modality, timeout=timeout)
        for name, value in zip(_ATTRIBUTES, self.open(), strict=True):
            setattr(self, name, value)

    def arrays(self, inputs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """(mu, kappa) of a batch of decoded pictures, texts or vectors."""
        return self.call(_embed_loaded, inputs)


def _load_model(spec: ModelSpec, modality: Any) -> tuple[Any, ...]:
    global _loaded
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # they do not belong in a log
    embedder = spec.load(modality)
    local = not str(spec.encoder).startswith("openai:")
    if local:  # what a model does only once is part of its loading, not of the first batch
        with contextlib.suppress(Exception):
            embed_arrays(embedder, [tiny_input(embedder)])
    small = local and embedder.modality == "text" and not torch.cuda.is_available()
    _loaded = (embedder, _SIMILAR if small else None)
    return tuple(getattr(embedder, name) for name in _ATTRIBUTES)


def _embed_loaded(inputs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    embedder, batch = _loaded
    return embed_arrays(embedder, inputs, batch)


def embed_arrays(
    embedder: Embedder, inputs: list[Any], batch: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(mu, kappa) of a batch of decoded pictures (arrays [h, w, 3]), texts or vectors."""
    posterior = embedder.embed([embedder.prepare(one) for one in inputs], batch=batch)
    return posterior.mu.numpy(), posterior.kappa.numpy()


def tiny_input(embedder: Any) -> Any:
    """A small valid input of an encoder, for probes."""
    if embedder.modality == "text":
        return "a"
    if embedder.modality == "vector":
        return np.eye(1, embedder.features or embedder.dim)[0]
    side = embedder.resolution or 32
    return np.zeros((side, side, 3), np.uint8)


class Decoder(Worker):
    """Decodes pictures of clients in a process with 1 GiB of memory and 10 s per picture."""

    def __init__(self, *, timeout: float = 10.0, memory: int = 2**30) -> None:
        super().__init__(_limit_memory, memory, timeout=timeout)

    def decode(self, file: bytes, side: int | None = None) -> np.ndarray:
        """Decode a picture file, or its central square of ``side`` pixels, to uint8 [h, w, 3].

        Raises ``InvalidInputError`` if that needs too much.
        """
        try:
            return self.call(decode_picture, file, side)
        except (WorkerError, MemoryError) as error:
            raise InvalidInputError(
                "the picture needs too much time or memory to decode. Scale it down."
            ) from error


def _limit_memory(size: int) -> None:
    """Let this process allocate ``size`` bytes beyond what it has mapped; only Linux and macOS have such limits."""
    try:
        import resource

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (mapped + size, mapped + size))


def decode_picture(file: bytes, side: int | None) -> np.ndarray:
    """Decode a picture file, or its central square of ``side`` pixels, to uint8 [h, w, 3]."""
    pixels = count_pixels(file)
    if pixels > _MAX_PIXELS:
        raise InvalidInputError(
            f"the picture has {pixels:,} pixels, but at most {_MAX_PIXELS:,} are accepted. Scale it down."
        )
    if side is None:
        return np.asarray(read_rgb(file))
    return read_square(file, side).permute(1, 2, 0).contiguous().numpy()
