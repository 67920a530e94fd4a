"""Families of posteriors against sampling, and the process with two modes against expected positivity."""

import math

import pytest
import torch

import aureole as au
from aureole.sphere._zonal import zonal_basis
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.synthetic._processes import VMF
from aureole_paper.posterior_families import BimodalProcess, Dirac, Gaussian, Laplace


@pytest.fixture(scope="module")
def generator():
    return draw_generator(5, (8.0, 32.0), kind="whitened", seed=4)


@pytest.mark.parametrize("family", [VMF(), Gaussian()], ids=lambda f: f.name)
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_coefficients_match_draws(family, dim):
    mu = torch.eye(dim)[:1].expand(2, dim)
    kappa = torch.tensor([4.0, 30.0])
    rng = torch.Generator().manual_seed(0)
    cosine = (family.sample(mu, kappa, n=200_000, generator=rng) * mu).sum(-1).double().clamp(-1, 1)
    basis = zonal_basis(cosine, dim, 6)
    error = basis.std(0) / math.sqrt(200_000)
    gap = (basis.mean(0) - family.coefficients(kappa, dim, count=6)).abs()
    assert bool((gap <= 4.5 * error + 1e-6).all())
    assert torch.allclose(family.spread(mu, kappa).double(), 1 - basis.mean(0)[:, 1], atol=2e-3)


def test_gaussian_table_interpolates_to_nine_digits():
    family, dim = Gaussian(), 10
    kappa = torch.tensor([2.5, 17.3, 700.0], dtype=torch.float64)
    # a finer quadrature, by itself
    x, w = (torch.from_numpy(v) for v in __import__("numpy").polynomial.legendre.leggauss(400))
    along, across = 10 * x, 8 * (x + 1)
    weight = torch.exp(-along.square() / 2).unsqueeze(1) * w.unsqueeze(1)
    weight = weight * (across ** (dim - 2) * torch.exp(-across.square() / 2) * w)
    for k, row in zip(kappa, family.coefficients(kappa, dim, count=8), strict=True):
        t = k.sqrt() + along.unsqueeze(1)
        basis = zonal_basis(t / torch.sqrt(t * t + across.square()), dim, 8)
        wanted = (weight.unsqueeze(-1) * basis).sum((0, 1)) / weight.sum()
        assert torch.allclose(row, wanted, atol=1e-9)


def test_laplace_draws_have_the_promised_scale():
    mu, kappa = torch.tensor([[1.0, 0.0]]), torch.tensor([1e4])
    z = Laplace().sample(mu, kappa, n=100_000, generator=torch.Generator().manual_seed(0))
    # near the pole the second coordinate is the noise itself, with variance 2 / kappa^2
    assert z[..., 1].var().item() * 1e8 == pytest.approx(2.0, rel=0.05)
    assert Laplace().coefficients(kappa, 2, count=4) is None
    assert Laplace().spread(mu, torch.tensor([20.0])).item() == pytest.approx(1 / 400, rel=0.2)


@pytest.mark.parametrize("family", [VMF(), Gaussian(), Laplace(), Dirac()], ids=lambda f: f.name)
def test_intensity_is_the_expected_match_of_latents(generator, family):
    process = ControlledProcess(generator, family, kappa_pos=6.0)
    x, rng = process.inputs(6), torch.Generator().manual_seed(0)
    if family.name == "laplace":
        found = torch.stack([process.intensity(x, x, generator=rng) for _ in range(300)]).mean(0)
    else:
        found = process.intensity(x, x)
    z = process.latents(x, 4000, generator=rng)
    wanted = process._match(torch.einsum("rid,sjd->rsij", z[:200], z[200:400])).mean((0, 1))
    for start in range(400, 4000, 400):
        a, b = z[start : start + 200], z[start + 200 : start + 400]
        wanted = wanted + process._match(torch.einsum("rid,sjd->rsij", a, b)).mean((0, 1))
    off = ~torch.eye(6, dtype=torch.bool)
    assert torch.allclose((found)[off], (wanted / 10)[off], rtol=0.12, atol=0.02)


@pytest.mark.parametrize("family", [VMF(), Gaussian(), Laplace(), Dirac()], ids=lambda f: f.name)
def test_self_intensity_is_the_expected_match_of_two_draws_of_one_input(generator, family):
    process = ControlledProcess(generator, family, kappa_pos=6.0)
    x, rng = process.inputs(5, torch.Generator().manual_seed(1)), torch.Generator().manual_seed(0)
    first, second = (process.latents(x, 100_000, generator=rng) for _ in range(2))
    match = process._match((first * second).sum(-1)).double()
    error = match.std(0) / math.sqrt(100_000)
    if family.name == "laplace":
        draws = torch.stack([process.self_intensity(x, generator=rng) for _ in range(3000)])
        found, error = draws.double().mean(0), error + draws.std(0) / math.sqrt(3000)
    else:
        found = process.self_intensity(x)
        assert torch.allclose(found.float(), process.intensity(x, x).diagonal(), rtol=1e-4)
    assert bool(((found - match.mean(0)).abs() < 5 * error + 1e-3).all())


def test_bimodal_intensity_is_expected_positivity():
    process = BimodalProcess.draw(4, (8.0, 32.0), seed=4)
    x = process.inputs(8)
    truth = process.posterior(x)
    wanted = au.expected_positivity(
        au.MixtureVMF(truth.weights.unsqueeze(1), truth.mu.unsqueeze(1), truth.kappa.unsqueeze(1)),
        truth,
        20.0,
    )
    assert torch.allclose(process.intensity(x, x), wanted, rtol=1e-3, atol=1e-4)
    batch = process.batch(64, 400.0)
    assert 200 < len(batch.pairs) < 800
