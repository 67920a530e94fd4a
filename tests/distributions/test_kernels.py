"""Divergences against Monte Carlo and against each other."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere._positivity import log_pair_likelihood


def posterior(kappa, dim, dtype=torch.float64):
    mu = sphere.normalize(torch.randn(dim, dtype=dtype))
    return au.VonMisesFisher(mu, torch.tensor(kappa, dtype=dtype))


@pytest.mark.parametrize("dim", [2, 3, 10, 128])
@pytest.mark.parametrize(("k1", "k2"), [(0.0, 5.0), (5.0, 0.0), (20.0, 30.0), (300.0, 10.0)])
def test_kl_is_the_mean_log_ratio(dim, k1, k2):
    p, q, u = posterior(k1, dim), posterior(k2, dim), au.SphereUniform(dim, dtype=torch.float64)
    z = p.sample((100_000,))
    for a, b in ((p, q), (p, u)):
        ratio = a.log_prob(z) - b.log_prob(z)
        error = (ratio.var() / len(z)).sqrt() + 1e-12
        assert abs(kl_divergence(a, b) - ratio.mean()) < 4.5 * error
    flat = au.SphereUniform(dim, dtype=torch.float64).sample((100_000,))
    ratio = u.log_prob(flat) - q.log_prob(flat)
    assert abs(kl_divergence(u, q) - ratio.mean()) < 4.5 * (ratio.var() / len(flat)).sqrt() + 1e-12


@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 1e6])
def test_kl_to_itself_is_zero_and_uniform_is_kappa_zero(kappa):
    p = posterior(kappa, 12)
    assert kl_divergence(p, p) == 0
    flat = au.VonMisesFisher(p.mu, 0.0)
    u = au.SphereUniform(12, dtype=torch.float64)
    assert torch.allclose(kl_divergence(p, flat), kl_divergence(p, u), rtol=1e-8, atol=1e-14)
    assert torch.allclose(kl_divergence(flat, p), kl_divergence(u, p), rtol=1e-8, atol=1e-14)
    assert kl_divergence(u, u) == 0


def test_kl_of_points_is_infinite_without_nan_gradients():
    kappa = torch.tensor([5.0, torch.inf], dtype=torch.float64, requires_grad=True)
    p = au.VonMisesFisher(torch.eye(2, dtype=torch.float64), kappa)
    value = kl_divergence(p, posterior(3.0, 2))
    assert torch.isinf(value).tolist() == [False, True]
    (grad,) = torch.autograd.grad(value[0], kappa)
    assert torch.isfinite(grad).all()


def test_kl_gradients():
    mu1, mu2 = (
        sphere.normalize(torch.randn(5, dtype=torch.float64)).requires_grad_() for _ in "ab"
    )
    k1, k2 = (torch.tensor(k, dtype=torch.float64, requires_grad=True) for k in (3.0, 40.0))

    def kl(mu1, k1, mu2, k2):
        p, q = (au.VonMisesFisher(*x, validate_args=False) for x in ((mu1, k1), (mu2, k2)))
        return kl_divergence(p, q) + kl_divergence(p, au.SphereUniform(5))

    assert torch.autograd.gradcheck(kl, (mu1, k1, mu2, k2))


def test_kl_between_different_spheres_is_refused():
    with pytest.raises(InvalidInputError, match=r"R\^3 and R\^4"):
        kl_divergence(posterior(1.0, 3), posterior(1.0, 4))


@pytest.mark.parametrize("both", [False, True])
def test_a_weight_of_zero_has_the_slope_of_the_sum(both):
    """d log(sum_a w_a h_a) / dw_a = h_a / sum - 1, since weights are scaled to sum to 1, at w_a = 0 as elsewhere."""
    mu = sphere.normalize(torch.randn(3, 6, dtype=torch.float64))
    kappa = torch.tensor([20.0, 5.0, 60.0], dtype=torch.float64)
    weights = torch.tensor([0.0, 0.4, 0.6], dtype=torch.float64, requires_grad=True)
    other = posterior(30.0, 6)
    mixture = au.MixtureVMF(weights, mu, kappa)
    value = au.distributions.log_expected_positivity(mixture, mixture if both else other, 20.0)
    if both:
        parts = au.expected_positivity(
            au.VonMisesFisher(mu.unsqueeze(1), kappa.unsqueeze(1)),
            au.VonMisesFisher(mu, kappa),
            20.0,
        )
        total = (weights @ parts @ weights).item()
        wanted = 2 * (parts @ weights).detach() / total - 2
    else:
        parts = au.expected_positivity(au.VonMisesFisher(mu, kappa), other, 20.0)
        total = (parts @ weights).item()
        wanted = parts / total - 1
    assert value.item() == pytest.approx(math.log(total), rel=1e-12)
    (slope,) = torch.autograd.grad(value, weights)
    assert torch.allclose(slope, wanted, rtol=1e-10)
    assert slope[0].abs() > 0.1
    step = torch.tensor([1e-7, 0.4, 0.6], dtype=torch.float64)
    moved = au.MixtureVMF(step, mu, kappa)
    after = au.distributions.log_expected_positivity(moved, moved if both else other, 20.0)
    assert (after - value).item() / 1e-7 == pytest.approx(slope[0].item(), rel=1e-4)


def test_weights_of_zero_give_finite_slopes_however_far_the_absent_component_is():
    """In float32 the absent component is e^160 times likelier than the one that is there."""
    mu = torch.stack([torch.eye(512)[0], -torch.eye(512)[0]]).requires_grad_()
    kappa = torch.tensor([1e4, 1e4], requires_grad=True)
    weights = torch.tensor([0.0, 1.0], requires_grad=True)
    mixture = au.MixtureVMF(weights, mu, kappa, validate_args=False)
    value = au.distributions.log_expected_positivity(
        mixture, au.VonMisesFisher(torch.eye(512)[0], 1e4), 200.0
    )
    alone = au.VonMisesFisher(-torch.eye(512)[0], 1e4)
    wanted = au.distributions.log_expected_positivity(
        alone, au.VonMisesFisher(torch.eye(512)[0], 1e4), 200.0
    )
    assert value.item() == pytest.approx(wanted.item(), rel=1e-6)
    for grad in torch.autograd.grad(value, (weights, mu, kappa)):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("dim", [128, 1024, 4096])
def test_divergence_keeps_its_digits_in_single_precision(dim):
    """Two normalisers that agree in most of float32's digits."""
    mu = torch.eye(dim)[0]
    values = []
    for dtype in (torch.float32, torch.float64):
        p, q = (
            au.VonMisesFisher(mu.to(dtype), torch.tensor(k, dtype=dtype)) for k in (100.0, 110.0)
        )
        values.append(torch.distributions.kl_divergence(p, q))
    assert values[0].dtype == torch.float32
    torch.testing.assert_close(values[0].double(), values[1], rtol=1e-6, atol=0)
    if dim == 4096:
        assert values[1].item() == pytest.approx(0.01218, rel=1e-3)


def test_likelihood_kernel_is_smooth_at_antipodes_with_equal_kappa():
    kappa = torch.tensor(5.0, dtype=torch.float64)

    def kernel(c):
        return log_pair_likelihood(c, kappa, kappa, 8)

    c = torch.tensor([-1.0, -0.999], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(kernel(c).sum(), c, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), c)
    assert torch.isfinite(second).all()
    step = 1e-4
    near = (kernel(c + 2 * step) - 2 * kernel(c + step) + kernel(c)) / step**2
    assert torch.allclose(second, near, rtol=1e-2)
