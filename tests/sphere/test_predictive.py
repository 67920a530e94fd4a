"""The law of a partner's direction."""

import math

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.sphere import (
    _predictive as predictive,
    cap_angle,
    cap_mass,
    predictive_angle,
    predictive_mass,
)

MASSES = torch.tensor([0.01, 0.5, 0.9, 0.999], dtype=torch.float64)


@pytest.mark.parametrize("dim", [2, 3, 10, 128, 4096])
@pytest.mark.parametrize("kappa", [0.0, 0.1, 30.0, 1e4, 1e6])
def test_the_law_has_mass_one_and_the_angle_holds_what_it_promises(dim, kappa):
    kappa = torch.tensor(kappa, dtype=torch.float64)
    whole = predictive_mass(torch.tensor(math.pi), kappa, 2 * kappa, 50.0, dim)
    assert whole.item() == pytest.approx(1.0, abs=1e-10)
    angle = predictive_angle(MASSES, kappa, 2 * kappa, 50.0, dim)
    found = predictive_mass(angle, kappa, 2 * kappa, 50.0, dim)
    torch.testing.assert_close(found, MASSES, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("dim", "kappa", "other"), [(3, 2.0, 50.0), (10, 24.0, 24.0), (64, 80.0, 9.0)]
)
@pytest.mark.long
def test_draws_of_partners_fall_as_the_law_says(dim, kappa, other):
    """A latent of the query, the partner's latent around it, and a direction whose posterior it is drawn from."""
    query = au.VonMisesFisher(torch.eye(dim)[0], kappa)
    latent = query.sample((200_000,))
    partner = au.VonMisesFisher(latent, 20.0).sample()
    mu = au.VonMisesFisher(partner, other).sample()
    edge = query.predictive_cosine(torch.tensor([0.2, 0.5, 0.9]), 20.0, other)
    found = (mu[:, :1] >= edge).double().mean(0)
    torch.testing.assert_close(found.float(), torch.tensor([0.2, 0.5, 0.9]), atol=0.005, rtol=0)


@pytest.mark.parametrize("dim", [3, 10, 128])
def test_a_certain_partner_at_the_same_latent_leaves_the_credible_cap(dim):
    kappa, infinite = torch.tensor(25.0, dtype=torch.float64), torch.tensor(torch.inf).double()
    angle = predictive_angle(MASSES, kappa, infinite, math.inf, dim)
    torch.testing.assert_close(angle, cap_angle(MASSES, kappa, dim), atol=1e-9, rtol=1e-9)


