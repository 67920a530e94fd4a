"""Pairs of rows that belong together."""

import numpy as np
import pytest
import torch

from aureole.data import Links
from aureole.errors import InvalidInputError


def test_pairs_are_kept_once_and_drawn_both_ways_round():
    links = Links.of(np.array([[1, 0], [0, 1], [2, 5], [5, 2], [3, 4]]), n_rows=7)
    assert links.pairs.tolist() == [[0, 1], [2, 5], [3, 4]]
    assert links.members.tolist() == [0, 1, 2, 3, 4, 5]
    rows, pairs = links.draw(100)
    linked = {tuple(rows[p].tolist()) for p in pairs}
    assert linked == {(0, 1), (1, 0), (2, 5), (5, 2), (3, 4), (4, 3)}


def test_a_shared_row_comes_once():
    rng = torch.Generator().manual_seed(0)
    star = Links.of([[0, k] for k in range(1, 50)], n_rows=50)
    rows, pairs = star.draw(20, rng)
    assert len(rows) == len(rows.unique()) == 11
    assert len(pairs) == 20


def test_a_split_shares_no_row():
    rng = torch.Generator().manual_seed(0)
    chain = Links.of([[k, k + 1] for k in range(1000)], n_rows=1001)
    kept, held = chain.split(0.1, rng)
    assert len(held.pairs) == 100
    assert len(kept.pairs) > 700
    assert not set(kept.members.tolist()) & set(held.members.tolist())
    with pytest.raises(InvalidInputError, match="nothing is left"):
        Links.of([[0, k] for k in range(1, 50)], n_rows=50).split(0.1, rng)
    with pytest.raises(InvalidInputError, match="two or more"):
        Links.of([[0, 1]], n_rows=2).split(0.1, rng)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 7]], r"pairs\[0\] is \[0, 7\]"),
        ([[0, 1], [-1, 2]], r"pairs\[1\]"),
        ([[0, 1], [2, 2]], r"pairs\[1\] links a row with itself"),
        ([[0, 1, 2]], r"\[p, 2\]"),
        (np.array([[0.5, 1.0]]), "whole numbers"),
        (np.empty((0, 2), dtype=int), "no pair"),
    ],
)
def test_what_is_no_pair_is_refused(pairs, message):
    with pytest.raises(InvalidInputError, match=message):
        Links.of(pairs, n_rows=7)
