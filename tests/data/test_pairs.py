"""Pairs: groups and explicit row pairs, against slow loops."""

import numpy as np
import pytest
import torch

from aureole.data import label_rates
from aureole.data._pairs import Groups, PairIndex
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


def _classes(sizes=(300, 200, 100)):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return labels[np.random.default_rng(0).permutation(len(labels))]


def test_few_large_groups_are_classes_and_many_small_ones_are_not():
    assert Groups.of(_classes()).classes
    assert Groups.of(np.arange(5000) % 10).classes
    assert not Groups.of(np.arange(5000) % 1000).classes
    assert not Groups.of(np.arange(20) % 2).classes
    # one large group among many small ones
    assert not Groups.of(np.concatenate([np.zeros(100), 1 + np.arange(3000) // 3])).classes


def test_of_classes_items_are_drawn_alike_and_partners_alike_within_a_class():
    labels = _classes()
    groups = Groups.of(labels)
    rng = torch.Generator().manual_seed(0)
    seen, anchors, same = np.zeros(len(labels)), np.zeros(len(labels)), []
    for _ in range(400):
        rows, pairs = groups.draw(60, rng)
        assert len(set(rows.tolist())) == 60
        assert len(pairs) == 480
        first, second = rows[pairs].T.numpy()
        assert (first != second).all()
        assert (labels[first] == labels[second]).all()
        np.add.at(seen, rows.numpy(), 1)
        np.add.at(anchors, first, 1)
        same.append(labels[rows.numpy()])
    share = np.bincount(np.concatenate(same)) / 24_000
    assert share == pytest.approx([1 / 2, 1 / 3, 1 / 6], abs=0.01)
    assert seen.std() / seen.mean() < 0.2  # a binomial's is 0.15
    assert np.array_equal(anchors, 8 * seen)


def test_partners_in_a_class_are_uniform_over_the_others_of_the_batch():
    groups = Groups.of(np.arange(50) % 2)
    counts = np.zeros((50, 50))
    rng = torch.Generator().manual_seed(1)
    for _ in range(300):
        rows, pairs = groups.draw(1000, rng)
        first, second = rows[pairs].T.numpy()
        np.add.at(counts, (first, second), 1)
    expected = 300 * 8 / 24
    together = (np.arange(50)[:, None] - np.arange(50)) % 2 == 0
    np.fill_diagonal(together, False)
    assert counts[~together].sum() == 0
    chi = np.square(counts[together] - expected).sum() / expected
    assert chi == pytest.approx(50 * 23, rel=0.15)  # its mean under the uniform law


def test_of_classes_items_are_held_out_of_each():
    labels = _classes((300, 200, 40, 3))
    kept, held = Groups.of(labels).split(0.1, torch.Generator().manual_seed(0))
    assert held.sizes.tolist() == [30, 20, 4]
    assert kept.sizes.tolist() == [270, 180, 36, 3]
    assert kept.classes
    assert held.classes
    both = torch.cat([kept.members, held.members])
    assert torch.equal(both.sort().values, torch.arange(543))
    for part in (kept, held):
        for start, size in zip(part.starts.tolist(), part.sizes.tolist(), strict=True):
            assert len(set(labels[part.members[start : start + size].numpy()])) == 1
    again, _ = Groups.of(labels).split(0.1, torch.Generator().manual_seed(1))
    assert not torch.equal(again.members, kept.members)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_both_parts_of_groups_hold_two_so_that_pairs_have_negatives(share):
    kept, held = Groups.of(np.arange(40) % 10).split(share)
    assert min(len(kept.sizes), len(held.sizes)) >= 2
    assert len(kept.sizes) + len(held.sizes) == 10
    kept, held = Groups.of(np.arange(12) % 3).split(share)
    assert min(len(kept.sizes), len(held.sizes)) == 1


@pytest.mark.parametrize(
    ("labels", "row"),
    [
        (np.array([1.0, np.nan, 1.0, np.nan]), 1),
        (torch.tensor([1.0, 1.0, float("nan"), float("nan")]), 2),
        (["a", "a", None, None], 2),
        ([1, None, 1, None], 1),
        (["a", "a", float("nan"), float("nan")], 2),  # numpy makes "nan" of it
        (np.array(["a", np.nan, "a", np.nan], dtype=object), 1),
        (np.array(["2026-01-01", "NaT", "2026-01-01", "NaT"], dtype="datetime64[D]"), 1),
    ],
)
def test_items_without_a_label_are_no_group_and_the_first_is_named(labels, row):
    with pytest.raises(InvalidInputError, match=rf"groups\[{row}\] is missing"):
        Groups.of(labels)


def test_labels_of_two_kinds_are_refused_and_the_string_nan_is_a_label():
    with pytest.raises(InvalidInputError, match="all numbers or all strings"):
        Groups.of(np.array([1, "a", 1, "a"], dtype=object))
    assert Groups.of(["nan", "nan", "b", "b"]).sizes.tolist() == [2, 2]


def test_pairs_are_kept_once_and_drawn_both_ways_round():
    index = PairIndex.of(np.array([[1, 0], [0, 1], [2, 5], [5, 2], [3, 4]]), n_rows=7)
    assert index.pairs.tolist() == [[0, 1], [2, 5], [3, 4]]
    assert index.members.tolist() == [0, 1, 2, 3, 4, 5]
    rows, pairs = index.draw(100)
    linked = {tuple(rows[p].tolist()) for p in pairs}
    assert linked == {(0, 1), (1, 0), (2, 5), (5, 2), (3, 4), (4, 3)}


def test_a_shared_row_comes_once():
    rng = torch.Generator().manual_seed(0)
    star = PairIndex.of([[0, k] for k in range(1, 50)], n_rows=50)
    rows, pairs = star.draw(20, rng)
    assert len(rows) == len(rows.unique()) == 11
    assert len(pairs) == 20


def test_a_split_shares_no_row():
    rng = torch.Generator().manual_seed(0)
    chain = PairIndex.of([[k, k + 1] for k in range(1000)], n_rows=1001)
    kept, held = chain.split(0.1, rng)
    assert len(held.pairs) == 100
    assert len(kept.pairs) > 700
    assert not set(kept.members.tolist()) & set(held.members.tolist())
    with pytest.raises(InvalidInputError, match="nothing is left"):
        PairIndex.of([[0, k] for k in range(1, 50)], n_rows=50).split(0.1, rng)
    with pytest.raises(InvalidInputError, match="at least two are needed"):
        PairIndex.of([[0, 1]], n_rows=2).split(0.1, rng)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 7]], r"pairs\[0\] is \[0, 7\]"),
        ([[0, 1], [-1, 2]], r"pairs\[1\]"),
        ([[0, 1], [2, 2]], r"pairs\[1\] pairs a row with itself"),
        ([[0, 1, 2]], r"\[p, 2\]"),
        (np.array([[0.5, 1.0]]), "whole numbers"),
        (np.empty((0, 2), dtype=int), "pairs is empty"),
    ],
)
def test_what_is_no_pair_is_refused(pairs, message):
    with pytest.raises(InvalidInputError, match=message):
        PairIndex.of(pairs, n_rows=7)


def test_rates_are_those_of_drawing_a_class_and_then_an_image():
    """Against drawing pairs one by one, as the supplement says."""
    rng = torch.Generator().manual_seed(0)
    soft = torch.distributions.Dirichlet(torch.full((6, 3), 0.5)).sample()
    classes = torch.multinomial(soft, 100_000, replacement=True, generator=rng)
    seen = torch.zeros(6, 6)
    for i in range(6):
        for c in range(3):
            times = int((classes[i] == c).sum())
            if times:
                partner = torch.multinomial(soft[:, c], times, replacement=True, generator=rng)
                seen[i] += torch.bincount(partner, minlength=6)
    expected = label_rates(soft, soft.mean(0))
    torch.testing.assert_close(seen / 100_000 * 6, expected, atol=0.03, rtol=0.03)
    torch.testing.assert_close(expected.mean(1), torch.ones(6))


def test_classes_that_the_prior_excludes_are_refused():
    with pytest.raises(InvalidInputError, match=r"prior\[1\]"):
        label_rates(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0, 0.0]))
