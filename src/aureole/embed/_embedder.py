"""Embedders: an encoder, a head, or both behind one call that turns pictures, texts or vectors into posteriors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from aureole.data._addresses import is_remote, local_folder
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.encoders import Encoder, load as load_encoder
from aureole.encoders._encoder import PosteriorModel
from aureole.encoders._resolver import absolute_spec, is_spec
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from aureole.models._saving import PACKAGED_HEADS, WEIGHTS, find_model, format_of
from aureole.records import file_hash
from aureole.training import FrozenHead
from aureole.training._frozen_head import HEAD_FORMAT

Modality = Literal["image", "text", "vector"]


def prepare_vector(raw: Any, features: int) -> np.ndarray:
    """Convert a vector to float32, checking its length and that all entries are finite.

    Examples
    --------
    >>> prepare_vector([1, 2], features=2)
    array([1., 2.], dtype=float32)
    """
    try:
        vector = np.asarray(raw, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"a vector must be a list of numbers: {error}.") from error
    if vector.shape != (features,):
        raise InvalidInputError(f"a vector must have shape {(features,)}, but has {vector.shape}.")
    if not np.isfinite(vector).all():
        raise InvalidInputError("the vector has an entry that is not finite.")
    return vector


class Embedder:
    """Maps one kind of input to posteriors: an encoder and a head, a head alone, or a model that returns posteriors.

    ``prepare`` checks and decodes one input. It does not use the model, so it can run in parallel with it. ``embed``
    computes the posteriors of a batch of prepared inputs. The posterior of an input does not depend on its batch, up
    to float32 rounding.

    Attributes
    ----------
    modality
        The kind of input: "image" (bytes of a picture file, or a path), "text" (str) or "vector" (numbers).
    dim
        The dimension D of the posteriors.
    kappa_pos
        The concentration of positives the model was trained with, where it is known.
    weights
        The SHA-256 of the weights of the head, or of the model that returns posteriors.
    fingerprint
        The fingerprint of the encoder whose vectors the head takes, where it is known.
    features
        The length of the input vectors, if it takes vectors.
    resolution
        The side in pixels at which it sees pictures, if that is known.
    squares
        Whether pictures are prepared as their central squares, uint8 [3, resolution, resolution].
    group
        The number of batches to pass at once, so that texts of similar length can share a batch.
    """

    modality: Modality
    dim: int
    kappa_pos: float | None
    weights: str
    fingerprint: str | None = None
    features: int | None = None
    resolution: int | None = None
    squares: bool = False
    group: int = 1

    def __init__(self, encoder: Encoder | None, head: Path | None = None) -> None:
        self._encoder, self._head = encoder, None if head is None else FrozenHead.load(head)
        if self._head is not None and head is not None:
            self.kappa_pos, self.dim = self._head.kappa_pos_, self._head.dim_
            self.weights, self.fingerprint = file_hash(head / WEIGHTS), self._head.fingerprint_
        elif isinstance(encoder, PosteriorModel):
            self.kappa_pos, self.dim = encoder.kappa_pos, encoder.dim
            self.weights = encoder.weights
        else:
            raise EncoderError(
                f"{encoder} gives vectors, not posteriors: add --head, a head that `aureole fit-head` fitted on them."
            )
        self.modality = "vector" if encoder is None else encoder.kind
        if encoder is not None:
            self.resolution, self.group = encoder.resolution, encoder.group
            self.squares = isinstance(encoder, PosteriorModel) and encoder.kind == "image"
            self.fingerprint = None if self._head is None else encoder.fingerprint
        elif self._head is not None:
            self.features = self._head.n_features_in_

    def prepare(self, raw: Any) -> Any:
        """Decode one input to the form that ``embed`` takes; raises ``InvalidInputError`` if it is not valid."""
        if self._encoder is not None:
            return self._encoder.prepare(raw)
        return prepare_vector(raw, self.features or 0)

    def embed(self, prepared: Sequence[Any], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors [n] of n prepared inputs, float32 on the CPU, computed ``batch`` at a time (default: all)."""
        size = batch or max(1, len(prepared))
        if self._head is not None:  # the encoder sorts texts by length, so it gets all of them
            return _plain(self._posteriors(prepared, size))
        parts = [
            self._posteriors(prepared[i : i + size], size) for i in range(0, len(prepared), size)
        ]
        mu, kappa = torch.cat([p.mu for p in parts]), torch.cat([p.kappa for p in parts])
        return _plain(VonMisesFisher(mu, kappa, validate_args=False))

    def __call__(self, raw: Sequence[Any]) -> VonMisesFisher:
        """The posteriors of raw inputs."""
        return self.embed([self.prepare(one) for one in raw])

    def posterior(self, raw: Any) -> VonMisesFisher | MixtureVMF:
        """The posterior of one raw input, with batch shape (1,); the only call that allows mixtures."""
        prepared = [self.prepare(raw)]
        if self._head is None and isinstance(self._encoder, PosteriorModel):
            return self._encoder.posteriors(prepared)
        return self.embed(prepared)

    def _posteriors(self, prepared: Sequence[Any], batch: int) -> VonMisesFisher:
        if self._head is None:
            assert isinstance(self._encoder, PosteriorModel)
            posterior = self._encoder.posteriors(prepared)
            if isinstance(posterior, MixtureVMF):
                raise InvalidInputError(
                    "this encoder gives mixtures, but a table of posteriors stores one mu and kappa per row."
                )
            return posterior
        if self._encoder is None:
            return self._head.predict(np.stack(list(prepared)))
        return self._head.predict(self._encoder.vectors(prepared, batch=batch))

    def __repr__(self) -> str:
        known = {"dim": self.dim, "kappa_pos": self.kappa_pos, "weights": self.weights[:12]}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in known.items())})"


