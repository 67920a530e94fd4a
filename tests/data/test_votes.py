"""Votes: counts, agreement and rates against slow loops, long tables, and hostile inputs."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from aureole.data import Votes, label_rates
from aureole.errors import InvalidInputError

ITEMS = ["b", "a", "b", "a", "c", "b"]
LABELS = ["dog", "cat", "cat", "cat", "bird", "dog"]
PEOPLE = ["ann", "ann", "bob", "bob", "ann", "cy"]


def random_counts(n: int, classes: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack(
        [rng.multinomial(rng.integers(1, 7), np.ones(classes) / classes) for _ in range(n)]
    )


def test_a_long_table_is_counted():
    votes = Votes.from_table(ITEMS, LABELS, PEOPLE)
    assert votes.items.tolist() == ["a", "b", "c"]
    assert votes.classes.tolist() == ["bird", "cat", "dog"]
    assert votes.counts.tolist() == [[0, 2, 0], [0, 1, 2], [1, 0, 0]]
    assert votes.totals.tolist() == [2, 3, 1]
    assert repr(votes) == "Votes(6 votes on 3 items, 3 classes)"
    assert len(votes) == 3


def test_order_and_classes_are_kept_and_items_without_votes_have_none():
    votes = Votes.from_table(
        ITEMS, LABELS, order=["z", "c", "b", "a"], classes=["dog", "fox", "cat", "bird"]
    )
    assert votes.counts.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [2, 0, 1, 0], [0, 0, 2, 0]]
    assert votes.probabilities[0].tolist() == [0, 0, 0, 0]
    assert votes.prior.sum().item() == pytest.approx(1)
    rates = votes.rates()
    assert (rates[0] == 0).all()
    assert torch.isfinite(rates).all()
    assert math.isnan(votes.agreement[0])
    assert Votes.from_table([4, 0], [1, 1], order=range(5)).totals.tolist() == [1, 0, 0, 0, 1]


def test_agreement_and_rates_are_those_of_all_pairs_of_annotators():
    counts = random_counts(12, 4)
    votes = Votes.of(counts)
    prior = votes.prior.tolist()
    rates = votes.rates()
    for i, row in enumerate(counts):
        ballots = [k for k, n in enumerate(row) for _ in range(n)]
        pairs = list(combinations(ballots, 2))
        own = 0.0
        if pairs:
            agreed = [a == b for a, b in pairs]
            assert votes.agreement[i].item() == pytest.approx(np.mean(agreed))
            own = sum(1 / prior[a] for a, b in pairs if a == b) / len(pairs)
        else:
            assert math.isnan(votes.agreement[i])
        assert rates[i, i].item() == pytest.approx(own)
    total = counts.sum(1)
    pooled = (counts * (counts - 1)).sum() / (total * (total - 1)).sum()
    assert votes.pair_agreement == pytest.approx(pooled)
    expected = label_rates(votes.probabilities, votes.prior)
    off = ~torch.eye(len(counts), dtype=torch.bool)
    torch.testing.assert_close(rates[off], expected[off])
    rows = torch.tensor([7, 2, 5])
    torch.testing.assert_close(votes.rates(rows), rates[rows][:, rows])


def test_columns_of_dataframes_are_taken():
    pa, expected = pytest.importorskip("pyarrow"), [[0, 2, 0], [0, 1, 2], [1, 0, 0]]
    table = pa.table({"item": ITEMS, "label": LABELS})
    assert Votes.from_table(table["item"], table["label"]).counts.tolist() == expected
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"item": ITEMS, "label": LABELS, "who": PEOPLE})
    assert Votes.from_table(frame["item"], frame["label"], frame["who"]).counts.tolist() == expected
    frame.loc[2, "label"] = None
    with pytest.raises(InvalidInputError, match=r"labels\[2\] is missing"):
        Votes.from_table(frame["item"], frame["label"])
    with pytest.raises(InvalidInputError, match=r"labels\[0\] is missing"):
        Votes.from_table([1, 2], pd.Series([pd.NA, "x"]))


def test_some_items_keep_their_classes():
    part = Votes.from_table(ITEMS, LABELS).take(torch.tensor([2, 0]))
    assert part.items.tolist() == ["c", "a"]
    assert part.counts.tolist() == [[1, 0, 0], [0, 2, 0]]
    assert part.prior.tolist() == [0.5, 0.5, 0]
    assert torch.isfinite(part.rates()).all()


HOSTILE_TABLES = [
    (
        (ITEMS, LABELS, [*PEOPLE[:-1], None]),
        r"annotators\[5\] is missing .* leave out the annotators",
    ),
    ((ITEMS, LABELS, [*PEOPLE[:-1], "ann"]), r"'ann' votes twice on item 'b' \(rows 0 and 5"),
    ((ITEMS, [*LABELS[:-1], math.nan]), r"labels\[5\] is missing"),
    ((ITEMS, np.array([0, 1, 2, np.nan, 1, 1])), r"labels\[3\] is missing"),
    (([None, *ITEMS[1:]], LABELS), r"items\[0\] is missing"),
    ((ITEMS, LABELS[:-1]), "6 items and 5 labels"),
    ((ITEMS, [0, *LABELS[1:]]), "all numbers or all texts"),
    (([], []), "is empty"),
    (("abc", "abc"), "not one text"),
    (([["a"], ["b"]], ["x", "y"]), "shape"),
    (([["a"], ["b", "c"]], ["x", "y"]), "one value per row"),
    ((3, LABELS), "shape"),
    (([{}, {}], ["x", "y"]), "all numbers or all texts|one value per row"),
]


def test_hostile_tables():
    for columns, message in HOSTILE_TABLES:
        with pytest.raises(InvalidInputError, match=message) as caught:
            Votes.from_table(*columns)
        assert "\n" not in str(caught.value)


def test_unknown_and_repeated_ids():
    with pytest.raises(InvalidInputError, match=r"items\[0\] is 'b', which is not in order"):
        Votes.from_table(ITEMS, LABELS, order=["a", "c"])
    with pytest.raises(InvalidInputError, match=r"labels\[4\] is 'bird', which is not in classes"):
        Votes.from_table(ITEMS, LABELS, classes=["cat", "dog"])
    with pytest.raises(InvalidInputError, match="'a' is listed twice"):
        Votes.from_table(ITEMS, LABELS, order=["a", "b", "c", "a"])
    with pytest.raises(InvalidInputError, match="need 2 classes, but got 1"):
        Votes.of([[1, 2]], classes=["x"])


HOSTILE_COUNTS = [
    ([[1, -1]], r"counts\[0, 1\] is -1"),
    ([[1.0, 0.5]], r"counts\[0, 1\] is 0.5.* shares"),
    ([[math.nan, 1.0]], r"counts\[0, 0\] is nan"),
    ([[math.inf, 1.0]], r"counts\[0, 0\] is inf"),
    ([[2**40, 1]], r"counts\[0, 0\]"),
    ([[0, 0], [0, 0]], "all counts are 0"),
    ([1, 2], "shape"),
    (np.zeros((0, 3)), "shape"),
    ([["1", "2"]], "numbers of votes"),
    ([[1, 2], [3]], r"\[n, classes\]"),
    ([[True, False]], "bool"),
]


def test_hostile_counts():
    for counts, message in HOSTILE_COUNTS:
        with pytest.raises(InvalidInputError, match=message) as caught:
            Votes.of(counts)
        assert "\n" not in str(caught.value)


def test_whole_floats_and_tensors_are_counts():
    expected = [[2, 0], [1, 3]]
    for counts in (
        np.array(expected, float),
        torch.tensor(expected),
        torch.tensor(expected).float(),
    ):
        votes = Votes.of(counts)
        assert votes.counts.dtype == torch.int64
        assert votes.counts.tolist() == expected


def test_a_table_of_counts_that_is_too_large_is_refused_before_it_is_allocated():
    names = [str(k) for k in range(20_000)]
    with pytest.raises(InvalidInputError, match="400,000,000 entries"):
        Votes.from_table(names, names)
