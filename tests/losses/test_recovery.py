"""Minimising the closed form over tabulated posteriors gives the true ones back."""

import pytest
import torch

from tests.losses import toy_recovery


@pytest.mark.slow
def test_closed_form_recovers_mu_and_kappa():
    truth = toy_recovery.true_posteriors(12, torch.Generator().manual_seed(1))
    loss = toy_recovery.losses()["ClosedFormInfoNCE"]
    found = toy_recovery.recover_in_full(loss, truth, steps=150, seed=1)
    errors = toy_recovery.errors(found, truth)
    assert errors["mu worst degrees"] < 1
    assert errors["kappa worst relative error"] < 0.01
