"""A map of kappa, so that predictive caps hold what they promise."""

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.evaluation import Calibration, fit_calibration, partner_angle, predictive_coverage

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
    with pytest.raises(InvalidInputError, match="as many partners"):
        predictive_coverage(short, truth[1], kappa_pos=KAPPA_POS)
    for values in ((1.0, -1.0, 1.0), (1.0, 1.0, float("nan")), (float("inf"), 1.0, 1.0)):
        with pytest.raises(InvalidInputError, match="positive reference"):
            Calibration(*values)
