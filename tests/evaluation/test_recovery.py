"""Recovery, ranks and coverage against scipy, numpy and posteriors that are right by construction."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import rankdata, spearmanr

import aureole as au
from aureole.errors import InvalidInputError
from aureole.evaluation import (
    align_mixtures,
    average_ranks,
    divergence,
    latent_coverage,
    mode_recovery,
    partial_spearman,
    partner_coverage,
    recovery,
    rotate_mixture,
    spearman,
)


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_matches_scipy(ties):
    a, b = torch.randn(500, dtype=torch.float64), torch.randn(500, dtype=torch.float64)
    b = b + a
    if ties:
        a, b = a.round(decimals=0), b.round(decimals=1)
    assert spearman(a, b) == pytest.approx(spearmanr(a.numpy(), b.numpy())[0], abs=1e-12)
    assert average_ranks(a).sum().item() == 500 * 501 / 2


def test_spearman_says_what_it_cannot_rank():
    assert math.isnan(spearman(torch.ones(4), torch.arange(4.0)))
    with pytest.raises(InvalidInputError, match="NaN"):
        spearman(torch.tensor([1.0, float("nan")]), torch.arange(2.0))
    with pytest.raises(InvalidInputError, match="same length"):
        spearman(torch.arange(3.0), torch.arange(2.0))


@pytest.mark.parametrize("ties", [False, True])
def test_partial_spearman_is_the_correlation_of_what_regression_leaves(ties):
    """The ranks of both lists less their least-squares line in the ranks of the third."""
    given = torch.randn(300, dtype=torch.float64)
    first = given + torch.randn(300, dtype=torch.float64)
    second = given - 0.5 * first + torch.randn(300, dtype=torch.float64)
    if ties:
        first, given = first.round(), given.round(decimals=1)
    ranks = [rankdata(x.numpy()) for x in (first, second, given)]
    line = np.stack([np.ones(300), ranks[2]], 1)
    left = [r - line @ np.linalg.lstsq(line, r, rcond=None)[0] for r in ranks[:2]]
    wanted = float(np.corrcoef(*left)[0, 1])
    assert partial_spearman(first, second, given) == pytest.approx(wanted, abs=1e-12)
    assert abs(wanted - spearman(first, second)) > 0.1


def test_partial_spearman_is_nan_where_the_third_says_all():
    a, b = torch.arange(5.0), torch.tensor([2.0, 0, 1, 4, 3])
    assert math.isnan(partial_spearman(a, b, a))
    assert math.isnan(partial_spearman(a, b, torch.ones(5)))


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


def test_recovery_is_blind_to_rotations_and_nothing_else():
    mu = au.sphere.normalize(torch.randn(300, 6, dtype=torch.float64))
    kappa = 10 + 20 * torch.rand(300, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    right = recovery(au.VonMisesFisher(mu @ turn, kappa), mu, kappa, spread=1 / kappa)
    assert right["mu_rank"] == right["kappa_rank"] == pytest.approx(1.0)
    assert right["mu_mae"] == pytest.approx(0.0, abs=1e-12)
    assert right["spread_rank"] == pytest.approx(1.0)
    off = au.VonMisesFisher(mu @ turn, kappa + torch.where(torch.arange(300) % 2 == 0, 1.0, -3.0))
    found = recovery(off, mu, kappa)
    assert found["kappa_mae"] == pytest.approx(2.0)
    assert found["kappa_rmse"] == pytest.approx(math.sqrt(5.0))
    cosines = (mu @ mu.T).numpy()[np.tril_indices(300, -1)]
    noisy = au.sphere.normalize(mu + 0.3 * torch.randn_like(mu))
    other = (noisy @ noisy.T).numpy()[np.tril_indices(300, -1)]
    found = recovery(au.VonMisesFisher(noisy, kappa), mu, kappa)
    assert found["mu_rank"] == pytest.approx(spearmanr(cosines, other)[0], abs=1e-9)
    assert found["mu_mae"] == pytest.approx(np.abs(cosines - other).mean(), abs=1e-9)


def test_figures_that_do_not_exist_are_left_out():
    mu = au.sphere.normalize(torch.randn(20, 3))
    found = recovery(au.VonMisesFisher(mu, 5.0), mu, torch.full((20,), math.inf))
    assert "kappa_rank" not in found
    assert "kappa_mae" not in found
    assert "kappa_rank" not in recovery(au.VonMisesFisher(mu, 5.0), mu, torch.rand(20) + 1)
    with pytest.raises(InvalidInputError, match="20 found posteriors"):
        recovery(au.VonMisesFisher(mu, 5.0), mu[:5], torch.rand(5))


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


def test_predictive_caps_cover_partners():
    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(1600, 4, generator=rng))
    everyone = au.VonMisesFisher(mu, 5 + 30 * torch.rand(1600, generator=rng))
    query = au.VonMisesFisher(mu[:800], everyone.kappa[:800])
    gallery = au.VonMisesFisher(mu[800:], everyone.kappa[800:])
    column = au.VonMisesFisher(query.mu.unsqueeze(1), query.kappa.unsqueeze(1))
    chance = au.expected_positivity(column, gallery, 10.0)
    partner = torch.multinomial(chance, 1, generator=rng).squeeze(1)
    for mass, share in partner_coverage(query, gallery, partner, kappa_pos=10.0).items():
        assert share == pytest.approx(mass, abs=0.035)
    sure = au.VonMisesFisher(query.mu, 10 * query.kappa)
    assert partner_coverage(sure, gallery, partner, kappa_pos=40.0)[0.9] < 0.8
    with pytest.raises(InvalidInputError, match="as many partners"):
        partner_coverage(query, gallery, partner[:3], kappa_pos=10.0)


def test_mixtures_are_recovered_up_to_rotation_and_order():
    mu = au.sphere.normalize(torch.randn(200, 2, 5))
    weights = torch.softmax(torch.randn(200, 2), -1)
    truth = au.MixtureVMF(weights, mu, 10 + 20 * torch.rand(200, 2))
    turn = torch.linalg.qr(torch.randn(5, 5))[0]
    swap = torch.rand(200) < 0.5
    order = torch.stack([swap.long(), 1 - swap.long()], -1)

    def shuffled(values):
        return values.gather(
            1, order if values.dim() == 2 else order.unsqueeze(-1).expand_as(values)
        )

    found = au.MixtureVMF(shuffled(truth.weights), shuffled(mu) @ turn.T, shuffled(truth.kappa))
    aligned = rotate_mixture(found, align_mixtures(found, truth))
    scores = mode_recovery(aligned, truth)
    assert scores["mode_degrees"] < 0.2
    assert scores["modes_found"] == 1.0
    assert scores["kappa_rank"] == pytest.approx(1.0)
    assert divergence(aligned, truth) == pytest.approx(0.0, abs=1e-3)
    single = au.MixtureVMF(torch.ones(200, 1), truth.mode.unsqueeze(1), torch.full((200, 1), 10.0))
    assert divergence(single, truth) > 0.5
    with pytest.raises(InvalidInputError, match="same number"):
        mode_recovery(single, truth)
