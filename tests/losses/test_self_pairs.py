"""Pairs of an item with itself, weights of pairs, and the agreement of annotators, against slow loops and draws."""

import math

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.losses._self_pairs import log_self_match
from aureole.sphere import log_positivity
from tests.losses.test_among import items

PAIRS = torch.tensor([[0, 1], [1, 1], [4, 2], [4, 4], [4, 4], [4, 2], [5, 0], [3, 3]])
LOSS = au.ClosedFormInfoNCE(20.0, reduction="none")


def looped(q, pairs, weight, kappa_pos=20.0):
    """The loss of each pair from a matrix of exact logs."""
    mu, kappa = q.mu.detach(), q.kappa.detach()
    logs = log_positivity((mu @ mu.T).clamp(-1, 1), kappa[:, None], kappa, kappa_pos, q.dim)
    n, wanted = len(kappa), []
    for i, j in pairs.tolist():
        total = math.fsum(
            (weight if k == i else 1.0) * math.exp(logs[i, k].item()) for k in range(n)
        )
        wanted.append(math.log(total) - logs[i, j].item())
    return torch.tensor(wanted, dtype=torch.float64)


@pytest.mark.parametrize("weight", [0.5, 1.0, 64.0, 1e4])
@pytest.mark.parametrize(("dim", "kappa"), [(2, 5.0), (10, 20.0), (64, 24.0), (128, 2000.0)])
def test_pairs_with_copies_of_the_anchor_match_the_loop(dim, kappa, weight):
    q = items(dim=dim, kappa=kappa)
    found = LOSS.among(q, PAIRS, self_weight=weight)
    assert torch.allclose(found, looped(q, PAIRS, weight), rtol=1e-9, atol=1e-9)
    alone = PAIRS[PAIRS[:, 0] == PAIRS[:, 1]]
    found = LOSS.among(q, alone, self_weight=weight)
    assert torch.allclose(found, looped(q, alone, weight), rtol=1e-9, atol=1e-9)
    narrow = au.VonMisesFisher(q.mu.detach().float(), q.kappa.detach().float())
    assert torch.allclose(
        LOSS.among(narrow, PAIRS, self_weight=weight).double(),
        looped(narrow, PAIRS, weight), rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def test_gradients_of_self_pairs_and_of_a_matrix_of_weights():
    q = items(n=5, dim=4, kappa=8.0)
    pairs, loss = torch.tensor([[0, 1], [1, 1], [2, 2], [2, 3]]), au.ClosedFormInfoNCE(20.0)
    matrix = torch.rand(5, 5, dtype=torch.float64)

    def listed(mu, kappa):
        return loss.among(au.VonMisesFisher(au.sphere.normalize(mu), kappa), pairs, self_weight=8.0)

    def dense(mu, kappa):
        return loss.among(
            au.VonMisesFisher(au.sphere.normalize(mu), kappa), matrix, self_weight=3.0
        )

    assert torch.autograd.gradcheck(listed, (q.mu, q.kappa))
    assert torch.autograd.gradcheck(dense, (q.mu, q.kappa))


@pytest.mark.parametrize("weight", [0.0, 16.0])
def test_a_dense_a_sparse_and_a_listed_matrix_agree(weight):
    q = items(n=40)
    matrix = torch.rand(40, 40, dtype=torch.float64)
    if not weight:
        matrix.fill_diagonal_(0.0)
    i, j = matrix.nonzero().unbind(-1)
    loss = au.ClosedFormInfoNCE(20.0)
    wanted = (matrix[i, j] * looped(q, torch.stack([i, j], 1), weight)).sum() / matrix.sum()
    for found in (
        loss.among(q, matrix, self_weight=weight),
        loss.among(q, matrix.to_sparse(), self_weight=weight),
        loss.among(q, torch.stack([i, j], 1), weights=matrix[i, j], self_weight=weight),
    ):
        assert found.item() == pytest.approx(wanted.item(), rel=1e-10)
    parts = [
        loss.share_among(q, matrix, part, self_weight=weight)
        for part in (slice(0, 13), slice(13, 40))
    ]
    assert (sum(parts) / matrix.sum()).item() == pytest.approx(wanted.item(), rel=1e-10)


@pytest.mark.parametrize(
    "loss",
    [au.ELK(temperature=1.0), au.InfoNCE(temperature=0.05), au.losses.HedgedInstance(n_samples=4)],
)
def test_every_loss_takes_weights_and_only_some_take_self_pairs(loss):
    q, pairs = items(), torch.tensor([[0, 1], [4, 2], [4, 2]])
    torch.manual_seed(0)
    listed = loss.among(q, pairs)
    torch.manual_seed(0)
    assert loss.among(q, pairs, weights=torch.ones(3)).item() == pytest.approx(listed.item())
    with pytest.raises(InvalidInputError, match="does not take self-pairs"):
        loss.among(q, torch.tensor([[1, 1]]), self_weight=1.0)
    with pytest.raises(InvalidInputError, match="does not take agreement"):
        loss.among(q, pairs, agreement=torch.ones(6))


def test_draws_approach_the_closed_form_where_the_anchor_is_nearly_a_point():
    """The two losses differ by design where the anchor's draws vary; not at a high kappa."""
    q = items(kappa=4000.0, dim=3)
    torch.manual_seed(0)
    drawn = au.MCInfoNCE(5.0, 4000, reduction="none").among(q, PAIRS, self_weight=8.0)
    exact = au.ClosedFormInfoNCE(5.0, reduction="none").among(q, PAIRS, self_weight=8.0)
    assert torch.allclose(drawn, exact, atol=2e-3)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (10, 20.0), (64, 200.0)])
