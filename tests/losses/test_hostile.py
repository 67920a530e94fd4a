"""Bad input is named, extreme input stays finite."""

import inspect

import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.losses._contrastive import check_posteriors

LOSSES = [
    au.ClosedFormInfoNCE(20.0),
    au.InfoNCE(temperature=0.05),
    au.ELK(temperature=1.0),
    au.MCInfoNCE(20.0, 8),
    au.losses.HedgedInstance(a=1.0, b=0.0, n_samples=8),
]
IDS = [type(loss).__name__ for loss in LOSSES]


def posterior(mu, kappa):
    return au.VonMisesFisher(mu, kappa, validate_args=False)


def good(n=4, dim=3):
    return posterior(sphere.normalize(torch.randn(n, dim)), 10 * torch.rand(n))


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
def test_bad_posteriors_are_named(loss):
    mu = sphere.normalize(torch.randn(4, 3))
    nan = mu.clone()
    nan[2, 1] = float("nan")
    kappa = torch.ones(4)
    cases = [
        ((posterior(2 * mu, kappa), good()), r"anchor\.mu\[0\] has norm 2 .*sphere\.normalize"),
        ((good(), posterior(nan, kappa)), r"positive\.mu\[2\] has norm nan"),
        ((good(), good(), posterior(mu, -kappa)), r"kappa\[0\] is -1"),
        ((good(), posterior(mu, kappa * float("nan"))), r"kappa\[0\] is nan"),
        ((good(4), good(5)), r"\(4,\) and \(5,\)"),
        ((good(4), good(4, 2)), r"R\^2, but anchor in R\^3"),
        ((good(0), good(0)), "batch is empty"),
        ((good(1), good(1)), "holds no negatives"),
        ((good(4), good(4), good(0)), r"M > 0"),
        ((good(4), good(4), posterior(mu.expand(3, 4, 3), kappa.expand(3, 4))), r"\(4, M\)"),
    ]
    for arguments, message in cases:
        with pytest.raises(InvalidInputError, match=message):
            loss(*arguments)


def test_tensors_in_the_place_of_posteriors_are_explained():
    """Asked of the check itself: the suite's type checks would speak before the loss does."""
    check = inspect.unwrap(check_posteriors)
    with pytest.raises(
        InvalidInputError, match=r"positive must be a VonMisesFisher .*Tensor\. Wrap"
    ):
        check(good(), torch.ones(4, 3), None)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_kappa_pos(value):
    with pytest.raises(InvalidInputError, match="kappa_pos must be positive"):
        au.ClosedFormInfoNCE(value)


def test_bad_options():
    with pytest.raises(Exception, match=r"in_batch"):  # the suite's type checks speak first
        au.InfoNCE(temperature=1.0, in_batch="some")
    for n in (0, -1):
        with pytest.raises(InvalidInputError, match="n_samples must be a positive integer"):
            au.MCInfoNCE(1.0, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 10, 128])
@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
def test_extreme_kappas_give_finite_losses_and_gradients(loss, dim, dtype):
    kappa = torch.tensor([0.0, 1e-6, 1.0, 1e3, 1e6], dtype=dtype, requires_grad=True)
    mu = sphere.normalize(torch.randn(5, dim, dtype=dtype)).requires_grad_()
    anchor = posterior(mu, kappa)
    for positive in (
        posterior(mu, kappa),
        posterior(-mu, kappa),
        posterior(mu.roll(1, 0), kappa.flip(0)),
    ):
        for negative in (
            None,
            posterior(sphere.normalize(torch.randn(7, dim, dtype=dtype)), 1e6 * torch.ones(7)),
        ):
            value = loss(anchor, positive, negative)
            assert torch.isfinite(value)
            for grad in torch.autograd.grad(value, (mu, kappa), allow_unused=True):
                assert grad is None or torch.isfinite(grad).all()


