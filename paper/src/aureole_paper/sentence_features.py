"""Sentences through MiniLM, a finished encoder: pooled vectors of 384 dimensions, before they are normalised."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aureole.models import bfloat16_in_hardware
from aureole.records import file_hash
from aureole.training import minilm_folder, pooling_pipeline
from aureole_paper.feature_cache import Progress, cached_features

_CHUNK, _BATCH = 8192, 64
_RECIPE = "pooled 1"  # another one must not find the old vectors


class SentenceFeatures:
    """Pooled vectors of sentences, [n, 384] in float32, from a folder if they are there and else written to it.

    The transformer runs in bfloat16 where the processor has it: the cosine to the vectors of float32 is above 0.9999.
    """

    def __init__(self, folder: Path, *, progress: Progress | None = None) -> None:
        self.folder, self.progress = folder, progress
        self.weights = file_hash(minilm_folder() / "model.safetensors")
        self._pipeline: Any = None

    def __call__(self, sentences: Sequence[str], name: str) -> Float[np.ndarray, "n d"]:
        """The vectors of these sentences, memory-mapped; ``name`` is for whoever watches or looks into the folder."""
        key = hashlib.sha256(f"{_RECIPE} {self.weights}".encode())
        for sentence in sentences:
            key.update(f"{len(sentence)} {sentence}\n".encode())
        return cached_features(
            self.folder / f"{name}-{key.hexdigest()[:16]}.npy",
            len(sentences),
            lambda rows: self._encode(sentences[rows]),
            chunk=_CHUNK,
            progress=self.progress,
        )

    def _encode(self, sentences: Sequence[str]) -> np.ndarray:
        if self._pipeline is None:
            self._pipeline = pooling_pipeline(minilm_folder())
        low = bfloat16_in_hardware()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            found = self._pipeline.encode(
                list(sentences), batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True
            )
        return found.astype(np.float32)
