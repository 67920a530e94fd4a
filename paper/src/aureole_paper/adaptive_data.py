"""Data for adaptive retrieval: InsuranceQA with the questions of BoolQ as foreign ones, and Multi30k captions."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from aureole.errors import InvalidInputError
from aureole.records import file_hash
from aureole.training._sentence_transformers import minilm_folder
from aureole_paper.data_folder import require_file
from aureole_paper.features import Progress, cached_features
from aureole_paper.text_data import CAPTIONS, load_captions, read_json_lines

EncoderName = Literal["minilm", "gte-small"]
_TOKENS, _BATCH, _CHUNK = 64, 64, 4096
_PHOTOS = 5000  # training photos of the captions, whose first captions are labelled queries
_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Queries:
    """Questions with their vectors, and the rows of the gallery that match each."""

    texts: list[str]
    vectors: np.ndarray
    matches: list[list[int]]

    def take(self, rows: Sequence[int] | np.ndarray) -> "Queries":
        """Some of the questions."""
        return Queries(
            [self.texts[i] for i in rows], self.vectors[rows], [self.matches[i] for i in rows]
        )


@dataclass(frozen=True)
class Collection:
    """A gallery, questions to calibrate with, and questions that only judge."""

    texts: list[str]
    gallery: np.ndarray
    labelled: Queries
    test: Queries
    hashes: dict[str, str]
    domains: tuple[list[str], list[str]] | None = None  # of labelled and test questions
    foreign: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))


class Vectors:
    """Vectors of texts cut at 64 tokens, of length 1, computed once in float32."""

    def __init__(
        self, encoder: EncoderName, folder: Path, cache: Path, progress: Progress | None = None
    ) -> None:
        weights = folder / "weights" / "gte_small"
        self.model = minilm_folder() if encoder == "minilm" else weights
        self.cache, self.progress, self._name = cache, progress, encoder
        self.weights = file_hash(require_file(self.model / "model.safetensors"))
        self._loaded: Any = None

    def __call__(self, texts: Sequence[str], name: str) -> np.ndarray:
        """The vectors; ``name`` is part of the file name."""
        vectors = cached_features(
            self.path(texts, name),
            len(texts),
            lambda rows: self._encode(texts[rows]),
            chunk=_CHUNK,
            progress=self.progress,
        )
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def path(self, texts: Sequence[str], name: str) -> Path:
        """The file of these vectors."""
        key = hashlib.sha256(f"{_TOKENS} tokens {self.weights}".encode())
        for text in texts:
            key.update(f"{len(text)} {text}\n".encode())
        return self.cache / f"{self._name}-{name}-{key.hexdigest()[:16]}.npy"

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        if self._loaded is None:
            from sentence_transformers import SentenceTransformer

            options = {"dtype": torch.float32}
            self._loaded = SentenceTransformer(str(self.model), device="cpu", model_kwargs=options)
            self._loaded.max_seq_length = _TOKENS
        found = self._loaded.encode(list(texts), batch_size=_BATCH, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)


def load_insurance(folder: Path, embed: Vectors, size: int | None) -> Collection:
    """InsuranceQA: the questions of its train and valid parts are labelled, those of its test part judge.

    Feng et al. (2015), Applying deep learning to answer selection. ``size`` limits the number of questions of each
    part, and the gallery to their answers. The questions of BoolQ (Clark et al., 2019) have no answer in it.
    """
    names = (*(f"insuranceqa_{name}" for name in (*_SPLITS, "answers")), "boolq_questions")
    files = {name: require_file(folder / "qa" / f"{name}.jsonl.gz") for name in names}
    try:
        parts = [list(read_json_lines(files[f"insuranceqa_{name}"]))[:size] for name in _SPLITS]
        answers = [row["text"] for row in read_json_lines(files["insuranceqa_answers"])]
        boolq = [row["question"] for row in read_json_lines(files["boolq_questions"])][:size]
        kept = sorted({i for part in parts for row in part for i in row["answers"]})
        kept = range(len(answers)) if size is None else kept
        place = {row: i for i, row in enumerate(kept)}
        texts = [[row["text"] for row in part] for part in parts]
        matches = [[[place[i] for i in row["answers"]] for row in part] for part in parts]
        domains = [[row["domain"] for row in part] for part in parts]
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidInputError(f"{folder / 'qa'} does not hold InsuranceQA: {error!r}.") from error
    gallery = [answers[i] for i in kept]
    vectors = [embed(part, f"qa-{name}") for part, name in zip(texts, _SPLITS, strict=True)]
    return Collection(
        gallery,
        embed(gallery, "qa-answers"),
        Queries(texts[0] + texts[1], np.concatenate(vectors[:2]), matches[0] + matches[1]),
        Queries(texts[2], vectors[2], matches[2]),
        {f"qa/{file.name}": file_hash(file) for file in files.values()},
        (domains[0] + domains[1], domains[2]),
        embed(boolq, "boolq"),
    )


def load_photos(folder: Path, embed: Vectors, size: int | None) -> Collection:
    """Multi30k: the first caption of a photo asks for the other four among those of 6,000 photos."""
    parts = (load_captions(folder, "train")[:_PHOTOS], load_captions(folder, "test_2016"))
    parts = tuple(part[:size] for part in parts)
    photos = [*parts[0], *parts[1]]
    others = CAPTIONS - 1
    gallery = [caption for photo in photos for caption in photo[1:]]
    asked = [photo[0] for photo in photos]
    queries = Queries(
        asked,
        embed(asked, "captions-asked"),
        [list(range(others * i, others * (i + 1))) for i in range(len(photos))],
    )
    count = len(parts[0])
    names = [f"multi30k_{s}.{n}.en.gz" for s in ("train", "test_2016") for n in range(1, 6)]
    return Collection(
        gallery,
        embed(gallery, "captions-gallery"),
        queries.take(np.arange(count)),
        queries.take(np.arange(count, len(photos))),
        {f"text/{name}": file_hash(folder / "text" / name) for name in names},
    )
