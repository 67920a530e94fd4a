"""The encoder's process: ``python -m aureole.serve._host`` reads inputs and writes posteriors until its pipe closes.

It is started by ``HostedEmbedder`` alone. The first frame says which model to load.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np
import torch

from aureole.errors import tell_error
from aureole.scale import Embedder, load_embedder
from aureole.serve._caps import CapTable
from aureole.serve._frames import read_frame, unpack_inputs, write_frame


def main() -> None:
    """Answer one frame after the other until there is no more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service ends us when all is answered
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    with suppress(EOFError, BrokenPipeError):  # the service is gone, or wants no more
        _answer(sys.stdin.buffer, out)


def _answer(given: BinaryIO, out: BinaryIO) -> None:
    asked = read_frame(given)
    try:
        embedder = load_embedder(asked["folder"], asked["modality"], normalized=asked["normalized"])
    except Exception as error:
        write_frame(out, tell_error(error))
        return
    names = ("modality", "dim", "kappa_pos", "weights", "features")
    write_frame(out, {name: getattr(embedder, name) for name in names})
    caps = CapTable(embedder.dim)
    while True:
        inputs = unpack_inputs(read_frame(given))
        try:
            answer = _posteriors(embedder, caps, inputs)
        except Exception as error:
            answer = tell_error(error)
        write_frame(out, answer)


def _posteriors(embedder: Embedder, caps: CapTable, inputs: list[Any]) -> dict[str, np.ndarray]:
    pictures = embedder.modality == "image"
    found = embedder.embed([torch.from_numpy(one) for one in inputs] if pictures else inputs)
    return {
        "mu": np.ascontiguousarray(found.mu.numpy()),
        "kappa": found.kappa.numpy(),
        "cosines": np.array(caps(found.kappa)),
    }


if __name__ == "__main__":
    main()
