"""Embedders: a saved model behind one call, from pictures, texts or vectors as they come to posteriors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError, MissingInputError
from aureole.models import CONFIG, WEIGHTS, CifarResNet, PosteriorEncoder, ResNet18, format_of
from aureole.records import file_hash
from aureole.scale._inputs import SIDE, prepare_picture, prepare_text, prepare_vector
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
_MINILM = 384  # dimensions of its vectors


class Embedder(ABC):
    """A model that makes posteriors of one kind of input.

    ``prepare`` checks and decodes one input, cheap and apart from the model, so that it can run beside it; ``embed``
    makes the posteriors of a batch of prepared inputs. The same input in another batch gives the same posterior to
    float32 rounding.

    Attributes
    ----------
    modality
        What the inputs are: "image" (bytes of a picture file, or a path), "text" (str) or "vector" (numbers).
    dim
        The D of the posteriors.
    kappa_pos
        The concentration of partners it was trained with, where that is known.
    weights
        The SHA-256 of the weights: two embedders with the same give the same posteriors.
    features
        The length of the vectors it takes, if it takes vectors.
    group
        How many batches to give at once, so that inputs of like length can be put together.
    """

    modality: Modality
    dim: int
    kappa_pos: float | None
    weights: str
    features: int | None = None
    group: int = 1

    @abstractmethod
    def prepare(self, raw: Any) -> Any:
        """One input in the form that ``embed`` takes; an ``InvalidInputError`` says what is wrong with it."""

    @abstractmethod
    def embed(self, prepared: Sequence[Any], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors [n] of n prepared inputs, float32 on the CPU; ``batch`` at once, by default all."""

    def __call__(self, raw: Sequence[Any]) -> VonMisesFisher:
        """The posteriors of inputs as they come."""
        return self.embed([self.prepare(one) for one in raw])


class ImageEmbedder(Embedder):
    """A saved ``PosteriorEncoder`` of 32-pixel pictures: the middle square of each, scaled."""

    modality = "image"

    def __init__(self, folder: Path) -> None:
        self._encoder = PosteriorEncoder.load(folder)
        if not isinstance(self._encoder.backbone, CifarResNet | ResNet18):
            raise InvalidInputError(
                f"the encoder in {folder} has the backbone {type(self._encoder.backbone).__name__}, but pictures go "
                "through CifarResNet or ResNet18. Write the vectors of other encoders to a table, fit a head on them "
                "and use that."
            )
        self._encoder.eval()
        kappa_pos = self._encoder.card.kappa_pos
        self.kappa_pos = None if kappa_pos is None else float(kappa_pos)
        self.weights = file_hash(folder / WEIGHTS)
        self.dim = int(self.embed([torch.zeros(3, SIDE, SIDE, dtype=torch.uint8)]).dim)

    def prepare(self, raw: Any) -> Tensor:
        """The picture in bytes or in a file, as uint8 [3, 32, 32]."""
        return prepare_picture(raw)

    @torch.inference_mode()
    def embed(self, prepared: Sequence[Tensor], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of pictures [3, 32, 32]."""
        return _joined(lambda part: self._encoder(torch.stack(part)), prepared, batch)


class TextEmbedder(Embedder):
    """A saved sentence-transformers pipeline with a posterior, or MiniLM and a head on its pooled vectors."""

    modality = "text"
    group = 8

    def __init__(self, folder: Path, *, normalized: bool | None = None) -> None:
        self._head: FrozenHead | None = None
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            self._head = FrozenHead.load(folder)
            if self._head.n_features_in_ != _MINILM:
                raise InvalidInputError(
                    f"MiniLM gives {_MINILM} dimensions, but the head in {folder} was fitted on vectors of "
                    f"{self._head.n_features_in_}. Give it vectors of your own encoder instead of texts."
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
        """The text itself, if it says something."""
        return prepare_text(raw)

    @torch.inference_mode()
    def embed(self, prepared: Sequence[str], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of texts; those of like length share a batch, since a batch costs as its longest text."""
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
        """The vector as float32, finite and as long as the head's."""
        return prepare_vector(raw, self._head.n_features_in_)

    def embed(self, prepared: Sequence[np.ndarray], *, batch: int | None = None) -> VonMisesFisher:
        """The posteriors of vectors."""
        return _joined(lambda part: self._head.predict(np.stack(part)), prepared, batch)


def load_embedder(
    folder: Path | str, modality: Modality | None = None, *, normalized: bool | None = None
) -> Embedder:
    """The model in a folder, for inputs of a kind; by default of the kind it takes itself.

    A saved ``PosteriorEncoder`` takes pictures, a pipeline of sentence-transformers texts, and a ``FrozenHead``
    vectors; with ``modality="text"`` a head on MiniLM's 384 dimensions takes texts. ``normalized`` says
    whether it was fitted on vectors of length 1; by default the head is asked.

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
        raise InvalidInputError(f"what {folder} holds takes {own}s, but {wanted}s were asked for.")
    return ImageEmbedder(folder) if own == "image" else VectorEmbedder(folder)


def modality_of(folder: Path) -> Modality:
    """What the model in a folder takes itself, by the files that are there."""
    if (folder / "modules.json").is_file():
        return "text"
    if not (folder / WEIGHTS).is_file():
        raise MissingInputError(
            f"{folder / WEIGHTS} is missing: {folder} holds no saved model. "
            "`aureole fit-head` and `aureole train` save one."
        )
    return "vector" if format_of(folder) == HEAD_FORMAT else "image"


def _joined(
    model: Callable[[list[Any]], Any], prepared: Sequence[Any], batch: int | None
) -> VonMisesFisher:
    """The posteriors of all, by batches."""
    size = batch or max(1, len(prepared))
    found = [model(list(prepared[i : i + size])) for i in range(0, len(prepared), size)]
    if not all(isinstance(part, VonMisesFisher) for part in found):
        raise InvalidInputError(
            "this encoder gives mixtures; a table of posteriors holds one mu and kappa a row."
        )
    if len(found) == 1:
        return _plain(found[0])
    mu, kappa = torch.cat([p.mu for p in found]), torch.cat([p.kappa for p in found])
    return _plain(VonMisesFisher(mu, kappa, validate_args=False))


def _plain(posterior: VonMisesFisher) -> VonMisesFisher:
    mu, kappa = posterior.mu.detach().cpu().float(), posterior.kappa.detach().cpu().float()
    return VonMisesFisher(mu, kappa, validate_args=False)
