"""The benchmark of other libraries: its oracle, and what it calls an error."""

import math

import pytest
from scipy.special import ive

from benchmarks import peer_values, peers


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.01), (3, 1.0), (10, 100.0), (64, 1000.0)])
def test_the_oracle_agrees_with_scipy_where_that_is_finite(dim, kappa):
    order = dim / 2 - 1
    known = (
        order * math.log(kappa)
        - dim / 2 * math.log(2 * math.pi)
        - math.log(ive(order, kappa))
        - kappa
    )
    assert peers.exact_log_normalizer(dim, kappa) == pytest.approx(known, rel=1e-12)
    ratio = ive(order + 1, kappa) / ive(order, kappa)
    assert peers.exact_mean_cosine(dim, kappa) == pytest.approx(ratio, rel=1e-12)


def test_errors_are_the_worst_and_missing_values_are_counted():
    values = {
        f"{d} {k:g}": peers.exact_log_normalizer(d, k) for d in peers.DIMS for k in peers.KAPPAS
    }
    values["2 1"] += 0.5
    values["3 1"] = None
    values["10 1"] = "nothing in 20 s"
    found = peers.normalizer_errors(values)
    assert found["2"]["worst error"] == pytest.approx(0.5 / abs(values["2 1"] - 0.5))
    assert [found[d]["finite"] for d in ("2", "3", "10")] == [7, 6, 6]


def test_a_mean_that_misses_is_counted_in_standard_errors():
    exact = peers.exact_mean_cosine(10, 16.0)
    off = {"10 16": {"mean": exact + 0.1, "spread": 0.1 * math.sqrt(peers.DRAWS), "seconds": 1.0}}
    assert peers.draw_errors(off)["10 16"]["standard errors apart"] == pytest.approx(1.0)
    assert peers.draw_errors({"10 16": None})["10 16"]["fault"] == "not finite"


def test_a_peer_that_fails_or_hangs_is_a_finding():
    def hang():
        while True:
            pass

    assert peer_values.asked(hang, seconds=1) == "nothing in 1 s"
    assert peer_values.asked(lambda: 1 / 0, seconds=5).startswith("ZeroDivisionError")
    assert peer_values.asked(lambda: 2.0, seconds=5) == 2.0


@pytest.mark.parametrize("name", ["aureole", "scipy"])
def test_the_libraries_that_are_here_answer(name):
    _, log_normalizer, cosines = peer_values.PEERS[name]()
    found = peer_values.normalizer_values(log_normalizer, [(10, 16.0)])
    assert found["10 16"] == pytest.approx(peers.exact_log_normalizer(10, 16.0), rel=1e-12)
    drawn = peer_values.draw_values(cosines, [(10, 16.0)], 2000)
    assert peers.draw_errors(drawn)["10 16"]["standard errors apart"] < 4
