"""Risk control: thresholds whose precision or recall holds for new queries with a stated confidence.

Learn-then-Test (Angelopoulos et al., 2021): for each threshold, test on held-out queries the hypothesis that its risk
is too high, in a fixed order that does not depend on these queries, and stop at the first test that does not reject.
The thresholds before it are safe, all of them together with the stated confidence. The test is a bet against the
hypothesis (Waudby-Smith and Ramdas, 2023), valid for any number of queries and any bounded loss.
"""

import math
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

_MOST_AT_STAKE = 0.75  # of the wealth: a larger bet could lose all of it in one query


def mean_is_below(
    losses: Float[np.ndarray, " n"], bound: float, *, most: float, least: float = 0.0, error: float
) -> bool:
    """Whether independent losses between ``least`` and ``most`` show that their expectation is at most ``bound``.

    If it is not, the answer is True with probability at most ``error``, for every n and every distribution. The stakes
    follow the variance of the losses seen before, so the order of the losses matters and must be random.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> losses = rng.random(500)
    >>> [mean_is_below(losses, bound, most=1.0, error=0.1) for bound in (0.5, 0.53, 0.56)]
    [False, False, True]
    """
    if not least < bound < most:
        return bound >= most
    if not len(losses):
        return False
    loss = (np.asarray(losses, dtype=np.float64) - least) / (most - least)
    bound = (bound - least) / (most - least)
    before = np.arange(1, len(loss) + 1)
    mean = (0.5 + np.cumsum(loss)) / (before + 1)
    variance = (0.25 + np.cumsum((loss - mean) ** 2)) / (before + 1)
    variance = np.concatenate([[0.25], variance[:-1]])
    stake = np.sqrt(2 * math.log(1 / error) / (len(loss) * variance))
    stake = np.minimum(stake, _MOST_AT_STAKE / (1 - bound))
    wealth = np.cumsum(np.log1p(-stake * (loss - bound)))
    return bool(wealth.max() >= math.log(1 / error))


def last_safe(
    losses: Iterable[Float[np.ndarray, " n"]],
    bound: float,
    *,
    most: float,
    least: float = 0.0,
    error: float,
) -> int | None:
    """How many of a sequence of losses, one array per threshold, are shown to be safe before the first that is not.

    Returns the index of the last safe one, or None. With probability at least 1 - ``error`` all up to it are safe.
    """
    last = None
    for index, values in enumerate(losses):
        if not mean_is_below(values, bound, most=most, least=least, error=error):
            break
        last = index
    return last