def test_knowing_nothing_leaves_the_uniform_law():
    nothing, sure = torch.tensor(0.0), torch.tensor(1e5)
    angle = torch.tensor([0.3, 1.5, 2.9], dtype=torch.float64)
    found = predictive_mass(angle, nothing, sure, 50.0, 10)
    torch.testing.assert_close(
        found, cap_mass(1 - angle.cos(), nothing.double(), 10), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("dim", [2, 3, 10, 64, 384])
@pytest.mark.parametrize("kappa", [0.1, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("kappa_pos", [20.0, 200.0, 1e3])
def test_the_series_has_the_mass_of_the_density(dim, kappa, kappa_pos):
    """The nodes integrate the density: another way to the same mass."""
    pos = torch.full((4,), kappa_pos, dtype=torch.float64)
    kappas = [torch.full_like(pos, kappa), torch.full_like(pos, 2 * kappa), pos]
    angle = predictive._angle_by_nodes(MASSES, kappas, dim)
    found = predictive_mass(angle, kappas[0], kappas[1], pos, dim)
    torch.testing.assert_close(found, MASSES, atol=1e-9, rtol=0)
    again = predictive_angle(MASSES, kappas[0], kappas[1], pos, dim)
    masses = predictive._mass_by_nodes(again, kappas, dim)
    torch.testing.assert_close(masses, MASSES, atol=1e-9, rtol=0)


def test_series_and_nodes_mix_in_one_call():
    kappa = torch.tensor([1.0, 1e5, 30.0], dtype=torch.float64)
    angle = torch.tensor([1.5, 0.9, 1.4], dtype=torch.float64)
    found = predictive_mass(angle, kappa, kappa, 768.0, 384)
    single = [predictive_mass(a, k, k, 768.0, 384) for a, k in zip(angle, kappa, strict=True)]
    torch.testing.assert_close(found, torch.stack(single), atol=1e-10, rtol=0)
    assert predictive_mass(torch.empty(0), torch.tensor(1.0), torch.tensor(1.0), 2.0, 5).shape == (
        0,
    )
    ends = predictive_mass(torch.tensor([0.0, math.pi]), kappa[2], kappa[2], 20.0, 10)
    torch.testing.assert_close(ends, torch.tensor([0.0, 1.0]).double(), atol=1e-10, rtol=0)


def bisected(mass, kappa, other, kappa_pos, dim):
    """The angle by fifty halvings, one look at the mass each."""
    low, high = torch.zeros_like(mass), torch.full_like(mass, math.pi)
    for _ in range(50):
        middle = (low + high) / 2
        short = predictive_mass(middle, kappa, other, kappa_pos, dim) < mass
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return (low + high) / 2


@pytest.mark.parametrize("dim", [2, 3, 10, 64, 384])
@pytest.mark.parametrize("kappa", [0.0, 0.1, 30.0, 1e3])
def test_the_angle_is_that_of_a_plain_bisection(dim, kappa):
    mass = torch.tensor([1e-6, 0.01, 0.5, 0.9, 0.95, 0.999, 1 - 1e-6], dtype=torch.float64)
    kappa = torch.tensor(kappa, dtype=torch.float64)
    expected = bisected(mass, kappa, 2 * kappa + 1, 20.0, dim)
    found = predictive_angle(mass, kappa, 2 * kappa + 1, 20.0, dim)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    alone = [predictive_angle(m, kappa, 2 * kappa + 1, 20.0, dim) for m in mass]
    torch.testing.assert_close(torch.stack(alone), expected, atol=1e-9, rtol=0)


@pytest.mark.long
def test_many_angles_at_once_are_those_of_a_few(monkeypatch):
    mass = torch.linspace(0.01, 0.99, 40, dtype=torch.float64)
    kappa = torch.logspace(-1, 2, 40, dtype=torch.float64)
    found = predictive_angle(mass, kappa, kappa, 20.0, 16)
    for entries in (1, 2**12, 2**14):  # less room: fewer at a time, fewer halvings at a time
        monkeypatch.setattr(predictive, "_ENTRIES", entries)
        again = predictive_angle(mass, kappa, kappa, 20.0, 16)
        torch.testing.assert_close(again, found, atol=1e-12, rtol=0)


def test_an_angle_takes_few_series(monkeypatch):
    calls, series = [], predictive._mass_by_series
    monkeypatch.setattr(predictive, "_mass_by_series", lambda *a: calls.append(a) or series(*a))
    kappa = torch.tensor(24.0, dtype=torch.float64)
    predictive_angle(0.9, kappa, kappa, 20.0, 10)
    assert len(calls) == 9


def test_wider_where_anything_is_less_sure():
    query = au.VonMisesFisher(torch.eye(10)[0], 24.0)
    edges = [
        query.predictive_cosine(0.9, kappa_pos, other).item()
        for kappa_pos, other in ((100.0, 100.0), (100.0, 24.0), (20.0, 24.0), (20.0, 1.0))
    ]
    assert edges == sorted(edges, reverse=True)
    assert query.credible_cosine(0.9).item() > edges[0]


@pytest.mark.parametrize("mass", [-0.1, 1.1, math.nan])
def test_masses_that_are_none_are_refused(mass):
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        au.VonMisesFisher(torch.eye(3)[0], 5.0).predictive_cosine(mass, 20.0, 5.0)


@pytest.mark.parametrize("bad", [math.nan, -1.0])
@pytest.mark.parametrize("name", ["kappa", "kappa_other", "kappa_pos"])
@pytest.mark.parametrize("function", [predictive_mass, predictive_angle])
def test_concentrations_that_are_none_are_refused_and_named(function, name, bad):
    given = {"kappa": torch.ones(3), "kappa_other": torch.ones(3), "kappa_pos": torch.ones(3)}
    given[name][2] = bad
    with pytest.raises(InvalidInputError, match=rf"{name}\[2\] is (nan|-1)"):
        function(torch.tensor(0.5), **given, dim=10)
    with pytest.raises(InvalidInputError, match=r"\[2\] is (nan|-1)"):
        predictive.predictive_log_pdf(torch.tensor(0.5), **given, dim=10)


def test_nan_comes_out_as_nan():
    one, nan = torch.tensor(1.0), torch.tensor([math.nan, 0.5])
    for function in (predictive_mass, predictive_angle, predictive.predictive_log_pdf):
        assert function(nan, one, one, 2.0, 10).isnan().tolist() == [True, False]
        assert function(nan, one, one, math.inf, 10).isnan().tolist() == [True, False]


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_the_density_at_the_pi_of_float32_is_that_at_pi(dim):
    """The nearest float32 to pi is larger than pi, and its sine below 0."""
    pi, one = torch.tensor(math.pi), torch.tensor(3.0)
    assert pi.double() > math.pi
    found = predictive.predictive_log_pdf(pi, one, one, 2.0, dim)
    wanted = au.sphere.log_positivity(torch.tensor(-1.0).double(), one, one, 2.0, dim)
    if dim == 2:  # half of the circle's density, 1 / (2 pi), on either side
        assert found.item() == pytest.approx(wanted.item() - math.log(math.pi), abs=1e-9)
    else:
        assert found < -30
    slope = torch.tensor(math.pi, requires_grad=True)
    (grad,) = torch.autograd.grad(predictive.predictive_log_pdf(slope, one, one, 2.0, dim), slope)
    assert grad == 0


@pytest.mark.parametrize(
    ("mass", "kappa", "other", "pos", "dim"),
    [(0.9, 2e4, 2e4, 2e4, 512), (0.5, 20.0, 30.0, 20.0, 10), (0.95, 300.0, 100.0, 50.0, 128)],
)
def test_gradients_of_the_angle_are_those_of_its_equation(mass, kappa, other, pos, dim):
    leaves = [
        torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (mass, kappa, other, pos)
    ]
    grads = torch.autograd.grad(predictive_angle(*leaves, dim), leaves)
    for place, grad in enumerate(grads):
        step = 1e-4 if place == 0 else 1e-3 * leaves[place].item()
        ends = [[x.detach().clone() for x in leaves] for _ in range(2)]
        ends[0][place] += step
        ends[1][place] -= step
        high, low = (predictive_angle(*end, dim) for end in ends)
        assert grad.item() == pytest.approx(((high - low) / (2 * step)).item(), rel=1e-4)
    q = au.VonMisesFisher(torch.eye(dim)[0].double(), leaves[1])
    (slope,) = torch.autograd.grad(q.predictive_cosine(mass, pos, other), leaves[1])
    angle = predictive_angle(*(x.detach() for x in leaves), dim)
    assert slope.item() == pytest.approx((-torch.sin(angle) * grads[1]).item(), rel=1e-9)