def test_the_chance_of_a_self_match_is_the_mean_over_draws(dim, kappa):
    q = au.VonMisesFisher(torch.eye(dim, dtype=torch.float64)[0], kappa)
    rng = torch.Generator().manual_seed(0)
    cosine = (q.sample((100_000,), generator=rng) * q.sample((100_000,), generator=rng)).sum(-1)
    drawn = torch.exp(20.0 * (cosine - 1))
    found = log_self_match(torch.tensor(kappa), 20.0, dim).exp().item()
    assert found == pytest.approx(drawn.mean().item(), abs=5 * drawn.std().item() / 100_000**0.5)


def test_a_self_match_is_sure_for_points_and_rises_with_kappa():
    kappa = torch.logspace(-3, 12, 200, dtype=torch.float64)
    logs = log_self_match(kappa, 20.0, 16)
    assert bool((logs.diff() >= 0).all())
    assert logs[-1] <= 0
    assert log_self_match(torch.tensor([math.inf]), 20.0, 16).item() == 0.0


def test_agreement_is_the_mean_of_what_was_observed():
    q, pairs = items(), torch.tensor([[0, 1]])
    share = torch.tensor([1.0, 0.9, math.nan, 0.0, 0.5, math.nan], dtype=torch.float64)
    loss = au.ClosedFormInfoNCE(20.0, agreement_weight=3.0)
    seen = [0, 1, 3, 4]
    p = log_self_match(q.kappa.detach(), 20.0, 10).exp()
    wanted = -sum(
        torch.special.xlogy(share[i], p[i]) + torch.special.xlogy(1 - share[i], 1 - p[i])
        for i in seen
    ) / len(seen)  # fmt: skip
    assert loss.agreement_term(q, share).item() == pytest.approx(3 * wanted.item(), rel=1e-12)
    both = loss.among(q, pairs, agreement=share) - loss.among(q, pairs)
    assert both.item() == pytest.approx(3 * wanted.item(), rel=1e-10)
    assert torch.autograd.gradcheck(
        lambda kappa: loss.agreement_term(au.VonMisesFisher(q.mu.detach(), kappa), share),
        q.kappa.detach().requires_grad_(),
    )


def test_agreement_has_its_minimum_at_the_kappa_that_matches_it():
    truth = torch.tensor([8.0, 20.0, 300.0], dtype=torch.float64)
    share = log_self_match(truth, 20.0, 16).exp()
    kappa = truth.clone().requires_grad_()
    q = au.VonMisesFisher(torch.eye(16, dtype=torch.float64)[:3], kappa)
    (grad,) = torch.autograd.grad(au.ClosedFormInfoNCE(20.0).agreement_term(q, share), kappa)
    assert grad.abs().max() < 1e-12


def test_points_agree_without_a_loss_and_nothing_observed_is_zero():
    point = au.VonMisesFisher(torch.eye(4)[:3], math.inf)
    loss = au.ClosedFormInfoNCE(20.0)
    assert loss.agreement_term(point, torch.ones(3)).item() == 0.0
    assert loss.agreement_term(point, torch.full((3,), math.nan)).item() == 0.0
    assert loss.agreement_term(point, torch.tensor([1.0, 0.5, math.nan])).item() == math.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"self_weight": -1.0}, "self_weight must be"),
        ({"self_weight": math.inf}, "self_weight must be"),
        ({"weights": torch.ones(2)}, "one value per pair"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0])}, "weights.1. is -1"),
        ({"weights": torch.tensor([1.0, -0.5, 1.0])}, "weights.1. is -0.5"),
        ({"weights": torch.tensor([1.0, math.nan, 1.0])}, "weights.1. is nan"),
        ({"weights": torch.zeros(3)}, "all weights of pairs are 0"),
        ({"agreement": torch.ones(5)}, "one value per item"),
        ({"agreement": torch.tensor([0.1, 1.5, 0, 0, 0, 0])}, "agreement.1. is 1.5"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InvalidInputError, match=message):
        au.ClosedFormInfoNCE(20.0).among(items(), torch.tensor([[0, 1], [4, 2], [3, 2]]), **options)


def test_bad_matrices_and_mixtures_are_named():
    loss, wrong = au.ClosedFormInfoNCE(20.0), torch.ones(5, 5).to_sparse()
    with pytest.raises(InvalidInputError, match="must have shape"):
        loss.among(items(), wrong)
    with pytest.raises(InvalidInputError, match="leave out weights"):
        loss.among(items(), torch.ones(6, 6), weights=torch.ones(36))
    with pytest.raises(InvalidInputError, match="all weights of pairs are 0"):
        loss.among(items(), torch.zeros(6, 6))
    with pytest.raises(InvalidInputError, match="with itself: pass self_weight"):
        loss.among(items(), torch.ones(6, 6))
    with pytest.raises(InvalidInputError, match="single vMF posteriors"):
        loss.among(items(components=2), torch.tensor([[0, 1]]), self_weight=1.0)
    with pytest.raises(InvalidInputError, match="single vMF posteriors"):
        loss.among(items(components=2), torch.tensor([[0, 1]]), agreement=torch.ones(6))


def test_a_weight_of_zero_in_a_sparse_matrix_is_no_pair():
    q, index = items(), torch.tensor([[0, 1, 4], [1, 1, 2]])
    matrix = torch.sparse_coo_tensor(
        index, torch.tensor([2.0, 0.0, 1.0]), (6, 6), check_invariants=True
    )
    found = LOSS.among(q, matrix)  # without the self-pair (1, 1)
    listed = LOSS.among(q, torch.tensor([[0, 1], [4, 2]]), weights=torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(found, listed)
