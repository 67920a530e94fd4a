"""torch.func: vmap, grad and jvp of densities, draws, caps and positivity, against loops, autograd and differences."""

import pytest
import torch
from torch.func import grad, hessian, jvp, vmap

import aureole as au
from aureole import sphere

DIM = 6
# torch warns about its own use of torch.jit when forward mode is first used
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def log_prob(mu, kappa):
    q = au.VonMisesFisher(mu / mu.norm(), kappa, validate_args=False)
    return q.log_prob(torch.eye(DIM, dtype=mu.dtype)[1])


def draw(mu, kappa):
    q = au.VonMisesFisher(mu / mu.norm(), kappa, validate_args=False)
    cube = torch.linspace(0.2, 0.7, DIM, dtype=mu.dtype)
    angle = sphere.cap_angle(cube[0], q.kappa, DIM)
    return sphere.wrap(cube[1:] - 0.5, angle, q.mu)[2]


def credible(mu, kappa):
    q = au.VonMisesFisher(mu / mu.norm(), kappa, validate_args=False)
    return q.credible_cosine(0.9) * q.mu[0] + q.credible_height(0.5)


def mass(mu, kappa):
    return sphere.cap_mass(1 - mu[0] / mu.norm(), kappa, DIM)


def positivity(mu, kappa):
    return sphere.log_positivity(mu[0] / mu.norm(), kappa, kappa + 1, 20.0, DIM)


def inputs():
    rng = torch.Generator().manual_seed(1)
    mu = torch.randn(5, DIM, dtype=torch.float64, generator=rng)
    return mu, torch.tensor([0.5, 3.0, 20.0, 200.0, 900.0], dtype=torch.float64)


@pytest.mark.parametrize("function", [log_prob, draw, credible, mass, positivity])
def test_transforms_agree_with_loops(function):
    mu, kappa = inputs()
    values = torch.stack([function(m, k) for m, k in zip(mu, kappa, strict=True)])
    torch.testing.assert_close(vmap(function)(mu, kappa), values)
    wide = vmap(function, in_dims=(None, 0))(mu[0], kappa)
    torch.testing.assert_close(wide, torch.stack([function(mu[0], k) for k in kappa]))
    leaves = [
        (m.clone().requires_grad_(), k.clone().requires_grad_())
        for m, k in zip(mu, kappa, strict=True)
    ]
    wanted = [torch.autograd.grad(function(*pair), pair) for pair in leaves]
    found = vmap(grad(function, argnums=(0, 1)))(mu, kappa)
    for place in range(2):
        torch.testing.assert_close(found[place], torch.stack([g[place] for g in wanted]))
    tangents = torch.ones_like(mu), torch.ones_like(kappa)
    value, slope = jvp(vmap(function), (mu, kappa), tangents)
    torch.testing.assert_close(value, values)
    torch.testing.assert_close(slope, found[0].sum(-1) + found[1])
    step = 1e-5
    ends = [vmap(function)(mu + sign * step, kappa + sign * step) for sign in (1, -1)]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_draws_of_a_batch_under_vmap_are_different():
    mu, kappa = inputs()

    def sample(mu, kappa):
        return au.VonMisesFisher(mu / mu.norm(), kappa, validate_args=False).rsample((3,))

    draws = vmap(sample, randomness="different")(mu, kappa)
    assert draws.shape == (5, 3, DIM)
    torch.testing.assert_close(draws.norm(dim=-1), torch.ones(5, 3, dtype=torch.float64))
    assert draws.flatten(0, 1).unique(dim=0).shape[0] == 15


@pytest.mark.parametrize("cosine", [-0.9, 0.3])
def test_second_derivatives_of_positivity(cosine):
    """Forward over reverse, in the series and in the integral, against autograd twice."""
    point = torch.tensor([cosine, 3.0, 40.0, 20.0], dtype=torch.float64)

    def value(x):
        return sphere.log_positivity(x[0], x[1], x[2], x[3], DIM)

    wanted = torch.autograd.functional.hessian(value, point)
    torch.testing.assert_close(hessian(value)(point), wanted)
    torch.testing.assert_close(vmap(hessian(value))(point.expand(3, 4))[1], wanted)


def test_positivity_of_uniform_laws_and_points_under_vmap():
    c = torch.tensor([0.5, -0.2], dtype=torch.float64)
    kappa = torch.tensor([0.0, 7.0, torch.inf], dtype=torch.float64)

    def value(c, k):
        return sphere.log_positivity(c, k, torch.tensor(9.0).double(), 20.0, DIM)

    table = vmap(vmap(value, in_dims=(None, 0)), in_dims=(0, None))(c, kappa)
    torch.testing.assert_close(table, value(c[:, None], kappa))
    slopes = vmap(vmap(grad(value), in_dims=(None, 0)), in_dims=(0, None))(c, kappa)
    leaf = c[:, None].expand(2, 3).clone().requires_grad_()
    torch.testing.assert_close(slopes, torch.autograd.grad(value(leaf, kappa).sum(), leaf)[0])
    with pytest.raises(au.errors.InvalidInputError, match="concentration is at least 0"):
        vmap(value)(c, torch.tensor([1.0, -1.0]).double())
