"""The noise ceiling of votes."""

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.evaluation import spearman, split_half_rank, vote_ceiling


def votes(n, voters, seed=0):
    rng = torch.Generator().manual_seed(seed)
    chances = torch.distributions.Dirichlet(torch.full((n, 4), 0.3)).sample()
    drawn = torch.multinomial(chances, voters, replacement=True, generator=rng)
    return chances, torch.nn.functional.one_hot(drawn, 4).sum(1)


def test_the_ceiling_is_what_the_truth_itself_reaches():
    chances, counts = votes(20_000, 50)
    truth = torch.special.entr(chances).sum(-1)
    found = torch.special.entr(counts / counts.sum(-1, keepdim=True)).sum(-1)
    ceiling = vote_ceiling(counts, splits=3, generator=torch.Generator().manual_seed(1))
    assert ceiling["ceiling_rank"] == pytest.approx(spearman(truth, found), abs=0.01)
    assert ceiling["split_half_rank"] < ceiling["ceiling_rank"]


def test_halves_hold_every_vote_once():
    """With two votes each half has one, whose entropy is 0: no ranking exists."""
    _, counts = votes(50, 2)
    assert split_half_rank(counts) != split_half_rank(counts)


def test_more_votes_agree_better():
    few, many = (split_half_rank(votes(5000, voters)[1]) for voters in (10, 100))
    assert few < many - 0.05


@pytest.mark.parametrize("counts", [torch.tensor([[1, 0]]), torch.tensor([[3, -1]])])
def test_bad_counts_are_refused(counts):
    with pytest.raises(InvalidInputError, match="two votes"):
        split_half_rank(counts)


def test_the_real_votes(shared_data):
    from aureole_paper.cifar10h_data import load_cifar10h

    found = vote_ceiling(load_cifar10h(shared_data).counts, splits=3)
    assert 0.50 < found["split_half_rank"] < 0.58
    assert 0.81 < found["ceiling_rank"] < 0.87


@pytest.mark.parametrize("mean", [-1.0, -0.4, 0.0])
def test_halves_that_disagree_have_a_ceiling_of_zero(mean, monkeypatch):
    """Not a complex number, nor a division by 0."""
    monkeypatch.setattr("aureole.evaluation._ceiling.split_half_rank", lambda *_: mean)
    found = vote_ceiling(torch.tensor([[3, 1], [2, 2]]))
    assert found["split_half_rank"] == pytest.approx(mean)
    assert found["ceiling_rank"] == 0.0


def test_votes_at_random_have_a_real_ceiling():
    """Items that all follow one law: the halves agree by chance alone, as often below 0 as above."""
    means = []
    for seed in range(12):
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(torch.ones(8, 3), 20, replacement=True, generator=rng)
        counts = torch.nn.functional.one_hot(drawn, 3).sum(1)
        found = vote_ceiling(counts, splits=2, generator=rng)
        assert 0 <= found["ceiling_rank"] <= 1
        means.append(found["split_half_rank"])
    assert min(means) < 0 < max(means)


def test_no_ranking_has_no_ceiling_and_no_splits_are_refused():
    _, counts = votes(50, 2)
    found = vote_ceiling(counts, splits=2)
    assert found["ceiling_rank"] != found["ceiling_rank"]
    for splits in (0, -1):
        with pytest.raises(InvalidInputError, match="one split or more"):
            vote_ceiling(counts, splits=splits)
