"""Credible caps contain the latent as often as they promise."""

import math

import pytest
import torch

import aureole as au
from aureole_paper.latent_coverage import latent_coverage


@pytest.mark.parametrize("dim", [3, 10])
@pytest.mark.parametrize("kappa", [1e5, 1e7])
def test_coverage_of_sharp_posteriors_in_float32(dim, kappa):
    """Their cosines are a few roundings from 1: heights tell inside from outside, cosines do not."""
    mu = au.sphere.normalize(torch.randn(40, dim))
    turn = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64))[0]
    q = au.VonMisesFisher(mu, kappa)
    z = q.sample((1000,))
    for mass, share in latent_coverage(q, z).items():
        assert share == pytest.approx(mass, abs=0.01)
    turned = au.VonMisesFisher(au.sphere.normalize(mu.double()) @ turn, kappa)
    for mass, share in latent_coverage(turned, z.double(), rotation=turn).items():
        assert share == pytest.approx(mass, abs=0.01)
    points = au.VonMisesFisher(mu, math.inf)
    assert latent_coverage(points, mu.expand(2, 40, dim))[0.5] == 1


def test_credible_caps_cover_what_they_promise_and_wrong_ones_do_not():
    mu = au.sphere.normalize(torch.randn(400, 8))
    truth = au.VonMisesFisher(mu, 10 + 20 * torch.rand(400))
    latents = truth.sample((100,), generator=torch.Generator().manual_seed(0))
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    turned = au.VonMisesFisher(mu @ turn, truth.kappa)
    for mass, share in latent_coverage(turned, latents, rotation=turn).items():
        assert share == pytest.approx(mass, abs=0.01)
    assert latent_coverage(turned, latents)[0.9] < 0.3
    sure = au.VonMisesFisher(mu, 3 * truth.kappa)
    assert latent_coverage(sure, latents)[0.9] < 0.6
