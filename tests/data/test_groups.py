"""Groups and the pairs they make."""

import numpy as np
import pytest
import torch

from aureole.data.groups import Groups
from aureole.errors import InvalidInputError

LABELS = [3, 1, 3, 2, 1, 3, 9, 2]


@pytest.mark.parametrize(
    "labels", [LABELS, np.array(LABELS), torch.tensor(LABELS), [str(x) for x in LABELS]]
)
def test_members_share_a_label_and_single_items_are_left_out(labels):
    groups = Groups.of(labels)
    assert sorted(groups.members.tolist()) == [0, 1, 2, 3, 4, 5, 7]
    for start, size in zip(groups.starts.tolist(), groups.sizes.tolist(), strict=True):
        found = {LABELS[i] for i in groups.members[start : start + size].tolist()}
        assert len(found) == 1
        assert size == LABELS.count(found.pop())


def test_pairs_are_of_one_group_and_all_pairs_come_alike():
    groups = Groups.of(LABELS)
    rng = torch.Generator().manual_seed(0)
    seen: dict[tuple[int, int], int] = {}
    for _ in range(3000):
        items, pairs = groups.draw(2, rng)
        assert len(items) == 2
        for i, j in pairs.tolist():
            pair = (int(items[i]), int(items[j]))
            assert LABELS[pair[0]] == LABELS[pair[1]]
            assert pair[0] != pair[1]
            seen[pair] = seen.get(pair, 0) + 1
    # an item is drawn alike; of three items each ordered pair is half as common as of two
    of_three = [n for (i, _), n in seen.items() if LABELS[i] == 3]
    of_two = [n for (i, _), n in seen.items() if LABELS[i] != 3]
    assert len(of_three) == 6
    assert len(of_two) == 4
    assert sum(of_three) / sum(of_two) == pytest.approx(3 / 4, rel=0.1)
    assert max(of_three) / min(of_three) < 1.3


def test_a_batch_has_each_group_once():
    groups = Groups.of(np.repeat(np.arange(50), 4))
    items, pairs = groups.draw(40, torch.Generator().manual_seed(1))
    assert len(items) == 40
    assert len(set((items // 4).tolist())) == 20
    assert len(pairs) == 40
    everything, _ = groups.draw(1000)
    assert len(everything) == 100


def test_splits_share_no_group_and_lose_none():
    groups = Groups.of(np.arange(300) // 3)
    kept, held = groups.split(0.2, torch.Generator().manual_seed(0))
    assert len(held.sizes) == 20
    assert not set((kept.members // 3).tolist()) & set((held.members // 3).tolist())
    both = torch.cat([kept.members, held.members]).sort().values
    assert torch.equal(both, torch.arange(300))
    items, pairs = held.draw(40)
    assert torch.equal(items[pairs[:, 0]] // 3, items[pairs[:, 1]] // 3)


@pytest.mark.parametrize(
    ("labels", "message"), [([1, 2, 3], "no two of the 3"), ([[1, 1]], "one label per item")]
)
def test_groups_without_pairs_are_refused(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        Groups.of(labels)


def test_one_group_is_not_split():
    with pytest.raises(InvalidInputError, match="two or more"):
        Groups.of([1, 1]).split(0.5)
