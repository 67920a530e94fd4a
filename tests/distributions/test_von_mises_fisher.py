"""The vMF as torch.distributions know it: shapes, densities, validation, machinery."""

import math
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere._geometry import unit_tolerance
from tests.oracles.vmf import DIMS, KAPPAS


def random_vmf(*batch, dim=6, dtype=torch.float64, scale=20.0):
    mu = sphere.normalize(torch.randn(*batch, dim, dtype=dtype))
    return au.VonMisesFisher(mu, scale * torch.rand(batch, dtype=dtype))


def test_shapes_broadcast_and_expand():
    q = au.VonMisesFisher(torch.eye(4)[:3], torch.ones(5, 1))
    assert (q.batch_shape, q.event_shape) == ((5, 3), (4,))
    assert q.rsample((2, 7)).shape == (2, 7, 5, 3, 4)
    assert q.log_prob(torch.eye(4)[0]).shape == (5, 3)
    wide = q.expand((2, 5, 3))
    assert wide.batch_shape == (2, 5, 3)
    assert wide.mean.shape == (2, 5, 3, 4)
    assert type(wide) is au.VonMisesFisher
    assert q.credible_cosine(torch.tensor([0.5, 0.9]).reshape(2, 1, 1)).shape == (2, 5, 3)


def test_torch_machinery():
    q = random_vmf(3, 4)
    independent = Independent(q, 1)
    z = independent.rsample((2,))
    assert z.shape == (2, 3, 4, 6)
    assert torch.allclose(independent.log_prob(z), q.log_prob(z).sum(-1))
    assert torch.allclose(independent.entropy(), q.entropy().sum(-1))
    mixture = MixtureSameFamily(Categorical(torch.ones(3, 4)), q)
    assert mixture.sample((5,)).shape == (5, 3, 6)
    assert mixture.log_prob(mixture.sample((5,))).shape == (5, 3)
    assert torch.allclose(mixture.mean, q.mean.mean(-2))
    assert q.support.check(z).all()
    assert q.stddev.shape == q.mean.shape


@pytest.mark.parametrize("dim", [3, 5, 20])
def test_log_prob_and_entropy_match_scipy(dim):
    mu = sphere.normalize(torch.randn(dim, dtype=torch.float64))
    z = sphere.normalize(torch.randn(50, dim, dtype=torch.float64))
    for kappa in (0.5, 30.0):
        truth = scipy.stats.vonmises_fisher(mu.numpy(), kappa)
        q = au.VonMisesFisher(mu, torch.tensor(kappa, dtype=torch.float64))
        assert torch.allclose(q.log_prob(z), torch.from_numpy(truth.logpdf(z.numpy())), atol=1e-11)
        assert q.entropy().item() == pytest.approx(float(truth.entropy()), abs=1e-10)


def test_log_prob_integrates_to_one_on_the_circle_and_the_sphere():
    angle = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)[:-1]
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    q = au.VonMisesFisher(sphere.normalize(torch.tensor([3.0, 4.0], dtype=torch.float64)), 7.0)
    assert q.log_prob(circle).exp().mean().item() * 2 * math.pi == pytest.approx(1, abs=1e-12)


def test_log_prob_keeps_digits_at_huge_kappa_in_float32():
    mu = sphere.normalize(torch.tensor([1.0, 2.0, 2.0]))
    step = torch.tensor([0.0, 1e-3, -1e-3])
    z = sphere.normalize(mu + step)
    single = au.VonMisesFisher(mu, 1e6).log_prob(z)
    double = au.VonMisesFisher(sphere.normalize(mu.double()), 1e6).log_prob(
        sphere.normalize(mu.double() + step.double())
    )
    assert abs(single.item() - double.item()) < 2e-3 * abs(double.item())


