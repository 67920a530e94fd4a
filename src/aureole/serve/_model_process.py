"""The encoder's model in a separate process, connected by pipes.

The model would compete with the HTTP server for the interpreter lock at each of its layers; in its own process it does
not. ``SubprocessEmbedder`` starts ``python -m aureole.serve._model_process``, which reads inputs and writes posteriors
until its pipe closes. Messages are a length followed by JSON or safetensors, never pickle.
"""

import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

from aureole.data import read_rgb, read_square
from aureole.distributions import VonMisesFisher
from aureole.embed._embedder import Embedder, Modality, ModelSpec, prepare_vector
from aureole.encoders import check_text
from aureole.errors import AureoleError, error_from_dict, error_to_dict
from aureole.explorer import SUMMARY_MASSES
from aureole.retrieval import credible_cosines

LOG = logging.getLogger("aureole.serve")
_HEADER = struct.Struct("<cQ")  # format of the content, and its length in bytes
_JSON, _ARRAYS = b"J", b"A"
_LOADING = 1800.0  # seconds to load a model: an API that does not answer is tried for minutes
_SIMILAR = 8  # texts of similar length per call of a local model: on a CPU, padding costs more than small batches
_ATTRIBUTES = ("modality", "dim", "kappa_pos", "weights", "fingerprint")
_ATTRIBUTES += ("features", "resolution", "squares")


class ModelProcessError(AureoleError):
    """The model process died; the next call starts a new one."""


class SubprocessEmbedder(Embedder):
    """An encoder and a head, run in a separate process; inputs are checked and decoded in this one.

    Thread-safe: while one batch is computed the next is already in the pipe, so the model never waits for this process.
    If the process dies, its batches fail and the next call starts a new one. ``close`` ends it; so does the end of this
    process.

    Parameters
    ----------
    encoder, modality, head, normalized
        As for ``load_embedder``.
    timeout
        Seconds per batch, after which the process is considered stuck and killed (default 120); loading the model
        may take longer.
    """

    def __init__(
        self,
        encoder: Path | str | None,
        modality: Modality | None = None,
        *,
        head: Path | str | None = None,
        normalized: bool | None = None,
        timeout: float = 120.0,
    ) -> None:
        self._model = asdict(ModelSpec(encoder, head, normalized).absolute())
        self._model["modality"] = modality
        self._timeout = timeout
        self._starting, self._scheduling = threading.Lock(), threading.Lock()
        self._restarting: threading.Thread | None = None
        self._process: _Process | None = None
        for name, value in self._start().items():
            setattr(self, name, value)

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if it is not running."""
        process = self._process
        return None if process is None or process.dead else process.popen.pid

    def prepare(self, raw: Any) -> Any:
        """Validate and decode one input, in this process; the model's process applies the encoder's own transform."""
        if self.modality == "image":
            return read_square(raw, self.resolution or 0) if self.squares else read_rgb(raw)
        if self.modality == "text":
            return check_text(raw)
        return prepare_vector(raw, self.features or 0)

    def embed(self, prepared: Sequence[Any], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of prepared inputs, computed as one batch."""
        del batch
        return self.embed_with_cosines(prepared)[0]

    def embed_with_cosines(
        self, prepared: Sequence[Any]
    ) -> tuple[VonMisesFisher, list[list[float]]]:
        """(Posteriors [n], the smallest cosines of their credible caps), both computed in the model process."""
        process = self._process
        if process is None or process.dead:
            process = self._restart()
        answer = _checked(process.request(pack_inputs(prepared), self._timeout))
        posterior = VonMisesFisher(
            torch.from_numpy(answer["mu"]), torch.from_numpy(answer["kappa"]), validate_args=False
        )
        return posterior, answer["cosines"].tolist()

    def close(self) -> None:
        """End the process after the batch in progress."""
        with self._starting:  # also a process that another thread is starting
            if self._process is not None:
                self._process.close()

    def ensure_running(self, timeout: float) -> bool:
        """Whether the process runs; if not, restart it in a separate thread and wait up to ``timeout`` seconds."""
        if self.pid is not None:
            return True
        with self._scheduling:
            if self._restarting is None or not self._restarting.is_alive():
                self._restarting = threading.Thread(
                    target=self._try_restart, name="aureole-restart", daemon=True
                )
                self._restarting.start()
            restarting = self._restarting
        restarting.join(timeout)
        return self.pid is not None

    def _try_restart(self) -> None:
        try:
            self._restart()
        except Exception as error:
            LOG.error("the model process could not be restarted", exc_info=error)

    def _restart(self) -> "_Process":
        """A new process, or the one that another thread has started meanwhile."""
        with self._starting:
            if self._process is None or self._process.dead:
                self._start()
                LOG.warning("the model process was restarted")
            assert self._process is not None
            return self._process

    def _start(self) -> dict[str, Any]:
        """Start a process and return ``_ATTRIBUTES`` of its model; only then do other threads see the process."""
        process = _Process()
        try:
            about = _checked(process.request(self._model, max(_LOADING, self._timeout)))
        except BaseException:
            process.close()
            raise
        self._process = process
        return about


