"""Partial rank correlations, the noise ceiling of votes, and the bootstrap against a loop."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from aureole.errors import InvalidInputError
from aureole.evaluation import spearman
from aureole_paper.statistics import (
    bootstrap,
    bootstrap_error,
    partial_spearman,
    split_half_rank,
    vote_ceiling,
)


@pytest.mark.parametrize("ties", [False, True])
def test_partial_spearman_is_the_correlation_of_what_regression_leaves(ties):
    """The ranks of both lists less their least-squares line in the ranks of the third."""
    given = torch.randn(300, dtype=torch.float64)
    first = given + torch.randn(300, dtype=torch.float64)
    second = given - 0.5 * first + torch.randn(300, dtype=torch.float64)
    if ties:
        first, given = first.round(), given.round(decimals=1)
    ranks = [rankdata(x.numpy()) for x in (first, second, given)]
    line = np.stack([np.ones(300), ranks[2]], 1)
    left = [r - line @ np.linalg.lstsq(line, r, rcond=None)[0] for r in ranks[:2]]
    wanted = float(np.corrcoef(*left)[0, 1])
    assert partial_spearman(first, second, given) == pytest.approx(wanted, abs=1e-12)
    assert abs(wanted - spearman(first, second)) > 0.1


def test_partial_spearman_is_nan_where_the_third_says_all():
    a, b = torch.arange(5.0), torch.tensor([2.0, 0, 1, 4, 3])
    assert math.isnan(partial_spearman(a, b, a))
    assert math.isnan(partial_spearman(a, b, torch.ones(5)))


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
    from aureole_paper.cifar import load_cifar10h

    found = vote_ceiling(load_cifar10h(shared_data).counts, splits=3)
    assert 0.50 < found["split_half_rank"] < 0.58
    assert 0.81 < found["ceiling_rank"] < 0.87


@pytest.mark.parametrize("mean", [-1.0, -0.4, 0.0])
def test_halves_that_disagree_have_a_ceiling_of_zero(mean, monkeypatch):
    """Not a complex number, nor a division by 0."""
    monkeypatch.setattr("aureole_paper.statistics.split_half_rank", lambda *_: mean)
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
        with pytest.raises(InvalidInputError, match="splits must be at least 1"):
            vote_ceiling(counts, splits=splits)


CLUSTERS = torch.tensor([7, 3, 7, 7, -1, 3, 20])


VALUES = torch.tensor([0.5, 2.0, -1.0, 0.25, 4.0, 8.0, -3.0], dtype=torch.float64)


def mean(rows):
    return VALUES[rows].mean().item()


@pytest.mark.parametrize(("level", "seed"), [(0.95, 0), (0.5, 3)])
def test_the_bootstrap_is_the_percentile_interval_of_a_loop(level, seed):
    members = {}
    for item, cluster in enumerate(CLUSTERS.tolist()):
        members.setdefault(cluster, []).append(item)
    names = sorted(members)
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(200):
        chosen = torch.randint(len(names), (len(names),), generator=rng).tolist()
        items = [item for i in chosen for item in members[names[i]]]
        found.append(float(np.mean([VALUES[item].item() for item in items])))
    wanted = (
        VALUES.mean().item(),
        *np.quantile(found, [(1 - level) / 2, (1 + level) / 2]).tolist(),
    )
    assert bootstrap(mean, CLUSTERS, draws=200, level=level, seed=seed) == pytest.approx(wanted)


def test_clusters_come_whole():
    seen = []

    def keep(rows):
        seen.append(rows.tolist())
        return 0.0

    bootstrap(keep, CLUSTERS, draws=50)
    assert seen.pop() == list(range(7))  # the statistic itself, on every item once
    assert len({len(rows) for rows in seen}) > 1
    for rows in seen:
        for group in ([0, 2, 3], [1, 5]):
            assert len({rows.count(item) for item in group}) == 1


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    values = torch.randn(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, low, high = bootstrap(lambda rows: values[rows].mean().item(), torch.arange(2000))
    wanted = 2 * 1.959964 * values.std().item() / 2000**0.5
    assert high - low == pytest.approx(wanted, rel=0.1)


def test_what_has_no_interval_is_refused():
    with pytest.raises(InvalidInputError, match=r"shape \(0,\)"):
        bootstrap(mean, torch.zeros(0, dtype=torch.long))
    for given in ({"draws": 0}, {"level": 0.0}, {"level": 1.0}, {"level": float("nan")}):
        with pytest.raises(
            InvalidInputError, match=r"draws must be at least 1|level must be between"
        ):
            bootstrap(mean, CLUSTERS, **given)


def test_the_bootstrap_error_is_the_standard_deviation_over_resamples():
    values = torch.randn(300, generator=torch.Generator().manual_seed(0))
    collected = []

    def mean(rows):
        collected.append(values[rows].mean().item())
        return collected[-1]

    error = bootstrap_error(mean, torch.arange(300), draws=400, seed=2)
    assert error == pytest.approx(torch.tensor(collected, dtype=torch.float64).std().item())
    assert error == pytest.approx(values.std().item() / 300**0.5, rel=0.1)


def test_resamples_without_a_value_are_left_out():
    calls = iter(range(100))
    error = bootstrap_error(
        lambda _: float("nan") if next(calls) % 2 else 1.0, torch.arange(4), draws=10
    )
    assert error == 0
    assert torch.tensor(bootstrap_error(lambda _: float("nan"), torch.arange(4))).isnan()
    with pytest.raises(InvalidInputError, match="draws must be at least 1"):
        bootstrap_error(lambda _: 0.0, torch.arange(4), draws=0)
