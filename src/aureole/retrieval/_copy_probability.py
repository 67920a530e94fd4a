"""The probability that a close pair is a copy, from how many such pairs a gallery has and how many chance would give.

Examples of copies show how close copies are, but not how many a gallery has. That number comes from the gallery itself.
Beyond the reach of the examples all pairs are coincidences: two people chose nearly the same words, two photos show the
same beach. Their number falls towards closer pairs. It is fitted there as an exponential (texts: per changed word;
vectors: a power of the angle) and continued into the reach of the examples. What the gallery has in excess of it are
copies.
"""

import math

import numpy as np
from jaxtyping import Float, Int

_ROUNDS = 500  # of the EM algorithm
_PSEUDO_COUNT = (
    0.5  # coincidences added to each column, so that none is expected to be free of them
)


def coincidences(
    counts: Float[np.ndarray, "rows columns"],
    used: np.ndarray,
    *,
    prior: float = 1.0,
    weight: float = 1.0,
) -> tuple[float, Float[np.ndarray, " columns"]]:
    """(b, level) of the model that row i of column j counts ``level[j] * exp(b * i)`` coincidences on average.

    Maximum likelihood for Poisson counts, with a Gaussian prior of b.

    Parameters
    ----------
    counts
        Numbers of pairs, in rows of increasing distance.
    used
        Which cells to fit, of the same shape; each column needs one or more.
    prior, weight
        Mean of b before counts are seen, and how many counts it is worth.

    Examples
    --------
    >>> b, level = coincidences(np.array([[10.0, 100.0], [20.0, 200.0]]), np.ones((2, 2), bool))
    >>> round(b, 1), level.round().tolist()
    (0.7, [10.0, 100.0])
    """
    steps = np.arange(len(counts))[:, None]
    seen = np.where(used, counts, 0.0)
    total, b = seen.sum(0), prior
    for _ in range(200):
        share = np.where(used, np.exp(np.clip(b * steps, -500, 500)), 0.0)
        share /= share.sum(0)
        mean = (share * steps).sum(0)
        curvature = total @ (share * (steps - mean) ** 2).sum(0) + weight
        gradient = (seen * steps).sum() - total @ mean - weight * (b - prior)
        step = float(np.clip(gradient / curvature, -1, 1))
        b += step
        if abs(step) < 1e-10:
            break
    b = max(b, 0.0)  # closer pairs are never more frequent by chance
    shape = np.where(used, np.exp(b * steps), 0.0).sum(0)
    return b, (total + _PSEUDO_COUNT) / shape


def copy_shares(
    observed: Int[np.ndarray, "rows columns"],
    expected: Float[np.ndarray, "rows columns"],
    examples: Int[np.ndarray, "rows columns"],
) -> tuple[Float[np.ndarray, "rows columns"], float]:
    r"""(The probability that a pair of each cell is a copy, the number of copies among all pairs).

    Row i holds :math:`\alpha_i f_{ij}` copies and ``expected[i, j]`` coincidences in column j, where f is the share of
    the examples of row i in column j. Maximum likelihood of :math:`\alpha_i` by EM: rows are independent, so it does
    not matter how the examples are spread over rows.

    Parameters
    ----------
    observed
        Numbers of pairs of the gallery.
    expected
        Numbers of coincidences, from :func:`coincidences`.
    examples
        Numbers of examples of copies.
    """
    probability, number = np.zeros(observed.shape), 0.0
    for row, (seen, chance, shown) in enumerate(zip(observed, expected, examples, strict=True)):
        shape = (shown + _PSEUDO_COUNT) / (shown + _PSEUDO_COUNT).sum()
        copies = float(seen.sum())
        for _ in range(_ROUNDS):
            if copies < 1e-9:
                break
            copies = float((seen * copies * shape / (copies * shape + chance)).sum())
        if copies >= 1e-9:
            probability[row] = copies * shape / (copies * shape + chance)
            number += copies
    return probability, number


def decreasing(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """The nearest decreasing sequence in weighted squares, by pooling adjacent violators.

    Examples
    --------
    >>> decreasing(np.array([0.9, 0.5, 0.7, 0.1]), np.ones(4)).tolist()
    [0.9, 0.6, 0.6, 0.1]
    """
    pools: list[tuple[float, float, int]] = []  # value, weight, length
    for value, weight in zip(values.tolist(), (weights + 1e-9).tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] < pool[0]:
            other = pools.pop()
            total = other[1] + pool[1]
            pooled = (other[0] * other[1] + pool[0] * pool[1]) / total
            pool = (pooled, total, other[2] + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(length, value) for value, _, length in pools])


def cut(probabilities: Float[np.ndarray, " n"], precision: float) -> float:
    """The lowest probability such that pairs at or above it average at least ``precision``, or infinity.

    Examples
    --------
    >>> cut(np.array([0.99, 0.9, 0.9, 0.2]), 0.93)
    0.9
    """
    order = np.sort(probabilities[probabilities > 0])[::-1]
    if not len(order):
        return math.inf
    mean = np.cumsum(order) / np.arange(1, len(order) + 1)
    last_of_ties = np.append(order[1:] < order[:-1], True)
    safe = np.flatnonzero((mean >= precision) & last_of_ties)
    return float(order[safe[-1]]) if len(safe) else math.inf
