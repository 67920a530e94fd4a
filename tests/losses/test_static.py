"""Losses in torch.compile, and the static mode that reads nothing back from the device."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from tests.distributions.test_von_mises_fisher import has_compiler

SYNCHRONISING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"}


class Synchronisations(TorchDispatchMode):
    """Counts the operators that wait for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in SYNCHRONISING
        return func(*args, **(kwargs or {}))


def batch(dim, n=64):
    anchor = sphere.normalize(torch.randn(n, dim))
    positive = sphere.normalize(anchor + 0.5 * sphere.normalize(torch.randn(n, dim)))
    kappa = 16 + 16 * torch.rand(n)
    return [x.requires_grad_() for x in (anchor, positive, kappa)]


def step(loss, anchor, positive, kappa, *negatives):
    posteriors = [(anchor, kappa), (positive, kappa), *((n, kappa[: len(n)]) for n in negatives)]
    value = loss(*(au.VonMisesFisher(m, k, validate_args=False) for m, k in posteriors))
    return value, torch.autograd.grad(value, (anchor, positive, kappa))


@pytest.mark.parametrize(("dim", "kappa_pos"), [(10, 20.0), (768, 20.0), (768, 100.0)])
@pytest.mark.parametrize("negatives", ["all", "next", "both", "fresh"])
def test_static_loss_is_the_same_and_never_waits(dim, kappa_pos, negatives):
    leaves = batch(dim)
    fresh = [sphere.normalize(torch.randn(30, dim))] if negatives == "fresh" else []
    in_batch = "both" if negatives == "fresh" else negatives
    static = au.ClosedFormInfoNCE(kappa_pos, in_batch=in_batch, static=True)
    with Synchronisations() as seen:
        value, grads = step(static, *leaves, *fresh)
    assert seen.count == 0
    with Synchronisations() as seen:
        expected, exact = step(au.ClosedFormInfoNCE(kappa_pos, in_batch=in_batch), *leaves, *fresh)
    assert seen.count > 0  # so the count above can fail
    assert torch.allclose(value, expected, rtol=1e-6)
    for grad, right in zip(grads, exact, strict=True):
        assert (grad - right).abs().max() < 1e-5 * right.abs().max()


def test_static_loss_follows_kappa_pos():
    leaves = batch(10)
    loss = au.ClosedFormInfoNCE(20.0, static=True)
    loss.load_state_dict(au.ClosedFormInfoNCE(300.0).state_dict())
    assert torch.allclose(step(loss, *leaves)[0], step(au.ClosedFormInfoNCE(300.0), *leaves)[0])


def test_static_loss_says_when_kappa_pos_is_too_large():
    with pytest.raises(InvalidInputError, match="too large for D = 10"):
        step(au.ClosedFormInfoNCE(1e8, static=True), *batch(10))


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.skipif(
    not has_compiler(), reason="torch.compile needs a C++ compiler and the headers of Python"
)
@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="not tried on torch 2.6")
def test_torch_compile_of_a_step_gives_the_eager_values():
    """In a process of its own: the shape checks of the test suite are not traceable."""
    code = """
import torch, aureole as au
from aureole import sphere
torch.manual_seed(0)
for dim in (10, 768):
    anchor = sphere.normalize(torch.randn(32, dim)).requires_grad_()
    positive = sphere.normalize(anchor.detach() + 0.1 * torch.randn(32, dim)).requires_grad_()
    kappa = (16 + 16 * torch.rand(32)).requires_grad_()
    leaves = anchor, positive, kappa
    loss = au.ClosedFormInfoNCE(20.0)
    def step(anchor, positive, kappa):
        q, p = (au.VonMisesFisher(m, kappa, validate_args=False) for m in (anchor, positive))
        return loss(q, p)
    plain, fused = step(*leaves), torch.compile(step, fullgraph=True)(*leaves)
    assert torch.allclose(plain, fused), (plain, fused)
    for a, b in zip(torch.autograd.grad(plain, leaves), torch.autograd.grad(fused, leaves)):
        assert (a - b).abs().max() <= 1e-6 * a.abs().max()
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]
