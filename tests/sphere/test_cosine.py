"""Properties of the law of the cosine beside its oracle values."""

import math

import mpmath as mp
import pytest
import scipy.stats
import torch
from hypothesis import given, strategies as st

from aureole import sphere
from aureole.sphere._angle import height_of, integrate
from aureole.sphere._cosine import cap_height, cap_mass_slope
from tests.oracles.vmf import DIMS

kappas = st.floats(0, 1e9)
dims = st.integers(2, 4096)


def tensor(value):
    return torch.tensor(value, dtype=torch.float64)


@given(kappa=kappas, dim=dims, mass=st.floats(1e-9, 1 - 1e-9))
def test_mass_of_the_cap_of_a_mass(kappa, dim, mass):
    theta = sphere.cap_angle(tensor(mass), tensor(kappa), dim)
    height = 2 * torch.sin(theta / 2) ** 2
    # near the antipode the height itself cannot tell angles below 1e-8 apart
    slack = 0.0 if height < 1.9 else 1e-8
    assert abs(sphere.cap_mass(height, tensor(kappa), dim).item() - mass) <= 1e-9 + slack


@given(kappa=kappas, dim=dims)
def test_quantiles_grow_with_the_mass(kappa, dim):
    masses = torch.linspace(0, 1, 400, dtype=torch.float64)
    theta = sphere.cap_angle(masses.unsqueeze(-1), tensor([kappa]), dim).squeeze(-1)
    assert theta[0] == 0
    assert theta[-1] == math.pi
    assert (theta.diff() > 0).all()


@given(dim=dims, mass=st.floats(1e-6, 1 - 1e-6))
def test_a_larger_kappa_has_smaller_caps(dim, mass):
    kappas = torch.tensor([0.0, 0.1, 1, 10, 100, 1e4, 1e6, 1e9, torch.inf], dtype=torch.float64)
    heights = cap_height(tensor(mass), kappas, dim)
    assert (heights.diff() < 0).all()


