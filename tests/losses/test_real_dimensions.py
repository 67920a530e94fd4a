"""The closed-form loss at the dimensions that real encoders have: finite values, finite gradients."""

import pytest
import torch
from torch.nn import functional

import aureole as au
from aureole.evaluation import partner_coverage
from tests.losses import settings

COUNT = 500  # benchmarks/real_dimensions.py runs more
PER_TEST = 20


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_random_settings_are_finite(first):
    for index in range(first, first + PER_TEST):
        setting = settings.make(index)
        value, grads = setting.loss_and_gradients()
        assert value.dtype == setting.dtype
        assert torch.isfinite(value), setting
        assert value >= 0, setting
        for grad in grads:
            assert torch.isfinite(grad).all(), setting


@pytest.mark.parametrize(("dim", "seeds"), [(256, 2), (512, 3), (768, 3), (1024, 3)])
@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_gradients_in_kappa_are_finite(dim, seeds, noise):
    """Rescaled polynomials used to leave the range of float32."""
    for seed in range(seeds):
        rng = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(dim, 8, generator=rng))[0].T
        x, y, z = (torch.randn(128, 8, generator=rng) for _ in range(3))
        kappa = (200 + 400 * torch.rand(128, generator=rng)).requires_grad_()
        first, second, third = (
            functional.normalize(v @ basis, dim=-1) for v in (x, x + noise * y, z)
        )
        value = au.ClosedFormInfoNCE(100.0)(
            au.VonMisesFisher(first, kappa),
            au.VonMisesFisher(second, kappa),
            au.VonMisesFisher(third, 400.0),
        )
        (grad,) = torch.autograd.grad(value, kappa)
        assert torch.isfinite(value)
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize(("dim", "kappa"), [(1024, 1e5), (4096, 4096.0), (4096, 1e6)])
def test_nothing_overflows_at_high_dimension_and_concentration(dim, kappa):
    rng = torch.Generator().manual_seed(0)
    z = functional.normalize(torch.randn(6, dim, generator=rng, dtype=torch.float64), dim=-1)
    q = au.VonMisesFisher(z, kappa)
    log_h = au.distributions.log_expected_positivity(au.VonMisesFisher(z[:, None], kappa), q, kappa)
    rows = torch.logsumexp(log_h.masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf), -1)
    pairs = torch.tensor([[0, 1], [2, 3]])
    wanted = (rows[pairs[:, 0]] - log_h[pairs[:, 0], pairs[:, 1]]).mean()
    found = au.ClosedFormInfoNCE(kappa).among(q, pairs)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    single = au.ClosedFormInfoNCE(kappa).among(au.VonMisesFisher(z.float(), kappa), pairs)
    torch.testing.assert_close(single, wanted.float(), rtol=1e-3, atol=1e-3)
    coverage = partner_coverage(q, q, torch.arange(6), kappa_pos=kappa)
    assert all(0 <= share <= 1 for share in coverage.values())
