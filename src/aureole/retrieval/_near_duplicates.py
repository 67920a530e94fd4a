"""Near duplicates: the pairs of a gallery that are edited copies of each other, with a probability each, and groups."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from aureole.data import words_of
from aureole.errors import InvalidInputError
from aureole.retrieval._copy_probability import coincidences, copy_shares, cut, decreasing
from aureole.retrieval._match import unit_rows

_FEWEST = 20  # examples
_REACH = 0.95  # share of the examples that define how far a copy can be from its original
_BLOCK = 2**25  # cosines in memory at a time
_EQUAL = 1 - 1e-6  # cosine of vectors that differ by rounding
_COLUMNS = 12  # groups of texts by length
_BEYOND = (
    3  # numbers of changed words beyond the reach of the examples that coincidences are counted at
)
_MOST_CHANGED = 12  # reach in words, beyond which the words are not compared
_BINS = 12  # of the angle
_WINDOW = 1000  # pairs that the number of coincidences is fitted on, for vectors
_NARROWEST = 1.5  # smallest ratio of the angles that such pairs are taken between


@dataclass(frozen=True)
class Closeness:
    """How many pairs of a gallery are this close, and how many of them chance explains.

    ``limit`` is the number of changed words, or, without texts, the lowest cosine; ``coincidences`` is the expected
    number, which may exceed ``pairs``.
    """

    limit: float
    pairs: int
    coincidences: float


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
        The mean probability of the reported pairs that are not equal; NaN if there are none.
    expected_recall
        The expected share of the edited copies among the compared pairs that are reported; NaN if there are none.
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


@dataclass(frozen=True)
class _Estimate:
    """Of each compared pair, the probability that it is a copy and whether it is equal; the number of edited copies."""

    probability: np.ndarray
    equal: np.ndarray
    copies: float = 0.0
    profile: tuple[Closeness, ...] = ()
    changed: np.ndarray | None = None


def find_near_duplicates(
    vectors: Any,
    copies: Any,
    originals: Sequence[int],
    *,
    precision: float = 0.99,
    texts: Sequence[str] | None = None,
    copy_texts: Sequence[str] | None = None,
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
        Called with the number of rows done.

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
        estimate = _compare_words(words, pairs, shown)
    if estimate is None:
        own = np.einsum("nd,nd->n", made, gallery[origin])
        estimate = _compare_angles(cosines, own, farthest)
    return _reported(pairs, cosines, estimate, precision)


def _checked_rows(originals: Any, count: int, gallery: np.ndarray) -> np.ndarray:
    rows = np.asarray(originals)
    if rows.shape != (count,) or rows.dtype.kind not in "iu":
        raise InvalidInputError(
            f"originals must be one row number per copy, but there are {count} copies and originals has shape "
            f"{rows.shape} and type {rows.dtype}."
        )
    if count < _FEWEST:
        raise InvalidInputError(f"at least {_FEWEST} examples are needed, but got {count}.")
    if rows.min() < 0 or rows.max() >= len(gallery):
        raise InvalidInputError(
            f"originals has rows from {rows.min()} to {rows.max()}, but there are {len(gallery)} vectors."
        )
    if len(gallery) < 2:
        raise InvalidInputError("a gallery of one row has no pairs.")
    return rows


def _words(texts: Sequence[str] | None, count: int, name: str) -> list[list[str]]:
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


def _compare_words(
    words: list[list[str]], pairs: np.ndarray, examples: tuple[list[list[str]], list[list[str]]]
) -> _Estimate | None:
    """Probabilities by changed words and length; None if the examples differ in too many words."""
    most = _MOST_CHANGED + _BEYOND
    shown = np.array([changed_words(a, b, most) for a, b in zip(*examples, strict=True)])
    size = np.array([max(len(a), len(b)) for a, b in zip(*examples, strict=True)])
    reach = int(np.quantile(shown, _REACH, method="lower"))
    if reach > _MOST_CHANGED:
        return None
    reach = max(reach, 1)
    top = reach + _BEYOND
    bags = [Counter(own) for own in words]
    changed = np.full(len(pairs), top + 1)
    for at, (i, j) in enumerate(pairs.tolist()):
        longest = max(len(words[i]), len(words[j]))
        if abs(len(words[i]) - len(words[j])) <= top and (
            longest - sum((bags[i] & bags[j]).values()) <= top
        ):
            changed[at] = changed_words(words[i], words[j], top)
    count = np.array([len(own) for own in words])
    length = count[pairs].max(1)
    edited = (shown > 0) & (shown <= reach)
    edges = np.unique(np.quantile(size, np.linspace(0, 1, _COLUMNS + 1)[1:-1]))
    column, own = (np.searchsorted(edges, x, side="right") for x in (length, size))
    observed = _table(changed, column, (top + 1, len(edges) + 1))
    shape = _table(shown[edited], own[edited], (top + 1, len(edges) + 1))
    middle = np.append(edges, size.max())
    outside = np.arange(reach + 1, top + 1)[:, None]
    # where more than half of the words differ, the number of pairs no longer grows with each changed word
    used = (outside <= middle / 2) | (outside == reach + 1)
    b, level = coincidences(observed[reach + 1 :].astype(np.float64), used)
    inside = np.arange(1, reach + 1)[:, None]
    expected = level * np.exp(b * (inside - reach - 1))
    share, copies = copy_shares(observed[1 : reach + 1], expected, shape[1 : reach + 1])
    probability = np.zeros(len(pairs))
    near = (changed > 0) & (changed <= reach)
    probability[near] = share[changed[near] - 1, column[near]]
    profile = _profile(inside[:, 0], observed[1 : reach + 1], expected)
    return _Estimate(probability, changed == 0, copies, profile, changed)


def _profile(
    limits: np.ndarray, observed: np.ndarray, expected: np.ndarray
) -> tuple[Closeness, ...]:
    columns = (limits.tolist(), observed.sum(1).tolist(), expected.sum(1).tolist())
    return tuple(Closeness(*row) for row in zip(*columns, strict=True))


def changed_words(one: Sequence[str], two: Sequence[str], most: int) -> int:
    """The length of the longer sequence less that of the longest common subsequence; ``most`` + 1 if it is larger.

    A word that is replaced, dropped, added or moved counts once. Cost: length * most.

    Examples
    --------
    >>> changed_words("a deer jumps over a fence".split(), "a deer is jumping over a fence".split(), 3)
    2
    """
    if len(one) > len(two):
        one, two = two, one
    if len(two) - len(one) > most:
        return most + 1
    if one == two:
        return 0
    # common subsequences that leave out at most `most` words of either side stay near the diagonal
    before = [0] * (len(two) + 2)
    for i, word in enumerate(one, 1):
        row = before.copy()
        for j in range(max(1, i - most), min(len(two), i + most) + 1):
            match = before[j - 1] + 1 if word == two[j - 1] else 0
            row[j] = max(match, before[j], row[j - 1])
        end = min(len(two), i + most)
        row[end + 1 :] = [row[end]] * (len(row) - end - 1)
        before = row
    return min(len(two) - before[len(two)], most + 1)


def _table(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """How many pairs are in each cell; rows beyond the table are left out."""
    kept = rows < shape[0]
    flat = np.bincount(rows[kept] * shape[1] + columns[kept], minlength=shape[0] * shape[1])
    return flat.reshape(shape)


def _compare_angles(cosines: np.ndarray, shown: np.ndarray, lowest: np.ndarray) -> _Estimate:
    """Probabilities by the angle between vectors."""
    equal = cosines >= _EQUAL
    angles, made = _angles(cosines), _angles(shown[shown < _EQUAL])
    probability = np.zeros(len(cosines))
    if not len(made) or equal.all():
        return _Estimate(probability, equal)
    # pairs beyond the lowest cosine of most rows are not all among the compared ones
    end = float(np.quantile(_angles(lowest), 0.1))
    start = min(float(np.quantile(made, _REACH)), end / _NARROWEST)
    beyond = np.sort(angles[(angles >= start) & (angles <= end) & ~equal])
    if len(beyond) > _WINDOW:
        end = max(float(beyond[_WINDOW]), start * _NARROWEST ** (1 / 4))
        beyond = beyond[beyond <= end]
    width = math.log(end / start) / _BINS
    bins = np.minimum((np.log(beyond / start) / width).astype(int), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS).astype(np.float64)[:, None]
    b, level = coincidences(counts, np.ones((_BINS, 1), bool), prior=2 * width, weight=width**2)
    reached = np.append(made[made < start], start)
    edges = np.unique(np.quantile(reached, np.linspace(0, 1, _BINS + 1)[1:]))
    # counts of bins continue as a geometric series; all bins up to an angle together
    power = max(b, 1e-6) / width
    up_to = float(level[0]) / math.expm1(power * width) * (edges / start) ** power
    expected = np.diff(up_to, prepend=0.0)[:, None]
    inside = (angles < start) & ~equal
    row = np.searchsorted(edges, angles[inside], side="right")
    observed = np.bincount(row, minlength=len(edges))[:, None]
    share, copies = copy_shares(observed, expected, np.ones_like(observed))
    share = decreasing(share[:, 0], observed[:, 0].astype(np.float64))
    probability[inside] = share[row]
    return _Estimate(probability, equal, copies, _profile(np.cos(edges), observed, expected))


def _angles(cosines: np.ndarray) -> np.ndarray:
    return np.arccos(np.clip(cosines.astype(np.float64), -1.0, 1.0))


def _reported(
    pairs: np.ndarray, cosines: np.ndarray, estimate: _Estimate, precision: float
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
