"""CIFAR-10H: the votes of people on the CIFAR-10 test images, the paper's folds and crops; CIFAR-10N for training.

Peterson et al. (2019), Human uncertainty makes classification more robust. Wei et al. (2022), Learning with noisy
labels revisited. The folds are those of Kirchhof et al. (2023), Probabilistic contrastive learning recovers the
correct aleatoric uncertainty of ambiguous inputs.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole_paper.cifar10 import CLASSES, load_cifar10
from aureole_paper.data_folder import require_file

_FOLDS = 5


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
        """The share of the votes that each class got."""
        return self.counts / self.counts.sum(-1, keepdim=True)

    @property
    def entropy(self) -> Float[Tensor, " n"]:
        """The entropy of the votes in nats, 0 exactly where all agree."""
        # sorted, so that images with the same votes for other classes tie exactly
        return torch.special.entr(self.probabilities.sort(-1).values).sum(-1)


@dataclass(frozen=True)
class Fold:
    """Indices into the test images: three fifths to train on, one to validate and one to test."""

    train: Int[Tensor, " m"]
    validation: Int[Tensor, " n"]
    test: Int[Tensor, " n"]


def load_cifar10h(folder: Path) -> Cifar10H:
    """The 10,000 test images with their labels and votes, in the original order."""
    images, labels = load_cifar10(folder, "test")
    path = require_file(folder / "cifar10_human" / "cifar10h-counts.npy")
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
    """The sides, 0.25 to 1 of the image's, of the windows to which the paper crops the images of a test set."""
    return _read_column(folder, "randomcrops_2000_0.25_1.0.csv").float()


def load_votes_10n(folder: Path) -> Int[Tensor, "n 10"]:
    """How many of CIFAR-10N's three raters saw each class in each of the 50,000 training images, [N, 10]."""
    path = require_file(folder / "cifar10_human" / "cifar10n_human_labels.npz")
    with np.load(path, allow_pickle=False) as stored:
        votes = np.stack([stored[f"random_label{i}"] for i in (1, 2, 3)])
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(votes.astype(np.int64)), len(CLASSES))
    return one_hot.sum(0)


def _read_column(folder: Path, name: str) -> Float[Tensor, " n"]:
    """The numbers of one of the paper's csv files, one a line."""
    return torch.from_numpy(np.loadtxt(require_file(folder / "cifar10h_folds" / name)))
