"""Embedders: a saved model behind one call that turns raw pictures, texts or vectors into posteriors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from aureole.data import read_square
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError, MissingInputError
from aureole.models import CONFIG, WEIGHTS, CifarResNet, PosteriorEncoder, ResNet18, format_of
from aureole.records import file_hash
from aureole.training import (
    HEAD_FORMAT,
    POSTERIOR,
    FrozenHead,
    encode_posterior,
    load_pipeline,
    minilm_folder,
    pooling_pipeline,
)

Modality = Literal["image", "text", "vector"]
_SIDE = 32  # pixels; the input size of this library's image networks
_MINILM_DIM = 384
_MAX_CHARACTERS = 100_000  # MiniLM reads the first 256 tokens


def prepare_picture(raw: Any) -> Tensor:
    """Decode the central square of a picture, given as bytes or as a path, to uint8 [3, 32, 32]."""
    if not isinstance(raw, bytes | Path):
        got = type(raw).__name__
        raise InvalidInputError(f"a picture must be the bytes of a file or a path, not {got}.")
    return read_square(raw, _SIDE)


def prepare_text(raw: Any) -> str:
    """Check that a text is a non-blank string of acceptable length, and return it unchanged.

    Examples
    --------
    >>> prepare_text("  ")
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: a text must have 1 to 100000 characters that are not all blank, not 2 characters.
    """
    if not isinstance(raw, str) or not raw.strip() or len(raw) > _MAX_CHARACTERS:
        got = f"{len(raw)} characters" if isinstance(raw, str) else type(raw).__name__
        raise InvalidInputError(
            f"a text must have 1 to {_MAX_CHARACTERS} characters that are not all blank, not {got}."
        )
    return raw


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


class Embedder(ABC):
    """A model that maps one kind of input to posteriors.

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
        The SHA-256 of the weights: embedders with the same hash give the same posteriors.
    features
        The length of the input vectors, if the model takes vectors.
    group
        The number of batches to pass at once, so that texts of similar length can share a batch.
    """

    modality: Modality
    dim: int
    kappa_pos: float | None
    weights: str
    features: int | None = None
    group: int = 1

    @abstractmethod
    def prepare(self, raw: Any) -> Tensor | str | np.ndarray:
        """Decode one input to the form that ``embed`` takes; raises ``InvalidInputError`` if it is not valid."""

    @abstractmethod
    def embed(self, prepared: Sequence[Any], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors [n] of n prepared inputs, float32 on the CPU, computed ``batch`` at a time (default: all)."""

    def __call__(self, raw: Sequence[Any]) -> VonMisesFisher:
        """The posteriors of raw inputs."""
        return self.embed([self.prepare(one) for one in raw])

    def __repr__(self) -> str:
        known = {"dim": self.dim, "kappa_pos": self.kappa_pos, "weights": self.weights[:12]}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in known.items())})"


