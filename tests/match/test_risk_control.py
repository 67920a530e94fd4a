"""Risk control: wrong claims stay below the stated error, true claims are found, and the bet is that of the paper."""

import math

import numpy as np
import pytest

from aureole.match._quality import last_safe, mean_is_below

DRAWS = {
    "coins": lambda rng, n, mean: (rng.random(n) < mean).astype(float),
    "beta": lambda rng, n, mean: rng.beta(2 * mean, 2 * (1 - mean), n),
    "rare": lambda rng, n, mean: np.where(rng.random(n) < 0.05, 1.0, (mean - 0.05) / 0.95),
}


def slow_decision(losses, bound, *, most=1.0, least=0.0, error):
    """Return what Waudby-Smith and Ramdas (2023) decide: bet with what was seen before, win if wealth ever suffices."""
    scale = most - least
    wealth, seen, squares = 1.0, [], 0.0
    for loss in losses:
        variance = (0.25 + squares) / (len(seen) + 1)
        stake = math.sqrt(2 * math.log(1 / error) / (len(losses) * variance))
        stake = min(stake, 0.75 / (1 - (bound - least) / scale))
        wealth *= 1 - stake * (loss - bound) / scale
        if wealth >= 1 / error:
            return True
        seen.append((loss - least) / scale)
        squares += (seen[-1] - (0.5 + sum(seen)) / (len(seen) + 1)) ** 2
    return False


def test_the_bet_is_that_of_the_paper():
    rng, decisions = np.random.default_rng(0), []
    for _ in range(400):
        bound, error = rng.uniform(0.02, 0.98), 10 ** rng.uniform(-2, -0.5)
        losses = rng.beta(1, rng.uniform(1, 3) * (1 / bound - 1), rng.integers(1, 60))
        scaled = {"most": 3.0, "least": -1.0, "error": error}
        decisions.append(slow_decision(losses, bound, error=error))
        assert mean_is_below(losses, bound, most=1.0, error=error) == decisions[-1]
        assert mean_is_below(4 * losses - 1, 4 * bound - 1, **scaled) == decisions[-1]
    assert 100 < sum(decisions) < 300


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(("n", "bound"), [(20, 0.5), (400, 0.5), (60, 0.1), (60, 0.9)])
def test_a_mean_at_the_bound_is_rarely_called_safe(name, n, bound):
    rng = np.random.default_rng(0)
    draws = (DRAWS[name](rng, n, bound) for _ in range(1500))
    wrong = [mean_is_below(losses, bound, most=1.0, error=0.1) for losses in draws]
    assert np.mean(wrong) <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 1500)


def test_a_mean_below_the_bound_is_found():
    rng = np.random.default_rng(1)
    found = [mean_is_below(0.9 * rng.random(1000), 0.5, most=1.0, error=0.1) for _ in range(100)]
    assert np.mean(found) > 0.95


def test_few_losses_are_enough_for_a_loose_bound():
    """At a bound near the largest loss the stake may be large: 0.75 / (1 - bound), not 0.75 / bound."""
    assert mean_is_below(np.zeros(2), 0.9, most=1.0, error=0.1)
    assert not mean_is_below(np.zeros(2), 0.1, most=1.0, error=0.1)


def test_wealth_counts_at_its_highest():
    losses = np.repeat([0.0, 1.0], 200)  # the end of the sequence has lost everything again
    assert mean_is_below(losses, 0.5, most=1.0, error=0.1)
    assert not mean_is_below(losses[::-1], 0.5, most=1.0, error=0.1)


def test_bounds_outside_the_losses_need_no_test():
    for bound in (1.0, 2.0):
        assert mean_is_below(np.ones(3), bound, most=1.0, error=0.1)
        assert mean_is_below(np.zeros(0), bound, most=1.0, error=0.1)
    for bound in (0.0, -1.0):
        assert not mean_is_below(np.zeros(500), bound, most=1.0, error=0.1)
    assert not mean_is_below(np.zeros(0), 0.5, most=1.0, error=0.1)


def test_the_sequence_ends_at_the_first_failure():
    safe, unsafe = np.zeros(100), np.ones(100)
    options = {"most": 1.0, "error": 0.1}
    assert last_safe([safe, safe, unsafe, safe], 0.5, **options) == 1
    assert last_safe([unsafe, safe], 0.5, **options) is None
    assert last_safe([2 * safe - 1, safe], -0.5, least=-1.0, **options) == 0