def test_gradients_of_log_prob():
    mu = sphere.normalize(torch.randn(3, 5, dtype=torch.float64)).requires_grad_()
    kappa = torch.tensor([0.0, 2.0, 80.0], dtype=torch.float64, requires_grad=True)
    z = sphere.normalize(torch.randn(3, 5, dtype=torch.float64)).requires_grad_()

    def log_prob(mu, kappa, z):
        return au.VonMisesFisher(mu, kappa, validate_args=False).log_prob(z)

    assert torch.autograd.gradcheck(log_prob, (mu, kappa, z))
    assert torch.autograd.gradgradcheck(log_prob, (mu, kappa, z))


@pytest.mark.long
def test_gradients_of_rsample():
    mu = sphere.normalize(torch.randn(3, 5, dtype=torch.float64)).requires_grad_()
    kappa = torch.tensor([0.5, 2.0, 80.0], dtype=torch.float64, requires_grad=True)

    def draw(mu, kappa):
        q = au.VonMisesFisher(mu, kappa, validate_args=False)
        return q.rsample((4,), generator=torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(draw, (mu, kappa), atol=1e-6)
    assert torch.autograd.gradgradcheck(draw, (mu, kappa), atol=1e-4)


def test_uniform_and_point_are_the_ends_of_kappa():
    mu = torch.eye(3, dtype=torch.float64)
    kappa = torch.tensor([0.0, torch.inf, torch.inf], dtype=torch.float64, requires_grad=True)
    q = au.VonMisesFisher(mu, kappa)
    log_prob = q.log_prob(mu[1])
    assert log_prob.tolist() == [-sphere.log_sphere_area(3), math.inf, -math.inf]
    (grad,) = torch.autograd.grad(log_prob[0], kappa)
    assert torch.isfinite(grad).all()
    assert q.entropy().tolist() == [sphere.log_sphere_area(3), -math.inf, -math.inf]
    assert torch.equal(q.mean, torch.diag(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)))
    assert torch.allclose(q.variance[0], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert (q.variance[1:] == 0).all()
    assert q.credible_cosine(0.9).tolist() == pytest.approx([-0.8, 1.0, 1.0])


@pytest.mark.parametrize("dim", DIMS)
def test_everything_is_finite_on_the_grid(dim):
    kappa = torch.tensor([*KAPPAS, 1e8], dtype=torch.float32, requires_grad=True)
    pole = torch.eye(dim)[:1]
    mu = torch.cat([pole, -pole]).unsqueeze(1).requires_grad_()
    q = au.VonMisesFisher(mu, kappa)
    z = torch.cat([pole, -pole, sphere.normalize(torch.randn(1, dim))]).reshape(3, 1, 1, dim)
    other = au.VonMisesFisher(sphere.normalize(torch.randn(dim)), kappa.detach().flip(0))
    for value in (
        q.log_prob(z), q.entropy(), q.mean, q.variance, q.credible_cosine(0.95),
        q.credible_height(0.95), kl_divergence(q, other), kl_divergence(other, q),
        kl_divergence(q, au.SphereUniform(dim)), kl_divergence(au.SphereUniform(dim), q),
    ):  # fmt: skip
        assert torch.isfinite(value).all()
        if not value.requires_grad:
            continue
        for grad in torch.autograd.grad(value.sum(), (mu, kappa), allow_unused=True):
            assert grad is None or torch.isfinite(grad).all()


def test_autocast_changes_nothing():
    mu = sphere.normalize(torch.randn(8, 16)).requires_grad_()
    kappa = (100 * torch.rand(8)).requires_grad_()

    def run():
        q = au.VonMisesFisher(mu, kappa)
        z = q.rsample((4,), generator=torch.Generator().manual_seed(0))
        value = q.log_prob(z).sum() + q.entropy().sum() + (z * torch.arange(16.0)).sum()
        return (z, value, *torch.autograd.grad(value, (mu, kappa)))

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run()
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


def test_half_precision_inputs_become_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedding = torch.nn.Linear(4, 16)(torch.randn(8, 4))
        assert embedding.dtype == torch.bfloat16
        mu = torch.nn.functional.normalize(embedding, dim=-1)
        q = au.VonMisesFisher(mu, embedding.norm(dim=-1))
    assert q.mu.dtype == q.kappa.dtype == torch.float32
    assert unit_tolerance(torch.float32) >= (q.mu.norm(dim=-1) - 1).abs().max()
    value = q.log_prob(q.rsample())
    grads = torch.autograd.grad(value.sum(), (q.mu, q.kappa))
    assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize(
    ("mu", "kappa", "message"),
    [
        (torch.ones(8, 3), 1.0, r"mu\[0\] has norm 1\.73.*tolerance 0\.0001.*sphere\.normalize"),
        (torch.eye(3), torch.tensor([1.0, -2.0, 3.0]), r"kappa\[1\] is -2 .*exp or softplus"),
        (torch.eye(3), float("nan"), r"kappa is nan"),
        (torch.full((2, 3), float("nan")), 1.0, r"mu\[0\] has norm nan"),
        (torch.eye(3), torch.ones(4), r"\(3,\), and kappa, \(4,\), do not broadcast"),
        (torch.ones(4, 1), 1.0, "at least 2"),
        (torch.tensor(1.0), 1.0, "scalar"),
        (torch.ones(3, dtype=torch.long), 1.0, "floating-point"),
    ],
)
def test_wrong_parameters_are_named(mu, kappa, message):
    with pytest.raises(InvalidInputError, match=message):
        au.VonMisesFisher(mu, kappa)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3), "value has norm"),
        (torch.eye(4)[0], r"points of R\^3"),
        (torch.eye(3)[:2].expand(5, 2, 3), "does not broadcast"),
    ],
)
def test_wrong_values_are_named(value, message):
    q = au.VonMisesFisher(torch.eye(3), 1.0)
    with pytest.raises(InvalidInputError, match=message):
        q.log_prob(value)
    assert au.VonMisesFisher(torch.eye(3), 1.0, validate_args=False).log_prob(torch.ones(3)).shape


