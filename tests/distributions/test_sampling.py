"""Draws: moments and their gradient against exact values, over the whole range of D and kappa."""

import mpmath as mp
import pytest
import torch
from scipy import stats

import aureole as au
from aureole import sphere
from tests.oracles import vmf

PLAIN = [(dim, kappa) for dim in vmf.DIMS for kappa in vmf.KAPPAS]
# where the public reference code samples .008, -.225, -.120 and .323 (the exact values are .236, .153, .188, .407)
REFERENCE_FAILS = [(64, 16.0), (128, 20.0), (512, 100.0), (2048, 1000.0)]


def n_draws(dim):
    return 1_000_000 if dim < 512 else 50_000 if dim < 2048 else 20_000


def within(estimate, truth, error, *, n=4.0):
    return abs(float(estimate) - float(truth)) <= n * float(error)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "kappa"), PLAIN + REFERENCE_FAILS)
def test_moments_and_gradient_of_draws(dim, kappa):
    """E[mu.z], Var[mu.z] and dE[mu.z]/dkappa by autograd through rsample, within 4 standard errors."""
    n, chunk = n_draws(dim), max(1, 100_000 // dim)
    generator = torch.Generator().manual_seed(dim * 1000 + int(kappa) % 997)
    mu = sphere.normalize(torch.randn(dim, dtype=torch.float64, generator=generator))
    # a hundred copies of the posterior: the spread of their gradients is the standard error
    kappas = torch.full((100,), kappa, dtype=torch.float64, requires_grad=True)
    q = au.VonMisesFisher(mu, kappas)
    heights, gradient = [], torch.zeros(100, dtype=torch.float64)
    for start in range(0, n // 100, chunk):
        z = q.rsample((min(chunk, n // 100 - start),), generator=generator)
        height = 0.5 * (z - mu).square().sum(-1)  # 1 - mu.z, with all its digits
        heights.append(height.detach().flatten())
        gradient -= torch.autograd.grad(height.sum(), kappas)[0] / (n // 100)
    height = torch.cat(heights)
    assert height.numel() == n
    with mp.workdps(50):
        mean = 1 - vmf.mean_resultant_length(dim, kappa)
        variance = vmf.variance(dim, kappa)
    spread = height.var()
    fourth = (height - height.mean()).pow(4).mean()
    assert within(height.mean(), mean, (spread / n).sqrt())
    assert within(spread, variance, ((fourth - spread**2) / n).sqrt())
    assert within(gradient.mean(), variance, (gradient.var() / 100).sqrt())


@pytest.mark.parametrize("dim", [2, 3, 10, 128])
def test_draws_fill_every_direction_around_mu(dim):
    """The whole mean vector and covariance, not only the cosine's."""
    mu = sphere.normalize(torch.randn(dim, dtype=torch.float64))
    q = au.VonMisesFisher(mu, 9.0)
    n = 200_000
    z = q.sample((n,))
    assert torch.allclose(z.norm(dim=-1), torch.ones(n, dtype=torch.float64), atol=1e-12)
    assert ((z.mean(0) - q.mean).abs() <= 5 * (q.variance / n).sqrt()).all()
    centred = z - q.mean
    covariance = centred.T @ centred / n
    scale = q.variance.outer(q.variance).sqrt()
    assert ((covariance - q.covariance_matrix).abs() / scale).max() < 8 / n**0.5


def test_uniform_draws_have_no_direction():
    z = au.SphereUniform(5, dtype=torch.float64).sample((100_000,))
    assert (z.mean(0).abs() < 5 / (5 * 100_000) ** 0.5).all()
    assert torch.allclose(z.T @ z / 100_000, torch.eye(5, dtype=torch.float64) / 5, atol=5e-3)


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_pathwise_gradient_is_right_for_a_function_of_the_whole_draw(dim):
    """d/d(mu, kappa) E[f(z)] by rsample against a score-function estimate of the same f."""
    direction = sphere.normalize(torch.randn(dim, dtype=torch.float64))
    mu = sphere.normalize(torch.randn(dim, dtype=torch.float64)).requires_grad_()
    kappa = torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
    n = 400_000

    def f(z):
        return torch.exp(z @ direction)

    value = f(au.VonMisesFisher(mu / mu.norm(), kappa).rsample((n,))).mean()
    pathwise = torch.autograd.grad(value, (mu, kappa))
    # E[f] = C(k) / C(|k mu + d|) in closed form: the tilted density is a vMF
    tilt = kappa * mu / mu.norm() + direction
    truth = torch.exp(sphere.log_normalizer(kappa, dim) - sphere.log_normalizer(tilt.norm(), dim))
    exact = torch.autograd.grad(truth, (mu, kappa))
    assert abs(value.item() - truth.item()) < 0.01 * truth.item()
    assert torch.allclose(pathwise[0], exact[0], atol=0.01 * exact[0].norm().item())
    assert torch.allclose(pathwise[1], exact[1], rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 64, 4096])
def test_draws_and_gradients_are_finite_everywhere(dim, dtype):
    pole = torch.eye(dim, dtype=dtype)[0]
    mu = torch.stack([pole, -pole, sphere.normalize(torch.randn(dim, dtype=dtype))])
    mu = mu.unsqueeze(1).requires_grad_()
    kappa = torch.tensor([*vmf.KAPPAS, 1e8, torch.inf], dtype=dtype, requires_grad=True)
    z = au.VonMisesFisher(mu, kappa).rsample((20,))
    assert z.dtype == dtype
    assert (z.norm(dim=-1) - 1).abs().max() <= 10 * torch.finfo(dtype).eps * dim**0.5
    for grad in torch.autograd.grad((z * torch.randn_like(z)).sum(), (mu, kappa)):
        assert torch.isfinite(grad).all()
    assert torch.equal(z[..., -1, :], mu.squeeze(1).expand(20, 3, dim))  # kappa = inf is mu itself


def test_a_generator_makes_draws_repeatable():
    q = au.VonMisesFisher(torch.eye(3), 5.0)
    draws = [q.rsample((4,), generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*draws)
    assert not q.sample((4,)).requires_grad


@pytest.mark.parametrize("dim", [2, 3, 16])
def test_sobol_points_beat_random_draws(dim):
    mu = sphere.normalize(torch.ones(dim, dtype=torch.float64))
    q = au.VonMisesFisher(mu, 20.0)
    n = 4096
    points = torch.quasirandom.SobolEngine(dim, scramble=True, seed=3).draw(n, dtype=torch.float64)
    error = (q.transport(points).mean(0) - q.mean).norm()
    assert error < 0.2 * (q.variance.sum() / n).sqrt()


def test_transport_takes_the_corners_of_the_cube_and_its_centre():
    q = au.VonMisesFisher(torch.eye(4)[1], 20.0)
    cube = torch.stack([torch.zeros(4), torch.full((4,), 0.5), torch.ones(4)])
    z = q.transport(cube)
    assert torch.allclose(z.norm(dim=-1), torch.ones(3))
    with pytest.raises(au.errors.InvalidInputError, match="unit cube"):
        q.transport(cube + 0.1)
    cube[1, 2] = torch.nan
    with pytest.raises(au.errors.InvalidInputError, match="unit cube"):
        q.transport(cube)


def test_transport_gives_each_posterior_the_same_points():
    kappa = torch.tensor([3.0, 30.0], dtype=torch.float64, requires_grad=True)
    q = au.VonMisesFisher(torch.eye(5, dtype=torch.float64)[:2], kappa)
    cube = torch.rand(9, 1, 5, dtype=torch.float64)
    z = q.transport(cube)
    assert z.shape == (9, 2, 5)
    assert torch.autograd.gradcheck(
        lambda k: au.VonMisesFisher(q.mu, k).transport(cube), (kappa,), atol=1e-6
    )


@pytest.mark.parametrize("dim", [2, 3, 10, 128, 4096])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 20.0, 1e3, 1e6, 1e8])
def test_draws_by_rejection_follow_the_exact_law(dim, kappa):
    """A Kolmogorov-Smirnov test of the angle, at one seed: 60 settings, none may be rejected at 1e-4."""
    rng = torch.Generator().manual_seed(dim)
    mu = sphere.normalize(torch.randn(dim, dtype=torch.float64, generator=rng))
    n = 20_000 if dim < 1000 else 2_000
    z = au.VonMisesFisher(mu, kappa).sample((n,), generator=rng)
    assert torch.allclose(z.norm(dim=-1), torch.ones(n, dtype=torch.float64), atol=1e-12)
    height = 0.5 * (z - mu).square().sum(-1)
    mass = sphere.cap_mass(height, torch.tensor(kappa, dtype=torch.float64), dim)
    assert stats.kstest(mass.numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("bad", [torch.nan, -1.0, -torch.inf])
def test_a_nan_or_negative_kappa_gives_nan_and_leaves_the_other_draws_alone(bad):
    kappa = torch.tensor([5.0, bad, torch.inf])
    q = au.VonMisesFisher(torch.eye(3), kappa, validate_args=False)
    z = q.sample((50,), generator=torch.Generator().manual_seed(0))
    assert z[:, 1].isnan().all()
    assert z[:, [0, 2]].isfinite().all()


def test_a_normal_number_of_exactly_zero_gives_a_unit_vector(monkeypatch):
    """On the circle the tangent has one coordinate, and float32 draws of it can be exactly 0."""
    q = au.VonMisesFisher(torch.eye(2)[0], 5.0)
    plain = q.sample((4,), generator=torch.Generator().manual_seed(0))
    randn = torch.randn

    def with_a_zero(*size, **options):
        normals = randn(*size, **options)
        if normals.shape == (4, 2):  # later ones are proposals
            normals[2, 1] = 0
        return normals

    monkeypatch.setattr(torch, "randn", with_a_zero)
    z = q.sample((4,), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(z.norm(dim=-1), torch.ones(4))
    assert torch.equal(z[[0, 1, 3]], plain[[0, 1, 3]])


def test_draws_of_points_and_of_many_kappas_at_once():
    rng = torch.Generator().manual_seed(0)
    kappa = torch.tensor([0.0, 5.0, 1e4, torch.inf])
    mu = torch.eye(6)[:4]
    z = au.VonMisesFisher(mu, kappa).sample((5000,), generator=rng)
    assert z.dtype == torch.float32
    assert torch.equal(z[:, 3], mu[3].expand(5000, 6))
    cosine = (z * mu).sum(-1).mean(0)
    wanted = sphere.mean_resultant_length(kappa, 6)
    assert torch.allclose(cosine, wanted, atol=0.02)
    again = au.VonMisesFisher(mu, kappa).sample((5000,), generator=rng.manual_seed(0))
    assert torch.equal(z, again)
