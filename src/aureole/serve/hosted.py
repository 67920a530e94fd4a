"""HostedEmbedder: a model in a process of its own, so that it computes while this one speaks HTTP."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError
from aureole.scale.embedder import Embedder, Modality
from aureole.scale.inputs import prepare_picture, prepare_text, prepare_vector
from aureole.serve.failures import LOG
from aureole.serve.frames import pack_inputs, read_frame, write_frame

__all__ = ["HostGoneError", "HostedEmbedder"]

_PATIENCE = 120.0  # seconds for a batch, after which the process is taken for stuck


class HostGoneError(AureoleError):
    """The process of the encoder has died; the next call starts another."""


class HostedEmbedder(Embedder):
    """The model in a folder behind a pipe: inputs are prepared here, and embedded there.

    Two threads of one interpreter take turns, so a model that is called beside an HTTP server stands still at each of
    its layers until the server yields; in a process of its own it does not. The model is in memory once, there. A
    process that dies takes its batch with it, and the next call starts another.

    Calls come from one thread at a time. ``close`` ends the process; so does the end of this one.
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
        self._process: subprocess.Popen[bytes] | None = None
        about = self._start()
        self.modality, self.dim = about["modality"], about["dim"]
        self.kappa_pos, self.weights = about["kappa_pos"], about["weights"]
        self.features = about["features"]

    @property
    def pid(self) -> int | None:
        """The number of the process, or None while there is none."""
        return None if self._process is None else self._process.pid

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
        if self._process is None:
            self._start()
            LOG.warning("the encoder's process was started again")
        found = self._exchange(pack_inputs(prepared))
        posterior = VonMisesFisher(
            torch.from_numpy(found["mu"]), torch.from_numpy(found["kappa"]), validate_args=False
        )
        return posterior, found["cosines"].tolist()

    def close(self) -> None:
        """End the process; it finishes what it is at."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _start(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "aureole.serve.host"]
        quiet = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # bars have no place in a log
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet
        )
        return self._exchange(self._asked)

    def _exchange(self, value: Any) -> dict[str, Any]:
        """The answer to a frame; whatever kept it from coming, the next call finds a sound process or none."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        alarm = threading.Timer(self._patience, process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            write_frame(process.stdin, value)
            answer = read_frame(process.stdout)
        except (EOFError, OSError) as error:
            self.close()
            raise HostGoneError(f"the encoder's process died ({process.returncode}).") from error
        finally:
            alarm.cancel()
        if "error" in answer:
            if value is self._asked:
                self.close()
            kinds = {"InvalidInputError": InvalidInputError, "AureoleError": AureoleError}
            raise kinds.get(answer["kind"], RuntimeError)(answer["error"])
        return answer
