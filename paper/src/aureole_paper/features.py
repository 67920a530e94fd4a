"""Features of frozen encoders, computed once and cached on disk: MobileNetV2 for images, MiniLM for sentences."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from aureole._io import atomic_file
from aureole.errors import InvalidInputError
from aureole.models._networks import bfloat16_in_hardware
from aureole.records import file_hash
from aureole.training._sentence_transformers import minilm_folder, pooling_pipeline
from aureole_paper.mobilenet import load_mobilenet

Progress = Callable[[str, int, int], None]
_IMAGE_CHUNK, _IMAGE_BATCH = 2000, 50  # images per cached part, and per batch of the encoder
_SENTENCE_CHUNK, _SENTENCE_BATCH = 8192, 64
# part of the keys of the cache: change one where its features change
_IMAGE_RECIPE, _SENTENCE_RECIPE = "mobilenetv2 float32 bicubic 1", "pooled 1"


def cache_folder(given: Path | None = None) -> Path:
    """The folder of cached features: ``given``, $AUREOLE_CACHE, or ~/.cache/aureole."""
    named = os.environ.get("AUREOLE_CACHE")
    return given or (Path(named) if named else Path.home() / ".cache" / "aureole")


def cached_features(
    path: Path,
    n: int,
    encode: Callable[[slice], np.ndarray],
    *,
    chunk: int,
    progress: Progress | None = None,
) -> np.ndarray:
    """The features [n, d] of n inputs, memory-mapped from a .npy file, which is computed if it does not exist.

    Features are computed in parts of ``chunk`` rows, each written atomically, so an interrupted run resumes. If several
    processes need the same features, one computes them and the others wait.

    Parameters
    ----------
    path
        Its name must identify the features: a hash of weights, inputs and preparation.
    encode
        Computes the features of a slice of the inputs.
    progress
        Called with (name, rows done, rows in total) after each part.
    """
    if path.is_file():
        return _read(path, n, mapped=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    guard = path.with_suffix(".lock")
    with guard.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed or the process ends
        if not path.is_file():  # another process may have written it meanwhile
            _compute(path, n, encode, chunk, progress)
        guard.unlink(missing_ok=True)
    return _read(path, n, mapped=True)


class PhotoFeatures:
    """The features of images, [n, 1280] in float16, cached in a folder: 2.5 kB per image.

    Images are enlarged to ``side`` pixels (bicubic) and encoded by MobileNetV2, with the .npz file ``weights``, in
    float32: in bfloat16 its features are off by a sixth of their norm. File names contain a hash of the weights, the
    side and the images.
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
        """The features of these images, memory-mapped; ``name`` is the start of the file name."""
        return cached_features(
            self.path(images, name),
            len(images),
            lambda rows: self._encode(images[rows]),
            chunk=_IMAGE_CHUNK,
            progress=self.progress,
        )

    def path(self, images: UInt8[Tensor, "n 3 h w"], name: str = "images") -> Path:
        """The file for the features of these images."""
        key = hashlib.sha256(f"{_IMAGE_RECIPE} {self.side} {tuple(images.shape)} ".encode())
        key.update(self.weights.read_bytes() if self.weights.is_file() else b"")
        key.update(images.contiguous().numpy().tobytes())
        return self.folder / f"{name}-{key.hexdigest()[:16]}.npy"

    @torch.no_grad()
    def _encode(self, images: Tensor) -> np.ndarray:
        if self._network is None:
            self._network = load_mobilenet(self.weights, self.side)
        rows = [self._network(batch) for batch in images.split(_IMAGE_BATCH)]
        return torch.cat(rows).half().numpy()


class SentenceFeatures:
    """Pooled vectors of sentences, [n, 384] in float32, cached in a folder.

    The transformer runs in bfloat16 if the processor supports it: the cosine to the vectors of float32 is above 0.9999.
    """

    def __init__(self, folder: Path, *, progress: Progress | None = None) -> None:
        self.folder, self.progress = folder, progress
        self.weights = file_hash(minilm_folder() / "model.safetensors")
        self._pipeline: Any = None

    def __call__(self, sentences: Sequence[str], name: str) -> Float[np.ndarray, "n d"]:
        """The vectors of these sentences, memory-mapped; ``name`` is the start of the file name."""
        key = hashlib.sha256(f"{_SENTENCE_RECIPE} {self.weights}".encode())
        for sentence in sentences:
            key.update(f"{len(sentence)} {sentence}\n".encode())
        return cached_features(
            self.folder / f"{name}-{key.hexdigest()[:16]}.npy",
            len(sentences),
            lambda rows: self._encode(sentences[rows]),
            chunk=_SENTENCE_CHUNK,
            progress=self.progress,
        )

    def _encode(self, sentences: Sequence[str]) -> np.ndarray:
        if self._pipeline is None:
            self._pipeline = pooling_pipeline(minilm_folder())
        low = bfloat16_in_hardware()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            vectors = self._pipeline.encode(
                list(sentences),
                batch_size=_SENTENCE_BATCH,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        return vectors.astype(np.float32)


def _compute(
    path: Path, n: int, encode: Callable[[slice], np.ndarray], chunk: int, progress: Progress | None
) -> None:
    """Compute the parts that do not exist yet, and concatenate all."""
    parts, values = [], []
    for start in range(0, n, chunk):
        part, stop = path.with_suffix(f".{start}.npy"), min(start + chunk, n)
        if not part.is_file():
            _write(part, encode(slice(start, stop)))
        parts.append(part)
        values.append(_read(part, stop - start))
        if progress is not None:
            progress(path.stem, stop, n)
    _write(path, np.concatenate(values))
    for part in parts:
        part.unlink(missing_ok=True)


def _read(path: Path, n: int, *, mapped: bool = False) -> np.ndarray:
    try:
        features = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}. Delete it.") from error
    if features.ndim != 2 or len(features) != n or not np.issubdtype(features.dtype, np.floating):
        raise InvalidInputError(
            f"{path} holds {features.dtype} of shape {features.shape}, not features of {n} inputs. Delete it."
        )
    return features


def _write(path: Path, values: np.ndarray) -> None:
    """Write an array atomically."""
    with atomic_file(path) as file:
        np.save(file, values)
