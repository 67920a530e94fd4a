"""Recovery of posteriors and mixtures that are right by construction, against scipy and numpy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import aureole as au
from aureole.errors import InvalidInputError
from aureole.evaluation import recovery


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
