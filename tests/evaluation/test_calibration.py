"""Coverage of caps by posteriors that are right by construction, and the calibration of wrong ones."""

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.evaluation import (
    Calibration,
    fit_calibration,
    partner_coverage,
    predictive_coverage,
)
from aureole.evaluation._calibration import _partner_probability, partner_angle

DIM, KAPPA_POS, COUNT = 8, 40.0, 4000


@pytest.fixture(scope="module")
def truth():
    """Pairs drawn from posteriors whose kappas are known."""
    rng = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(COUNT, DIM, generator=rng), dim=-1)
    left, right = torch.exp(2 + 2 * torch.rand(2, COUNT, generator=rng))
    latent = au.VonMisesFisher(mu, left).sample(generator=rng)
    partner = au.VonMisesFisher(latent, KAPPA_POS).sample(generator=rng)
    other = au.VonMisesFisher(partner, right).sample(generator=rng)
    return au.VonMisesFisher(mu, left), au.VonMisesFisher(other, right)


def warped(posterior, scale, power):
    return au.VonMisesFisher(posterior.mu, scale * posterior.kappa**power)


def test_right_posteriors_cover_what_they_promise(truth):
    found = predictive_coverage(*truth, kappa_pos=KAPPA_POS)
    for mass, share in found.items():
        assert share == pytest.approx(mass, abs=0.02)


@pytest.mark.parametrize(("scale", "power"), [(1.0, 1.0), (5.0, 1.0), (0.3, 0.5), (2.0, 2.0)])
def test_warped_kappas_are_straightened(truth, scale, power):
    wrong = [warped(q, scale, power) for q in truth]
    found = fit_calibration(*wrong, kappa_pos=KAPPA_POS)
    assert found.power == pytest.approx(1 / power, rel=0.3)
    again = [au.VonMisesFisher(q.mu, found(q.kappa)) for q in wrong]
    relative = (again[0].kappa / truth[0].kappa).log().abs().median().item()
    assert relative < 0.15
    for mass, share in predictive_coverage(*again, kappa_pos=KAPPA_POS).items():
        assert share == pytest.approx(mass, abs=0.02)


def test_one_kappa_for_all_is_scaled_alone(truth):
    same = [au.VonMisesFisher(q.mu, 3.0) for q in truth]
    found = fit_calibration(*same, kappa_pos=KAPPA_POS, mass=0.8)
    assert found.power == 1.0
    again = [au.VonMisesFisher(q.mu, found(q.kappa)) for q in same]
    share = predictive_coverage(*again, kappa_pos=KAPPA_POS, masses=(0.8,))[0.8]
    assert share == pytest.approx(0.8, abs=0.01)


def test_the_map_is_monotone_and_keeps_the_ends():
    kappa = torch.tensor([0.0, 1.0, 2.0, 50.0, torch.inf])
    found = Calibration(reference=5.0, scale=0.2, power=0.6)(kappa)
    assert bool((found.diff() > 0).all())
    assert found[0] == 0
    assert torch.isinf(found[-1])


def test_angles_keep_their_digits():
    mu = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]).double()
    angle = torch.tensor([0.0, 1e-9, 3.0]).double()
    other = torch.stack([angle.cos(), angle.sin()], -1)
    found = partner_angle(au.VonMisesFisher(mu, 1.0), au.VonMisesFisher(other, 1.0))
    torch.testing.assert_close(found, angle, rtol=1e-12, atol=1e-15)


def test_what_cannot_be_calibrated_is_named(truth):
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        fit_calibration(*truth, kappa_pos=KAPPA_POS, mass=1.0)
    nothing = au.VonMisesFisher(truth[0].mu, 0.0)
    with pytest.raises(InvalidInputError, match="positive, finite kappas"):
        fit_calibration(nothing, nothing, kappa_pos=KAPPA_POS)
    short = au.VonMisesFisher(truth[0].mu[:5], 1.0)
    with pytest.raises(InvalidInputError, match="same shape"):
        predictive_coverage(short, truth[1], kappa_pos=KAPPA_POS)
    for values in ((1.0, -1.0, 1.0), (1.0, 1.0, float("nan")), (float("inf"), 1.0, 1.0)):
        with pytest.raises(InvalidInputError, match="positive reference"):
            Calibration(*values)


