"""Batches of posteriors for the losses' tests."""

import pytest
import torch

import aureole as au
from aureole import sphere


@pytest.fixture
def batch():
    """A function that makes (anchor, positive, negative) posteriors with the wanted negatives."""

    def make(n=4, m=3, dim=5, *, mode="shared", dtype=torch.float64, kappa=30.0, grad=False):
        def posterior(*shape):
            mu = sphere.normalize(torch.randn(*shape, dim, dtype=dtype)).requires_grad_(grad)
            k = (kappa * torch.rand(shape, dtype=dtype) + 0.1).requires_grad_(grad)
            return au.VonMisesFisher(mu, k, validate_args=False)

        anchor, positive = posterior(n), posterior(n)
        negative = {"shared": lambda: posterior(m), "per anchor": lambda: posterior(n, m)}.get(mode)
        return anchor, positive, negative() if negative else None

    return make