@pytest.mark.parametrize("mass", [-0.1, 1.5, float("nan"), torch.tensor([0.5, 2.0])])
def test_a_wrong_mass_is_named(mass):
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        au.VonMisesFisher(torch.eye(3), 1.0).credible_cosine(mass)


def test_credible_caps_cover():
    q = random_vmf(40, dim=12)
    z = q.sample((4000,))
    inside = (z * q.mu).sum(-1) >= q.credible_cosine(0.9)
    assert abs(inside.double().mean().item() - 0.9) < 4 * (0.09 / inside.numel()) ** 0.5
    gap = 0.5 * (z - q.mu).square().sum(-1)
    assert torch.equal(inside, gap <= q.credible_height(0.9)) or (
        (inside ^ (gap <= q.credible_height(0.9))).sum() <= 2  # rounding at the edge
    )


def test_fit_recovers_and_weights_count_as_copies():
    q = random_vmf(3, dim=5)
    z = q.sample((50_000,))
    found = au.VonMisesFisher.fit(z)
    assert torch.allclose(found.kappa, q.kappa, rtol=0.03)
    assert (found.mu * q.mu).sum(-1).min() > 0.999
    few = z[:20]
    weights = torch.randint(1, 4, (20,)).double()
    copies = few.repeat_interleave(weights.long(), dim=0)
    weighted = au.VonMisesFisher.fit(few, weights.unsqueeze(-1).expand(20, 3))
    assert torch.allclose(weighted.kappa, au.VonMisesFisher.fit(copies).kappa, rtol=1e-10)


