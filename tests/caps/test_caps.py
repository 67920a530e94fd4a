"""Caps and scores against Monte Carlo, slow quadratures and identities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import integrate

import aureole as au
from aureole import sphere
from aureole.caps import _cap_tables as tables, _caps as caps
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.errors import InvalidInputError
from aureole.sphere._geometry import wrap

RNG = torch.Generator()


def directions(n, dim, seed=0):
    return sphere.normalize(torch.randn(n, dim, generator=RNG.manual_seed(seed)))


@pytest.mark.parametrize("dim", [2, 3, 16, 128])
@pytest.mark.parametrize("mass", [0.5, 0.95, 0.999])
def test_credible_caps_hold_their_mass(dim, mass):
    q = au.VonMisesFisher(directions(4, dim), torch.tensor([0.0, 1.0, 50.0, 1e4]))
    t = caps.cap_cosine(q, mass)
    assert t.dtype == torch.float64
    torch.testing.assert_close(t.float(), q.credible_cosine(mass), rtol=0, atol=1e-6)
    held = sphere.cap_mass(1 - t, q.kappa.double(), dim)
    torch.testing.assert_close(held, torch.full_like(held, mass), rtol=0, atol=1e-8)


def test_caps_at_the_ends():
    q = au.VonMisesFisher(torch.eye(3), torch.tensor([0.0, 20.0, torch.inf]))
    assert caps.cap_cosine(q, 1.0).tolist()[:2] == [-1, -1]
    assert caps.cap_cosine(q, 0.0).tolist() == [1, 1, 1]
    assert caps.cap_cosine(q, 0.5)[2] == 1  # a point needs no more room
    wide = caps.cap_cosine(q, 1.0, kind="predictive", kappa_pos=5.0, kappa_other=9.0)
    assert wide.tolist() == [-1, -1, -1]


def solved_angles(kappa, masses, dim):
    """Angles of credible caps [n, m] without tables."""
    levels = torch.tensor(masses, dtype=torch.float64)
    return sphere.cap_angle(levels[:, None], torch.from_numpy(kappa), dim).T.numpy()


def assert_slightly_wider(found, angle):
    """Tabulated cosines against solved angles: never a smaller cap, nor one wider than documented."""
    excess = np.cos(angle) - found
    assert excess.min() >= -1e-15
    assert (excess <= 2e-9 * angle * np.sin(angle) + 1e-15).all()


@pytest.mark.parametrize("dim", [2, 3, 4, 10, 128, 4096])
def test_tabulated_caps_at_usual_masses(dim):
    masses = (0.001, 0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
    kappa = np.concatenate([np.linspace(0, 5 * dim, 500), np.geomspace(1e-3, 1e8, 1500)])
    assert all(tables._credible_tables(masses, dim)[2:7])
    found, angle = caps.credible_cosines(kappa, masses, dim), solved_angles(kappa, masses, dim)
    assert_slightly_wider(found, angle)
    few = kappa <= 1e4  # beyond, the rounding of a cosine near 1 shows in the mass
    height = torch.from_numpy(1 - found[few])
    held = sphere.cap_mass(height, torch.from_numpy(kappa[few])[:, None], dim)
    assert (held.numpy() >= np.array(masses) - 1e-9).all()


@settings(max_examples=60)
@given(
    st.floats(math.log(2), math.log(4096)),
    st.floats(0, 1),
    st.lists(st.floats(-5, 22), min_size=1, max_size=20),
)
def test_tabulated_caps_of_any_query(log_dim, mass, log_kappas):
    dim, kappa = round(math.exp(log_dim)), np.exp(log_kappas)
    found = caps.credible_cosines(kappa, (mass,), dim)
    assert_slightly_wider(found, solved_angles(kappa, (mass,), dim))
    alone = [caps.credible_cosines(kappa[i : i + 1], (mass,), dim)[0, 0] for i in range(len(kappa))]
    inside = kappa <= 1e8  # a table gives the same in any batch
    assert found[inside, 0].tolist() == pytest.approx(np.array(alone)[inside].tolist(), abs=0)
    q = au.VonMisesFisher(torch.eye(dim)[0].double(), torch.from_numpy(kappa))
    assert caps.cap_cosine(q, mass).tolist() == found[:, 0].tolist()


def test_caps_that_are_not_tabulated():
    kappa = np.array([0.0, 24.0, 1e8, 1e9, math.inf, math.nan])
    masses = (0.0, 1e-5, 0.5, 1 - 1e-6, 1.0)
    tabulated = [bool(table) for table in tables._credible_tables(masses, 10)]
    assert tabulated == [False, False, True, False, True]
    found, truth = (
        caps.credible_cosines(kappa, masses, 10),
        np.cos(solved_angles(kappa, masses, 10)),
    )
    np.testing.assert_allclose(found, truth, atol=1e-8, rtol=0)
    assert caps.credible_cosines(kappa[:0], masses, 10).shape == (0, 5)
    many = np.geomspace(1, 1e4, 5000)  # more than a block
    np.testing.assert_array_equal(
        caps.credible_cosines(many, (0.9,), 10)[4500:],
        caps.credible_cosines(many[4500:], (0.9,), 10),
    )


@pytest.mark.parametrize(("dim", "other"), [(2, 4.0), (8, 3.0), (32, math.inf), (128, 256.0)])
@pytest.mark.parametrize("mass", [0.01, 0.95, 0.999])
def test_tabulated_predictive_caps(dim, other, mass):
    law = tables.PartnerLaw(other, 2.0 * dim, dim)
    low, width = math.log(dim / 2), tables._CELL
    ends = np.exp(low + width * np.array([0, 1, 1 - 1e-12, 2, 5.5])) - dim / 2
    kappa = np.concatenate([ends.clip(0), dim * np.geomspace(0.5, 4, 6)])
    found = tables.predictive_cosines(kappa, mass, law)
    angle = sphere.predictive_angle(
        mass, torch.from_numpy(kappa), torch.tensor(other).double(), law.kappa_pos, dim
    ).numpy()
    excess = np.arccos(found) / angle - 1
    assert excess.min() >= -1e-14
    assert excess.max() <= 2e-8
    alone = [tables.predictive_cosines(k[None], mass, law)[0] for k in kappa]
    assert found.tolist() == alone


def test_predictive_caps_that_are_not_tabulated():
    kappa = np.array([0.0, 24.0, 1e9, math.inf])
    law = tables.PartnerLaw(24.0, 20.0, 10)
    assert tables.predictive_cosines(kappa, 1.0, law).tolist() == [-1.0] * 4
    for mass, other in ((1e-5, law), (1 - 1e-6, law), (0.9, law._replace(kappa_pos=2000.0))):
        found = tables.predictive_cosines(kappa, mass, other)
        angle = [
            sphere.predictive_angle(mass, k, torch.tensor(24.0), other.kappa_pos, 10).item()
            for k in torch.from_numpy(kappa)
        ]
        np.testing.assert_allclose(found, np.cos(angle), atol=1e-9)
    with pytest.raises(InvalidInputError, match="kappa"):
        tables.predictive_cosines(np.array([math.nan]), 0.9, law)
    q = au.VonMisesFisher(torch.eye(10)[0], 24.0)
    point, nearly = (
        caps.cap_cosine(q, 0.9, kind="predictive", kappa_pos=20.0, kappa_other=other)
        for other in (math.inf, 1e30)  # as a schema stores it
    )
    assert point == nearly


def test_caps_are_differentiable_in_kappa():
    kappa = torch.tensor([3.0, 50.0], dtype=torch.float64, requires_grad=True)
    mu = torch.eye(5)[:2].double()
    assert torch.autograd.gradcheck(lambda k: caps.cap_cosine(au.VonMisesFisher(mu, k), 0.9), kappa)
    with torch.no_grad():
        quick = caps.cap_cosine(au.VonMisesFisher(mu, kappa), 0.9)
    torch.testing.assert_close(quick, caps.cap_cosine(au.VonMisesFisher(mu, kappa.detach()), 0.9))


def test_predictive_cap_is_wider_and_holds_partners():
    dim, kappa, other, kappa_pos = 6, 30.0, 12.0, 25.0
    q = au.VonMisesFisher(torch.eye(dim)[0], kappa)
    t = caps.cap_cosine(q, 0.8, kind="predictive", kappa_pos=kappa_pos, kappa_other=other)
    assert t < caps.cap_cosine(q, 0.8)
    n = 100_000  # mu -> z -> z+ -> mu+ by draws: each law is zonal, so it reads both ways
    z = q.sample((n,), generator=RNG.manual_seed(0))
    z = au.VonMisesFisher(sphere.normalize(z), kappa_pos).sample(generator=RNG)
    partner = au.VonMisesFisher(sphere.normalize(z), other).sample(generator=RNG)
    share = (partner[:, 0].double() >= t).double().mean().item()
    assert abs(share - 0.8) < 4 * math.sqrt(0.16 / n)


@settings(max_examples=25)
@given(
    st.integers(1, 4),
    st.sampled_from([2, 3, 8]),
    st.floats(0.05, 0.999),
    st.integers(0, 10**6),
)
def test_unions_hold_at_least_their_mass(k, dim, mass, seed):
    rng = RNG.manual_seed(seed)
    weights = torch.rand(k, generator=rng) + 1e-3
    kappa = torch.exp(6 * torch.rand(k, generator=rng) - 1)
    mixture = au.MixtureVMF(weights, sphere.normalize(torch.randn(k, dim, generator=rng)), kappa)
    t = caps.union_cosines(mixture, mass)
    parts = mixture.components.sample((20_000,), generator=rng)  # stratified: [n, k, dim]
    cosine = torch.einsum("nkd,jd->nkj", parts.double(), mixture.mu.double())
    held = ((cosine >= t).any(-1).double().mean(0) * mixture.weights.double()).sum().item()
    assert held >= mass - 5 * math.sqrt(0.25 / 20_000)
    own = sphere.cap_mass((1 - t).clamp(0, 2), mixture.kappa.double(), dim)
    total = (mixture.weights.double() * torch.where(t <= 1, own, 0.0)).sum().item()
    assert total == pytest.approx(mass, abs=1e-6)


def test_union_edges():
    one = au.MixtureVMF(torch.ones(1), torch.eye(4)[:1], 30.0)
    q = au.VonMisesFisher(torch.eye(4)[0], 30.0)
    assert caps.union_cosines(one, 0.9).item() == pytest.approx(
        caps.cap_cosine(q, 0.9).item(), abs=1e-9
    )
    kappas = torch.tensor([0.0, 40.0, torch.inf])
    mixed = au.MixtureVMF(torch.tensor([0.1, 0.4, 0.5]), torch.eye(3), kappas)
    assert caps.union_cosines(mixed, 0.4).tolist() == [math.inf, pytest.approx(1), 1]
    small = caps.union_cosines(mixed, 0.8)
    assert small[0] == math.inf
    assert small[1] < 1
    assert small[2] == 1
    assert caps.union_cosines(mixed, 0.95)[0] == -1  # only the uniform part can reach it
    absent = au.MixtureVMF(torch.tensor([0.0, 1.0]), torch.eye(3)[:2], 20.0)
    assert caps.union_cosines(absent, 1.0).tolist() == [math.inf, -1]
    assert caps.union_cosines(absent, 0.5)[0] == math.inf
    wide = caps.cap_cosine(absent, 0.5, kind="predictive", kappa_pos=9.0, kappa_other=9.0)
    assert wide[0] == math.inf
    batch = au.MixtureVMF(torch.rand(5, 2) + 0.1, directions(10, 4).reshape(5, 2, 4), 25.0)
    rows = [
        caps.union_cosines(au.MixtureVMF(w, m, k), 0.9)
        for w, m, k in zip(batch.weights, batch.mu, batch.kappa, strict=True)
    ]
    torch.testing.assert_close(caps.union_cosines(batch, 0.9), torch.stack(rows))


def test_asks_back():
    q = au.VonMisesFisher(torch.eye(10)[:2], torch.tensor([1.0, 500.0]))
    assert caps.too_wide(q, 0.9, 0.5).tolist() == [True, False]
    assert caps.too_wide(q, 0.9, math.pi).tolist() == [False, False]
    mixture = au.MixtureVMF(torch.ones(2), torch.eye(10)[:2], torch.tensor([1.0, 500.0]))
    assert bool(caps.too_wide(mixture, 0.9, 0.5))
    with pytest.raises(InvalidInputError, match="radians"):
        caps.too_wide(q, 0.9, 45.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mass": 1.5}, "mass"),
        ({"mass": math.nan}, "mass"),
        ({"kind": "sphere"}, "kind"),
        ({"kind": "predictive"}, "kappa_pos"),
        ({"kind": "predictive", "kappa_pos": -1.0, "kappa_other": 3.0}, "at least 0"),
        ({"kind": "predictive", "kappa_pos": math.nan, "kappa_other": 3.0}, "at least 0"),
    ],
)
def test_hostile_caps(change, message):
    q = au.VonMisesFisher(torch.eye(3)[0], 10.0)
    arguments = {"mass": 0.9} | change
    with pytest.raises((InvalidInputError, TypeError), match=message):
        caps.cap_cosine(q, **arguments)


@settings(max_examples=40)
@given(st.integers(2, 300), st.integers(1, 40), st.integers(0, 10**6))
def test_exact_cosines_do_not_depend_on_the_batch(dim, n, seed):
    mu = stored_direction(directions(n, dim, seed))
    found = exact_cosines(mu[0], mu)
    assert found[0] == 1
    alone = [exact_cosines(mu[0], mu[i : i + 1])[0] for i in range(n)]
    swapped = [exact_cosines(mu[i], mu[:1])[0] for i in range(n)]
    assert found.tolist() == alone
    assert found.tolist() == swapped
    strided = np.asfortranarray(mu)
    assert np.ascontiguousarray(strided).tolist() == mu.tolist()
    true = (mu.astype(np.float64) @ mu[0].astype(np.float64)) / np.linalg.norm(
        mu.astype(np.float64), axis=1
    )
    np.testing.assert_allclose(
        found, true / np.linalg.norm(mu[0].astype(np.float64)), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize("dim", [2, 3, 10, 64])
@pytest.mark.parametrize("kappa", [0.0, 3.0, 80.0, 1e4, 1e6])
def test_latent_in_cap_against_draws(dim, kappa):
    item = au.VonMisesFisher(sphere.normalize(directions(1, dim, 3)[0].double()), kappa)
    spread = sphere.cap_angle(
        torch.tensor(0.5, dtype=torch.float64), torch.tensor(kappa).double(), dim
    )
    normals = torch.randn(5, dim - 1, generator=RNG.manual_seed(1), dtype=torch.float64)
    gamma = (torch.tensor([0.0, 0.3, 1.0, 1.6, 3.0]) * spread).clamp(max=math.pi).double()
    query = wrap(normals, gamma, item.mu.expand(5, dim))
    t = torch.cos(spread)
    n = 50_000
    draws = item.sample((n,), generator=RNG)
    share = (draws @ query.T >= t).double().mean(0)
    found = caps.latent_in_cap(query @ item.mu, item.kappa.double(), t, dim)
    assert (found - share).abs().max() < 5 * math.sqrt(0.25 / n)


@pytest.mark.parametrize("dim", [3, 5, 12])
@pytest.mark.parametrize(
    ("kappa", "c", "t"), [(4.0, 0.3, 0.2), (60.0, 0.8, 0.75), (9.0, -0.6, 0.9)]
)
def test_latent_in_cap_against_a_slow_quadrature(dim, kappa, c, t):
    """Over s = mu_q.z and the cosine u of the angle around mu_q: no Bessel function at all."""

    def density(u, s):
        across = math.sqrt((1 - c * c) * (1 - s * s))
        value = math.exp(kappa * (c * s + across * u - 1)) * (1 - s * s) ** ((dim - 3) / 2)
        return value * (1 - u * u) ** ((dim - 4) / 2)

    def total(low):
        return integrate.dblquad(density, low, 1, -1, 1, epsabs=1e-13, epsrel=1e-9)[0]

    found = caps.latent_in_cap(
        torch.tensor(c).double(), torch.tensor(kappa).double(), torch.tensor(t).double(), dim
    ).item()
    assert found == pytest.approx(total(t) / total(-1), abs=1e-6)


def test_latent_in_cap_meets_the_cap_mass_and_points():
    kappa = torch.tensor([0.5, 30.0, 1e5], dtype=torch.float64)
    t = caps.cap_cosine(au.VonMisesFisher(torch.eye(7)[:3], kappa.float()), 0.8)
    one = torch.ones(3, dtype=torch.float64)
    held = caps.latent_in_cap(one, kappa, t, 7)
    torch.testing.assert_close(held, torch.full_like(held, 0.8), rtol=0, atol=1e-6)
    point = torch.tensor(torch.inf)
    c = torch.tensor([0.9, 0.5], dtype=torch.float64)
    inside = caps.latent_in_cap(c, point, torch.tensor(0.9, dtype=torch.float64), 7)
    assert inside.tolist() == [1, 0]


@given(st.floats(-50, 50), st.floats(1e-9, 1 - 1e-9))
def test_positive_probability_is_bayes(log_ratio, prior):
    found = caps.positive_probability(torch.tensor(log_ratio, dtype=torch.float64), prior).item()
    ratio = math.exp(log_ratio)
    assert found == pytest.approx(prior * ratio / (prior * ratio + (1 - prior)), rel=1e-9)


def test_positive_probability_neither_overflows_nor_forgets_a_certain_prior():
    extreme = torch.tensor([-1e300, -torch.inf, 1e300, torch.inf], dtype=torch.float64)
    assert caps.positive_probability(extreme, 0.2).tolist() == [0, 0, 1, 1]
    assert caps.positive_probability(extreme, 0.0).tolist() == [0, 0, 0, 0]
    assert caps.positive_probability(extreme, 1.0).tolist() == [1, 1, 1, 1]
    for prior in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidInputError, match="prior"):
            caps.positive_probability(extreme, prior)


def test_hit_positivity_is_the_kernel_in_blocks():
    n = 2**15 + 7
    q, g = (
        au.VonMisesFisher(directions(n, 5, seed), torch.rand(n, generator=RNG) * 50)
        for seed in (0, 1)
    )
    cosine = (q.mu.double() * g.mu.double()).sum(-1).clamp(-1, 1)
    found = caps.log_hit_positivity(cosine, q.kappa, g.kappa, 10.0, 5)
    torch.testing.assert_close(
        found.float(), au.distributions.log_expected_positivity(q, g, 10.0), rtol=1e-4, atol=1e-4
    )
    none = torch.zeros(0, dtype=torch.float64)
    assert caps.log_hit_positivity(none, none, none, 10.0, 5).shape == (0,)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_class_entropy_counts(labels):
    shares = [labels.count(x) / len(labels) for x in set(labels)]
    expected = -sum(p * math.log(p) for p in shares)
    assert caps.class_entropy(labels) == pytest.approx(expected, abs=1e-12)


def test_class_entropy_weights_and_nothing():
    log_weights = torch.tensor([0.0, -torch.inf, math.log(3)], dtype=torch.float64)
    found = caps.class_entropy(["a", "b", "c"], log_weights)
    assert found == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert math.isnan(caps.class_entropy([]))
    with pytest.raises(InvalidInputError, match="labels"):
        caps.class_entropy(["a"], log_weights)
