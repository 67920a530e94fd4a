"""CIFAR-10: its images in their original order, from the official binary files or from lossless mosaics of them.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from aureole.data import read_picture
from aureole.errors import InvalidInputError
from aureole_paper.data_folder import require_file

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # bytes: the label, then the red, green and blue planes


def load_cifar10(
    folder: Path, part: Literal["train", "test"]
) -> tuple[UInt8[Tensor, "n 3 32 32"], Int[Tensor, " n"]]:
    """Images [N, 3, 32, 32] in their original order, and their labels [N], of the training or the test part.

    Read from ``folder/cifar10``: the mosaics ``{batch}.webp`` with ``labels.npz`` if those are there (they need
    Pillow), else the official ``cifar-10-batches-bin/{batch}.bin``.
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


def _read_binary(path: Path) -> np.ndarray:
    """Records [N, 3073] of an official binary file."""
    found = np.fromfile(require_file(path), np.uint8)
    if found.size == 0 or found.size % _RECORD or found[::_RECORD].max() >= len(CLASSES):
        raise InvalidInputError(
            f"{path} ({found.size} bytes) does not hold records of {_RECORD} bytes that each "
            "begin with a label below 10. Download it again."
        )
    return found.reshape(-1, _RECORD)


def _read_mosaic(path: Path) -> np.ndarray:
    """Images [N, 3, 32, 32] that tile a picture row by row."""
    mosaic = read_picture(require_file(path)).permute(1, 2, 0).numpy()
    if mosaic.shape[0] % _SIDE or mosaic.shape[1] % _SIDE:
        raise InvalidInputError(
            f"{path} has {mosaic.shape[0]} x {mosaic.shape[1]} pixels, not whole tiles of {_SIDE}."
        )
    tiles = mosaic.reshape(mosaic.shape[0] // _SIDE, _SIDE, -1, _SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE)
