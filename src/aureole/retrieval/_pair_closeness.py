"""How close the pairs of a gallery are, by changed words or by angle, and the probability that each is a copy."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aureole.retrieval._copy_probability import coincidences, copy_shares, decreasing

_REACH = 0.95  # share of the examples that define how far a copy can be from its original
_EQUAL = 1 - 1e-6  # cosine of vectors that differ by rounding
_COLUMNS = 12  # groups of texts by length
_BEYOND = 3  # numbers of changed words beyond the examples at which coincidences are counted
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
class CopyEstimate:
    """Of each compared pair, the probability that it is a copy and whether it is equal; the number of edited copies."""

    probability: np.ndarray
    equal: np.ndarray
    copies: float = 0.0
    profile: tuple[Closeness, ...] = ()
    changed: np.ndarray | None = None


def compare_words(
    words: list[list[str]],
    pairs: np.ndarray,
    examples: tuple[list[list[str]], list[list[str]]],
    observer: Callable[[int], None] | None,
) -> CopyEstimate | None:
    """Probabilities by changed words and length; None if the examples differ in too many words."""
    most = _MOST_CHANGED + _BEYOND
    shown = np.array([changed_words(a, b, most) for a, b in zip(*examples, strict=True)])
    size = np.array([max(len(a), len(b)) for a, b in zip(*examples, strict=True)])
    reach = int(np.quantile(shown, _REACH, method="lower"))
    if reach > _MOST_CHANGED:
        return None
    reach = max(reach, 1)
    top = reach + _BEYOND
    changed = _changed_of_pairs(words, pairs, top, observer)
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
    return CopyEstimate(probability, changed == 0, copies, profile, changed)


def _changed_of_pairs(
    words: list[list[str]],
    pairs: np.ndarray,
    most: int,
    observer: Callable[[int], None] | None,
) -> np.ndarray:
    """The changed words of each pair, at most ``most`` + 1. Bags of words rule out most pairs quickly."""
    bags = [Counter(own) for own in words]
    changed = np.full(len(pairs), most + 1)
    for at, (i, j) in enumerate(pairs.tolist()):
        one, two = words[i], words[j]
        if abs(len(one) - len(two)) <= most and (
            max(len(one), len(two)) - (bags[i] & bags[j]).total() <= most
        ):
            changed[at] = changed_words(one, two, most)
        if observer is not None and not at % 4096:
            observer(i)
    return changed


def _profile(
    limits: np.ndarray, observed: np.ndarray, expected: np.ndarray
) -> tuple[Closeness, ...]:
    columns = (
        limits.astype(np.float64).tolist(),
        observed.sum(1).tolist(),
        expected.sum(1).tolist(),
    )
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


def compare_angles(cosines: np.ndarray, shown: np.ndarray, lowest: np.ndarray) -> CopyEstimate:
    """Probabilities by the angle between vectors."""
    equal = cosines >= _EQUAL
    angles, made = _angles(cosines), _angles(shown[shown < _EQUAL])
    probability = np.zeros(len(cosines))
    if not len(made) or equal.all():
        return CopyEstimate(probability, equal)
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
    return CopyEstimate(probability, equal, copies, _profile(np.cos(edges), observed, expected))


def _angles(cosines: np.ndarray) -> np.ndarray:
    return np.arccos(np.clip(cosines.astype(np.float64), -1.0, 1.0))