class _Process:
    """The parent's end of one model process. Thread-safe; responses arrive in the order of requests."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "aureole.serve._model_process"]
        # progress bars do not belong in a log
        environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self._stdin, self._stdout = self.popen.stdin, self.popen.stdout
        self.dead = False
        self._stopped_after: float | None = None  # seconds of the request that timed out
        self._sending, self._turn = threading.Lock(), threading.Condition()
        self._sent = self._answered = 0

    def request(self, message: Any, timeout: float) -> Any:
        """The response to a message; on a timeout or broken pipe the process is killed and all waiting threads fail.

        The timeout counts from the end of the previous request, not from the time this one was queued.
        """
        try:
            with self._sending, self._alarm(timeout):
                ticket = self._sent
                write_message(self._stdin, message)
                self._sent += 1
            with self._turn:
                self._turn.wait_for(lambda: self.dead or self._answered == ticket)
                if self.dead:
                    raise EOFError
            with self._alarm(timeout):
                answer = read_message(self._stdout)
        except (EOFError, OSError, ValueError) as error:  # ValueError: a closed file
            self.popen.kill()  # releases threads that are blocked writing to it
            self.close()
            raise ModelProcessError(self._describe_end()) from error
        with self._turn:
            self._answered += 1
            self._turn.notify_all()
        return answer

    @contextmanager
    def _alarm(self, timeout: float) -> Iterator[None]:
        """Kill the process if the block takes longer than ``timeout`` seconds."""

        def stop() -> None:
            self._stopped_after = timeout
            self.popen.kill()

        alarm = threading.Timer(timeout, stop)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def _describe_end(self) -> str:
        if self._stopped_after is not None:
            return f"the model process did not answer within {self._stopped_after:g} s and was stopped."
        return f"the model process died (exit status {self.popen.returncode})."

    def close(self) -> None:
        """End the process and wake all waiting threads."""
        with self._turn:
            self.dead = True
            self._turn.notify_all()
        with suppress(OSError):
            self._stdin.close()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._stdout.close()


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, or raise the error that the model process sent instead."""
    if "error" in answer:
        raise error_from_dict(answer)
    return answer


def write_message(stream: IO[bytes], value: Any) -> None:
    """Write a dict of arrays as safetensors, anything else as JSON."""
    arrays = isinstance(value, dict) and any(isinstance(v, np.ndarray) for v in value.values())
    content = save(value) if arrays else json.dumps(value).encode()
    stream.write(_HEADER.pack(_ARRAYS if arrays else _JSON, len(content)))
    stream.write(content)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """Read one message; raises ``EOFError`` if the stream ends before it does."""
    kind, length = _HEADER.unpack(_read(stream, _HEADER.size))
    content = _read(stream, length)
    return load(content) if kind == _ARRAYS else json.loads(content)


def _read(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError
    return content


def pack_inputs(prepared: Sequence[Any]) -> Any:
    """Prepared inputs as one message: texts as a list, squares and vectors stacked, pictures one by one."""
    if isinstance(prepared[0], str):
        return list(prepared)
    arrays = [one.numpy() if isinstance(one, Tensor) else np.asarray(one) for one in prepared]
    if arrays[0].shape[2:] == (3,):  # pictures of several sizes
        return {str(i): np.ascontiguousarray(one) for i, one in enumerate(arrays)}
    return {"inputs": np.ascontiguousarray(np.stack(arrays))}


def unpack_inputs(message: Any, embedder: Embedder) -> list[Any]:
    """The inputs of a message, as ``embedder.embed`` takes them."""
    if isinstance(message, list):
        return message
    if "inputs" not in message:
        return [embedder.prepare(message[str(i)]) for i in range(len(message))]
    inputs = list(message["inputs"])
    return [torch.from_numpy(one) for one in inputs] if embedder.squares else inputs


def tiny_input(embedder: Embedder) -> Any:
    """A small valid input of an encoder, for probes."""
    if embedder.modality == "text":
        return "a"
    if embedder.modality == "vector":
        return np.eye(1, embedder.features or embedder.dim)[0]
    side = embedder.resolution or 32
    return np.zeros((side, side, 3), np.uint8)


def main() -> None:
    """Answer messages on stdin until it closes. The first one names the model to load."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service ends this process after draining
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep library output out of the pipe
    with suppress(EOFError, BrokenPipeError):  # the service has ended
        _serve(sys.stdin.buffer, out)


def _serve(stdin: BinaryIO, out: BinaryIO) -> None:
    model = read_message(stdin)
    try:
        modality = model.pop("modality")
        embedder = ModelSpec(**model).load(modality)
    except Exception as error:
        write_message(out, error_to_dict(error))
        return
    remote = str(model["encoder"]).startswith("openai:")
    if not remote:  # what a model does only once is part of its loading, not of the first batch
        with suppress(Exception):
            embedder.embed([embedder.prepare(tiny_input(embedder))])
    credible_cosines(np.ones(1), SUMMARY_MASSES, embedder.dim)  # fills the cache
    write_message(out, {name: getattr(embedder, name) for name in _ATTRIBUTES})
    local = embedder.modality == "text" and not remote
    size = _SIMILAR if local and not torch.cuda.is_available() else None
    while True:
        message = read_message(stdin)
        try:
            posterior = embedder.embed(unpack_inputs(message, embedder), batch=size)
            answer: dict[str, Any] = {
                "mu": np.ascontiguousarray(posterior.mu.numpy()),
                "kappa": posterior.kappa.numpy(),
                "cosines": credible_cosines(
                    posterior.kappa.double().numpy(), SUMMARY_MASSES, embedder.dim
                ),
            }
        except Exception as error:
            answer = error_to_dict(error)
        write_message(out, answer)


if __name__ == "__main__":
    main()
