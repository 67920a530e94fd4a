"""Risk control: wrong claims stay below the stated error, and true claims are found."""

import numpy as np
import pytest

from aureole.retrieval._risk_control import last_safe, mean_is_below

DRAWS = {
    "coins": lambda rng, n: (rng.random(n) < 0.5).astype(float),
    "uniform": lambda rng, n: rng.random(n),
    "rare": lambda rng, n: np.where(rng.random(n) < 0.05, 1.0, 0.4737),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("n", [20, 400])
def test_a_mean_at_the_bound_is_rarely_called_safe(name, n):
    rng = np.random.default_rng(0)
    wrong = [mean_is_below(DRAWS[name](rng, n), 0.5, most=1.0, error=0.1) for _ in range(1500)]
    assert np.mean(wrong) <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 1500)


def test_a_mean_below_the_bound_is_found():
    rng = np.random.default_rng(1)
    found = [mean_is_below(0.9 * rng.random(1000), 0.5, most=1.0, error=0.1) for _ in range(100)]
    assert np.mean(found) > 0.95


def test_negative_losses_are_scaled():
    rng = np.random.default_rng(2)
    losses = rng.choice([-0.5, 0.5], 2000, p=[0.6, 0.4])
    assert mean_is_below(losses, 0.0, most=0.5, least=-0.5, error=0.05)
    assert not mean_is_below(-losses, 0.0, most=0.5, least=-0.5, error=0.05)


def test_no_losses_show_nothing():
    assert not mean_is_below(np.zeros(0), 0.5, most=1.0, error=0.1)


def test_the_sequence_ends_at_the_first_failure():
    safe, unsafe = np.zeros(100), np.ones(100)
    options = {"most": 1.0, "error": 0.1}
    assert last_safe([safe, safe, unsafe, safe], 0.5, **options) == 1
    assert last_safe([unsafe, safe], 0.5, **options) is None
