"""Encoder, the interface that all kinds of encoders share, and what their modules have in common."""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from aureole.data._image_files import read_rgb
from aureole.data._table_files import reason
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import EncoderError, InvalidInputError

Kind = Literal["text", "image"]
_MAX_CHARACTERS = 100_000  # of a text; encoders read the first few hundred tokens


class Encoder(ABC):
    """Turns texts or pictures into vectors.

    ``prepare`` checks and decodes one input and applies the encoder's own preprocessing; it does not use the model, so
    it can run in parallel with it. ``vectors`` runs the model on prepared inputs. The vector of an input does not
    depend on its batch, up to float32 rounding.

    Attributes
    ----------
    kind
        What it takes: "text" (str) or "image" (a path, the bytes of a file, a Pillow image, or an array [h, w, 3]).
    dim
        The dimension of its vectors.
    fingerprint
        A SHA-256 of the weights and the preprocessing: encoders with the same fingerprint give the same vectors.
    normalized
        Whether vectors are scaled to unit length. Set it to change what the encoder returns.
    normalizes
        Whether the encoder's own pipeline ends with such a normalisation.
    resolution
        The side in pixels at which the model sees pictures, if it is known.
    group
        The number of batches to pass at once, so that texts of similar length can share a batch.
    """

    kind: Kind
    dim: int
    fingerprint: str
    normalized: bool = False
    normalizes: bool = False
    resolution: int | None = None
    group: int = 1

    def prepare(self, raw: Any) -> Any:
        """Decode one input to the form that ``vectors`` takes; raises ``InvalidInputError`` if it is not valid."""
        return check_text(raw) if self.kind == "text" else read_rgb(raw)

    @abstractmethod
    def _vectors(self, prepared: list[Any]) -> Any:
        """The vectors [n, dim] of one batch."""

    def vectors(self, prepared: Sequence[Any], *, batch: int | None = None) -> np.ndarray:
        """The vectors [n, dim] of prepared inputs, float32, computed ``batch`` at a time (default: all at once)."""
        size = batch or max(1, len(prepared))
        order = range(len(prepared))
        if self.kind == "text":  # a batch is padded to its longest text
            order = sorted(order, key=lambda i: len(prepared[i]), reverse=True)
        out = np.empty((len(prepared), self.dim), np.float32)
        for start in range(0, len(prepared), size):
            rows = list(order[start : start + size])
            out[rows] = self._checked(self._vectors([prepared[i] for i in rows]), len(rows))
        if self.normalized:
            lengths = np.linalg.norm(out.astype(np.float64), axis=1, keepdims=True)
            out = np.divide(out, lengths, out=out, where=lengths > 0, casting="unsafe")
        return out

    def encode(self, inputs: Sequence[Any], *, batch_size: int = 32) -> np.ndarray:
        """The vectors [n, dim] of raw inputs, float32.

        Examples
        --------
        >>> from aureole.encoders import load
        >>> encoder = load(lambda texts: [[len(text), 1.0] for text in texts], "text")
        >>> encoder.encode(["a", "dog"])
        array([[1., 1.],
               [3., 1.]], dtype=float32)
        """
        if isinstance(inputs, str | bytes):
            raise InvalidInputError(
                f"inputs must be a list of {self.kind}s, but got one: pass [it]."
            )
        return self.vectors([self.prepare(one) for one in inputs], batch=batch_size)

    def _checked(self, vectors: Any, rows: int) -> np.ndarray:
        """One batch of the model's output as float32; raises if it is not [rows, dim] and finite."""
        array = as_array(vectors, str(self))
        if array.shape != (rows, self.dim):
            raise EncoderError(
                f"{self} returned vectors of shape {array.shape} for {rows} inputs, not {(rows, self.dim)}."
            )
        if not np.isfinite(array).all():
            row = int((~np.isfinite(array).all(1)).argmax())
            raise InvalidInputError(f"{self} returned NaN or infinity for input {row} of a batch.")
        return array

    def _probe(self) -> int:
        """The dimension of the vectors, found by encoding a short text or a grey picture."""
        side = self.resolution or 224
        raw = "a" if self.kind == "text" else np.full((side, side, 3), 127, np.uint8)
        array = as_array(self._vectors([self.prepare(raw)]), str(self))
        if array.ndim != 2 or len(array) != 1 or not array.shape[1]:
            raise EncoderError(f"{self} returned an array of shape {array.shape} for one input.")
        return int(array.shape[1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __str__(self) -> str:
        return getattr(self, "name", type(self).__name__)


class PosteriorModel(Encoder):
    """An encoder that also returns posteriors; ``encode`` returns their directions mu.

    Attributes
    ----------
    weights
        The SHA-256 of the file with its weights.
    kappa_pos
        The concentration of positives it was trained with, where it is known.
    """

    weights: str
    kappa_pos: float | None = None

    @abstractmethod
    def posteriors(self, prepared: Sequence[Any]) -> VonMisesFisher | MixtureVMF:
        """The posteriors of one batch of prepared inputs, on the CPU."""

    def _vectors(self, prepared: list[Any]) -> Any:
        posterior = self.posteriors(prepared)
        if isinstance(posterior, MixtureVMF):
            raise EncoderError(f"{self} gives mixtures, which have no single direction.")
        return posterior.mu


def check_text(raw: Any) -> str:
    """Check that a text is a non-blank string of acceptable length, and return it unchanged.

    Examples
    --------
    >>> check_text("  ")
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: a text must have 1 to 100000 characters that are not all blank, not 2 characters.
    """
    if not isinstance(raw, str) or not raw.strip() or len(raw) > _MAX_CHARACTERS:
        got = f"{len(raw)} characters" if isinstance(raw, str) else type(raw).__name__
        raise InvalidInputError(
            f"a text must have 1 to {_MAX_CHARACTERS} characters that are not all blank, not {got}."
        )
    return raw


def as_array(vectors: Any, name: str) -> np.ndarray:
    """The output of a model as a float32 array."""
    if isinstance(vectors, torch.Tensor):
        vectors = vectors.detach().to("cpu", torch.float32).numpy()
    try:
        return np.asarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise EncoderError(f"{name} returned no array of numbers: {reason(error)}") from error


def weights_fingerprint(
    module: nn.Module, *settings: Any, skip: frozenset[str] = frozenset()
) -> str:
    """The SHA-256 of a network's parameters and buffers, except ``skip``, and of settings, which are JSON values."""
    digest = sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor) and name not in skip:
            array = value.detach().cpu().contiguous().flatten()
            digest.update(f"{name} {array.dtype} {tuple(value.shape)}".encode())
            digest.update(array.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def on_device(module: nn.Module) -> nn.Module:
    """The network in float32 and evaluation mode, on a GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return module.to(device, torch.float32).eval().requires_grad_(False)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars and warnings with which transformers loads weights."""
    from transformers.utils import logging as library

    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers")]
    levels = [log.level for log in loggers]
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        for log in loggers:
            log.setLevel(logging.ERROR)
        yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)
        if shown:
            library.enable_progress_bar()
