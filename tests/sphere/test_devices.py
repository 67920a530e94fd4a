"""Everything stays where the inputs are. There may be one device only, so two things stand in for another.

Where torch makes new tensors on "meta" unless told otherwise, any that do not follow the inputs collide with them. The
constants of a module are replaced by ones that can do nothing but move.
"""

import math

import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.sphere import _angle as angle, _predictive as predictive
from aureole.sphere._cosine import cap_height

N = 2000
COSINE = torch.linspace(-0.5, 0.5, N, dtype=torch.float64)
KAPPA = torch.linspace(200, 800, N, dtype=torch.float64)
FEW = torch.tensor([0.0, 5.0, 40.0, 1e6, math.inf], dtype=torch.float64)
SURE = torch.full((5,), 1e5, dtype=torch.float64)
HALF = torch.full((5,), 0.5, dtype=torch.float64)
UNIT = torch.eye(6, dtype=torch.float64)[:5]

CALLS = {
    "positivity": lambda: sphere.log_positivity(
        COSINE[::500], KAPPA[::500], KAPPA[::500], 64.0, 32
    ),
    "integral": lambda: sphere.log_positivity(-HALF, SURE, SURE, 1e5, 10),
    "ends of kappa": lambda: sphere.log_positivity(HALF, FEW, FEW.flip(0), math.inf, 10),
    "pairs": lambda: sphere.log_positivity_matrix(UNIT[:, :5], FEW, FEW, 20.0, 6),
    "table": lambda: sphere.log_positivity_matrix(
        COSINE[::40, None] * COSINE[::40], KAPPA[::40], KAPPA[::40], 64.0, 32
    ),
    "mass by series": lambda: sphere.predictive_mass(HALF, FEW[:3, None], HALF, 20.0, 10),
    "mass by nodes": lambda: sphere.predictive_mass(0.01 * HALF, SURE, SURE, 1e5, 10),
    "angle by series": lambda: sphere.predictive_angle(0.9, FEW[:3], HALF[:3], 20.0, 10),
    "angle by nodes": lambda: sphere.predictive_angle(0.9, SURE, SURE, 1e5, 10),
    "mixed": lambda: sphere.predictive_mass(HALF, SURE[:1], 30 + HALF, 768.0, 384),
    "caps": lambda: sphere.cap_mass(cap_height(HALF, FEW, 10), FEW, 10),
    "normalizer": lambda: sphere.entropy(FEW, 10) + sphere.inverse_mean_resultant_length(HALF, 10),
    "density": lambda: sphere.cosine_log_pdf(HALF, FEW, 10),
    "kernel": lambda: au.expected_positivity(
        au.VonMisesFisher(UNIT, FEW[:, None]), au.VonMisesFisher(UNIT, FEW), 20.0
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_new_tensors_follow_the_inputs(name):
    wanted = CALLS[name]()
    with torch.device("meta"):
        found = CALLS[name]()
    assert found.device.type == "cpu"
    assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_gradients_follow_the_inputs():
    def slopes():
        c, k = (x[::100].clone().requires_grad_() for x in (COSINE, KAPPA))
        values = sphere.log_positivity_matrix(c[:, None] * c, k, k, 64.0, 32)
        total = sphere.log_positivity(c, k, k, 64.0, 32).sum() + values.sum()
        return torch.autograd.grad(total + sphere.cap_mass(1 - c, k, 10).sum(), (c, k))

    wanted = slopes()
    with torch.device("meta"):
        found = slopes()
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


class Elsewhere:
    """A tensor that must be moved before it is used."""

    def __init__(self, value):
        self.value = value

    def to(self, device):
        return self.value.to(device)


@pytest.mark.parametrize("name", ["mass by nodes", "angle by nodes", "mixed", "caps"])
def test_constants_are_moved_to_the_inputs(name, monkeypatch):
    wanted = CALLS[name]()
    for constant in ("_NODES", "_WEIGHTS", "_ANTIDERIVATIVE"):
        monkeypatch.setattr(predictive, constant, Elsewhere(getattr(predictive, constant)))
    for constant in ("_GAUSS", "_CHEBYSHEV"):
        pair = tuple(Elsewhere(x) for x in getattr(angle, constant))
        monkeypatch.setattr(angle, constant, pair)
    assert torch.equal(CALLS[name](), wanted)
