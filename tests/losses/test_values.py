"""Each loss against a slow loop over pairs, in every mode of negatives."""

import math

import pytest
import torch

import aureole as au
from aureole.losses import Negatives, _hedged as hedged, _mcinfonce as mcinfonce
from aureole.losses._negatives import resolve_negatives

MODES = [
    ("shared", "next"),
    ("per anchor", "next"),
    ("none", "next"),
    ("none", "all"),
    ("none", "both"),
]


def negatives_of(i, anchor, positive, negative, in_batch):
    """The (mu, kappa) of anchor i's negatives, in plain Python."""
    if negative is None:
        n = len(positive.kappa)
        if in_batch == "both":
            return [(q.mu[j], q.kappa[j]) for q in (anchor, positive) for j in range(n) if j != i]
        which = [(i + 1) % n] if in_batch == "next" else [j for j in range(n) if j != i]
        return [(positive.mu[j], positive.kappa[j]) for j in which]
    if len(negative.batch_shape) == 1:
        return list(zip(negative.mu, negative.kappa, strict=True))
    return list(zip(negative.mu[i], negative.kappa[i], strict=True))


def loop(score, anchor, positive, negative, in_batch):
    """-log softmax of the scores, one anchor at a time."""
    values = []
    for i in range(len(anchor.kappa)):
        own = (anchor.mu[i], anchor.kappa[i])
        plus = score(*own, positive.mu[i], positive.kappa[i])
        minus = [
            score(*own, *other) for other in negatives_of(i, anchor, positive, negative, in_batch)
        ]
        total = math.fsum(math.exp(s) for s in [plus, *minus])
        values.append(-plus + math.log(total))
    return torch.tensor(values, dtype=torch.float64)


def scores(kappa_pos):
    def positivity(mu1, k1, mu2, k2):
        q1, q2 = (au.VonMisesFisher(*x, validate_args=False) for x in ((mu1, k1), (mu2, k2)))
        return au.distributions.log_expected_positivity(q1, q2, kappa_pos).item()

    def points(mu1, k1, mu2, k2):
        return kappa_pos * float(mu1 @ mu2)

    def likelihood(mu1, k1, mu2, k2):
        q1, q2 = (au.VonMisesFisher(*x, validate_args=False) for x in ((mu1, k1), (mu2, k2)))
        return kappa_pos * au.distributions.log_expected_positivity(q1, q2, math.inf).item()

    return {"ClosedFormInfoNCE": positivity, "InfoNCE": points, "ELK": likelihood}


def made(name, kappa_pos, **options):
    """The loss of this name: kappa_pos is the inverse temperature of InfoNCE and ELK."""
    if name == "ClosedFormInfoNCE":
        return au.ClosedFormInfoNCE(kappa_pos, **options)
    return getattr(au, name)(temperature=1 / kappa_pos, **options)


@pytest.mark.parametrize(("mode", "in_batch"), MODES)
@pytest.mark.parametrize("name", ["ClosedFormInfoNCE", "InfoNCE", "ELK"])
def test_scored_losses_match_the_loop(batch, name, mode, in_batch):
    kappa_pos = 2.0 if name == "ELK" else 20.0
    posteriors = batch(mode=mode)
    loss = made(name, kappa_pos, in_batch=in_batch, reduction="none")
    truth = loop(scores(kappa_pos)[name], *posteriors, in_batch)
    assert torch.allclose(loss(*posteriors), truth, rtol=1e-9)
    mean = made(name, kappa_pos, in_batch=in_batch)(*posteriors)
    assert torch.allclose(mean, truth.mean(), rtol=1e-9)