class ImageEmbedder(Embedder):
    """A saved ``PosteriorEncoder`` of pictures; the central square of each is scaled to 32 pixels."""

    modality = "image"

    def __init__(self, folder: Path) -> None:
        self._encoder = PosteriorEncoder.load(folder)
        if not isinstance(self._encoder.backbone, CifarResNet | ResNet18):
            raise InvalidInputError(
                f"the encoder in {folder} has the backbone {type(self._encoder.backbone).__name__}, but only "
                "CifarResNet and ResNet18 take pictures. For other encoders, write their vectors to a table and fit a "
                "head on them."
            )
        kappa_pos = self._encoder.card.kappa_pos
        self.kappa_pos = None if kappa_pos is None else float(kappa_pos)
        self.weights = file_hash(folder / WEIGHTS)
        self.dim = int(self.embed([torch.zeros(3, _SIDE, _SIDE, dtype=torch.uint8)]).dim)

    def prepare(self, raw: Any) -> Tensor:
        """See ``prepare_picture``."""
        return prepare_picture(raw)

    @torch.inference_mode()
    def embed(self, prepared: Sequence[Tensor], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of pictures [3, 32, 32]."""
        return _joined(lambda part: self._encoder(torch.stack(part)), prepared, batch)


class TextEmbedder(Embedder):
    """A saved sentence-transformers pipeline with a posterior, or MiniLM followed by a head on its pooled vectors."""

    modality = "text"
    group = 8

    def __init__(self, folder: Path, *, normalized: bool | None = None) -> None:
        self._head: FrozenHead | None = None
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            self._head = FrozenHead.load(folder)
            if self._head.n_features_in_ != _MINILM_DIM:
                raise InvalidInputError(
                    f"MiniLM gives {_MINILM_DIM} dimensions, but the head in {folder} was fitted on vectors of "
                    f"{self._head.n_features_in_}. Pass vectors of your own encoder instead of texts."
                )
            self._normalized = self._head.takes_unit_vectors if normalized is None else normalized
            self._pipeline = pooling_pipeline(minilm_folder())
            self.kappa_pos, self.dim = self._head.kappa_pos_, self._head.dim_
            self.weights = file_hash(folder / WEIGHTS)
            return
        self._pipeline = load_pipeline(folder, device="cpu")
        self.kappa_pos = None
        self.weights = file_hash(folder / POSTERIOR / WEIGHTS)
        self.dim = int(self.embed(["a"]).dim)

    def prepare(self, raw: Any) -> str:
        """See ``prepare_text``."""
        return prepare_text(raw)

    @torch.inference_mode()
    def embed(self, prepared: Sequence[str], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of texts; texts of similar length share a batch, as a batch is padded to its longest text."""
        options = {"show_progress_bar": False, "batch_size": batch or max(1, len(prepared))}
        if self._head is None:
            return _plain(encode_posterior(self._pipeline, list(prepared), **options))
        vectors = torch.from_numpy(self._pipeline.encode(list(prepared), **options)).float()
        if self._normalized:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return _plain(self._head.predict(vectors))


class VectorEmbedder(Embedder):
    """A saved ``FrozenHead`` on the vectors of another encoder."""

    modality = "vector"

    def __init__(self, folder: Path) -> None:
        self._head = FrozenHead.load(folder)
        self.kappa_pos, self.dim = self._head.kappa_pos_, self._head.dim_
        self.weights, self.features = file_hash(folder / WEIGHTS), self._head.n_features_in_

    def prepare(self, raw: Any) -> np.ndarray:
        """See ``prepare_vector``."""
        return prepare_vector(raw, self._head.n_features_in_)

    def embed(self, prepared: Sequence[np.ndarray], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of vectors."""
        return _joined(lambda part: self._head.predict(np.stack(part)), prepared, batch)


def load_embedder(
    folder: Path | str, modality: Modality | None = None, *, normalized: bool | None = None
) -> Embedder:
    """Load the model in a folder for one kind of input.

    A saved ``PosteriorEncoder`` takes pictures, a sentence-transformers pipeline texts, and a ``FrozenHead`` vectors.

    Parameters
    ----------
    folder
        The folder of a saved model.
    modality
        The kind of input; default: what the model takes. With "text", a head fitted on MiniLM's 384 dimensions takes
        texts.
    normalized
        Whether such a head was fitted on unit vectors; default: as the head recorded when it was fitted.

    Examples
    --------
    >>> from aureole.models import MINILM_CAPTIONS
    >>> embedder = load_embedder(MINILM_CAPTIONS)
    >>> embedder.modality, embedder.dim, embedder([np.ones(384) / 384**0.5]).kappa.shape
    ('vector', 32, torch.Size([1]))
    """
    folder = Path(folder)
    own = modality_of(folder)
    wanted = modality or own
    if wanted == "text" and own in ("vector", "text"):
        return TextEmbedder(folder, normalized=normalized)
    if wanted != own:
        raise InvalidInputError(f"the model in {folder} takes {own}s, but {wanted}s were passed.")
    return ImageEmbedder(folder) if own == "image" else VectorEmbedder(folder)


def modality_of(folder: Path) -> Modality:
    """The kind of input that the model in a folder takes, by the files in the folder."""
    if (folder / "modules.json").is_file():
        return "text"
    if not (folder / WEIGHTS).is_file():
        raise MissingInputError(
            f"{folder / WEIGHTS} is missing: {folder} holds no saved model. "
            "Save one with `aureole fit-head` or `aureole train`."
        )
    return "vector" if format_of(folder) == HEAD_FORMAT else "image"


def _joined(
    model: Callable[..., Any], prepared: Sequence[Any], batch: int | None
) -> VonMisesFisher:
    """The posteriors of all inputs, computed batch by batch."""
    size = batch or max(1, len(prepared))
    parts = [model(list(prepared[i : i + size])) for i in range(0, len(prepared), size)]
    if not all(isinstance(part, VonMisesFisher) for part in parts):
        raise InvalidInputError(
            "this encoder gives mixtures, but a table of posteriors stores one mu and kappa per row."
        )
    mu, kappa = torch.cat([p.mu for p in parts]), torch.cat([p.kappa for p in parts])
    return _plain(VonMisesFisher(mu, kappa, validate_args=False))


def _plain(posterior: VonMisesFisher) -> VonMisesFisher:
    mu, kappa = posterior.mu.detach().cpu().float(), posterior.kappa.detach().cpu().float()
    return VonMisesFisher(mu, kappa, validate_args=False)