@pytest.mark.long
def test_predictive_caps_cover_partners():
    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(900, 4, generator=rng))
    everyone = au.VonMisesFisher(mu, 5 + 30 * torch.rand(900, generator=rng))
    query = au.VonMisesFisher(mu[:800], everyone.kappa[:800])
    gallery = au.VonMisesFisher(mu[800:], everyone.kappa[800:])
    column = au.VonMisesFisher(query.mu.unsqueeze(1), query.kappa.unsqueeze(1))
    chance = au.expected_positivity(column, gallery, 10.0)
    partner = torch.multinomial(chance, 1, generator=rng).squeeze(1)
    for mass, share in partner_coverage(query, gallery, partner, kappa_pos=10.0).items():
        assert share == pytest.approx(mass, abs=0.035)
    sure = au.VonMisesFisher(query.mu, 10 * query.kappa)
    assert partner_coverage(sure, gallery, partner, kappa_pos=40.0)[0.9] < 0.8
    with pytest.raises(InvalidInputError, match="one partner each"):
        partner_coverage(query, gallery, partner[:3], kappa_pos=10.0)


# (dim, lowest and highest kappa, kappa_pos): from wide to so sharp that hardly an item is close to a query
SPREAD = [
    (4, 5.0, 40.0, 10.0),
    (16, 1000.0, 1000.0, 100.0),
    (16, 1000.0, 1000.0, 300.0),
    (16, 50.0, 5000.0, 300.0),
]


def random_posteriors(dim, low, high, n):
    """A query and a gallery of n items each, with kappas that are log-uniform in a range."""
    rng = torch.Generator().manual_seed(dim)
    mu = au.sphere.normalize(torch.randn(2 * n, dim, generator=rng).double())
    kappa = low * (high / low) ** torch.rand(2 * n, generator=rng).double()
    return au.VonMisesFisher(mu[:n], kappa[:n]), au.VonMisesFisher(mu[n:], kappa[n:])


@pytest.mark.long
@pytest.mark.parametrize(("dim", "low", "high", "kappa_pos"), SPREAD)
def test_caps_of_sharp_and_wide_posteriors_contain_partners_drawn_from_them(
    dim, low, high, kappa_pos
):
    query, gallery = random_posteriors(dim, low, high, 100)
    cosine = (query.mu @ gallery.mu.T).clamp(-1, 1)
    kappas = query.kappa.unsqueeze(1), gallery.kappa
    exact = torch.softmax(au.sphere.log_positivity(cosine, *kappas, kappa_pos, dim), -1)
    found = _partner_probability(cosine, query.kappa, gallery.kappa, kappa_pos, dim)
    assert (found - exact).abs().sum(-1).max() < 1e-3
    rng = torch.Generator().manual_seed(0)
    partner = torch.multinomial(exact, 1, generator=rng).squeeze(1)
    for mass, share in partner_coverage(query, gallery, partner, kappa_pos=kappa_pos).items():
        assert share == pytest.approx(mass, abs=0.4 * (mass * (1 - mass)) ** 0.5)


def test_a_partner_without_probability_is_only_in_the_cap_of_mass_one():
    kappa = torch.full((2,), torch.inf, dtype=torch.float64)
    gallery = au.VonMisesFisher(torch.eye(2, dtype=torch.float64), kappa)
    query = au.VonMisesFisher(gallery.mu[:1], kappa[:1])
    covered = partner_coverage(query, gallery, torch.tensor([1]), kappa_pos=1e4, masses=(0.5, 1.0))
    assert covered == {0.5: 0.0, 1.0: 1.0}
