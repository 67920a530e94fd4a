"""Recovery of mixtures that are right by construction."""

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole_paper.mixture_recovery import align_mixtures, divergence, mode_recovery, rotate_mixture


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
