"""Queries of the command line: an item, a row of a table, a text or a picture as a posterior."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from aureole.data import pick_rows, pick_vector
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models import WEIGHTS, CifarResNet, PosteriorEncoder, ResNet18
from aureole.records import file_hash
from aureole.retrieval import CredibleIndex
from aureole.scale import load_embedder, prepare_picture, prepare_text
from aureole.training import FrozenHead


@dataclass(frozen=True)
class Query:
    """A posterior of batch shape (), what it is of, and the kappa_pos of the model that made it, if that is known."""

    posterior: VonMisesFisher | MixtureVMF
    about: str
    kappa_pos: float | None = None
    item: str | None = None


def item_query(index: CredibleIndex, name: str) -> Query:
    """The stored posterior of an item of the gallery."""
    found, _ = index.fetch([name])
    return Query(_single(found), f"item {name[:60]!r}", item=name)


def row_query(
    index: CredibleIndex,
    path: Path,
    row: int,
    columns: tuple[str | None, str, str],
    head: Path | None,
) -> Query:
    """The posterior of a row of a table: of its vector by a head, or of its mu and kappa; columns: those three."""
    about = f"row {row} of {path}"
    vector, mu, kappa = columns
    if head is not None:
        return _by_head(index, head, pick_vector(path, vector, row)[None], about)
    direction = torch.from_numpy(pick_vector(path, mu, row).copy())
    value = pick_rows(path, kappa, [row])[row]
    if not isinstance(value, int | float):
        raise InvalidInputError(f"kappa must be a number, but {about} has {str(value)[:60]!r}.")
    return Query(VonMisesFisher(direction, torch.tensor(float(value))), about)


def text_query(
    index: CredibleIndex,
    text: str,
    head: Path | None,
    encoder: Path | None,
    *,
    normalized: bool | None,
) -> Query:
    """The posterior of a text: by a saved pipeline, or by MiniLM and a head on its pooled vectors."""
    folder = encoder or head
    assert folder is not None
    prepare_text(text)  # before a model is loaded for it
    embedder = load_embedder(folder, "text", normalized=normalized)
    index.origin.check_same(embedder.weights, f"what {folder} holds")
    return Query(_single(embedder([text])), f"text {text[:60]!r}", embedder.kappa_pos)


def image_query(index: CredibleIndex, path: Path, encoder: Path) -> Query:
    """The posterior of a picture's middle square, at 32 pixels, by a saved encoder of such pictures."""
    found = PosteriorEncoder.load(encoder)
    if not isinstance(found.backbone, CifarResNet | ResNet18):
        raise InvalidInputError(
            f"the encoder in {encoder} has the backbone {type(found.backbone).__name__}, but pictures go through "
            "CifarResNet or ResNet18. Write mu and kappa of other encoders to a table and give --vector-from."
        )
    _check_weights(index, encoder / WEIGHTS)
    with torch.inference_mode():
        posterior = found(prepare_picture(path).unsqueeze(0))
    return Query(_single(posterior), f"picture {path}", found.card.kappa_pos)


def _by_head(index: CredibleIndex, folder: Path, vectors: np.ndarray, about: str) -> Query:
    head = FrozenHead.load(folder)
    _check_weights(index, folder / WEIGHTS)
    return Query(_single(head.predict(vectors)), about, head.kappa_pos_)


def _check_weights(index: CredibleIndex, weights: Path) -> None:
    """Refuse a model other than the one that is known to have made the gallery."""
    index.origin.check_same(file_hash(weights), f"what {weights.parent} holds")


def _single(posterior: VonMisesFisher | MixtureVMF) -> VonMisesFisher | MixtureVMF:
    """The one posterior of a batch of one."""
    if isinstance(posterior, MixtureVMF):
        parts = (posterior.weights[0], posterior.mu[0], posterior.kappa[0])
        return MixtureVMF(*(part.clone() for part in parts), validate_args=False)
    return VonMisesFisher(posterior.mu[0].clone(), posterior.kappa[0].clone(), validate_args=False)
