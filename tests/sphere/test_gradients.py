"""Every gradient against finite differences, and finite everywhere on the grid."""

import functools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from aureole import sphere
from aureole.sphere._bessel import bessel_ratios
from aureole.sphere._cosine import cap_height, cap_mass_slope
from aureole.sphere._normalizer import mean_resultant_complement, transverse_variance
from tests.oracles.vmf import DIMS, KAPPAS

OF_KAPPA = (
    sphere.log_normalizer,
    sphere.log_scaled_normalizer,
    sphere.mean_resultant_length,
    mean_resultant_complement,
    sphere.mean_resultant_slope,
    transverse_variance,
    sphere.entropy,
    sphere.information,
)
SMALL_DIMS = (2, 3, 4, 10, 64)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("dim", SMALL_DIMS)
@pytest.mark.parametrize("function", OF_KAPPA, ids=lambda f: f.__name__)
def test_functions_of_kappa(function, dim):
    kappa = doubles(0.0, 1e-3, 0.5, 3.0, 100.0)
    assert gradcheck(function, (kappa, dim))
    assert gradgradcheck(function, (kappa, dim))


@pytest.mark.parametrize("order", [0.0, 0.5, 4.0, 31.0])
def test_bessel_functions(order):
    kappa = doubles(1e-3, 0.5, 3.0, 100.0)
    assert gradcheck(functools.partial(sphere.log_bessel_i, order), (kappa,))
    with_zero = doubles(0.0, 0.5, 3.0, 100.0)
    ratios = functools.partial(bessel_ratios, order, n_terms=30)
    assert gradcheck(ratios, (with_zero,))
    assert gradgradcheck(ratios, (with_zero,))


@pytest.mark.parametrize("dim", SMALL_DIMS)
def test_inverse_mean_resultant_length(dim):
    zero = doubles(0.0)  # left of it is NaN, so no difference quotient
    (slope,) = torch.autograd.grad(sphere.inverse_mean_resultant_length(zero, dim), zero)
    assert slope.item() == pytest.approx(dim)
    length = doubles(0.01, 0.3, 0.8)
    assert gradcheck(sphere.inverse_mean_resultant_length, (length, dim))
    assert gradgradcheck(sphere.inverse_mean_resultant_length, (length, dim))
    inverse = functools.partial(sphere.inverse_mean_resultant_length, dim=dim, complement=True)
    assert gradcheck(inverse, (doubles(0.2, 0.7),))


@pytest.mark.parametrize("dim", SMALL_DIMS)
@pytest.mark.parametrize("kappa", [0.0, 0.7, 12.0, 150.0])
@pytest.mark.long
def test_law_of_the_cosine(dim, kappa):
    masses = doubles(0.02, 0.3, 0.7, 0.98)
    kappas = torch.full((4,), kappa, dtype=torch.float64, requires_grad=True)
    heights = cap_height(masses, kappas, dim).detach().requires_grad_()
    cosines = (1 - heights).detach().requires_grad_()
    eps = heights.detach().min().item() * 1e-3  # the finite difference must stay inside the sphere
    check = functools.partial(gradcheck, eps=min(eps, 1e-6), atol=1e-4, rtol=1e-3)
    assert check(functools.partial(sphere.cap_mass, dim=dim), (heights, kappas))
    assert check(functools.partial(cap_mass_slope, dim=dim), (heights, kappas))
    assert check(functools.partial(sphere.cosine_cdf, dim=dim), (cosines, kappas))
    assert check(functools.partial(sphere.cosine_log_pdf, dim=dim), (cosines, kappas))
    for quantile in (sphere.cap_angle, cap_height, sphere.cosine_quantile):
        assert gradcheck(functools.partial(quantile, dim=dim), (masses, kappas), atol=1e-5)
        assert gradgradcheck(functools.partial(quantile, dim=dim), (masses, kappas), atol=1e-4)


def test_quantile_gradient_sums_over_shared_kappas():
    masses = torch.rand(5, 3, dtype=torch.float64).requires_grad_()
    kappas = doubles(1.0, 10.0, 40.0)
    assert gradcheck(functools.partial(sphere.cap_angle, dim=7), (masses, kappas), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("dim", DIMS)
def test_values_and_gradients_are_finite_on_the_grid(dim, dtype):
    kappa = torch.tensor([*KAPPAS, 1e8, torch.inf], dtype=dtype, requires_grad=True)
    finite = torch.isfinite(kappa)
    for function in OF_KAPPA:
        value = function(kappa, dim)
        assert torch.isfinite(value[finite]).all(), function.__name__
        assert not value.isnan().any()
        (grad,) = torch.autograd.grad(value[finite].sum(), kappa)
        assert torch.isfinite(grad).all(), function.__name__
    masses = torch.tensor([0.0, 1e-6, 0.3, 0.999, 1.0], dtype=dtype).unsqueeze(-1).requires_grad_()
    for quantile in (sphere.cap_angle, cap_height, sphere.cosine_quantile):
        value = quantile(masses, kappa, dim)
        assert torch.isfinite(value).all()
        for grad in torch.autograd.grad(value.sum(), (masses, kappa)):
            assert not grad.isnan().any(), quantile.__name__
            assert torch.isfinite(grad[..., finite] if grad.shape == kappa.shape else grad).all()
    heights = torch.tensor([0.0, 1e-6, 0.5, 2.0], dtype=dtype).unsqueeze(-1).requires_grad_()
    value = sphere.cap_mass(heights, kappa, dim)
    assert torch.isfinite(value).all()
    (grad,) = torch.autograd.grad(value.sum(), kappa, retain_graph=True)
    assert torch.isfinite(grad).all()
    if dim > 2:  # for D = 2 the density of the cosine is infinite at its ends
        (grad,) = torch.autograd.grad(value[..., finite].sum(), heights)
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_half_precision_out(dtype):
    kappa = torch.tensor([0.0, 1.0, 100.0, 5e4], dtype=dtype)
    for function in OF_KAPPA:
        value = function(kappa, 128)
        assert value.dtype == dtype
        exact = function(kappa.double(), 128)
        assert torch.allclose(value.double(), exact, rtol=2e-2, atol=1e-4), function.__name__
