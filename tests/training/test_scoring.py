"""Scores of rows: the interpolated cosine of partners against the exact one."""

import numpy as np
import pytest
import torch

from aureole import VonMisesFisher
from aureole.training import partner_cosines


@pytest.mark.parametrize(
    ("dim", "low", "high", "tolerance"),
    [(2, 0.1, 100.0, 1e-3), (8, 1.0, 1000.0, 1e-5), (32, 0.5, 500.0, 1e-5), (32, 20.0, 20.0, 1e-7)],
)
def test_cosines_are_those_of_the_posterior(dim, low, high, tolerance):
    kappa = np.geomspace(low, high, 6)
    found = partner_cosines(kappa, 0.9, kappa_other=30.0, kappa_pos=2.0 * dim, dim=dim)
    posterior = VonMisesFisher(torch.eye(dim).double()[:1].expand(6, -1), torch.from_numpy(kappa))
    wanted = posterior.predictive_cosine(0.9, kappa_pos=2.0 * dim, kappa_other=30.0)
    np.testing.assert_allclose(found, wanted, atol=tolerance)
