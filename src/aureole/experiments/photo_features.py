"""Features of photos by a fixed encoder, computed once and kept in a folder."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.models.mobilenet import load_mobilenet

__all__ = ["FeatureStore"]

Progress = Callable[[str, int, int], None]
_CHUNK, _BATCH = 2000, 50  # images written at a time, and encoded at a time
_RECIPE = "mobilenetv2 float32 bicubic 1"  # another one must not find the old features


class FeatureStore:
    """The features of images, [n, 1280] in float16, from a folder if they are there and else written to it.

    Images are enlarged to ``side`` pixels (bicubic) and encoded by MobileNetV2 in float32: in bfloat16 its features
    are off by a sixth of their norm. Files are named by a hash of the weights, the side and the images themselves. They
    are written whole or not at all, 2,000 images at a time, so an interrupted run goes on where it was.

    Parameters
    ----------
    weights
        The encoder's .npz file.
    folder
        Where features are kept: 2.5 kB an image.
    progress
        Called with (what, images done, images in all) after each part.
    """

    def __init__(
        self, weights: Path, folder: Path, *, side: int = 112, progress: Progress | None = None
    ) -> None:
        self.weights, self.folder, self.side = weights, folder, side
        self.progress = progress
        self._network: torch.nn.Module | None = None

    def features(
        self, images: UInt8[Tensor, "n 3 h w"], name: str = "images"
    ) -> Float[np.ndarray, "n features"]:
        """The features of these images, memory-mapped; ``name`` is for whoever watches or looks into the folder."""
        path = self.path(images, name)
        if path.is_file():
            return self._read(path, len(images), mapped=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        starts = range(0, len(images), _CHUNK)
        parts = [path.with_suffix(f".{start}.npy") for start in starts]
        for start, part in zip(starts, parts, strict=True):
            if not part.is_file():
                _write(part, self._encode(images[start : start + _CHUNK]))
            if self.progress is not None:
                self.progress(name, min(start + _CHUNK, len(images)), len(images))
        sizes = [len(images[start : start + _CHUNK]) for start in starts]
        _write(path, np.concatenate([self._read(p, n) for p, n in zip(parts, sizes, strict=True)]))
        for part in parts:
            part.unlink()
        return self._read(path, len(images), mapped=True)

    def path(self, images: UInt8[Tensor, "n 3 h w"], name: str = "images") -> Path:
        """Where the features of these images lie or will lie."""
        found = hashlib.sha256(f"{_RECIPE} {self.side} {tuple(images.shape)} ".encode())
        found.update(self.weights.read_bytes() if self.weights.is_file() else b"")
        found.update(images.contiguous().numpy().tobytes())
        return self.folder / f"{name}-{found.hexdigest()[:16]}.npy"

    @torch.no_grad()
    def _encode(self, images: Tensor) -> np.ndarray:
        if self._network is None:
            self._network = load_mobilenet(self.weights, self.side)
        rows = [self._network(batch) for batch in images.split(_BATCH)]
        return torch.cat(rows).half().numpy()

    @staticmethod
    def _read(path: Path, n: int, *, mapped: bool = False) -> np.ndarray:
        try:
            found = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InvalidInputError(f"{path} cannot be read: {error}. Delete it.") from error
        if found.ndim != 2 or len(found) != n or found.dtype != np.float16:
            raise InvalidInputError(
                f"{path} holds {found.dtype} of shape {found.shape}, not features of {n} images. Delete it."
            )
        return found


def _write(path: Path, values: np.ndarray) -> None:
    """Write an array whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        np.save(file, values)
    Path(name).chmod(0o644)
    Path(name).replace(path)
