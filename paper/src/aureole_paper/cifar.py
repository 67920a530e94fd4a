"""CIFAR-10 and the votes of people on it: CIFAR-10H with the paper's folds and crops.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images. Peterson et al. (2019), Human uncertainty
makes classification more robust. The folds are those of
Kirchhof et al. (2023), Probabilistic contrastive learning recovers the correct aleatoric uncertainty of ambiguous
inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from aureole.data._image_files import read_picture
from aureole.errors import InvalidInputError
from aureole.records import file_hash
from aureole_paper.data_folder import require_file

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # bytes: the label, then the red, green and blue planes
_FOLDS = 5
_VOTES = "cifar10_human/cifar10h-counts.npy"
_CROP_SIZES = "randomcrops_2000_0.25_1.0.csv"


@dataclass(frozen=True)
class Cifar10H:
    """Images [N, 3, 32, 32], their labels [N], and how many people saw each class in them, [N, 10].

    Examples
    --------
    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> counts = torch.tensor([[4] + 9 * [0], [1, 3] + 8 * [0]])
    >>> data = Cifar10H(images, torch.tensor([0, 1]), counts)
    >>> data.probabilities[1, :3]
    tensor([0.2500, 0.7500, 0.0000])
    >>> data.entropy
    tensor([0.0000, 0.5623])
    """

    images: UInt8[Tensor, "n 3 32 32"]
    labels: Int[Tensor, " n"]
    counts: Int[Tensor, "n 10"]

    @property
    def probabilities(self) -> Float[Tensor, "n 10"]:
        """The share of the votes for each class."""
        return self.counts / self.counts.sum(-1, keepdim=True)

    @property
    def entropy(self) -> Float[Tensor, " n"]:
        """The entropy of the votes in nats, exactly 0 where all agree."""
        return vote_entropy(self.probabilities)


@dataclass(frozen=True)
class Fold:
    """Indices into the test images: three fifths to train on, one to validate and one to test."""

    train: Int[Tensor, " m"]
    validation: Int[Tensor, " n"]
    test: Int[Tensor, " n"]


def vote_entropy(votes: Float[Tensor, "n 10"]) -> Float[Tensor, " n"]:
    """The entropy of shares of votes in nats; sorted first, so that permuted votes tie exactly."""
    return torch.special.entr(votes.sort(-1).values).sum(-1)


def load_cifar10(
    folder: Path, part: Literal["train", "test"]
) -> tuple[UInt8[Tensor, "n 3 32 32"], Int[Tensor, " n"]]:
    """Images [N, 3, 32, 32] in their original order, and their labels [N], of the training or the test part.

    Read from ``folder/cifar10``: the lossless mosaics ``{batch}.webp`` if ``labels.npz`` exists (these need Pillow),
    otherwise the official ``cifar-10-batches-bin/{batch}.bin``.
    """
    root = folder / "cifar10"
    if (root / "labels.npz").is_file():
        pixels = np.concatenate([_read_mosaic(root / f"{name}.webp") for name in _BATCHES[part]])
        with np.load(root / "labels.npz", allow_pickle=False) as stored:
            labels = stored[part]
        if len(labels) != len(pixels):
            raise InvalidInputError(
                f"{root}/labels.npz has {len(labels)} labels in {part!r}, but the mosaics hold "
                f"{len(pixels)} images. Copy the folder again."
            )
    else:
        binary = root / "cifar-10-batches-bin"
        records = np.concatenate([_read_binary(binary / f"{name}.bin") for name in _BATCHES[part]])
        labels = records[:, 0]
        pixels = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def load_cifar10h(folder: Path) -> Cifar10H:
    """The 10,000 test images with their labels and votes, in the original order."""
    images, labels = load_cifar10(folder, "test")
    path = require_file(folder / _VOTES)
    counts = np.load(path, allow_pickle=False)
    if counts.shape != (len(images), len(CLASSES)):
        raise InvalidInputError(
            f"{path} has shape {counts.shape}, but {len(images)} images are in {folder / 'cifar10'}."
        )
    return Cifar10H(images, labels, torch.from_numpy(counts))


def load_fold(folder: Path, fold: int) -> Fold:
    """The paper's split number ``fold``: of its five sets, three from that number on train, then validation, then test.

    The paper's seed s is fold s mod 5.
    """
    if not 0 <= fold < _FOLDS:
        raise InvalidInputError(
            f"fold must be 0..{_FOLDS - 1} (the paper's seed mod {_FOLDS}), but is {fold}."
        )
    order = [(fold + i) % _FOLDS for i in range(_FOLDS)]
    sets = [_read_column(folder, f"idx_set_{i}.csv").long() for i in order]
    return Fold(torch.cat(sets[:3]), sets[3], sets[4])


def load_crop_sizes(folder: Path) -> Float[Tensor, " n"]:
    """The sides of the windows to which the paper crops the images of a test set, 0.25 to 1 of the image's side."""
    return _read_column(folder, _CROP_SIZES).float()


def files_read(
    folder: Path,
    fold: int | None = None,
    backbones: Iterable[str] = (),
    *,
    parts: Iterable[Literal["train", "test"]] = ("test",),
) -> dict[str, str]:
    """The hashes of every file that a run reads: images, labels, votes, folds, crop sizes and pretrained classifiers.

    Parameters
    ----------
    folder
        The data folder; the keys of the result are paths relative to it.
    fold
        The fold, if the run has one: all five sets of indices and the crop sizes are then read.
    backbones
        Names of the pretrained classifiers.
    parts
        The parts of CIFAR-10 whose images are read.
    """
    mosaics = (folder / "cifar10" / "labels.npz").is_file()
    kind = "cifar10/{}.webp" if mosaics else "cifar10/cifar-10-batches-bin/{}.bin"
    names = [kind.format(batch) for part in parts for batch in _BATCHES[part]]
    names += ["cifar10/labels.npz"] if mosaics else []
    names.append(_VOTES)
    if fold is not None:
        csv = [f"idx_set_{i}.csv" for i in range(_FOLDS)]
        names += [f"cifar10h_folds/{name}" for name in (*csv, _CROP_SIZES)]
    names += [f"weights/cifar10_{backbone}.safetensors" for backbone in dict.fromkeys(backbones)]
    return {name: file_hash(require_file(folder / name)) for name in names}


def _read_binary(path: Path) -> np.ndarray:
    """Records [N, 3073] of an official binary file."""
    content = np.fromfile(require_file(path), np.uint8)
    if content.size == 0 or content.size % _RECORD or content[::_RECORD].max() >= len(CLASSES):
        raise InvalidInputError(
            f"{path} ({content.size} bytes) does not hold records of {_RECORD} bytes that each "
            "begin with a label below 10. Download it again."
        )
    return content.reshape(-1, _RECORD)


def _read_mosaic(path: Path) -> np.ndarray:
    """Images [N, 3, 32, 32] that tile a picture row by row."""
    mosaic = read_picture(require_file(path)).permute(1, 2, 0).numpy()
    if mosaic.shape[0] % _SIDE or mosaic.shape[1] % _SIDE:
        raise InvalidInputError(
            f"{path} has {mosaic.shape[0]} x {mosaic.shape[1]} pixels, not whole tiles of {_SIDE}."
        )
    tiles = mosaic.reshape(mosaic.shape[0] // _SIDE, _SIDE, -1, _SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE)


def _read_column(folder: Path, name: str) -> Float[Tensor, " n"]:
    """The numbers of one of the paper's csv files, one per line."""
    return torch.from_numpy(np.loadtxt(require_file(folder / "cifar10h_folds" / name)))