def test_points_are_welcome_where_the_closed_form_knows_them():
    point = posterior(torch.eye(4), torch.full((4,), torch.inf))
    value = au.ClosedFormInfoNCE(20.0, reduction="none")(point, point, point)
    plain = au.InfoNCE(temperature=0.05, reduction="none")(point, point, point)
    assert torch.allclose(value, plain, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
def test_bfloat16_autocast(loss):
    layer = torch.nn.Linear(6, 11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.randn(3, 8, 6))
        assert out.dtype == torch.bfloat16
        mu = torch.nn.functional.normalize(out[..., :10], dim=-1)
        kappa = torch.exp(out[..., 10])
        value = loss(*(au.VonMisesFisher(m, k) for m, k in zip(mu, kappa, strict=True)))
    assert value.dtype == torch.float32
    assert torch.isfinite(value)
    value.backward()
    assert torch.isfinite(layer.weight.grad).all()


@pytest.mark.parametrize("call", ["among", "share_among"])
def test_bad_items_are_named(call):
    """Mixtures as well as single posteriors, in the loss of pairs among items."""
    pairs, rest = torch.tensor([[0, 1]]), (slice(0, 4),) if call == "share_among" else ()
    mu = sphere.normalize(torch.randn(4, 2, 3))
    kappa, weights = torch.ones(4, 2), torch.ones(4, 2)

    def mixture(weights=weights, mu=mu, kappa=kappa):
        return au.MixtureVMF(weights, mu, kappa, validate_args=False)

    nan = kappa.clone()
    nan[2, 1] = float("nan")
    off = mu.clone()
    off[3, 0] *= 2
    cases = [
        (mixture(kappa=nan), r"kappa\[2, 1\] is nan"),
        (mixture(kappa=-kappa), r"kappa\[0, 0\] is -1"),
        (mixture(mu=off), r"posterior\.mu\[3, 0\] has norm 2"),
        (mixture(weights=nan), r"weights\[2, 0\] is nan"),
        (mixture(mu=mu.expand(5, 4, 2, 3)), r"batch shape \(5, 4\)"),
        (mixture(weights[0], mu[0], kappa[0]), r"batch shape \(\)"),
        (posterior(mu, kappa), r"batch shape \(4, 2\)"),
        (posterior(mu[0, 0], kappa[0, 0]), r"batch shape \(\)"),
        (posterior(off[:, 0], kappa[:, 0]), r"posterior\.mu\[3\] has norm 2"),
        (posterior(mu[:, 0], nan[:, 1]), r"kappa\[2\] is nan"),
    ]
    loss = au.ClosedFormInfoNCE(20.0)
    for items, message in cases:
        with pytest.raises(InvalidInputError, match=message):
            getattr(loss, call)(items, pairs, *rest)
    assert torch.isfinite(getattr(loss, call)(mixture(), pairs, *rest))


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
def test_a_learned_kappa_pos_that_has_left_its_range_is_named(value):
    with pytest.warns(au.errors.AureoleWarning):
        loss = au.ClosedFormInfoNCE(20.0, learn_kappa_pos=True)
    with torch.no_grad():
        loss.kappa_pos.fill_(value)
    pairs = torch.tensor([[0, 1]])
    for call in (
        lambda: loss(good(), good()),
        lambda: loss.among(good(), pairs),
        lambda: loss.share(good(), good(), None, slice(0, 2)),
        lambda: loss.share_among(good(), pairs, slice(0, 2)),
    ):
        with pytest.raises(InvalidInputError, match=r"kappa_pos must be positive.*learning rate"):
            call()


@pytest.mark.parametrize("grid", [(), (10.0, 0.0), (10.0, -1.0), (float("nan"),), (float("inf"),)])
def test_a_bad_grid_of_kappa_pos_is_refused_before_anything_is_computed(grid):
    loss = au.ClosedFormInfoNCE(20.0)
    with pytest.raises(InvalidInputError, match="grid must hold positive, finite values"):
        au.losses.profile_kappa_pos(loss, good(), good(), grid=grid)
    assert loss.kappa_pos.item() == 20.0


@pytest.mark.parametrize("make", [au.InfoNCE, au.ELK])
def test_a_temperature_is_positive_and_finite(make):
    assert "temperature=0.05" in repr(make(temperature=0.05))
    learned = make(temperature=0.05, learn_temperature=True)
    assert list(learned.state_dict()) == ["inverse_temperature"]
    assert learned.temperature == pytest.approx(0.05)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="temperature"):
            make(temperature=wrong)


def test_hedged_instance_has_no_parameter():
    loss = au.losses.HedgedInstance(n_samples=4)
    assert not [*loss.parameters(), *loss.buffers()]


def test_elk_refuses_points():
    """The score of two points is infinite; it used to end in NaN."""
    point = posterior(torch.eye(4), torch.tensor([1.0, 2.0, torch.inf, 3.0]))
    other = posterior(torch.eye(4), torch.ones(4))
    loss = au.ELK(temperature=1.0)
    for arguments in ((point, other), (other, point), (other, other, point)):
        with pytest.raises(InvalidInputError, match=r"kappa\[2(, 0)?\] is inf .*ClosedFormInfoNCE"):
            loss(*arguments, *([other] if len(arguments) == 2 else []))
    with pytest.raises(InvalidInputError, match=r"kappa\[2\] is inf"):
        loss.among(point, torch.tensor([[0, 1]]))
