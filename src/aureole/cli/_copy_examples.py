"""Examples of copies for ``near-duplicates``: edits of a gallery's own rows, or labelled pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aureole as au
from aureole.cli._inputs import IMAGE, InputOptions, is_pictures
from aureole.cli._lazy import np
from aureole.cli._options import option
from aureole.cli._output import rows_bar
from aureole.errors import InvalidInputError

_TRUE, _FALSE = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no"}
_FEWEST_MADE = 100


@dataclass(frozen=True)
class ExampleOptions:
    """Examples of copies."""

    examples: Path | None = option("Table of labelled pairs of rows (default: edits are made).")
    left: str = option("First column of the examples: ids, or row numbers from 0.", "left")
    right: str = option("Second column of the examples.", "right")
    label_column: str | None = option(
        "Column of the examples: 1 for copies, 0 for other pairs (default: all are copies)."
    )
    made: int = option("Maximum number of edited copies to make.", 2000, min=_FEWEST_MADE)
    seed: int = option("Random seed of the edits.", 0, min=0)


@dataclass(frozen=True)
class CopyExamples:
    """Copies with their originals, texts if they are texts, pairs that are not copies, and a sentence for the page."""

    vectors: np.ndarray
    originals: np.ndarray
    texts: list[str] | None
    different: np.ndarray
    about: str


def read_texts(gallery: Path, inputs: InputOptions, rows: int) -> list[str] | None:
    """The texts of the gallery, if it has a column of them."""
    if inputs.text_column is None:
        return None
    texts = []
    for where, text in au.data.scan_inputs(gallery, inputs.text_column, "text"):
        if not isinstance(text, str):
            raise InvalidInputError(f"{where} has no text.")
        texts.append(text)
    if len(texts) != rows:
        raise InvalidInputError(f"there are {rows} vectors, but {len(texts)} texts.")
    return texts


def make_examples(
    gallery: Path,
    inputs: InputOptions,
    encoder: au.encoders.Encoder | None,
    texts: list[str] | None,
    rows: int,
    learning: ExampleOptions,
    partial: Path,
    shown: bool,
) -> CopyExamples:
    """Edited copies of rows at random, encoded as the gallery is."""
    assert encoder is not None  # checked
    rng = np.random.default_rng(learning.seed)
    count = max(_FEWEST_MADE, min(learning.made, rows))
    originals = np.sort(np.resize(rng.permutation(rows), count))
    edited: list[str] | None = None
    if texts is not None:
        edited = au.data.TextEditor(texts, rng).edit_all([texts[row] for row in originals])
        stream: Iterator[tuple[str, Any]] = (
            (f"an edit of row {row}", text) for row, text in zip(originals, edited, strict=True)
        )
    else:
        stream = _edited_pictures(gallery, inputs, originals, rng)
    with rows_bar("encoding edits", count, shown=shown) as observer:
        vectors = au.encoders.encode_all(
            encoder, stream, resume=partial / "edits", observer=observer
        )
    about = f"Learned from {count:,} edits of its own rows."
    return CopyExamples(vectors, originals, edited, np.zeros((0, 2), int), about)


def _edited_pictures(
    gallery: Path, inputs: InputOptions, originals: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[str, Any]]:
    """(Where, edited picture) of each original, which are sorted."""
    column, times = inputs.column(gallery), np.bincount(originals)
    assert column is not None  # checked
    for row, (where, source) in enumerate(au.data.scan_inputs(gallery, column, "image")):
        for _ in range(int(times[row]) if row < len(times) else 0):
            # encoding resumes by skipping inputs, so each edit has its own seed
            seed = int(rng.integers(2**63))
            try:
                yield where, au.data.edit_picture(source, np.random.default_rng(seed))
            except InvalidInputError as error:
                raise InvalidInputError(f"{where}: {error}") from error


def read_labels(
    gallery: Path, id_column: str | None, learning: ExampleOptions
) -> tuple[np.ndarray, np.ndarray] | None:
    """(Pairs of rows, whether they are copies), or None without --examples."""
    if learning.examples is None:
        return None
    if id_column is None and is_pictures(gallery):
        id_column = IMAGE
    ids = (gallery, id_column) if id_column else None
    pairs = au.data.read_pairs(learning.examples, (learning.left, learning.right), ids=ids)
    if (pairs[:, 0] == pairs[:, 1]).any():
        row = int((pairs[:, 0] == pairs[:, 1]).argmax())
        raise InvalidInputError(
            f"row {row} of {learning.examples} (counted from 0) pairs an item with itself."
        )
    if learning.label_column is None:
        return pairs, np.ones(len(pairs), bool)
    labels = np.zeros(len(pairs), bool)
    for row, value in enumerate(
        au.data.read_column(learning.examples, learning.label_column).tolist()
    ):
        text = str(value).strip().casefold()
        if text not in _TRUE | _FALSE:
            raise InvalidInputError(
                f"row {row} of {learning.examples} (counted from 0) has the label {text[:40]!r}, not 1 or 0."
            )
        labels[row] = text in _TRUE
    return pairs, labels


def labelled_examples(
    labelled: tuple[np.ndarray, np.ndarray], vectors: np.ndarray, texts: list[str] | None
) -> CopyExamples:
    pairs, labels = labelled
    if len(pairs) and pairs.max() >= len(vectors):
        raise InvalidInputError(
            f"the examples refer to row {pairs.max()}, but there are {len(vectors)} rows."
        )
    same = pairs[labels]
    if len(same) < au.retrieval.FEWEST_EXAMPLES:
        raise InvalidInputError(
            f"at least {au.retrieval.FEWEST_EXAMPLES} pairs of copies are needed, but got {len(same)}. "
            "Label more pairs."
        )
    shown = None if texts is None else [texts[row] for row in same[:, 1]]
    about = f"Learned from {len(same):,} labelled pairs."
    return CopyExamples(vectors[same[:, 1]], same[:, 0], shown, pairs[~labels], about)
