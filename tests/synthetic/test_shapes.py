"""Drawn shapes: their truth, their votes and their looks."""

import inspect

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from aureole.errors import InvalidInputError
from aureole.synthetic import KINDS, drawn_shapes
from aureole.synthetic._shapes import SHAPES


@pytest.fixture(scope="module")
def shapes():
    return drawn_shapes(3000, seed=7)


def test_a_seed_gives_the_same_shapes_and_another_others():
    first, second, other = drawn_shapes(200), drawn_shapes(200), drawn_shapes(200, seed=1)
    for name in ("pictures", "probabilities", "votes", "labels", "kinds"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
        assert not torch.equal(getattr(first, name), getattr(other, name)), name


def test_a_longer_set_starts_with_the_shorter():
    short, long = drawn_shapes(150, seed=3), drawn_shapes(301, seed=3)
    for name in ("probabilities", "votes", "labels", "kinds"):
        assert torch.equal(getattr(short, name), getattr(long, name)[:150]), name
    # the rounding of a batch's arithmetic may differ with its length
    assert (short.pictures.int() - long.pictures[:150].int()).abs().max() <= 1


def test_probabilities_are_distributions(shapes):
    assert shapes.probabilities.dtype == torch.float64
    assert (shapes.probabilities >= 0).all()
    assert torch.allclose(shapes.probabilities.sum(-1), torch.ones(3000).double(), atol=1e-12)
    assert shapes.probabilities.shape == (3000, len(SHAPES))


def test_entropy_is_that_of_the_probabilities(shapes):
    p = shapes.probabilities.numpy()
    wanted = [-sum(x * np.log(x) for x in row if x > 0) for row in p]
    assert np.allclose(shapes.entropy.numpy(), wanted, atol=1e-12)


def test_clear_ones_are_certain_and_the_others_are_not(shapes):
    clear, morph, faded = (shapes.entropy[shapes.kinds == kind] for kind in range(len(KINDS)))
    assert len(clear) == pytest.approx(1500, abs=120)
    assert len(morph) == pytest.approx(900, abs=100)
    assert (clear == 0).all()
    assert morph.max() == pytest.approx(np.log(2), abs=1e-3)
    assert 1.2 < faded.mean() < faded.max() < np.log(len(SHAPES))


def test_votes_follow_the_probabilities(shapes):
    """Pearson's statistic of all pictures whose classes are expected five times or more, or else never."""
    many = drawn_shapes(3000, seed=7, annotators=5000)
    assert torch.equal(many.probabilities, shapes.probabilities)
    expected = 5000 * many.probabilities
    usable = ((expected >= 5) | (expected < 1e-9)).all(-1)
    expected, votes = expected[usable], many.votes[usable].double()
    present = expected >= 5
    assert (votes[~present] == 0).all()
    squares = torch.where(present, (votes - expected).square() / expected, 0.0).sum()
    degrees = int((present.sum(-1) - 1).sum())
    assert degrees > 2000
    assert chi2.ppf(1e-4, degrees) < float(squares) < chi2.ppf(1 - 1e-4, degrees)


def test_labels_have_the_most_votes(shapes):
    assert (shapes.votes.sum(-1) == 20).all()
    at = shapes.votes.gather(1, shapes.labels[:, None])[:, 0]
    assert torch.equal(at, shapes.votes.amax(-1))


def test_the_ink_has_the_area_of_the_outline():
    from aureole.synthetic._shapes import _cover, _outlines, _Plan

    plan = _Plan.of(np.random.default_rng(0).random((400, _Plan.NUMBERS)))
    cover = _cover(plan, slice(None), 64)
    area = cover.mean((1, 2)).double()
    radius = _outlines()[plan.first] * (1 - plan.weight[:, None])
    radius += _outlines()[plan.second] * plan.weight[:, None]
    wanted = torch.pi * plan.size.square() * radius.square().mean(-1)
    assert torch.allclose(area, wanted, rtol=0.01)
    edge = torch.cat([cover[:, 0], cover[:, -1], cover[:, :, 0], cover[:, :, -1]], -1)
    assert edge.amax() < 0.5  # whole in the frame
    # anti-aliased: pixels of the outline are partly covered
    assert ((cover > 0.05) & (cover < 0.95)).float().mean() > 0.01


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", 0), ("count", -1), ("count", 2.0), ("count", True), ("side", 7), ("side", "32"),
     ("seed", -1), ("seed", None), ("annotators", 0), ("annotators", float("nan"))],
)  # fmt: skip
def test_hostile_arguments_are_named(name, value):
    drawn = inspect.unwrap(
        drawn_shapes
    )  # as users have it: the suite's check of types would come first
    with pytest.raises(InvalidInputError, match=f"{name} must be a whole number of at least"):
        drawn(**{"count": 4, name: value})
