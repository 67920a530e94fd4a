"""The compiled library agrees with its twins in torch; skipped where it is not installed."""

import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.sphere import _native
from aureole.sphere._row_sums import row_sums
from aureole.sphere._zonal import zonal_sizes, zonal_sum

pytestmark = pytest.mark.skipif(
    _native.native_library() is None, reason="aureole-native is not installed"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n", "m", "terms", "dim"), [(5, 7, 3, 2), (1, 1, 1, 3), (70, 133, 20, 10), (64, 600, 33, 512)]
)
@pytest.mark.parametrize("some_excluded", [False, True])
def test_row_sums(dtype, n, m, terms, dim, some_excluded):
    cosine = (torch.rand(n, m, dtype=dtype) * 2 - 1).requires_grad_()
    left, right = (torch.rand(k, terms, dtype=dtype).requires_grad_() for k in (n, m))
    excluded = torch.rand(n, m) < 0.1 if some_excluded else None
    weight = torch.randn(n, dtype=torch.float64)
    leaves = (cosine, left, right)
    total, sizes = row_sums(*leaves, dim, excluded)
    grads = torch.autograd.grad(total @ weight, leaves)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    keep = 1.0 if excluded is None else (~excluded).double()
    expected = (zonal_sum(*wide, dim) * keep).sum(-1)
    expected_sizes = (zonal_sizes(*wide, dim) * keep).sum(-1)
    rounding = 10 * torch.finfo(dtype).eps
    assert ((total - expected).abs() <= rounding * expected_sizes).all()
    assert torch.allclose(sizes, expected_sizes, rtol=rounding)
    for grad, exact in zip(grads, torch.autograd.grad(expected @ weight, wide), strict=True):
        assert (grad - exact).abs().max() <= 30 * rounding * exact.abs().max()


@pytest.mark.parametrize("dim", [2, 3, 10, 768])
def test_log_ratios(dim):
    kappa = torch.tensor([1e-30, 1e-3, 1.0, 40.0, 1e3, 1e7, torch.inf], dtype=torch.float64)
    kappa.requires_grad_()
    logs = _native.native_log_ratios(dim / 2 - 1, kappa, 50)
    steps = sphere._bessel.bessel_steps(dim / 2 - 1, kappa, 49)
    expected = torch.nn.functional.pad(torch.log(steps).cumsum(-1), (1, 0))
    assert torch.allclose(logs, expected, rtol=1e-13, atol=1e-13)
    weight = torch.rand(50, dtype=torch.float64)
    (grad,), (exact,) = (
        torch.autograd.grad((x @ weight)[1:].sum(), kappa) for x in (logs, expected)
    )
    assert torch.allclose(grad, exact, rtol=1e-12)


def test_second_derivatives():
    kappa = torch.tensor([0.5, 20.0], dtype=torch.float64, requires_grad=True)
    cosine = torch.tensor([0.3, -0.9], dtype=torch.float64, requires_grad=True)

    def value(kappa, cosine):
        logs = _native.native_log_ratios(4.0, kappa, 12)
        total, _, scale = _native.native_series(cosine, logs, 10)
        return torch.log(total) + scale

    assert torch.autograd.gradcheck(value, (kappa, cosine))
    assert torch.autograd.gradgradcheck(value, (kappa, cosine))
    left, right = (torch.rand(n, 6, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    cosines = (torch.rand(3, 4, dtype=torch.float64) - 0.5).requires_grad_()

    def sums(cosine, left, right):
        return row_sums(cosine, left, right, 10)[0]

    assert torch.autograd.gradcheck(sums, (cosines, left, right))
    assert torch.autograd.gradgradcheck(sums, (cosines, left, right))


@pytest.mark.parametrize(("dim", "kappa_pos"), [(10, 20.0), (32, 64.0), (768, 100.0)])
def test_loss_is_the_same_without_it(monkeypatch, dim, kappa_pos):
    mu = sphere.normalize(torch.randn(2, 40, dim))
    kappa = (kappa_pos * (0.5 + torch.rand(2, 40))).requires_grad_()
    found = []
    for library in (_native.native_library(), None):
        monkeypatch.setattr(_native, "native_library", lambda library=library: library)
        loss = au.ClosedFormInfoNCE(kappa_pos, in_batch="all")
        value = loss(*(au.VonMisesFisher(m, k) for m, k in zip(mu, kappa, strict=True)))
        found.append((value, torch.autograd.grad(value, kappa)[0]))
    (value, grad), (expected, exact) = found
    assert torch.allclose(value, expected, rtol=1e-6)
    assert (grad - exact).abs().max() < 1e-5 * exact.abs().max()


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(RuntimeError, match="refused"):
        _native._call("rows_f32", [None] * 4, (-1, 1, 1, 3, 1), [torch.empty(1)] * 2)