def test_fit_maximises_the_likelihood():
    z = random_vmf(dim=4).sample((30,))
    best = au.VonMisesFisher.fit(z)
    top = best.log_prob(z).sum()
    for factor in (0.9, 1.1):
        assert au.VonMisesFisher(best.mu, best.kappa * factor).log_prob(z).sum() < top
    nudged = sphere.normalize(best.mu + 0.05 * torch.randn(4, dtype=torch.float64))
    assert au.VonMisesFisher(nudged, best.kappa).log_prob(z).sum() < top


def test_fit_of_samples_that_cancel_is_uniform():
    half = sphere.normalize(torch.randn(50, 200, 6))
    found = au.VonMisesFisher.fit(torch.cat([half, -half]))
    assert found.kappa.max() < 0.01  # 1 - length may round to more than 1


def test_fit_of_concentrated_degenerate_and_opposite_samples():
    mu = sphere.normalize(torch.randn(8, dtype=torch.float64))
    tight = au.VonMisesFisher(mu, 1e10).sample((20_000,))
    assert au.VonMisesFisher.fit(tight).kappa.item() == pytest.approx(1e10, rel=0.03)
    same = mu.expand(5, 8)
    assert au.VonMisesFisher.fit(same).kappa.item() > 1e15
    opposite = au.VonMisesFisher.fit(torch.stack([mu, -mu]))
    assert opposite.kappa.item() == pytest.approx(0, abs=1e-12)
    with pytest.raises(InvalidInputError, match="nonnegative"):
        au.VonMisesFisher.fit(same, torch.tensor([1.0, -1, 1, 1, 1], dtype=torch.float64))


def has_compiler():
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return headers.exists() and any(shutil.which(name) for name in ("g++", "clang++", "c++"))


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.skipif(
    not has_compiler(), reason="torch.compile needs a C++ compiler and the headers of Python"
)
@pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="torch 2.6 compiles this for over ten minutes"
)
def test_torch_compile_gives_the_eager_values():
    """In a process of its own: the shape checks of the test suite are not traceable."""
    code = """
import torch, aureole as au
from aureole import sphere
from aureole.sphere._geometry import wrap
torch.manual_seed(0)
mu = sphere.normalize(torch.randn(32, 10)).requires_grad_()
kappa = (50 * torch.rand(32)).requires_grad_()
z = sphere.normalize(torch.randn(7, 32, 10))
cube = torch.rand(7, 32, 10)
def f(mu, kappa):
    q = au.VonMisesFisher(mu, kappa, validate_args=False)
    return q.log_prob(z).sum() + q.entropy().sum()
def g(mu, kappa):
    q = au.VonMisesFisher(mu, kappa, validate_args=False)
    angle = sphere.cap_angle(cube[..., 0].double(), q.kappa, 10).float()
    return (wrap(cube[..., 1:] - 0.5, angle, q.mu) * z).sum()
for function in (f, g):
    plain, fused = function(mu, kappa), torch.compile(function, fullgraph=True)(mu, kappa)
    assert torch.allclose(plain, fused, rtol=1e-5), (plain, fused)
    for a, b in zip(torch.autograd.grad(plain, (mu, kappa)), torch.autograd.grad(fused, (mu, kappa))):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]


def test_mu_in_single_and_kappa_in_double_precision():
    """The norm is checked in mu's own precision; what is widened is normalised again."""
    mu = torch.nn.functional.normalize(torch.randn(50, 300), dim=-1)
    q = au.VonMisesFisher(mu, torch.full((50,), 20.0, dtype=torch.float64))
    assert q.mu.dtype == q.kappa.dtype == torch.float64
    assert (q.mu.norm(dim=-1) - 1).abs().max() < 1e-15
    with pytest.raises(au.errors.InvalidInputError, match="has norm 2"):
        au.VonMisesFisher(2 * mu, torch.tensor(20.0, dtype=torch.float64))
    single = au.VonMisesFisher(mu, 20.0)
    loss = au.ClosedFormInfoNCE(20.0)
    value = loss(single, q, single)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, loss(q, q, q), rtol=1e-6, atol=1e-6)


