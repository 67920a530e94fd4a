"""Recovery of posteriors and mixtures that are right by construction, against scipy and numpy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import aureole as au
from aureole.errors import InvalidInputError
from aureole.evaluation import recovery
from aureole_paper.mixture_recovery import align_mixtures, divergence, mode_recovery, rotate_mixture


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


def test_undefined_metrics_are_left_out():
    mu = au.sphere.normalize(torch.randn(20, 3))
    found = recovery(au.VonMisesFisher(mu, 5.0), mu, torch.full((20,), math.inf))
    assert "kappa_rank" not in found
    assert "kappa_mae" not in found
    assert "kappa_rank" not in recovery(au.VonMisesFisher(mu, 5.0), mu, torch.rand(20) + 1)
    with pytest.raises(InvalidInputError, match="20 posteriors"):
        recovery(au.VonMisesFisher(mu, 5.0), mu[:5], torch.rand(5))


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
