"""Interpolated log positivities against the integral, values and gradients."""

import math

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.sphere import log_positivity
from aureole.sphere._interpolation import interpolated_log_positivity

SETTINGS = [  # dim, kappa_pos, middle of kappa, spread of its log
    (2, 20.0, 500.0, 0.5),
    (4, 20.0, 500.0, 1.0),
    (10, 20.0, 500.0, 1.0),
    (32, 64.0, 200.0, 0.5),
    (32, 64.0, 2000.0, 2.0),
    (128, 256.0, 1000.0, 0.5),
]


def entries(n, middle, spread):
    rng = torch.Generator().manual_seed(0)
    c = torch.rand(n, generator=rng, dtype=torch.float64) * 1.2 - 0.7
    kappas = (torch.randn(2, n, generator=rng, dtype=torch.float64) * spread).exp() * middle
    return c, kappas[0], kappas[1]


@pytest.mark.parametrize(("dim", "kappa_pos", "middle", "spread"), SETTINGS)
def test_values_are_those_of_the_integral(dim, kappa_pos, middle, spread):
    c, first, second = entries(20_000, middle, spread)
    found = interpolated_log_positivity(c, first, second, kappa_pos, dim)
    some = slice(0, None, 100)
    exact = log_positivity(c[some], first[some], second[some], kappa_pos, dim)
    assert (found[some] - exact).abs().max() < 5e-3
    assert exact.max() - exact.min() > 10  # the range is wide, so that this says something


def test_gradients_are_those_of_the_integral():
    dim, some = 32, slice(0, None, 500)
    c, first, second = entries(20_000, 200.0, 0.5)
    kappa_pos = torch.tensor(64.0, dtype=torch.float64, requires_grad=True)
    inputs = [x.requires_grad_() for x in (c, first, second)]
    value = interpolated_log_positivity(*inputs, kappa_pos, dim)[some].sum()
    found = torch.autograd.grad(value, [*inputs, kappa_pos])
    picked = [x.detach()[some].requires_grad_() for x in inputs]
    exact = torch.autograd.grad(log_positivity(*picked, kappa_pos, dim).sum(), [*picked, kappa_pos])
    for got, true in zip(found[:3], exact[:3], strict=True):
        assert (got[some] - true).abs().max() < 2e-3 * true.abs().max()
        assert torch.count_nonzero(got) == torch.count_nonzero(got[some])
    # held at fixed kappas, not at the grid's fixed places
    assert found[3].item() == pytest.approx(exact[3].item(), rel=2e-3)
    assert abs(exact[3].item()) > 0.1


@pytest.mark.parametrize("kappa", [0.0, math.inf])
def test_the_ends_of_kappa_are_exact(kappa):
    c, first, second = entries(2000, 200.0, 0.5)
    first[7] = kappa
    found = interpolated_log_positivity(c, first, second, 64.0, 32)
    assert torch.equal(found, log_positivity(c, first, second, 64.0, 32, rough=True))


def test_a_cosine_that_is_nan_leaves_the_other_entries_alone():
    c, first, second = entries(2000, 200.0, 0.5)
    exact = log_positivity(c, first, second, 64.0, 32)
    c[7] = math.nan
    found = interpolated_log_positivity(c, first, second, 64.0, 32)
    assert found[7].isnan()
    others = torch.arange(2000) != 7
    assert (found - exact)[others].abs().max() < 5e-3


def test_few_entries_and_single_values():
    c, first, second = entries(50, 200.0, 0.5)
    found = interpolated_log_positivity(c, first, second, 64.0, 32)
    assert torch.equal(found, log_positivity(c, first, second, 64.0, 32, rough=True))
    for value in (-0.3, 0.0, 0.3):
        same = torch.full((2000,), value, dtype=torch.float64)
        kappa = torch.full((2000,), 300.0, dtype=torch.float64)
        found = interpolated_log_positivity(same, kappa, kappa, 64.0, 32)
        exact = log_positivity(same[:1], kappa[:1], kappa[:1], 64.0, 32)
        assert (found - exact).abs().max() < 1e-6


def test_a_range_too_wide_for_the_grid_is_left_to_the_integral():
    c, first, second = entries(1500, 100.0, 0.5)
    first[::3] = 1e-3
    found = interpolated_log_positivity(c, first, second, 64.0, 32, tolerance=1e-12)
    assert torch.equal(found, log_positivity(c, first, second, 64.0, 32))


def test_no_entries_have_no_values():
    none = torch.empty(0, dtype=torch.float64)
    assert interpolated_log_positivity(none, none, none, 64.0, 32).shape == (0,)


def test_concentrations_that_are_none_are_refused():
    c, first, second = entries(2000, 200.0, 0.5)
    first[7] = math.nan
    with pytest.raises(InvalidInputError, match=r"kappa1\[7\] is nan"):
        interpolated_log_positivity(c, first, second, 64.0, 32)