def test_the_support_and_its_bijection():
    q = au.VonMisesFisher(torch.eye(4)[0].double(), 7.0)
    assert repr(q.support) == "UnitSphere()"
    transform = torch.distributions.biject_to(q.support)
    x = torch.randn(5, 3, dtype=torch.float64)
    z = transform(x)
    assert q.support.check(z).all()
    assert torch.allclose(transform.inv(z), x)
    assert transform.forward_shape((5, 3)) == (5, 4)
    for point, log_det in zip(x, transform.log_abs_det_jacobian(x, z), strict=True):
        jacobian = torch.autograd.functional.jacobian(transform, point)
        assert torch.allclose(0.5 * torch.logdet(jacobian.T @ jacobian), log_det)


def test_a_mixture_draws_with_a_generator():
    weights = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    mixture = au.MixtureVMF(weights, torch.eye(3)[:2].expand(2, 2, 3), torch.tensor(500.0))
    draws = [mixture.sample((4000,), generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*draws)
    assert draws[0].shape == (4000, 2, 3)
    first = (draws[0][..., 0] > 0.5).double().mean(0)
    assert torch.allclose(first, torch.tensor([0.2, 1.0], dtype=torch.float64), atol=0.03)
    assert mixture.sample().shape == (2, 3)


class Synchronisations(TorchDispatchMode):
    """Counts the calls that wait for the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dim", [3, 64])
def test_nothing_waits_for_the_device_without_validation(dim):
    z = torch.nn.functional.normalize(torch.randn(5, dim), dim=-1)
    mu, kappa = z.clone().requires_grad_(), (50 * torch.rand(5)).requires_grad_()
    with Synchronisations() as mode:
        q = au.VonMisesFisher(mu, kappa, validate_args=False)
        value = q.log_prob(z).sum() + (q.rsample((3,)) * z).sum()
        value = value + q.entropy().sum() + q.credible_cosine(0.9).sum()
        value.backward()
    assert mode.count == 0
    with Synchronisations() as mode:
        q.sample()
    assert mode.count > 0  # rejection counts what is left, as its docstring says


def test_a_point_is_valid_wherever_a_posterior_is():
    mu = torch.eye(4, dtype=torch.float64)[:3]
    point = au.VonMisesFisher(mu, torch.inf)
    assert torch.equal(point.mean, mu)
    assert torch.equal(point.sample((2,)), mu.expand(2, 3, 4))
    torch.testing.assert_close(point.rsample((2,)), mu.expand(2, 3, 4))
    assert point.variance.abs().max() == 0
    assert point.entropy().tolist() == [-torch.inf] * 3
    assert point.log_prob(mu).tolist() == [torch.inf] * 3
    assert point.log_prob(mu.flip(0))[0] == -torch.inf
    assert point.credible_cosine(0.95).tolist() == [1.0] * 3
    assert (point.predictive_cosine(0.9, 20.0, torch.inf) < 1).all()
    wide = au.VonMisesFisher(mu, 5.0)
    assert au.fuse(point, wide).kappa.tolist() == [torch.inf] * 3
    assert au.expected_positivity(point, wide, 20.0).isfinite().all()
    for loss in (au.ClosedFormInfoNCE(20.0), au.MCInfoNCE(20.0), au.InfoNCE(temperature=0.1)):
        assert loss(point, wide, wide).isfinite()
        assert loss(wide, point).isfinite()


@pytest.mark.parametrize("kind", [au.VonMisesFisher, au.MixtureVMF])
def test_a_zero_vector_is_no_direction(kind):
    mu = torch.eye(3)
    mu[1] = 0
    arguments = (mu, 5.0) if kind is au.VonMisesFisher else (torch.ones(3), mu, 5.0)
    with pytest.raises(InvalidInputError, match=r"mu\[1\] has norm 0 .*normalize"):
        kind(*arguments)
