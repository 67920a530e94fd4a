"""Near duplicates of a gallery, learned from edited copies of its own texts or pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import TextEditor, edit_picture, find_picture
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.explorer._nearest_rows import GalleryRows
from aureole.retrieval import (
    FEWEST_EXAMPLES,
    NearDuplicates,
    find_near_duplicates,
    stored_direction,
)

_MADE = 1000  # edited copies
_BATCH = 100  # copies that are encoded at once

Observer = Callable[[str, int, int], None]


def gallery_duplicates(
    rows: GalleryRows,
    encode: Callable[[Sequence[Any]], VonMisesFisher],
    *,
    texts: Sequence[str] | None = None,
    pictures: Path | None = None,
    precision: float = 0.9,
    observer: Observer | None = None,
) -> NearDuplicates:
    """The pairs of a gallery that are likely copies, as close as edits of its own items are: ``find_near_duplicates``.

    Makes and encodes at most 1,000 edits: texts with up to three changed words, pictures with a small crop, another
    brightness or recompression.

    Parameters
    ----------
    rows
        All rows of the gallery.
    encode
        The posteriors of texts or pictures, by the encoder of the gallery.
    texts
        Of all rows.
    pictures
        A folder with pictures named after the ids; items without a picture are not edited.
    precision
        Expected share of copies among the reported pairs that are not equal (default 0.9).
    observer
        Called with (the name of the part, done, in total).
    """
    rng = np.random.default_rng(0)
    n = len(rows)
    chosen = np.sort(rng.permutation(n)[:_MADE])
    edited: list[Any] = []
    if texts is not None:
        originals = [str(texts[row]) for row in chosen.tolist()]
        edited = TextEditor(texts, rng).edit_all(originals)
    elif pictures is not None:
        files = [(row, find_picture(pictures.resolve(), rows.ids[row])) for row in chosen.tolist()]
        known = [(row, file) for row, file in files if file is not None]
        chosen = np.array([row for row, _ in known], np.int64)
        edited = [edit_picture(file, rng) for _, file in known]
    else:
        raise InvalidInputError(
            "copies can be made of texts or pictures, but the gallery has neither."
        )
    if len(edited) < FEWEST_EXAMPLES:
        raise InvalidInputError(
            f"{len(edited)} items can be edited, but at least {FEWEST_EXAMPLES} are needed to find near duplicates."
        )
    parts = []
    for start in range(0, len(edited), _BATCH):
        parts.append(stored_direction(encode(edited[start : start + _BATCH]).mu))
        if observer is not None:
            observer("encoding copies", min(start + _BATCH, len(edited)), len(edited))
    return find_near_duplicates(
        rows.mu,
        np.concatenate(parts),
        chosen,
        precision=precision,
        texts=texts,
        copy_texts=edited if texts is not None else None,
        observer=None if observer is None else lambda done: observer("comparing pairs", done, n),
    )
