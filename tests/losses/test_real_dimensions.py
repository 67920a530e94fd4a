"""The closed-form loss at the dimensions that real encoders have: finite values, finite gradients."""

import pytest
import torch
from torch.nn import functional

import aureole as au
from aureole import sphere
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
    values, scale = sphere.pairwise_positivity(z @ z.T, q.kappa, q.kappa, kappa, dim)
    assert torch.isfinite(values).all()
    torch.testing.assert_close(values, torch.exp(log_h - scale), rtol=1e-6, atol=1e-9)
    coverage = partner_coverage(q, q, torch.arange(6), kappa_pos=kappa)
    assert all(0 <= share <= 1 for share in coverage.values())


@pytest.mark.parametrize("negatives", ["shared", "own", "next", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives(negatives, dtype):
    """Against differences of first derivatives, in the series and in the integral."""
    index = next(
        i
        for i in range(1000)
        if (s := settings.make(i, (8, 8))).negatives == negatives
        and s.dtype == dtype
        and s.dim < 64
        and s.anchor[1].min() > 1
        and s.anchor[1].max() < 50
        and 1 < s.kappa_pos < 50
    )
    setting = settings.make(index, (8, 8))
    leaves = [x.clone().requires_grad_() for x in setting.leaves]
    loss = setting.loss()

    def slope(kappa, create_graph):
        posteriors = [
            au.VonMisesFisher(mu, k)
            for mu, k in zip(leaves[::2], [kappa, *leaves[3::2]], strict=True)
        ]
        return torch.autograd.grad(loss(*posteriors), kappa, create_graph=create_graph)[0].sum()

    kappa = leaves[1]
    (second,) = torch.autograd.grad(slope(kappa, True), kappa)
    step = 1e-2 if dtype == torch.float32 else 1e-4
    differences = []
    for i in range(len(kappa)):
        ends = []
        for sign in (1, -1):
            moved = kappa.detach().clone()
            moved[i] += sign * step * moved[i]
            ends.append((slope(moved.requires_grad_(), False), moved[i].detach()))
        differences.append((ends[0][0] - ends[1][0]) / (ends[0][1] - ends[1][1]))
    wanted = torch.stack(differences)
    tolerance = 2e-2 if dtype == torch.float32 else 1e-5
    assert (second - wanted).abs().max() <= tolerance * wanted.abs().max()
