"""Identities and round trips of the functions of kappa."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere._normalizer import mean_resultant_complement, transverse_variance
from tests.oracles.vmf import DIMS

kappas = st.floats(0, 1e12)
dims = st.integers(2, 5000)


def tensor(value):
    return torch.tensor(value, dtype=torch.float64)


@given(kappa=kappas, dim=dims)
def test_inverse_undoes_the_length(kappa, dim):
    k = tensor(kappa)
    gap = mean_resultant_complement(k, dim)
    found = sphere.inverse_mean_resultant_length(gap, dim, complement=True).item()
    # near kappa = 0 the complement rounds at 1: kappa is known to 1e-16 * D at best
    assert abs(found - kappa) <= 1e-11 * kappa + 1e-15 * dim


@pytest.mark.parametrize("dim", DIMS)
def test_inverse_keeps_relative_accuracy_for_short_lengths(dim):
    k = torch.tensor([1e-9, 1e-6, 1e-3, 1.0, 30.0], dtype=torch.float64)
    length = sphere.mean_resultant_length(k, dim)
    found = sphere.inverse_mean_resultant_length(length, dim)
    assert torch.allclose(found, k, rtol=1e-10, atol=0)


def test_inverse_at_the_ends():
    ends = tensor([0.0, 1.0])
    assert sphere.inverse_mean_resultant_length(ends, 10).tolist() == [0.0, math.inf]
    assert sphere.inverse_mean_resultant_length(1 - ends, 10, complement=True).tolist() == [
        0.0,
        math.inf,
    ]


@pytest.mark.parametrize("complement", [False, True])
def test_inverse_of_what_is_no_length_is_nan(complement):
    lengths = tensor([-0.1, 0.5, 1.5, math.nan, -math.inf, math.inf])
    found = sphere.inverse_mean_resultant_length(lengths, 10, complement=complement)
    assert found.isnan().tolist() == [True, False, True, True, True, True]


@pytest.mark.parametrize("dim", [2, 10, 512])
def test_inverse_of_lengths_that_rounding_moved_above_one(dim):
    length = sphere.mean_resultant_length(torch.logspace(10, 30, 20_000, dtype=torch.float64), dim)
    assert (length > 1).any()
    assert (sphere.inverse_mean_resultant_length(length, dim) > 1e9).all()
    beyond = torch.tensor([-1e-7, 1 + 2e-7])
    assert sphere.inverse_mean_resultant_length(beyond, dim).tolist() == [0, math.inf]


@pytest.mark.parametrize("gap", [1e-320, 1e-300, 1e-160, 1e-99, 1e-30])
def test_inverse_for_lengths_next_to_one(gap):
    found = sphere.inverse_mean_resultant_length(tensor(gap), 10, complement=True).item()
    assert found == math.inf if gap < 1e-307 else found == pytest.approx(4.5 / gap, rel=1e-12)


@given(kappa=st.floats(0, 1e8), dim=dims)
def test_information_is_lost_entropy(kappa, dim):
    k = tensor(kappa)
    lost = sphere.log_sphere_area(dim) - sphere.entropy(k, dim)
    scale = abs(sphere.log_sphere_area(dim)) + sphere.information(k, dim).abs() + 1
    assert (lost - sphere.information(k, dim)).abs() <= 1e-13 * scale
    assert sphere.information(k, dim) >= 0


@given(kappa=st.floats(0, 1e8), dim=dims)
def test_variances_add_up_to_the_whole(kappa, dim):
    """E|z|^2 = 1: A^2 + Var along mu + (D-1) Var across = 1."""
    k = tensor(kappa)
    length = sphere.mean_resultant_length(k, dim)
    along = sphere.mean_resultant_slope(k, dim)
    across = transverse_variance(k, dim)
    assert abs(length**2 + along + (dim - 1) * across - 1) < 1e-12


def test_closed_forms_for_the_ordinary_sphere():
    k = tensor([0.1, 1.0, 7.0])
    truth = torch.log(k / (4 * math.pi * torch.sinh(k)))
    assert torch.allclose(sphere.log_normalizer(k, 3), truth, rtol=1e-14)
    assert torch.allclose(sphere.mean_resultant_length(k, 3), 1 / torch.tanh(k) - 1 / k, rtol=1e-13)


@pytest.mark.parametrize("dim", [1, 0, -3])
def test_a_wrong_dimension_is_named(dim):
    with pytest.raises(InvalidInputError, match=rf"at least 2 .*but is {dim}"):
        sphere.log_normalizer(torch.tensor(1.0), dim)
