"""Divergences against Monte Carlo and against each other."""

import pytest
import torch
from torch.distributions import kl_divergence

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError


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
