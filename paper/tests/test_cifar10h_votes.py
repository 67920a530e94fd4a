"""Votes on frozen features: the choice inside the training images, batches and metrics, on made inputs."""

from dataclasses import replace

import pytest
import torch

from aureole.data import Votes
from aureole_paper import cifar10h_votes
from aureole_paper.catalogue import find_experiment
from aureole_paper.cifar10h_votes import (
    Inputs,
    VotesSetting,
    _agreement,
    _batches,
    _Part,
    choose,
    train,
)

SHORT = VotesSetting("votes", items=48, pairs=200, steps=30, dim=4)


@pytest.fixture
def part():
    """Three classes in a plane; items near a border have divided votes."""
    rng = torch.Generator().manual_seed(0)
    n = 160
    label = torch.randint(3, (n,), generator=rng)
    hard = torch.rand(n, generator=rng)
    centre = torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    place = (1 - 0.7 * hard)[:, None] * centre[label] + 0.05 * torch.randn(n, 2, generator=rng)
    shares = torch.nn.functional.one_hot(label, 3) * (1 - 0.6 * hard)[:, None]
    shares = shares + 0.2 * hard[:, None]
    counts = torch.zeros(n, 3, dtype=torch.int64)
    for _ in range(12):
        counts += torch.nn.functional.one_hot(
            torch.multinomial(shares, 1, generator=rng).squeeze(1), 3
        )
    sizes = 0.25 + 0.75 * torch.rand(2, n, generator=rng)
    crops = place * sizes[..., None]
    inputs = Inputs(place, crops, sizes, place, crops[0], torch.rand(n, generator=rng))
    return _Part(inputs, torch.arange(n), counts)


def test_values_are_chosen_by_held_out_training_images(part):
    chosen, tried = choose(SHORT, part, seed=0)
    assert len(tried) == len(SHORT.cropped) * len(SHORT.neighbours)
    best = max(tried, key=lambda scores: scores["score"])
    assert chosen == replace(SHORT, cropped=(best["cropped"],), neighbours=(best["neighbours"],))
    assert all("entropy_rank" in scores for scores in tried)
    one = _Part(part.inputs, part.rows, torch.nn.functional.one_hot(part.counts.argmax(-1), 3))
    single = replace(SHORT, neighbours=(1.0,), cropped=(0.1,))
    assert "entropy_rank" not in choose(single, one, seed=0)[1][0]


def test_a_batch_has_crops_without_agreement_and_does_not_change_the_data(part):
    setting = replace(SHORT, cropped=(0.25,), neighbours=(0.4,))
    before = part.inputs.train.clone()
    batch = _batches(setting, part)(0, torch.Generator().manual_seed(0))
    assert batch.inputs.shape == (48, 2)
    assert torch.isnan(batch.agreement).tolist() == [True] * 12 + [False] * 36
    assert torch.equal(part.inputs.train, before)


def test_agreement_with_the_nearest_images(part):
    votes, images = Votes.of(part.counts), part.inputs.train
    own, near, both = (_agreement(images, votes, weight) for weight in (0.0, 1.0, 0.5))
    assert torch.equal(own, votes.agreement)
    assert torch.allclose(both, (own + near) / 2)
    shares = votes.probabilities
    standard = (images - images.mean(0)) / images.std(0)
    cosine = torch.nn.functional.cosine_similarity(standard[3:4], standard)
    cosine[3] = -1
    wanted = (shares[cosine.topk(10).indices] @ shares[3]).mean()
    assert near[3].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_a_head_learns_which_items_divide_the_votes(part):
    setting = replace(SHORT, steps=150, cropped=(0.1,), neighbours=(0.4,))
    encoder = train(setting, part, seed=0).encoder
    kappa = encoder(part.inputs.train).kappa
    agreement = Votes.of(part.counts).agreement
    assert cifar10h_votes.spearman(kappa, agreement) > 0.35  # twelve votes are noisy


def test_the_catalogue_has_the_settings():
    names = [setting.name for setting in find_experiment("cifar10h").settings]
    assert {"votes", "votes-ensemble", "votes-two", "votes-one"} <= set(names)
