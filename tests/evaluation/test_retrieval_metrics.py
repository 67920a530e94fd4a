"""Nearest neighbours, rankings and credible sets against slow loops."""

import math

import pytest
import torch

from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.evaluation import _retrieval_metrics as retrieval_metrics, recall_at_1
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.retrieval import class_entropy
from aureole_paper.set_metrics import (
    average_precision,
    normalised_gain,
    set_class_entropy,
    set_coverage,
    set_share,
    thirds,
)


def slow_matches(mu, labels):
    found = []
    for i, anchor in enumerate(mu.tolist()):
        best, nearest = -math.inf, -1
        for j, other in enumerate(mu.tolist()):
            dot = math.fsum(a * b for a, b in zip(anchor, other, strict=True))
            cosine = dot / math.hypot(*anchor) / math.hypot(*other)
            if j != i and cosine > best + 1e-12:
                best, nearest = cosine, j
        found.append(bool(labels[i] == labels[nearest]))
    return torch.tensor(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_matches_are_those_of_a_slow_loop(dim, dtype):
    mu = torch.randn(60, dim).to(dtype)
    labels = torch.randint(3, (60,))
    found = nearest_label_matches(mu, labels)
    assert torch.equal(found, slow_matches(mu, labels))
    assert recall_at_1(mu, labels) == found.double().mean().item()


@pytest.mark.parametrize("block", [1, 7 * 90, 2**22])
def test_blocks_of_any_size_give_the_same(block, monkeypatch):
    mu, labels = torch.randn(90, 12), torch.randint(2, (90,))
    mu[45:] = mu[:45]  # pairs at the same place
    labels[:20] = labels[45:65]
    wanted = slow_matches(mu, labels)
    monkeypatch.setattr(retrieval_metrics, "_BLOCK", block)
    assert torch.equal(nearest_label_matches(mu, labels), wanted)


@pytest.mark.parametrize("dim", [3, 31, 257])
def test_ties_go_to_the_lowest_index(dim):
    length = torch.rand(101, 1, dtype=torch.float64) + 0.1  # the last digits differ
    mu = length * torch.randn(dim, dtype=torch.float64)
    labels = torch.arange(101)
    labels[[0, 7]] = 5  # 0 is nearest to all others, and 1 to 0
    assert nearest_label_matches(mu, labels).nonzero().flatten().tolist() == [5, 7]


def test_lengths_rotations_and_names_of_labels_do_not_matter():
    mu, labels = torch.randn(200, 6, dtype=torch.float64), torch.randint(4, (200,))
    wanted = nearest_label_matches(mu, labels)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    length = torch.rand(200, 1, dtype=torch.float64) + 0.1
    assert torch.equal(nearest_label_matches(length * mu @ turn, 90 - 3 * labels), wanted)
    assert torch.equal(nearest_label_matches(mu, labels.to(torch.uint8)), wanted)
    order = torch.randperm(200)
    assert torch.equal(nearest_label_matches(mu[order], labels[order]), wanted[order])


def test_recall_counts_what_it_should():
    mu = sphere.normalize(torch.randn(50, 4))
    labels = torch.arange(50)
    assert recall_at_1(mu, labels) == 0.0
    assert recall_at_1(mu.repeat(2, 1), labels.repeat(2)) == 1.0
    assert recall_at_1(mu.requires_grad_(), torch.zeros(50, dtype=torch.long)) == 1.0


def test_what_has_no_nearest_is_refused():
    labels = torch.arange(3)
    with pytest.raises(InvalidInputError, match="at least two items"):
        nearest_label_matches(torch.randn(1, 4), labels[:1])
    with pytest.raises(InvalidInputError, match="at least two items"):
        recall_at_1(torch.randn(0, 4), labels[:0])
    with pytest.raises(InvalidInputError, match=r"shape \(3, 4\) and labels of shape \(2,\)"):
        nearest_label_matches(torch.randn(3, 4), labels[:2])
    with pytest.raises(InvalidInputError, match=r"labels of shape \(3, 1\)"):
        nearest_label_matches(torch.randn(3, 4), labels.unsqueeze(1))
    for hole, kind in ((math.nan, "NaN"), (math.inf, "infinite"), (0.0, "zero")):
        mu = torch.randn(3, 4)
        mu[1] = hole
        with pytest.raises(InvalidInputError, match=rf"vectors\[1\].*{kind}"):
            nearest_label_matches(mu, labels)


def test_some_queries_are_answered_as_among_all():
    rng = torch.Generator().manual_seed(0)
    mu, labels = torch.randn(300, 4, generator=rng), torch.randint(0, 9, (300,), generator=rng)
    queries = torch.tensor([299, 3, 3, 0, 150])
    whole = nearest_label_matches(mu, labels)
    assert torch.equal(nearest_label_matches(mu, labels, queries=queries), whole[queries])


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