@pytest.mark.parametrize(("mode", "in_batch"), MODES)
def test_monte_carlo_losses_match_the_loop_over_their_draws(batch, mode, in_batch, monkeypatch):
    """With the draws fixed: MCInfoNCE by its formula, HIB by the log of the average."""
    n_samples, kappa_pos, a, b = 5, 7.0, 2.0, -0.5
    anchor, positive, negative = batch(mode=mode)
    drawn = []

    def fixed(posteriors, n, *, quasi=False):
        drawn[:] = [q.rsample((n,)).detach() for q in posteriors]
        return drawn

    for module in (mcinfonce, hedged):
        monkeypatch.setattr(module, "draw", fixed)
    found = au.MCInfoNCE(kappa_pos, n_samples, in_batch=in_batch, reduction="none")(
        anchor, positive, negative
    )
    z, z_pos, z_neg = drawn
    resolved = resolve_negatives(anchor, positive, negative, in_batch=in_batch)

    def neg(k, i):
        rows = z_neg[k] if resolved.shared else z_neg[k, i]
        keep = None if resolved.excluded is None else ~resolved.excluded[i]
        return rows if keep is None else rows[keep]

    for i in range(4):
        fractions = []
        for k in range(n_samples):
            plus = math.exp(kappa_pos * float(z[k, i] @ z_pos[k, i]))
            minus = sum(math.exp(kappa_pos * float(z[k, i] @ w)) for w in neg(k, i))
            fractions.append(plus / (plus + minus))
        assert found[i].item() == pytest.approx(-math.log(sum(fractions) / n_samples), rel=1e-10)

    found = au.losses.HedgedInstance(
        a=a, b=b, n_samples=n_samples, in_batch=in_batch, reduction="none"
    )(anchor, positive, negative)
    z, z_pos, z_neg = drawn
    for i in range(4):
        match = sum(sigmoid(a * float(z[k, i] @ z_pos[k, i]) + b) for k in range(n_samples))
        count = len(neg(0, i))
        apart = [
            sum(1 - sigmoid(a * float(z[k, i] @ neg(k, i)[m]) + b) for k in range(n_samples))
            for m in range(count)
        ]
        truth = -math.log(match / n_samples) - sum(math.log(x / n_samples) for x in apart) / count
        assert found[i].item() == pytest.approx(truth, rel=1e-10)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(("mode", "in_batch"), MODES)
@pytest.mark.parametrize(
    "make",
    [
        lambda **o: au.ClosedFormInfoNCE(15.0, centring=0.1, **o),
        lambda **o: au.InfoNCE(temperature=0.2, **o),
        lambda **o: au.ELK(temperature=1 / 1.5, **o),
        lambda **o: au.MCInfoNCE(15.0, 3, **o),
        lambda **o: au.MCInfoNCE(15.0, 4, quasi=True, **o),
        lambda **o: au.losses.HedgedInstance(a=1.0, b=0.5, n_samples=3, **o),
    ],
    ids=["closed", "infonce", "elk", "mc", "qmc", "hib"],
)
def test_gradients(batch, make, mode, in_batch):
    loss = make(in_batch=in_batch, reduction="none")
    posteriors = batch(n=3, m=2, mode=mode, grad=True)
    leaves = [x for q in posteriors if q is not None for x in (q.mu, q.kappa)]

    def value(*leaves):
        torch.manual_seed(3)
        rebuilt = [
            au.VonMisesFisher(*leaves[i : i + 2], validate_args=False)
            for i in range(0, len(leaves), 2)
        ]
        return loss.per_anchor(
            *rebuilt[:2],
            resolve_negatives(rebuilt[0], rebuilt[1], [*rebuilt, None][2], in_batch=in_batch),
        )

    if isinstance(loss, au.InfoNCE):
        leaves = [x.detach().requires_grad_(x.dim() > 1 and x.shape[-1] == 5) for x in leaves]
    assert torch.autograd.gradcheck(value, leaves, atol=1e-5, rtol=1e-3)


def test_kappa_pos_gradient_and_profile(batch):
    posteriors = batch()
    with pytest.warns(au.errors.AureoleWarning, match="relative to kappa_pos"):
        loss = au.ClosedFormInfoNCE(20.0, learn_kappa_pos=True)
    (slope,) = torch.autograd.grad(loss(*posteriors), loss.kappa_pos)
    profile = au.losses.profile_kappa_pos(loss, *posteriors, grid=(19.99, 20.01))
    low, high = profile.values()
    assert slope.item() == pytest.approx((high - low) / 0.02, rel=1e-4)
    assert loss.kappa_pos.item() == 20.0
    assert "kappa_pos" in dict(loss.named_parameters())
    assert "kappa_pos" in dict(au.ClosedFormInfoNCE(20.0).named_buffers())


