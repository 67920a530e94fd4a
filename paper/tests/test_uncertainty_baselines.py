"""Baselines: each is less certain on blurred features."""

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.evaluation import spearman
from aureole_paper.uncertainty_baselines import (
    Probe,
    ProbeSetting,
    entropy_of_mean,
    fit_probe,
    losses_on_unseen,
    mc_dropout,
    nearest_cosines,
    predict_loss,
    shortness,
    softmax_uncertainty,
)

LINEAR = ProbeSetting(steps=150, batch=64, lr=1e-2)
HIDDEN = ProbeSetting(hidden=32, steps=200, batch=64, lr=5e-3)


def classes(n=900, dim=6, seed=0):
    """Three classes whose features fade as they are blurred, as those of photos do: (features, labels, blur)."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=rng)
    blur = torch.rand(n, generator=rng)
    noise = torch.randn(n, dim, generator=rng)
    return 3 * (1.2 - blur)[:, None] * torch.eye(3, dim)[labels] + 0.4 * noise, labels, blur


def test_nearest_cosines_match_a_loop():
    known, features = torch.randn(40, 5), torch.randn(7, 5)
    found = nearest_cosines(known, features, 3)
    for row, values in zip(features, found, strict=True):
        cosines = [torch.cosine_similarity(row, other, dim=0).item() for other in known]
        assert values.tolist() == pytest.approx(sorted(cosines, reverse=True)[:3], abs=1e-6)
    assert torch.allclose(nearest_cosines(known, known, 1), torch.ones(40, 1), atol=1e-6)
    with pytest.raises(InvalidInputError, match="41 neighbours"):
        nearest_cosines(known, features, 41)


@pytest.mark.parametrize("setting", [LINEAR, HIDDEN])
def test_a_probe_learns_and_doubts_blurred_features(setting):
    features, labels, _ = classes()
    queries, truth, blur = classes(seed=1)
    probe = fit_probe(features, labels, setting)
    assert (probe(queries).argmax(1) == truth).double().mean() > 0.85
    assert spearman(softmax_uncertainty(probe, queries), blur) > 0.3
    assert spearman(entropy_of_mean([probe], queries), blur) > 0.3
    assert not any(p.requires_grad for p in probe.parameters())


def test_an_ensemble_that_disagrees_is_unsure():
    features = torch.randn(5, 4)
    first, second = (Probe(features, 2, ProbeSetting()) for _ in range(2))
    for probe, sign in ((first, 1.0), (second, -1.0)):
        probe.requires_grad_(False)
        probe.last.weight.zero_()
        probe.last.bias.copy_(torch.tensor([20.0 * sign, 0.0]))
    assert entropy_of_mean([first], features).max() < 1e-6
    assert torch.allclose(entropy_of_mean([first, second], features), torch.tensor(2.0).log())


def test_dropout_adds_uncertainty_and_its_seed_decides():
    features, labels, blur = classes()
    probe = fit_probe(features, labels, HIDDEN)
    before = torch.get_rng_state()
    found = mc_dropout(probe, features, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert not probe.training
    assert torch.equal(found, mc_dropout(probe, features, seed=3))
    assert not torch.equal(found, mc_dropout(probe, features, seed=4))
    assert found.mean() > entropy_of_mean([probe], features).mean()
    assert spearman(found, blur) > 0.3


def test_losses_are_of_probes_that_did_not_see_the_row():
    features, _, _ = classes(300)
    noise = torch.randint(3, (300,), generator=torch.Generator().manual_seed(5))
    setting = ProbeSetting(hidden=64, dropout=0.0, decay=0.0, steps=300, batch=64, lr=1e-2)
    seen = torch.nn.functional.cross_entropy(fit_probe(features, noise, setting)(features), noise)
    # labels that mean nothing can be learned by heart, but not foreseen
    assert losses_on_unseen(features, noise, setting).mean() > 1.0 > seen


@pytest.mark.parametrize("ranked", [False, True])
def test_the_predicted_loss_is_larger_where_features_are_blurred(ranked):
    features, labels, _ = classes()
    losses = losses_on_unseen(features, labels, LINEAR)
    predict = predict_loss(features, losses, HIDDEN, ranked=ranked)
    queries, _, blur = classes(seed=1)
    assert spearman(predict(queries), blur) > 0.5


def test_short_rows_are_uncertain():
    assert torch.equal(
        shortness(torch.tensor([[0.0, 2.0], [0.5, 0.0]])), torch.tensor([-2.0, -0.5])
    )
