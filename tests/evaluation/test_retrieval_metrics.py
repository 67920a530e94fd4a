"""Nearest neighbours, rankings and credible sets against slow loops."""

import math

import pytest
import torch

from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.evaluation import _retrieval_metrics as retrieval_metrics
from aureole.evaluation._retrieval_metrics import nearest_label_matches


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
    assert not nearest_label_matches(mu, labels).any()
    assert nearest_label_matches(mu.repeat(2, 1), labels.repeat(2)).all()
    assert nearest_label_matches(mu.requires_grad_(), torch.zeros(50, dtype=torch.long)).all()


def test_what_has_no_nearest_is_refused():
    labels = torch.arange(3)
    with pytest.raises(InvalidInputError, match="at least two items"):
        nearest_label_matches(torch.randn(1, 4), labels[:1])
    with pytest.raises(InvalidInputError, match="at least two items"):
        nearest_label_matches(torch.randn(0, 4), labels[:0])
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
