"""Features of photos by a fixed encoder, computed once and kept in a folder."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from aureole_paper.feature_cache import Progress, cached_features
from aureole_paper.mobilenet import load_mobilenet

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
        return cached_features(
            self.path(images, name),
            len(images),
            lambda rows: self._encode(images[rows]),
            chunk=_CHUNK,
            progress=self.progress,
        )

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
