"""log I_v and the ratios A_l against mpmath and scipy, over orders and arguments."""

import math

import mpmath as mp
import pytest
import scipy.special
import torch
from hypothesis import given, strategies as st

from aureole import sphere
from aureole.sphere import _bessel as bessel
from aureole.sphere._bessel import bessel_ratios

ORDERS = (0.0, 0.5, 1.0, 3.5, 23.5, 24.0, 100.0, 511.0, 2047.0)
ARGUMENTS = (1e-6, 1e-3, 1.0, 10.0, 100.0, 1e4, 1e6)


@pytest.mark.parametrize("order", ORDERS)
def test_log_bessel_i_matches_mpmath(order):
    values = sphere.log_bessel_i(order, torch.tensor(ARGUMENTS, dtype=torch.float64))
    with mp.workdps(50):
        for x, value in zip(ARGUMENTS, values.tolist(), strict=True):
            truth = mp.log(mp.besseli(order, mp.mpf(x)))
            assert abs(value - truth) <= 1e-13 * max(abs(truth), 1)


@pytest.mark.parametrize("order", [0.0, 0.5, 4.0, 31.0])
def test_ratios_match_mpmath(order):
    arguments = (0.0, 1e-3, 1.0, 16.0, 1e3, 1e6)
    values = bessel_ratios(order, torch.tensor(arguments, dtype=torch.float64), 40)
    with mp.workdps(50):
        for x, row in zip(arguments, values.tolist(), strict=True):
            for term in (0, 1, 2, 7, 20, 39):
                low, high = (mp.besseli(order + j, mp.mpf(x)) for j in (0, term))
                truth = high / low if x else mp.mpf(term == 0)
                assert abs(row[term] - truth) <= 1e-13 * abs(truth)


def test_ratios_match_scipy_where_scipy_is_right():
    x = torch.linspace(0.1, 300, 200, dtype=torch.float64)
    truth = scipy.special.ive(5.0, x.numpy()) / scipy.special.ive(4.0, x.numpy())
    assert torch.allclose(bessel.bessel_ratio(4.0, x), torch.from_numpy(truth), rtol=1e-12)


def test_one_term_is_one_and_more_terms_do_not_change_the_first():
    x = torch.tensor([0.0, 2.0, 500.0], dtype=torch.float64)
    assert (bessel_ratios(1.5, x, 1) == 1).all()
    few, many = bessel_ratios(1.5, x, 5), bessel_ratios(1.5, x, 90)
    assert torch.allclose(few, many[..., :5], rtol=1e-14)


@given(order=st.floats(0, 3000), x=st.floats(0, 1e150))
def test_the_ratio_obeys_amos_bounds(order, x):
    """x / (v + 1 + sqrt(x^2 + (v+1)^2)) <= I_(v+1)/I_v <= x / (v + sqrt(x^2 + (v+2)^2)) (Amos 1974)."""
    value = bessel.bessel_ratio(order, torch.tensor(x, dtype=torch.float64)).item()
    low = x / (order + 1 + math.hypot(x, order + 1))
    high = x / (order + math.hypot(x, order + 2))
    assert low * (1 - 1e-14) <= value <= high * (1 + 1e-14)


@given(order=st.floats(0, 3000), x=st.floats(0, 1e300))
def test_ratio_and_complement_sum_to_one(order, x):
    k = torch.tensor(x, dtype=torch.float64)
    total = bessel.bessel_ratio(order, k) + bessel.bessel_ratio_complement(order, k)
    assert abs(total.item() - 1) < 1e-15 * 100
