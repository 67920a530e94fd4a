"""The rejection curve of a gallery against a loop over its items."""

import pytest
import torch

import aureole as au
from aureole.evaluation import kappa_rejection


def gallery(n=20):
    rng = torch.Generator().manual_seed(5)
    mu = au.sphere.normalize(torch.randn(n, 3, generator=rng, dtype=torch.float64))
    kappa = torch.randperm(n, generator=rng).double() + 0.5
    labels = [("a", "b", None)[i] for i in torch.randint(3, (n,), generator=rng).tolist()]
    return au.VonMisesFisher(mu, kappa), labels


def right(q, labels):
    """Whether each item's nearest other has its label."""
    found = []
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        nearest = max(others, key=lambda j: float(q.mu[i] @ q.mu[j]))
        found.append(labels[nearest] == labels[i])
    return found


def test_it_is_the_loop_over_the_most_certain():
    q, labels = gallery()
    correct = right(q, labels)
    assert 0 < sum(correct) < 20
    order = sorted(range(20), key=lambda i: -q.kappa[i].item())
    curve = kappa_rejection(q, labels, points=21)
    assert len(curve) == 20  # nothing is kept of the last point
    for kept, point in zip(range(20, 0, -1), curve, strict=True):
        assert point["kept"] == pytest.approx(kept / 20)
        assert point["threshold"] == q.kappa[order[kept - 1]].item()
        assert point["score"] == pytest.approx(sum(correct[i] for i in order[:kept]) / kept)
        assert sum((q.kappa >= point["threshold"]).tolist()) == kept


def test_items_of_one_kappa_have_the_mean_over_their_orders():
    q, labels = gallery()
    kappa = (q.kappa / 5).floor()  # four blocks of five
    correct = torch.tensor(right(q, labels)).double()
    curve = kappa_rejection(au.VonMisesFisher(q.mu, kappa), labels, points=21)
    for kept, point in zip(range(20, 0, -1), curve, strict=True):
        edge = kappa.sort(descending=True).values[kept - 1]
        assert point["threshold"] == edge.item()
        above, block = kappa > edge, kappa == edge
        share = (kept - int(above.sum())) / int(block.sum())
        wanted = (correct[above].sum() + share * correct[block].sum()) / kept
        assert point["score"] == pytest.approx(wanted.item())