@dataclass(frozen=True)
class ModelSpec:
    """An encoder and a head in plain values, so that each worker can load them for itself.

    Attributes
    ----------
    encoder, head, normalized
        As in ``load_embedder``.
    """

    encoder: Any = None
    head: str | Path | None = None
    normalized: bool | None = None

    def load(self, modality: Modality | None = None, guess: Modality | None = None) -> "Embedder":
        """The embedder; ``guess`` is the modality of a Python function that does not say what it takes."""
        if modality is None and not isinstance(self.encoder, str | Path | Encoder):
            modality = guess if self.encoder is not None else None
        elif modality is None and str(self.encoder).startswith("python:"):
            modality = guess
        options = {"head": self.head, "normalized": self.normalized}
        return load_embedder(self.encoder, modality, **options)

    def absolute(self) -> "ModelSpec":
        """The same with absolute paths, as workers run in another working directory."""
        encoder, head = self.encoder, self.head
        if isinstance(encoder, str | Path):
            encoder = absolute_spec(str(encoder))
        if head is not None and not is_remote(head):
            head = str(Path(head).absolute())
        return replace(self, encoder=encoder, head=head)


def load_embedder(
    encoder: Any,
    modality: Modality | None = None,
    *,
    head: Path | str | None = None,
    normalized: bool | None = None,
) -> Embedder:
    """Load an encoder and a head, or a model that returns posteriors, for one kind of input.

    Parameters
    ----------
    encoder
        As in ``aureole.encoders.load``; or the folder of a ``FrozenHead``, or None with ``head``, for vectors.
    modality
        The kind of input; default: what the model takes.
    head
        The folder of a ``FrozenHead`` on the encoder's vectors, or the name of a packaged one.
    normalized
        Whether the head takes unit vectors; default: as the head recorded when it was fitted.

    Examples
    --------
    >>> embedder = load_embedder(None, head="minilm-captions")
    >>> embedder.modality, embedder.dim, embedder([np.ones(384) / 384**0.5]).kappa.shape
    ('vector', 32, torch.Size([1]))
    """
    if head is None and encoder in PACKAGED_HEADS:
        encoder = find_model(encoder)
    if head in PACKAGED_HEADS:
        head = find_model(head)
    if head is None and is_head(encoder):
        encoder, head = None, encoder
    if encoder is None and head is None:
        raise InvalidInputError("name an encoder, a head, or both.")
    folder = None if head is None else local_folder(head)
    if encoder is None:
        own = Embedder(None, folder)
        if modality not in (None, "vector"):
            raise EncoderError(
                f"the head in {folder} takes vectors, not {modality}s: name the encoder of the vectors with --encoder."
            )
        return own
    loaded = load_encoder(encoder, _kind(modality))
    if folder is not None:
        fit_to_head(loaded, folder, normalized)
    own = Embedder(loaded, folder)
    if modality is not None and own.modality != modality:
        raise EncoderError(f"{loaded} takes {own.modality}s, but {modality}s were passed.")
    return own


def fit_to_head(encoder: Encoder, folder: Path, normalized: bool | None = None) -> None:
    """Let an encoder return vectors as a head takes them; raises if the head was fitted on those of another."""
    head = FrozenHead.load(folder)
    if head.n_features_in_ != encoder.dim:
        raise EncoderError(
            f"{encoder} gives vectors of {encoder.dim} dimensions, but the head in {folder} was fitted on vectors of "
            f"{head.n_features_in_}. Use the encoder that the head was fitted on."
        )
    if head.fingerprint_ is not None and head.fingerprint_ != encoder.fingerprint:
        raise EncoderError(
            f"the head in {folder} was fitted on the vectors of another encoder than {encoder} (their fingerprints "
            "differ). Use the encoder that the head was fitted on, or fit a new head."
        )
    if normalized is not None:
        encoder.normalized = normalized
    elif encoder.normalizes:
        encoder.normalized = head.takes_unit_vectors
    elif abs(head.square_length_ - 1) < 1e-3:
        encoder.normalized = True


def is_head(folder: Any) -> bool:
    """Whether a path is the folder of a saved head, which takes vectors."""
    if not isinstance(folder, str | Path) or is_spec(str(folder)):
        return False
    path = local_folder(folder)
    if not path.exists():
        raise MissingInputError(f"{path} does not exist. Check the name of the model.")
    return (path / WEIGHTS).is_file() and format_of(path) == HEAD_FORMAT


def _kind(modality: Modality | None) -> Any:
    return None if modality == "vector" else modality


def _plain(posterior: VonMisesFisher) -> VonMisesFisher:
    mu, kappa = posterior.mu.detach().cpu().float(), posterior.kappa.detach().cpu().float()
    return VonMisesFisher(mu, kappa, validate_args=False)
