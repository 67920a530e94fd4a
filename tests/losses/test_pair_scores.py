"""Scores of many pairs from the fit, against the exact functions, and the cross entropy of a column."""

import math

import pytest
import torch

import aureole as au
from aureole.losses._cross_entropy import cross_entropy, cross_entropy_of_column
from aureole.losses._pair_scores import pair_scores
from aureole.sphere import log_pair_likelihood, normalize

N = 72


def log_uniform(low: float, high: float, *shape: int) -> torch.Tensor:
    return torch.exp(
        torch.empty(shape, dtype=torch.float64).uniform_(math.log(low), math.log(high))
    )


def setting(seed: int) -> tuple[int, list[torch.Tensor]]:
    """(Dimension, cosines and both kappas in float32), cosines near 1, near -1 and between."""
    torch.manual_seed(seed)
    dim = 2 + seed if seed < 4 else round(log_uniform(2, 4096).item())
    centre = log_uniform(1e-2, 1e6)
    kappas = [
        log_uniform(1e-2, 1e6, N) if seed % 2 else centre * 2 ** torch.empty(N).uniform_(-1, 1)
        for _ in range(2)
    ]
    c = torch.empty(N, N).uniform_(-1, 1).double()
    c[:, :24] = 1 - log_uniform(1e-7, 1, N, 24)
    c[:, 24:36] = -1 + log_uniform(1e-7, 1, N, 12)
    c[:, 36], c[:, 37] = 1 + 1e-7, -1
    return dim, [x.float() for x in (c, *kappas)]


@pytest.mark.parametrize("seed", range(40))
def test_scores_and_gradients_agree_with_the_exact_functions(seed):
    dim, inputs = setting(seed)
    single = [x.clone().requires_grad_() for x in inputs]
    scores = pair_scores(*single, dim)
    assert scores.dtype == torch.float32
    weights = torch.randn(N, N)
    grads = torch.autograd.grad(scores, single, weights)
    c, a, b = (x.double().requires_grad_() for x in (inputs[0].clamp(-1, 1), *inputs[1:]))
    exact = log_pair_likelihood(c, a.unsqueeze(1), b, dim)
    assert ((scores - exact).abs() <= 1.5e-7 * (1 + exact.abs())).all()
    truths = torch.autograd.grad(exact, (c, a, b), weights.double())
    for grad, truth in zip(grads, truths, strict=True):
        assert (grad - truth).abs().max() <= 5e-7 * truth.abs().max()


def test_ill_conditioned_gradients_keep_their_digits():
    """At kappa = 1e6 the two parts of a kappa's gradient agree in five digits, and the rest must be right."""
    torch.manual_seed(0)
    kappa = 1e6 * 2 ** torch.empty(N).uniform_(-1, 1)
    c = 1 - 1e-6 * torch.rand(N, N)
    inputs = [c, kappa, kappa.flip(0)]
    single = [x.clone().requires_grad_() for x in inputs]
    double = [x.double().requires_grad_() for x in inputs]
    grads = torch.autograd.grad(pair_scores(*single, 10).sum(), single)
    exact = log_pair_likelihood(double[0], double[1].unsqueeze(1), double[2], 10)
    for grad, truth in zip(grads, torch.autograd.grad(exact.sum(), double), strict=True):
        torch.testing.assert_close(grad.double(), truth, rtol=1e-6, atol=0)


def test_second_derivatives_are_exact():
    dim, inputs = setting(7)
    leaves = [inputs[0], *(x.clamp(1, 50) for x in inputs[1:])]
    single = [x.clone().requires_grad_() for x in leaves]
    double = [x.double().requires_grad_() for x in leaves]
    weights = torch.rand(N, N)

    def second(scores, inputs):
        first = torch.autograd.grad((scores * weights).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    c = double[0] + (double[0].clamp(-1, 1) - double[0]).detach()
    exact = second(log_pair_likelihood(c, double[1].unsqueeze(1), double[2], dim), double)
    for grad, truth in zip(second(pair_scores(*single, dim), single), exact, strict=True):
        assert (grad - truth).abs().max() <= 1e-5 * truth.abs().max()


def test_uniform_posteriors_and_antipodes():
    kappa = torch.zeros(N, requires_grad=True)
    c = torch.full((N, N), -1.0, requires_grad=True)
    scores = pair_scores(c, kappa, kappa, 8)
    grads = torch.autograd.grad(scores.sum(), (c, kappa))
    assert scores.abs().max() < 1e-12
    assert all(g.abs().max() < 1e-12 for g in grads)
    kappa = torch.full((N,), 30.0)
    expected = log_pair_likelihood(c, kappa, kappa, 8)
    torch.testing.assert_close(pair_scores(c, kappa, kappa, 8), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_of_a_column(dtype):
    torch.manual_seed(0)
    scores = (30 * torch.randn(70, 90, dtype=dtype)).requires_grad_()
    column = torch.randint(90, (70,))
    own = torch.zeros(70, 90, dtype=torch.bool).scatter_(1, column.unsqueeze(1), True)
    expected = cross_entropy(scores[own], scores.masked_fill(own, -torch.inf))
    found = cross_entropy_of_column(scores, column)
    torch.testing.assert_close(found, expected)
    weights = torch.rand(70, dtype=dtype)
    first, truth = (
        torch.autograd.grad(x, scores, weights, create_graph=True)[0] for x in (found, expected)
    )
    torch.testing.assert_close(first, truth, atol=1e-12, rtol=1e-5)
    plain = torch.autograd.grad(cross_entropy_of_column(scores, column), scores, weights)[0]
    torch.testing.assert_close(plain, truth.detach(), atol=1e-12, rtol=1e-5)
    second, truth = (torch.autograd.grad(x.square().sum(), scores)[0] for x in (first, truth))
    torch.testing.assert_close(second, truth, atol=1e-12, rtol=1e-4)


@pytest.mark.parametrize("make", [au.InfoNCE, au.ELK])
def test_a_large_batch_agrees_with_float64(make):
    torch.manual_seed(0)
    mu = normalize(torch.randn(96, 12))
    near = normalize(mu + 0.2 * torch.randn(96, 12))
    kappas = [16 + 16 * torch.rand(96) for _ in range(2)]
    loss = make(temperature=0.5, in_batch="all", reduction="none")
    values, grads = [], []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in (mu, near, *kappas)]
        unit = [normalize(x) for x in leaves[:2]]
        posteriors = [au.VonMisesFisher(m, k) for m, k in zip(unit, leaves[2:], strict=True)]
        values.append(loss(*posteriors))
        grads.append(torch.autograd.grad(values[-1].sum(), leaves, allow_unused=True))
    torch.testing.assert_close(values[0].double(), values[1], rtol=2e-5, atol=1e-9)
    for single, double in zip(*grads, strict=True):
        if double is not None:
            assert (single - double).abs().max() <= 1e-5 * double.abs().max()
