"""Baselines that see the same votes: their parts against closed forms and slow loops, and one fold on the real data."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from aureole.errors import InvalidInputError
from aureole_paper import cifar10h, cifar10h_baselines
from aureole_paper.catalogue import find_experiment
from aureole_paper.cifar import Cifar10H, Fold
from aureole_paper.cifar10h import Split
from aureole_paper.cifar10h_baselines import (
    SETTINGS,
    FoldFeatures,
    VoteBaseline,
    both_views,
    choose_votes,
    evaluate_vote_baseline,
    fit_ridge,
    fit_temperature,
    item_errors,
    ridge_inputs,
)
from aureole_paper.pooled import MirroredViews
from aureole_paper.runs import run

CLASSES = 10


@pytest.fixture
def split():
    """A small fold of random images: 60 to train on, 30 to test."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (90, 3, 32, 32), dtype=torch.uint8, generator=rng)
    labels = torch.arange(90) % CLASSES
    counts = torch.randint(0, 6, (90, CLASSES), generator=rng) + 2
    crops, sizes = images[60:].flip(0), torch.rand(30, generator=rng)
    fold = Fold(torch.arange(60), torch.arange(30), torch.arange(60, 90))
    return Split(Cifar10H(images, labels, counts), fold, sizes, crops, crops)


class Pixels(nn.Module):
    """A network that returns eight pixels, which differ between an image and its mirror image."""

    def forward(self, images):
        return images[:, 0, :8, 0].float() / 255


@pytest.fixture
def frozen(split, monkeypatch):
    """Replaces pretrained classifiers by pixels and a linear layer."""
    torch.manual_seed(0)
    last = nn.Linear(8, CLASSES)
    features = FoldFeatures.of(Pixels(), split)
    monkeypatch.setattr(cifar10h_baselines, "_frozen", lambda *_: (features, last))
    network = nn.Sequential(Pixels(), last)
    monkeypatch.setattr(cifar10h_baselines, "fine_tune", lambda *_: network)
    return features, last


def test_both_views_are_those_of_the_image_and_its_mirror_image(split):
    images = split.data.images[:7]
    wanted = torch.stack([Pixels()(images), Pixels()(images.flip(-1))])
    torch.testing.assert_close(both_views(Pixels(), images, batch=3), wanted)
    torch.testing.assert_close(both_views(Pixels(), images.flip(-1)), wanted.flip(0))
    features = FoldFeatures.of(Pixels(), split, 5)
    assert features.train.shape == (2, 5, 8)
    torch.testing.assert_close(features.means()[1], features.test.sum(0) / 2)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_the_temperature_of_the_votes_is_found(temperature):
    logits = 3 * torch.randn(500, CLASSES, generator=torch.Generator().manual_seed(1))
    votes = (logits / temperature).softmax(-1)
    assert fit_temperature(logits, votes) == pytest.approx(temperature, rel=1e-4)


def test_the_temperature_minimises_the_cross_entropy():
    rng = torch.Generator().manual_seed(2)
    logits = torch.randn(50, 4, generator=rng)
    votes = (logits / 2 + torch.randn(50, 4, generator=rng)).softmax(-1)

    def loss(t):
        return nn.functional.cross_entropy(logits.double() / t, votes.double()).item()

    best = fit_temperature(logits, votes)
    assert loss(best) <= min(loss(best * 1.01), loss(best / 1.01))


def test_a_perfect_classifier_has_the_lowest_temperature():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits, torch.eye(2)) == pytest.approx(0.01, rel=1e-3)


def test_votes_are_chosen_without_replacement():
    counts = torch.tensor([[3, 1, 0], [2, 2, 2]]).repeat(3000, 1)
    chosen = choose_votes(counts, 2, torch.Generator().manual_seed(0))
    assert bool((chosen.sum(-1) == 2).all())
    assert bool((chosen <= counts).all())
    assert not chosen[::2, 2].any()
    # two of four, three of them equal: both from the three with probability 1/2
    assert (chosen[::2, 0] == 2).double().mean().item() == pytest.approx(0.5, abs=0.04)
    assert torch.equal(choose_votes(counts, 6 - 2, torch.Generator())[:1], counts[:1])
    with pytest.raises(InvalidInputError, match="at least 5 votes"):
        choose_votes(counts, 5, torch.Generator())


def test_ridge_is_the_closed_form_and_ignores_constant_features():
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(80, 3, generator=rng, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64) + 0.5
    y = y + 0.1 * torch.randn(80, generator=rng, dtype=torch.float64)
    fitted = fit_ridge(torch.cat([x, torch.ones(80, 1)], -1), y, (2.0,))
    z = ((x - x.mean(0)) / x.std(0)).numpy()
    stacked = np.vstack([z, np.sqrt(2.0) * np.eye(3)])
    target = np.concatenate([(y - y.mean()).numpy(), np.zeros(3)])
    wanted = np.linalg.lstsq(stacked, target, rcond=None)[0]
    np.testing.assert_allclose(fitted.weight[:3], wanted, atol=1e-10)
    assert fitted.weight[3] == 0