@pytest.mark.parametrize("dim", [2, 3, 5, 50])
def test_uniform_law_is_scipys_beta(dim):
    t = torch.linspace(-0.999, 0.999, 50, dtype=torch.float64)
    truth = scipy.stats.beta.cdf((t.numpy() + 1) / 2, (dim - 1) / 2, (dim - 1) / 2)
    found = sphere.cosine_cdf(t, tensor(0.0), dim)
    assert torch.allclose(found, torch.from_numpy(truth), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", DIMS)
def test_density_is_the_derivative_of_the_cdf(dim):
    kappa = tensor(37.0)
    t = sphere.cosine_quantile(tensor([0.1, 0.5, 0.9]), kappa, dim).requires_grad_()
    (density,) = torch.autograd.grad(sphere.cosine_cdf(t, kappa, dim).sum(), t)
    assert torch.allclose(density.log(), sphere.cosine_log_pdf(t, kappa, dim), rtol=1e-12)
    eps = 1e-4 * (t[2] - t[0]).item()
    numeric = (sphere.cosine_cdf(t + eps, kappa, dim) - sphere.cosine_cdf(t - eps, kappa, dim)) / (
        2 * eps
    )
    assert torch.allclose(density, numeric, rtol=1e-4)


def test_samples_share_one_table_per_kappa_whatever_the_shape():
    masses = torch.rand(3, 4, 5, 6, dtype=torch.float64)
    kappas = torch.rand(5, 6, dtype=torch.float64) * 50
    found = sphere.cap_angle(masses, kappas, 9)
    one_by_one = sphere.cap_angle(masses, kappas.expand(3, 4, 5, 6), 9)
    assert found.shape == masses.shape
    assert torch.equal(found, one_by_one)
    assert sphere.cap_angle(masses[:0], kappas, 9).shape == (0, 4, 5, 6)
    assert sphere.cap_angle(tensor(0.5), kappas, 9).shape == (5, 6)


def test_poles():
    assert sphere.cosine_log_pdf(tensor(1.0), tensor(5.0), 2) == torch.inf
    assert sphere.cosine_log_pdf(tensor(-1.0), tensor(5.0), 4) == -torch.inf
    assert torch.isfinite(sphere.cosine_log_pdf(tensor([-1.0, 1.0]), tensor(5.0), 3)).all()
    assert sphere.cosine_log_pdf(tensor([1.0, 0.5]), tensor(torch.inf), 4).tolist() == [
        math.inf,
        -math.inf,
    ]


@pytest.mark.parametrize("dim", [2, 3, 4, 10, 128])
@pytest.mark.parametrize("kappa", [0.0, 20.0, 1e6])
def test_cosines_beyond_the_ends_have_no_density_and_no_gradient(dim, kappa):
    """A product of float32 unit vectors can be 1.0000001."""
    t = torch.tensor([1 + 1.2e-7, -1 - 1.2e-7, 0.3, 1.5], requires_grad=True)
    k = torch.full((4,), kappa, requires_grad=True)
    value = sphere.cosine_log_pdf(t, k, dim)
    assert (value == -torch.inf).tolist() == [True, True, False, True]
    wanted = sphere.cosine_log_pdf(t[2].double(), k[2].double(), dim)
    assert value[2].item() == pytest.approx(wanted.item(), rel=1e-6)
    for grad in torch.autograd.grad(value[[0, 1, 3]].sum(), (t, k), retain_graph=True):
        assert (grad == 0).all()
    (slope,) = torch.autograd.grad(value[2], t)
    assert slope[2].item() == pytest.approx(kappa - (dim - 3) * 0.3 / (1 - 0.09), rel=1e-5)
    mass = sphere.cosine_cdf(t, k, dim)
    assert mass[[0, 1, 3]].tolist() == pytest.approx([1, 0, 1], abs=1e-13)
    for grad in torch.autograd.grad(mass[[0, 1, 3]].sum(), (t, k), create_graph=True):
        assert grad.abs().max() < 1e-14
        assert not any(
            g.isnan().any() for g in torch.autograd.grad(grad.sum(), (t, k), retain_graph=True)
        )


@pytest.mark.parametrize("kappa", [0.0, 20.0, math.inf, math.nan])
def test_nan_comes_out_as_nan(kappa):
    nan = tensor(math.nan)
    for function in (sphere.cosine_log_pdf, sphere.cosine_cdf, sphere.cap_mass):
        assert function(nan, tensor(kappa), 10).isnan(), function.__name__
        assert function(tensor(0.5), nan, 10).isnan(), function.__name__
    assert cap_mass_slope(tensor(0.5), nan, 10).isnan()


@pytest.mark.parametrize("kappa", [0.0, 1.0, 10.0])
def test_the_circle_next_to_the_far_pole(kappa):
    """The one place where a mass is off by more than 1e-9, as ``cosine_cdf`` states."""
    for gap in (1e-16, 2e-16, 1e-15, 1e-14, 1e-12, 1e-8):
        t = tensor(gap - 1)
        with mp.workdps(50):
            low = mp.acos(mp.mpf(t.item()))
            whole = mp.pi * mp.besseli(0, kappa)
            truth = mp.quad(lambda x: mp.exp(kappa * mp.cos(x)), [low, mp.pi]) / whole
            error = abs(sphere.cosine_cdf(t, tensor(kappa), 2).item() - truth)
        assert error <= (5e-9 if gap <= 1e-15 else 1e-9), (gap, error)


@pytest.mark.parametrize("dim", [3, 10])
def test_the_guess_bends_with_the_curvature_of_the_density(dim):
    """One step of third order from the bent guess ends at rounding; from a straight one it is 1e-12 off or more."""
    mass = torch.linspace(1e-6, 1 - 1e-6, 101, dtype=torch.float64)
    kappa = torch.tensor(20.0, dtype=torch.float64)
    angle = sphere.cap_angle(mass, kappa, dim)
    found, _ = integrate(height_of(angle), kappa.expand(101), dim)
    assert (found - mass).abs().max() < 1e-14
