"""What a head is worth, against figures taken one by one."""

import json

import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook

with install_import_hook("aureole.training", "beartype.beartype"):
    import aureole.training._assessment

from aureole import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation._rejection import area_under_rejection
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.training import FrozenHead
from aureole.training._assessment import assess, histogram, partner_cosines

assert aureole.training._assessment


def views(things, each, seed):
    """Noisy views; the first coordinate shows how noisy one is."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(things), each)
    blur = 0.05 + 0.95 * rng.random((len(groups), 1))
    seen = rng.normal(size=(things, 11))[groups] + blur * rng.normal(size=(len(groups), 11))
    return np.concatenate([blur, seen], 1), groups


@pytest.fixture(scope="module")
def head():
    return FrozenHead(dim=8, steps=120, items=256, width=64).fit(*views(500, 4, seed=0))


def test_figures_are_those_taken_one_by_one(head):
    vectors, groups = views(200, 3, seed=1)
    found = assess(head, vectors, groups)
    posterior = head.predict(vectors)
    correct = nearest_label_matches(posterior.mu, torch.from_numpy(groups))
    np.testing.assert_allclose(found.kappa, posterior.kappa, rtol=1e-5)
    assert found.recall == pytest.approx(correct.double().mean().item())
    assert found.area == pytest.approx(area_under_rejection(-posterior.kappa, correct))
    assert found.information == pytest.approx(head.score(vectors, groups))
    assert found.coverage == pytest.approx(head.coverage(vectors, groups))
    assert (found.dim, found.groups, found.asked) == (8, 200, 600)
    assert found.recall < found.area < found.area_best
    assert found.kept[50] > found.recall + 0.1
    assert found.auroc > 0.6
    np.testing.assert_array_less(found.kept[:-1], found.best[:-1] + 1e-9)
    json.dumps(found.to_dict(), allow_nan=False)


def test_rows_alone_in_their_group_are_not_asked_and_large_tables_are_sampled(head, monkeypatch):
    vectors, groups = views(100, 3, seed=1)
    groups[::3] = 1000 + np.arange(100)  # two of each are left
    whole = assess(head, vectors, groups)
    assert whole.asked == 200
    assert len(whole.kappa) == 300
    some = assess(head, vectors, groups, items=50)
    assert some.asked == 50
    assert assess(head, vectors, groups, items=50).recall == some.recall
    assert not np.array_equal(assess(head, vectors, groups, items=50, seed=1).kept, some.kept)
    monkeypatch.setattr("aureole.training._assessment._GALLERY", 80)
    few = assess(head, vectors, groups)
    assert few.asked == 80
    assert few.recall > whole.recall  # fewer others that could be the nearest


def test_labels_of_any_type_and_one_that_is_always_right(head):
    vectors, groups = views(50, 4, seed=1)
    names = np.array([f"thing {g:03d}" for g in groups])
    assert assess(head, vectors, names).recall == assess(head, vectors, groups).recall
    same = assess(head, vectors[groups * 4], groups)  # each thing four times
    assert same.recall == 1.0
    assert same.auroc is None
    json.dumps(same.to_dict(), allow_nan=False)


def test_what_cannot_be_assessed(head):
    vectors, groups = views(50, 4, seed=1)
    with pytest.raises(InvalidInputError, match="200 vectors need one group each, but got 199"):
        assess(head, vectors, groups[:-1])
    with pytest.raises(InvalidInputError, match="no two of the 200 rows share a group"):
        assess(head, vectors, np.arange(200))
    with pytest.raises(InvalidInputError, match="only one group"):
        assess(head, vectors, np.zeros(200))


@pytest.mark.parametrize(
    "kappa", [[3.0], [3.0, 3.0], [1.0, 5.0], [0.1, 7.0, 1e4], [np.float32(0.1), np.float32(33.3)]]
)
def test_every_kappa_is_in_the_histogram(kappa):
    counts, edges = histogram(np.array(kappa))
    assert counts.sum() == len(kappa)
    assert len(edges) == len(counts) + 1


@pytest.mark.parametrize(
    ("dim", "low", "high", "tolerance"),
    [(2, 0.1, 100.0, 1e-3), (8, 1.0, 1000.0, 1e-5), (32, 0.5, 500.0, 1e-5), (32, 20.0, 20.0, 1e-7)],
)
def test_cosines_are_those_of_the_posterior(dim, low, high, tolerance):
    kappa = np.geomspace(low, high, 6)
    found = partner_cosines(kappa, 0.9, kappa_other=30.0, kappa_pos=2.0 * dim, dim=dim)
    posterior = VonMisesFisher(torch.eye(dim).double()[:1].expand(6, -1), torch.from_numpy(kappa))
    wanted = posterior.predictive_cosine(0.9, kappa_pos=2.0 * dim, kappa_other=30.0)
    np.testing.assert_allclose(found, wanted, atol=tolerance)