def test_the_penalty_is_chosen_by_cross_validation():
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(60, 40, generator=rng)
    signal = x @ torch.randn(40, generator=rng)
    noise = torch.randn(60, generator=rng)
    penalties = (1e-2, 1e3)
    assert fit_ridge(x, signal, penalties).penalty == 1e-2
    assert fit_ridge(x, noise, penalties).penalty == 1e3


def test_ridge_inputs_are_functions_of_each_row(frozen):
    features, last = frozen
    images = features.means()[1]
    inputs = ridge_inputs(images, last)
    assert inputs.shape == (30, 8 + 8 + 10 + 3 * 11)
    torch.testing.assert_close(ridge_inputs(images[3:4], last), inputs[3:4])


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if s.name != "step-0"], ids=lambda s: s.name
)
def test_each_baseline_has_all_metrics(setting, split, frozen, tmp_path):
    metrics = evaluate_vote_baseline(setting, split, 0, folder=tmp_path)
    numbers = {"entropy_rank", "crop_rank", "recall_at_1", "r_auroc"}
    assert numbers <= set(metrics)
    assert set(metrics["bootstrap_errors"]) == numbers
    assert all(0 < error < 0.5 for error in metrics["bootstrap_errors"].values())
    if setting.name.startswith("softmax"):
        assert 0 <= metrics["accuracy"] <= 1
        assert metrics["temperature_fitted"] > 1  # random votes
        assert {"entropy_rank_at_2", "crop_rank_fitted"} <= set(metrics)
    else:
        assert {"penalty", "entropy_rank_linear", "crop_rank_linear"} <= set(metrics)
    assert metrics == evaluate_vote_baseline(setting, split, 0, folder=tmp_path)


def test_bootstrap_errors_of_the_rank_correlation_match_its_theory(split):
    """For independent normal variables the error is about 1 / sqrt(n - 1)."""
    rng = torch.Generator().manual_seed(6)
    n = 1000
    images, labels = torch.zeros(n, 3, 32, 32, dtype=torch.uint8), torch.zeros(n).long()
    data = Cifar10H(images, labels, torch.randint(1, 60, (n, CLASSES), generator=rng))
    large = replace(
        split,
        data=data,
        fold=Fold(split.fold.train, torch.arange(n), torch.arange(n)),
        crop_sizes=torch.rand(n, generator=rng),
    )
    noise, correct = torch.randn(2, n, generator=rng), torch.rand(n, generator=rng) < 0.9
    errors = item_errors(large, *noise, correct)
    assert errors["entropy_rank"] == pytest.approx(1 / (n - 1) ** 0.5, rel=0.2)
    assert errors["crop_rank"] == pytest.approx(1 / (n - 1) ** 0.5, rel=0.2)
    share = correct.double().mean().item()
    assert errors["recall_at_1"] == pytest.approx((share * (1 - share) / n) ** 0.5, rel=0.2)


def test_baselines_are_settings_of_the_experiment():
    names = [s.name for s in find_experiment("cifar10h").settings]
    assert {s.name for s in SETTINGS} < set(names)
    assert VoteBaseline("ridge").shortened(1) == VoteBaseline("ridge")
    trained = find_experiment("cifar10h").narrowed({"labels": "hard", "loss": "elk"}).settings
    assert "hard-elk" in {s.name for s in trained}


@pytest.mark.slow
def test_before_training_is_the_encoder_that_training_starts_from(shared_data):
    """The metrics from cached features against those of the whole encoder on the images."""
    split = Split.load(shared_data, 0)
    few = replace(split.fold, validation=split.fold.validation[:200], test=split.fold.test[:200])
    split = replace(
        split, fold=few, crop_sizes=split.crop_sizes[:200], test_crops=split.test_crops[:200]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        setting = cifar10h.Cifar10HSetting("closed-form")
        encoder = MirroredViews(cifar10h.new_encoder(setting, split, shared_data)).eval()
    wanted = cifar10h.evaluate(encoder, split, setting, folder=shared_data)
    backbone, last = cifar10h.load_backbone("resnet20", shared_data)
    features = FoldFeatures.of(backbone.eval(), split, 1), last
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar10h_baselines, "_frozen", lambda *_: features)
        found = evaluate_vote_baseline(VoteBaseline("step-0"), split, 0, folder=shared_data)
    for metric in ("entropy_rank", "crop_rank", "recall_at_1", "r_auroc"):
        assert found[metric] == pytest.approx(wanted[metric], abs=2e-3), metric
    assert cifar10h_baselines.encoder_errors(encoder, split) == pytest.approx(
        found["bootstrap_errors"], abs=2e-3
    )


@pytest.mark.slow
def test_ridge_on_a_fold_of_the_real_votes(shared_data, tmp_path):
    record = run(VoteBaseline("ridge"), 0, tmp_path, command="test", data_dir=shared_data)
    assert record.metrics["entropy_rank"] > 0.4
    assert record.metrics["recall_at_1"] > 0.88
    assert isinstance(record.metrics["bfloat16"], bool)
    assert "weights/cifar10_resnet20.safetensors" in record.data
    assert len(record.data) == 3 + 6 + 1
