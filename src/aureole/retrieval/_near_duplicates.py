"""Near duplicates: the pairs of a gallery that are edited copies of each other, with a probability each, and groups."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from aureole.data import words_of
from aureole.errors import InvalidInputError
from aureole.retrieval._brute_force import unit_rows
from aureole.retrieval._copy_probability import cut
from aureole.retrieval._pair_closeness import Closeness, CopyEstimate, compare_angles, compare_words

FEWEST_EXAMPLES = 20
_BLOCK = 2**25  # cosines in memory at a time


@dataclass(frozen=True)
class NearDuplicates:
    """Pairs of rows that are likely copies, and the groups that they form.

    Attributes
    ----------
    pairs
        Row numbers, the lower one first; the most probable pair first.
    probabilities
        That each pair is a copy; 1 for equal pairs.
    cosines
        Of each pair.
    changed_words
        Words in which each pair differs; None without texts.
    equal
        Whether a pair has the same words in the same order, or, without texts, the same vector.
    groups
        Row numbers of each group of rows that pairs connect, the largest group first.
    threshold
        The lowest probability that is reported; infinite if only equal pairs are.
    expected_precision
        The mean probability of the reported pairs that are not equal; NaN without such pairs.
    expected_recall
        The expected share of the edited copies among the compared pairs that are reported; NaN without such pairs.
    edited_copies
        The estimated number of pairs of edited copies among the compared pairs.
    profile
        Pairs that are not equal by closeness, the closest first, up to the reach of the examples.
    """

    pairs: Int[np.ndarray, "p 2"]
    probabilities: Float[np.ndarray, " p"]
    cosines: Float[np.ndarray, " p"]
    changed_words: Int[np.ndarray, " p"] | None
    equal: Bool[np.ndarray, " p"]
    groups: list[np.ndarray]
    threshold: float
    expected_precision: float
    expected_recall: float
    edited_copies: float
    profile: tuple[Closeness, ...]

    def without(self, pairs: Int[np.ndarray, "q 2"]) -> "NearDuplicates":
        """The result without some pairs, such as those that a person has labelled as different."""
        dropped = {(min(pair), max(pair)) for pair in np.asarray(pairs).reshape(-1, 2).tolist()}
        kept = np.array([tuple(pair) not in dropped for pair in self.pairs.tolist()], dtype=bool)
        edited = self.probabilities[kept & ~self.equal]
        changed = self.changed_words
        return replace(
            self,
            pairs=self.pairs[kept],
            probabilities=self.probabilities[kept],
            cosines=self.cosines[kept],
            changed_words=None if changed is None else changed[kept],
            equal=self.equal[kept],
            groups=_connected(self.pairs[kept]),
            expected_precision=float(edited.mean()) if len(edited) else math.nan,
        )


def find_near_duplicates(
    vectors: Any,
    copies: Any,
    originals: Any,
    *,
    precision: float = 0.99,
    texts: Sequence[Any] | None = None,
    copy_texts: Sequence[Any] | None = None,
    neighbours: int = 20,
    observer: Callable[[int], None] | None = None,
) -> NearDuplicates:
    """The pairs of a gallery that are copies of each other, as close as examples of copies are.

    Compares each row with its nearest rows: by the angle between vectors, or, with texts, by the number of words in
    which they differ. The probability of a pair compares how many such pairs the gallery has with how many
    coincidences it would have, as continued from pairs that are farther apart than the examples. Equal pairs are
    always reported.

    What is controlled: of the reported pairs that are not equal, the expected share of copies is at least
    ``precision``. It holds if coincidences fall off towards closer pairs at least as fast as they do just beyond the
    examples, and is an expectation, not a bound with a confidence.

    Cost: n^2 dim operations, in blocks of about 130 MB.

    Parameters
    ----------
    vectors
        Of the gallery, one per row; they are normalised here.
    copies, originals
        Examples: the vectors of copies, and the row of the gallery that each was made from. At least 20.
    precision
        Expected share of copies among the reported pairs that are not equal (default 0.99).
    texts, copy_texts
        The texts of the gallery and of the examples (default: only vectors are compared). Words are not compared if
        the examples differ in more than 12 of them.
    neighbours
        Nearest rows that each row is compared with (default 20).
    observer
        Called with the number of rows done; with texts, again from 0 while words are compared.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gallery = rng.standard_normal((1000, 16))
    >>> gallery[990:] = gallery[:10] + 0.05 * rng.standard_normal((10, 16))
    >>> copies = gallery[:200] + 0.05 * rng.standard_normal((200, 16))
    >>> found = find_near_duplicates(gallery, copies, range(200))
    >>> len(found.pairs), found.pairs.min(0).tolist(), found.pairs.max(0).tolist()
    (10, [0, 990], [9, 999])
    """
    if not 0 < precision < 1:
        raise InvalidInputError(f"precision must lie between 0 and 1, but is {precision!r}.")
    gallery, made = unit_rows(vectors, "vectors"), unit_rows(copies, "copies")
    origin = _checked_rows(originals, len(made), gallery)
    if made.shape[1] != gallery.shape[1]:
        raise InvalidInputError(
            f"vectors have dimension {gallery.shape[1]}, but copies have {made.shape[1]}."
        )
    pairs, cosines, farthest = _nearest_pairs(gallery, neighbours, observer)
    estimate = None
    if texts is not None or copy_texts is not None:
        words = _words(texts, len(gallery), "texts")
        shown = (_words(copy_texts, len(made), "copy_texts"), [words[row] for row in origin])
        estimate = compare_words(words, pairs, shown, observer)
    if estimate is None:
        own = np.einsum("nd,nd->n", made, gallery[origin])
        estimate = compare_angles(cosines, own, farthest)
    return _reported(pairs, cosines, estimate, precision)


def _checked_rows(originals: Any, count: int, gallery: np.ndarray) -> np.ndarray:
    rows = np.asarray(originals)
    if rows.shape != (count,) or rows.dtype.kind not in "iu":
        raise InvalidInputError(
            f"originals must be one row number per copy, but there are {count} copies and originals has shape "
            f"{rows.shape} and type {rows.dtype}."
        )
    if count < FEWEST_EXAMPLES:
        raise InvalidInputError(f"at least {FEWEST_EXAMPLES} examples are needed, but got {count}.")
    if rows.min() < 0 or rows.max() >= len(gallery):
        raise InvalidInputError(
            f"originals has rows from {rows.min()} to {rows.max()}, but there are {len(gallery)} vectors."
        )
    if len(gallery) < 2:
        raise InvalidInputError("a gallery of one row has no pairs.")
    return rows


def _words(texts: Sequence[Any] | None, count: int, name: str) -> list[list[str]]:
    if texts is None or len(texts) != count:
        got = "are missing" if texts is None else f"has {len(texts)} entries"
        raise InvalidInputError(f"{name} {got}, but there are {count} vectors of them.")
    wrong = next((row for row, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        kind = type(texts[wrong]).__name__
        raise InvalidInputError(f"entry {wrong} of {name} must be a string, not {kind}.")
    return [words_of(text) for text in texts]


def _nearest_pairs(
    gallery: np.ndarray, neighbours: int, observer: Callable[[int], None] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Pairs of each row and its nearest rows, their cosines, the lowest cosine of each row)."""
    if neighbours < 1:
        raise InvalidInputError(f"neighbours must be at least 1, but is {neighbours!r}.")
    n = len(gallery)
    k, block = min(neighbours, n - 1), max(1, _BLOCK // n)
    codes, values, lowest = [], [], np.empty(n, np.float32)
    for start in range(0, n, block):
        products = gallery[start : start + block] @ gallery.T
        own = np.arange(start, start + len(products))
        products[own - start, own] = -np.inf
        best = np.argpartition(products, n - k, axis=1)[:, n - k :]
        cosines = np.take_along_axis(products, best, 1)
        lowest[own] = cosines.min(1)
        low, high = np.minimum(own[:, None], best), np.maximum(own[:, None], best)
        codes.append((low * n + high).ravel())
        values.append(cosines.ravel())
        if observer is not None:
            observer(start + len(products))
    code, first = np.unique(np.concatenate(codes), return_index=True)
    cosines = np.minimum(np.concatenate(values)[first], 1.0)
    return np.stack(np.divmod(code, n), axis=1), cosines, lowest


def _reported(
    pairs: np.ndarray, cosines: np.ndarray, estimate: CopyEstimate, precision: float
) -> NearDuplicates:
    """The pairs above the threshold, in order, and their groups."""
    edited = np.where(estimate.equal, 0.0, estimate.probability)
    threshold = cut(edited, precision)
    kept = np.flatnonzero(estimate.equal | (edited >= threshold))
    probability = np.where(estimate.equal[kept], 1.0, edited[kept])
    order = np.lexsort((kept, -cosines[kept], -probability, ~estimate.equal[kept]))
    kept, probability = kept[order], probability[order]
    shown = edited[kept][~estimate.equal[kept]]
    return NearDuplicates(
        pairs=pairs[kept],
        probabilities=probability,
        cosines=cosines[kept],
        changed_words=None if estimate.changed is None else estimate.changed[kept],
        equal=estimate.equal[kept],
        groups=_connected(pairs[kept]),
        threshold=threshold,
        expected_precision=float(shown.mean()) if len(shown) else math.nan,
        expected_recall=float(shown.sum() / edited.sum()) if edited.sum() else math.nan,
        edited_copies=estimate.copies,
        profile=estimate.profile,
    )


def _connected(pairs: np.ndarray) -> list[np.ndarray]:
    """The connected components of the graph of pairs, the largest first, then by their first row."""
    parent: dict[int, int] = {}

    def root(row: int) -> int:
        while parent.setdefault(row, row) != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for one, two in pairs.tolist():
        low, high = sorted((root(one), root(two)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for row in sorted(parent):
        members.setdefault(root(row), []).append(row)
    return [np.array(group) for group in sorted(members.values(), key=lambda g: (-len(g), g[0]))]
