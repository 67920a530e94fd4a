"""HostedEmbedder: a model in a process of its own, so that it computes while this one speaks HTTP."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, told_error
from aureole.scale import Embedder, Modality, prepare_picture, prepare_text, prepare_vector
from aureole.serve._failures import LOG
from aureole.serve._frames import pack_inputs, read_frame, write_frame

_PATIENCE = 120.0  # seconds for a batch, after which the process is taken for stuck


class HostGoneError(AureoleError):
    """The process of the encoder has died; the next call starts another."""


class HostedEmbedder(Embedder):
    """The model in a folder behind a pipe: inputs are prepared here, and embedded there.

    Two threads of one interpreter take turns, so a model that is called beside an HTTP server stands still at each of
    its layers until the server yields; in a process of its own it does not. The model is in memory once, there. A
    process that dies takes its batches with it, and the next call starts another.

    Calls may come from several threads: while a batch is computed, the next one is in the pipe already, so that the
    model need not wait for this process. ``close`` ends the other process; so does the end of this one.
    """

    def __init__(
        self,
        folder: Path | str,
        modality: Modality | None = None,
        *,
        normalized: bool | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self._asked = {
            "folder": str(Path(folder).absolute()),
            "modality": modality,
            "normalized": normalized,
        }
        self._patience = patience
        self._starting = threading.Lock()
        self._host: _Host | None = None
        about = self._start()
        self.modality, self.dim = about["modality"], about["dim"]
        self.kappa_pos, self.weights = about["kappa_pos"], about["weights"]
        self.features = about["features"]

    @property
    def pid(self) -> int | None:
        """The number of the process, or None while there is none."""
        host = self._host
        return None if host is None or host.dead else host.process.pid

    def prepare(self, raw: Any) -> Any:
        """One input, checked and decoded in this process."""
        if self.modality == "image":
            return prepare_picture(raw)
        if self.modality == "text":
            return prepare_text(raw)
        return prepare_vector(raw, self.features or 0)

    def embed(self, prepared: Sequence[Any], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of prepared inputs; all of them are one batch."""
        del batch
        return self.embed_with_cosines(prepared)[0]

    def embed_with_cosines(
        self, prepared: Sequence[Any]
    ) -> tuple[VonMisesFisher, list[list[float]]]:
        """(Posteriors [n], the least cosines of their credible caps), both made in the other process."""
        host = self._host
        if host is None or host.dead:
            host = self._again()
        found = _told(host.ask(pack_inputs(prepared), self._patience))
        posterior = VonMisesFisher(
            torch.from_numpy(found["mu"]), torch.from_numpy(found["kappa"]), validate_args=False
        )
        return posterior, found["cosines"].tolist()

    def close(self) -> None:
        """End the process; it finishes what it is at."""
        with self._starting:  # also one that another thread is starting
            if self._host is not None:
                self._host.close()

    def _again(self) -> "_Host":
        """The process that another thread has started meanwhile, or a new one."""
        with self._starting:
            if self._host is None or self._host.dead:
                self._start()
                LOG.warning("the encoder's process was started again")
            assert self._host is not None
            return self._host

    def _start(self) -> dict[str, Any]:
        """What a new process says of its model; other threads see it only now, when it knows which."""
        host = _Host()
        try:
            about = _told(host.ask(self._asked, self._patience))
        except BaseException:
            host.close()
            raise
        self._host = host
        return about


class _Host:
    """One process, asked by any number of threads; answers come in the order of the questions."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "aureole.serve._host"]
        quiet = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # bars have no place in a log
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet
        )
        self.dead = False
        self._sending, self._turn = threading.Lock(), threading.Condition()
        self._sent = self._answered = 0

    def ask(self, value: Any, patience: float) -> Any:
        """The answer to a frame; whatever keeps it from coming ends the process, and all who wait are told."""
        alarm = threading.Timer(patience, self.process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            with self._sending:
                ticket = self._sent
                write_frame(_open(self.process.stdin), value)
                self._sent += 1
            with self._turn:
                self._turn.wait_for(lambda: self.dead or self._answered == ticket)
                if self.dead:
                    raise EOFError
            answer = read_frame(_open(self.process.stdout))
        except (EOFError, OSError, ValueError) as error:  # a file that is closed is a ValueError
            self.process.kill()  # whoever still writes to it is let go
            self.close()
            status = self.process.returncode
            raise HostGoneError(f"the encoder's process died ({status}).") from error
        finally:
            alarm.cancel()
        with self._turn:
            self._answered += 1
            self._turn.notify_all()
        return answer

    def close(self) -> None:
        """End the process, and wake who waits for it."""
        with self._turn:
            self.dead = True
            self._turn.notify_all()
        with suppress(OSError):
            _open(self.process.stdin).close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _open(self.process.stdout).close()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer, unless it is an error of the other side: that is raised here."""
    if "error" not in answer:
        return answer
    raise told_error(answer)
