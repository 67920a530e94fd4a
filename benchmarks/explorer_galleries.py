"""Galleries for the explorer: CIFAR-10H's test images, Multi30k's test captions, and a million rows to measure speed.

``python -m benchmarks.explorer_galleries --work DIR [--data-dir DIR] [--only images captions million]``

- ``DIR/cifar10h.lance``: the 10,000 images with their label and how many of about 50 people disagreed with it; the
  pictures are in ``DIR/pictures`` and the encoder in ``DIR/encoder``. It was trained on 6,000 of them (fold 0).
- ``DIR/captions.lance``: the 5,000 captions of 1,000 photos, encoded by MiniLM and the head included in the library.
- ``DIR/million.lance``: random directions and concentrations around 40 classes.

Existing galleries are left unchanged.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from aureole.data import write_picture
from aureole.distributions import VonMisesFisher
from aureole.models import PosteriorEncoder
from aureole.retrieval import CredibleIndex, Origin
from aureole.scale import load_embedder
from aureole.sphere import normalize
from aureole_paper.cifar import CLASSES
from aureole_paper.cifar10h import Cifar10HSetting, Split, train
from aureole_paper.data_folder import data_folder
from aureole_paper.text_data import load_captions

NAMES = ("images", "captions", "million")
MINILM, HEAD = "sentence-transformers:all-MiniLM-L6-v2", "minilm-captions"
_BATCH = 500
_CHUNK = 200_000  # rows of the million written at a time


def image_gallery(work: Path, data: Path) -> Path:
    """The gallery of CIFAR-10H's images; trains the encoder if it does not exist."""
    where, encoder = work / "cifar10h.lance", work / "encoder"
    split = Split.load(data, 0)
    if not encoder.is_dir():
        setting = Cifar10HSetting("explorer", cropped=0.5)
        fitted = train(setting, split, 0, folder=data, checkpoint=work / "encoder.safetensors")
        assert isinstance(fitted.encoder, PosteriorEncoder)
        fitted.encoder.save(encoder)
    if where.exists():
        return where
    images, votes = split.data.images, split.data.counts
    ids = [f"test-{i:05d}" for i in range(len(images))]
    for name, image in zip(ids, images, strict=True):
        write_picture(image, work / "pictures" / f"{name}.png")
    embedder = load_embedder(encoder)
    posteriors = joined([embedder.embed(list(part)) for part in images.split(_BATCH)])
    agreeing = votes.gather(1, split.data.labels[:, None])[:, 0]
    payload = {
        "label": [CLASSES[label] for label in split.data.labels.tolist()],
        "people": votes.sum(-1).tolist(),
        "disagreed": (votes.sum(-1) - agreeing).tolist(),
    }
    index = CredibleIndex.create(where, posteriors, ids, payload)
    index.origin = Origin(weights=embedder.weights, kappa_pos=Cifar10HSetting("explorer").kappa_pos)
    return where


def caption_gallery(work: Path, data: Path) -> Path:
    """The gallery of Multi30k's test captions, each with the number of its photo."""
    where = work / "captions.lance"
    if where.exists():
        return where
    captions = load_captions(data, "test_2016")
    texts = [text for five in captions for text in five]
    embedder = load_embedder(MINILM, head=HEAD)
    parts = [texts[i : i + _BATCH] for i in range(0, len(texts), _BATCH)]
    ids = [f"{photo:04d}-{k}" for photo, five in enumerate(captions) for k in range(len(five))]
    payload = {"text": texts, "photo": [int(name.split("-")[0]) for name in ids]}
    index = CredibleIndex.create(where, joined([embedder(part) for part in parts]), ids, payload)
    index.origin = Origin(weights=embedder.weights, kappa_pos=embedder.kappa_pos)
    return where


def million_gallery(work: Path, rows: int = 1_000_000, *, dim: int = 32, classes: int = 40) -> Path:
    """Rows around one centre per class, kappa from 5 to 500."""
    where = work / "million.lance"
    if where.exists():
        return where
    rng = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(classes, dim, generator=rng))
    index = None
    for start in range(0, rows, _CHUNK):
        n = min(_CHUNK, rows - start)
        label = torch.randint(classes, (n,), generator=rng)
        mu = normalize(centres[label] + 0.12 * torch.randn(n, dim, generator=rng))
        kappa = 5 * 100 ** torch.rand(n, generator=rng)
        posteriors = VonMisesFisher(mu, kappa, validate_args=False)
        ids = [f"row-{i:07d}" for i in range(start, start + n)]
        payload = {"label": [f"class {k:02d}" for k in label.tolist()]}
        if index is None:
            index = CredibleIndex.create(where, posteriors, ids, payload, typical_kappa=50.0)
        else:
            index.append(posteriors, ids, payload)
    return where


def joined(parts: Sequence[VonMisesFisher]) -> VonMisesFisher:
    """One posterior of all parts."""
    mu, kappa = torch.cat([q.mu for q in parts]), torch.cat([q.kappa for q in parts])
    return VonMisesFisher(mu, kappa, validate_args=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name, create in (("images", image_gallery), ("captions", caption_gallery)):
        if name in arguments.only:
            print(create(arguments.work, data_folder(arguments.data_dir)))
    if "million" in arguments.only:
        print(million_gallery(arguments.work))


if __name__ == "__main__":
    main()
