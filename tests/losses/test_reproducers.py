"""Small cases that once failed: mixed precisions, and losses that rounding made negative."""

import itertools

import pytest
import torch
from torch.nn import functional

import aureole as au

LOSSES = [
    au.ClosedFormInfoNCE(20.0),
    au.ELK(temperature=1.0),
    au.InfoNCE(temperature=0.1),
    au.MCInfoNCE(20.0),
    au.losses.HedgedInstance(),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_posteriors_of_two_precisions(loss):
    """One float64 posterior makes the loss float64; gradients keep the dtype of their leaf."""
    leaves = [
        torch.randn(6, 16, dtype=dtype, requires_grad=True)
        for dtype in (torch.float32, torch.float64)
    ]
    for places in itertools.product((0, 1), (0, 1), (0, 1, None)):
        if {0, 1} <= set(places):
            value = loss(
                *(
                    au.VonMisesFisher(functional.normalize(leaves[i], dim=-1), 30.0)
                    for i in places
                    if i is not None
                )
            )
            assert value.dtype == torch.float64
            for leaf, grad in zip(leaves, torch.autograd.grad(value, leaves), strict=True):
                assert grad.dtype == leaf.dtype
                assert torch.isfinite(grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 8, 512])
def test_among_is_never_negative(dim, dtype):
    """Pairs that are all but certain: the other items add less than a rounding of the pair's own positivity."""
    pairs = torch.tensor([[0, 1], [1, 0], [2, 3]])
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        mu = functional.normalize(torch.randn(8, dim, dtype=dtype, generator=rng), dim=-1)
        mu = mu.index_copy(0, torch.tensor([1, 3]), mu[[0, 2]])
        for kappa in (1.0, 1e2, 1e4, 1e6):
            loss = au.ClosedFormInfoNCE(kappa, reduction="none")
            assert (loss.among(au.VonMisesFisher(mu, kappa), pairs) >= 0).all(), (seed, kappa)
