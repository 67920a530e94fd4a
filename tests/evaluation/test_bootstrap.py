"""The bootstrap against a loop over lists of items."""

import numpy as np
import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.evaluation import bootstrap

CLUSTERS = torch.tensor([7, 3, 7, 7, -1, 3, 20])
VALUES = torch.tensor([0.5, 2.0, -1.0, 0.25, 4.0, 8.0, -3.0], dtype=torch.float64)


def mean(rows):
    return VALUES[rows].mean().item()


@pytest.mark.parametrize(("level", "seed"), [(0.95, 0), (0.5, 3)])
def test_it_is_the_percentile_interval_of_a_loop(level, seed):
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
        with pytest.raises(InvalidInputError, match="one draw or more and a level between"):
            bootstrap(mean, CLUSTERS, **given)
