"""Rankings and credible sets against slow loops."""

import math

import pytest
import torch

from aureole.caps import class_entropy
from aureole.errors import InvalidInputError
from aureole_paper.set_metrics import (
    average_precision,
    normalised_gain,
    set_class_entropy,
    set_coverage,
    set_share,
    thirds,
)


@pytest.fixture
def scores():
    """Scores of 6 queries and 40 items, with ties."""
    return torch.randint(0, 25, (6, 40), generator=torch.Generator().manual_seed(1)).double()


def falling(row):
    """Places by falling score; equal ones in their order."""
    return sorted(range(len(row)), key=lambda i: (-row[i].item(), i))


def test_average_precision_is_that_of_a_loop(scores):
    relevant = torch.rand(6, 40, generator=torch.Generator().manual_seed(2)) < 0.3
    for score, right, found in zip(
        scores, relevant, average_precision(scores, relevant), strict=True
    ):
        hits, total = 0, 0.0
        for rank, place in enumerate(falling(score), 1):
            if right[place]:
                hits += 1
                total += hits / rank
        assert found.item() == pytest.approx(total / hits, rel=1e-12)


@pytest.mark.parametrize("depth", [None, 1, 10, 400])
def test_normalised_gain_is_that_of_a_loop(scores, depth):
    gain = torch.rand(6, 40, generator=torch.Generator().manual_seed(3))
    for score, gains, found in zip(
        scores, gain, normalised_gain(scores, gain, depth=depth), strict=True
    ):
        places = falling(score)[:depth]
        best = sorted(gains.double().tolist(), reverse=True)[:depth]
        dcg = sum(gains[p].item() / math.log2(1 + r) for r, p in enumerate(places, 1))
        ideal = sum(g / math.log2(1 + r) for r, g in enumerate(best, 1))
        assert found.item() == pytest.approx(dcg / ideal, rel=1e-12)


def test_a_perfect_ranking_has_one_and_no_relevant_item_has_no_value():
    score = torch.tensor([3.0, 2.0, 1.0])
    assert average_precision(score, torch.tensor([True, True, False])) == 1
    assert normalised_gain(score, torch.tensor([0.9, 0.5, 0.0])) == 1
    assert average_precision(score, torch.zeros(3, dtype=torch.bool)).isnan()
    assert normalised_gain(score, torch.zeros(3)).isnan()


def test_rankings_refuse_what_has_no_rank():
    right = torch.ones(2, dtype=torch.bool)
    with pytest.raises(InvalidInputError, match="NaN"):
        average_precision(torch.tensor([math.nan, 1.0]), right)
    with pytest.raises(InvalidInputError, match=r"at least 0"):
        normalised_gain(torch.ones(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(InvalidInputError, match="depth"):
        normalised_gain(torch.ones(2), torch.ones(2), depth=0)


def test_coverage_share_and_entropy_are_those_of_a_loop():
    rng = torch.Generator().manual_seed(4)
    inside = torch.rand(5, 30, generator=rng) < 0.4
    inside[3] = False
    chance = torch.rand(5, 30, generator=rng)
    chance = chance / chance.sum(-1, keepdim=True)
    labels = torch.randint(0, 4, (30,), generator=rng)
    coverage, share = set_coverage(inside, chance), set_share(inside)
    mixed = set_class_entropy(inside, labels)
    for q in range(5):
        held = [g for g in range(30) if inside[q, g]]
        assert coverage[q].item() == pytest.approx(sum(chance[q, g].item() for g in held), abs=1e-6)
        assert share[q].item() == len(held) / 30
        expected = class_entropy([int(labels[g]) for g in held])
        assert mixed[q].item() == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert mixed[3].isnan()
    hashes = torch.tensor([10**12, 5, -7, 10**18])[labels]
    torch.testing.assert_close(set_class_entropy(inside, hashes), mixed, equal_nan=True)


def test_chances_that_are_none_are_refused():
    inside = torch.ones(1, 2, dtype=torch.bool)
    for chance in ([[0.5, 0.4]], [[1.5, -0.5]], [[math.nan, 1.0]]):
        with pytest.raises(InvalidInputError, match="sum to 1"):
            set_coverage(inside, torch.tensor(chance))


def test_thirds_keep_ties_together():
    values = torch.tensor([0.0] * 5 + [1.0, 2.0, 3.0, 4.0])
    low, high = thirds(values)
    assert low.tolist() == [True] * 5 + [False] * 4
    assert high.tolist() == [False] * 6 + [True] * 3
    for bad in (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0, math.nan])):
        with pytest.raises(InvalidInputError):
            thirds(bad)
