"""The losses of pairs among the items of a batch, against slow loops and against separate negatives."""

import math
import warnings

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.losses import ContrastiveLoss
from aureole.sphere._geometry import unit_cosine
from tests.losses.test_values import made, scores

PAIRS = torch.tensor([[0, 1], [1, 0], [4, 2], [4, 2], [5, 0]])


def items(n=6, dim=10, kappa=20.0, dtype=torch.float64, components=None):
    shape = (n,) if components is None else (n, components)
    mu = au.sphere.normalize(torch.randn(*shape, dim, dtype=dtype)).requires_grad_()
    concentration = (kappa * (0.5 + torch.rand(shape, dtype=dtype))).requires_grad_()
    if components is None:
        return au.VonMisesFisher(mu, concentration)
    return au.MixtureVMF(torch.rand(shape, dtype=dtype) + 0.1, mu, concentration)


def one_by_one(loss, q):
    """The default of the base class: each pair with separate negatives."""
    return ContrastiveLoss.per_pairs(loss, q, PAIRS, slice(0, 6), 0.0)


@pytest.mark.parametrize("name", ["ClosedFormInfoNCE", "InfoNCE", "ELK"])
def test_scored_losses_match_the_loop(name):
    kappa_pos = 2.0 if name == "ELK" else 20.0
    q, score = items(), scores(kappa_pos)[name]
    mu, kappa = q.mu.detach(), q.kappa.detach()
    wanted = []
    for i, j in PAIRS.tolist():
        total = math.fsum(
            math.exp(score(mu[i], kappa[i], mu[k], kappa[k])) for k in range(6) if k != i
        )
        wanted.append(math.log(total) - score(mu[i], kappa[i], mu[j], kappa[j]))
    found = made(name, kappa_pos, reduction="none").among(q, PAIRS)
    assert torch.allclose(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        au.ClosedFormInfoNCE(20.0, reduction="none", centring=0.5),
        au.InfoNCE(temperature=0.05, reduction="none"),
        au.ELK(temperature=0.5, reduction="none"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_values_and_gradients_match_separate_negatives(loss):
    q = items()
    fast, slow = loss.among(q, PAIRS), one_by_one(loss, q)
    assert torch.allclose(fast, slow, rtol=1e-9)
    for a, b in zip(
        *(torch.autograd.grad(v.sum(), (q.mu, q.kappa), allow_unused=True) for v in (fast, slow)),
        strict=True,
    ):
        assert (a is None and b is None) or torch.allclose(a, b, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    "loss",
    [
        au.MCInfoNCE(20.0, 4000, reduction="none"),
        au.losses.HedgedInstance(a=2.0, b=-0.5, n_samples=4000, reduction="none"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_drawn_losses_agree_with_separate_negatives_on_average(loss):
    q = items(kappa=40.0)
    fast = torch.stack([loss.among(q, PAIRS) for _ in range(8)]).mean(0)
    slow = torch.stack([one_by_one(loss, q) for _ in range(8)]).mean(0)
    assert torch.allclose(fast, slow, atol=0.08)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 20.0), (10, 20.0), (10, 2000.0), (64, 60.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixtures_match_the_loop(dim, kappa, dtype):
    q = items(dim=dim, kappa=kappa, dtype=dtype, components=2)
    log_h = torch.stack(
        [
            torch.stack(
                [
                    au.distributions.log_expected_positivity(*(_item(q, k) for k in (i, j)), 20.0)
                    for j in range(6)
                ]
            )
            for i in range(6)
        ]
    )
    i, j = PAIRS.T
    rows = torch.logsumexp(log_h.masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf), -1)
    wanted = rows[i] - log_h[i, j]
    found = au.ClosedFormInfoNCE(20.0, reduction="none").among(q, PAIRS)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance)
    leaves = (q.mu, q.kappa)
    for a, b in zip(
        *(torch.autograd.grad(v.sum(), leaves, retain_graph=True) for v in (found, wanted)),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-3 if dtype == torch.float32 else 1e-7, atol=tolerance)


def _item(q, k):
    return au.MixtureVMF(q.weights[k], q.mu[k], q.kappa[k])


def test_a_mixture_of_one_is_a_vmf():
    q = items()
    mixture = au.MixtureVMF(torch.ones(6, 1), q.mu.unsqueeze(1), q.kappa.unsqueeze(1))
    loss = au.ClosedFormInfoNCE(20.0, centring=0.3)
    assert loss.among(mixture, PAIRS).item() == pytest.approx(loss.among(q, PAIRS).item(), rel=1e-9)


def test_gradcheck():
    q = items(n=4, dim=3, kappa=8.0)
    loss, pairs = au.ClosedFormInfoNCE(5.0, reduction="none"), torch.tensor([[0, 1], [2, 3]])

    def value(mu, kappa):
        return loss.among(au.VonMisesFisher(au.sphere.normalize(mu), kappa), pairs)

    def mixture_value(mu, kappa, weights):
        return loss.among(au.MixtureVMF(weights, au.sphere.normalize(mu), kappa), pairs)

    assert torch.autograd.gradcheck(value, (q.mu, q.kappa))
    m = items(n=4, dim=3, kappa=8.0, components=2)
    weights = (torch.rand(4, 2, dtype=torch.float64) + 0.2).requires_grad_()
    assert torch.autograd.gradcheck(mixture_value, (m.mu, m.kappa, weights))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (torch.zeros(0, 2, dtype=torch.long), "at least one pair"),
        (torch.tensor([0, 1]), "shape"),
        (torch.tensor([[0, 6]]), "index 6 items"),
        (torch.tensor([[-1, 2]]), "index 6 items"),
        (torch.tensor([[0, 1], [3, 3]]), "pairs item 3 with itself"),
    ],
)
def test_bad_pairs_are_named(pairs, message):
    with pytest.raises(InvalidInputError, match=message):
        au.InfoNCE(temperature=0.05).among(items(), pairs)


def test_too_few_items_and_mixtures_where_none_are_taken():
    with pytest.raises(InvalidInputError, match="hold no negatives"):
        au.InfoNCE(temperature=0.05).among(items(n=2), torch.tensor([[0, 1]]))
    with pytest.raises(InvalidInputError, match="ClosedFormInfoNCE takes mixtures"):
        au.InfoNCE(temperature=0.05).among(items(components=2), PAIRS)


def test_sharp_kappas_leave_the_series_and_stay_finite():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for components in (None, 2):
            q = items(kappa=1e6, components=components, dtype=torch.float32)
            value = au.ClosedFormInfoNCE(200.0).among(q, PAIRS)
            value.backward()
            assert torch.isfinite(value)


@pytest.mark.parametrize("n", [40, 400])
def test_partners_far_apart_among_sure_items_match_the_logs_of_all_pairs(n):
    """The sums of such rows lie below the rounding of any series: few go to the integral, many to its interpolation."""
    torch.manual_seed(3)
    centres = au.sphere.normalize(torch.randn(n // 2, 32, dtype=torch.float64))
    mu = centres.repeat_interleave(2, 0) + 0.05 * torch.randn(n, 32, dtype=torch.float64)
    mu[::20] = torch.randn(len(mu[::20]), 32, dtype=torch.float64)  # their partners are elsewhere
    mu = au.sphere.normalize(mu).requires_grad_()
    kappa = (300 * torch.exp(0.5 * torch.randn(n, dtype=torch.float64))).requires_grad_()
    pairs = torch.arange(n).reshape(-1, 2)
    found = au.ClosedFormInfoNCE(64.0, reduction="none").among(au.VonMisesFisher(mu, kappa), pairs)
    rows = torch.cat(
        [torch.arange(0, n, 20) // 2, torch.tensor([1])]
    )  # all that are torn, and one that is not
    cosine = unit_cosine(mu[pairs[rows, 0]].unsqueeze(1), mu)
    each = au.sphere.log_positivity(cosine, kappa[pairs[rows, 0], None], kappa, 64.0, 32)
    own = torch.nn.functional.one_hot(pairs[rows, 0], n).bool()
    pair = each.gather(1, pairs[rows, 1:]).squeeze(1)
    wanted = torch.logsumexp(each.masked_fill(own, -torch.inf), -1) - pair
    assert wanted[:-1].median() > 5
    assert torch.allclose(found[rows], wanted, rtol=1e-4, atol=2e-3)
    slopes = [torch.autograd.grad(x.sum(), [mu, kappa]) for x in (found[rows], wanted)]
    for got, true in zip(*slopes, strict=True):
        assert (got - true).abs().max() < 5e-3 * true.abs().max()


@pytest.mark.long
def test_quasi_random_draws_come_as_close_to_the_limit_as_random_ones():
    """With one order of the points for all items the k-th draws never leave a diagonal, and the error stays."""
    q = items(n=6, dim=3, kappa=4.0)
    error = {}
    with torch.no_grad():
        limit = au.MCInfoNCE(5.0, 200_000, reduction="none").among(q, PAIRS)
        for quasi in (False, True):
            for n_samples in (32, 2048):
                loss = au.MCInfoNCE(5.0, n_samples, quasi=quasi, reduction="none")
                found = torch.stack([loss.among(q, PAIRS) for _ in range(60)])
                error[quasi, n_samples] = (found - limit).square().mean().sqrt().item()
    for n_samples in (32, 2048):
        assert error[True, n_samples] < 1.1 * error[False, n_samples]
    assert error[True, 2048] < 0.25 * error[True, 32]  # 1/8 in theory; it was 1/2