@pytest.mark.long
def test_float32_negatives_are_accurate_and_leave_for_float64_where_needed(batch):
    for dim, kappa, kappa_pos in ((10, 30.0, 20.0), (128, 200.0, 88.0), (512, 1e4, 200.0)):
        exact = batch(n=16, m=64, dim=dim, kappa=kappa)
        single = [au.VonMisesFisher(q.mu.float(), q.kappa.float()) for q in exact]
        # the same float32 numbers in float64, so that only the loss's own rounding shows
        double = [
            au.VonMisesFisher(q.mu.double(), q.kappa.double(), validate_args=False) for q in single
        ]
        loss = au.ClosedFormInfoNCE(kappa_pos, reduction="none")
        truth = loop(
            scores(kappa_pos)["ClosedFormInfoNCE"],
            *[trim(q, 4) for q in double[:2]],
            double[2],
            "next",
        )
        found = loss(*[trim(q, 4) for q in single[:2]], single[2])
        assert torch.allclose(found.double(), truth, rtol=2e-4, atol=1e-6), (dim, found, truth)


def trim(posterior, n):
    return au.VonMisesFisher(posterior.mu[:n], posterior.kappa[:n], validate_args=False)


@pytest.mark.long
def test_quasi_random_draws_lower_the_variance(batch):
    posteriors = batch(n=8, m=8, dim=4)
    spread = {}
    for quasi in (False, True):
        loss = au.MCInfoNCE(2.0, 256, quasi=quasi)
        spread[quasi] = torch.stack([loss(*posteriors) for _ in range(100)]).std()
    assert spread[True] < 0.8 * spread[False]


def test_mcinfonce_in_blocks_is_the_whole(batch, monkeypatch):
    posteriors = batch(grad=True)
    loss = au.MCInfoNCE(20.0, 16)

    def run():
        torch.manual_seed(5)
        value = loss(*posteriors)
        return value, *torch.autograd.grad(value, [q.kappa for q in posteriors])

    whole = run()
    monkeypatch.setattr("aureole.losses._draws._PAIRS_AT_ONCE", 30)
    for a, b in zip(whole, run(), strict=True):
        assert torch.allclose(a, b, rtol=1e-10)


def test_chance_level_is_log_m_plus_one():
    flat = au.VonMisesFisher(torch.eye(6), 0.0)
    for loss in (au.ClosedFormInfoNCE(20.0), au.ELK(temperature=1.0)):
        assert loss(flat, flat, flat).item() == pytest.approx(math.log(7), rel=1e-5)


def test_negatives_know_whether_they_are_shared(batch):
    _, positive, _ = batch()
    assert Negatives(positive).shared


@pytest.mark.parametrize("make", [au.InfoNCE, au.ELK])
def test_a_large_batch_agrees_with_float64(make):
    torch.manual_seed(0)
    mu = au.sphere.normalize(torch.randn(96, 12))
    near = au.sphere.normalize(mu + 0.2 * torch.randn(96, 12))
    kappas = [16 + 16 * torch.rand(96) for _ in range(2)]
    loss = make(temperature=0.5, in_batch="all", reduction="none")
    values, grads = [], []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in (mu, near, *kappas)]
        unit = [au.sphere.normalize(x) for x in leaves[:2]]
        posteriors = [au.VonMisesFisher(m, k) for m, k in zip(unit, leaves[2:], strict=True)]
        values.append(loss(*posteriors))
        grads.append(torch.autograd.grad(values[-1].sum(), leaves, allow_unused=True))
    torch.testing.assert_close(values[0].double(), values[1], rtol=2e-5, atol=1e-9)
    for single, double in zip(*grads, strict=True):
        if double is not None:
            assert (single - double).abs().max() <= 1e-5 * double.abs().max()
