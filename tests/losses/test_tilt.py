"""The tilt: all mu lean towards an unused direction and kappa is inflated. What it costs, and what centring does."""

import math

import pytest
import torch

import aureole as au
from aureole.synthetic import draw_generator

KAPPA_POS = 20.0
N = 128


@pytest.fixture(scope="module")
def process():
    """(mu in nine of ten directions, kappa, the true rates of all pairs)."""
    generator = draw_generator(9, (16.0, 32.0), kind="whitened", seed=4)
    mu, kappa = generator(generator.inputs(N, torch.Generator().manual_seed(0)))
    mu = torch.cat([mu, torch.zeros(N, 1)], 1).double()
    return mu, kappa.double(), rates(posterior(mu, kappa.double()))


def posterior(mu, kappa):
    return au.VonMisesFisher(au.sphere.normalize(mu), kappa)


def rates(truth):
    """The true rates of all pairs of different items."""
    rows = au.VonMisesFisher(truth.mu.unsqueeze(1), truth.kappa.unsqueeze(1))
    return au.expected_positivity(rows, truth, KAPPA_POS).fill_diagonal_(0)


def tilted(mu, kappa, angle):
    """Mu leaning by an angle, and the kappa that compensates to leading order."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    lean = torch.cat([cos * mu[:, :-1], sin.expand(len(mu), 1)], 1)
    return posterior(lean, kappa / (cos**2 - sin**2 * kappa / (2 * KAPPA_POS)))


def cost(process, degrees, centring):
    """(The loss with a tilt minus that of the truth, its slope in the angle in nats per radian)."""
    mu, kappa, rate = process
    loss = au.ClosedFormInfoNCE(KAPPA_POS, centring=centring)
    angle = torch.tensor(math.radians(degrees), dtype=torch.float64, requires_grad=True)
    value = loss.among(tilted(mu, kappa, angle), rate)
    (slope,) = torch.autograd.grad(value, angle)
    return (value - loss.among(posterior(mu, kappa), rate)).item(), slope.item()


@pytest.mark.parametrize(("degrees", "inflated", "most"), [(15, 1.1, 1e-4), (30, 1.6, 1e-3)])
def test_a_tilt_inflates_kappa_at_almost_no_cost(process, degrees, inflated, most):
    mu, kappa, _ = process
    angle = torch.tensor(math.radians(degrees), dtype=torch.float64)
    assert (tilted(mu, kappa, angle).kappa / kappa).mean() > inflated
    nats, _ = cost(process, degrees, 0.0)
    assert 0 < nats < most


def test_without_a_larger_kappa_a_tilt_is_costly(process):
    mu, kappa, rate = process
    cos, sin = math.cos(math.pi / 6), math.sin(math.pi / 6)
    lean = torch.cat([cos * mu[:, :-1], torch.full((N, 1), sin, dtype=torch.float64)], 1)
    loss = au.ClosedFormInfoNCE(KAPPA_POS)
    gap = loss.among(posterior(lean, kappa), rate) - loss.among(posterior(mu, kappa), rate)
    assert gap > 0.05


def test_centring_outweighs_the_pairs_where_a_direction_is_unused(process):
    plain, slope = cost(process, 30, 0.0)
    centred, pull = cost(process, 30, 0.02)
    assert centred > 5 * plain
    assert pull > 3 * slope > 0


def test_centring_hardly_moves_the_truth(process):
    """The mean of the true mu is short, so the penalty there is small next to the information of a pair."""
    mu, kappa, rate = process
    truth = posterior(mu, kappa)
    plain, centred = (
        au.ClosedFormInfoNCE(KAPPA_POS, centring=c).among(truth, rate) for c in (0.0, 0.02)
    )
    assert centred - plain < 1e-3


def test_a_tilt_is_costly_where_all_directions_are_used():
    """With a full-rank generator the lean changes cosines in a way that kappa cannot undo."""
    generator = draw_generator(10, (16.0, 32.0), kind="whitened", seed=4)
    mu, kappa = (
        x.double() for x in generator(generator.inputs(N, torch.Generator().manual_seed(0)))
    )
    rate = rates(posterior(mu, kappa))
    loss = au.ClosedFormInfoNCE(KAPPA_POS)
    lean = mu + math.tan(math.pi / 6) * torch.eye(10, dtype=torch.float64)[0]
    scales = (1.0, 1.25, 1.5, 1.75, 2.0)
    best = min(loss.among(posterior(lean, s * kappa), rate).item() for s in scales)
    assert best - loss.among(posterior(mu, kappa), rate).item() > 0.01
