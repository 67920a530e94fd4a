"""Votes in files: long tables, columns of counts, arrays, and what is refused."""

import numpy as np
import pytest

from aureole.data import read_votes, write_columns
from aureole.data._votes import read_vote_counts
from aureole.errors import InvalidInputError, MissingInputError

LONG = {
    "item": np.array(["y", "x", "y", "z"], object),
    "annotator": np.array(["ann", "ann", "bob", "bob"], object),
    "label": np.array(["cat", "dog", "cat", "cat"], object),
}


@pytest.fixture
def ids(tmp_path):
    path = write_columns(tmp_path / "items.csv", {"id": np.array(["x", "w", "y", "z"], object)})
    return path, "id"


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_long_table_in_the_order_of_the_ids(tmp_path, ids, ending):
    path = write_columns(tmp_path / f"votes.{ending}", LONG)
    votes = read_votes(path, ids=ids)
    assert votes.items.tolist() == ["x", "w", "y", "z"]
    assert votes.classes.tolist() == ["cat", "dog"]
    assert votes.counts.tolist() == [[0, 1], [0, 0], [2, 0], [1, 0]]


def test_items_are_row_numbers_without_ids_and_ids_may_be_numbers(tmp_path):
    path = write_columns(tmp_path / "votes.csv", {"item": [3, 1, 3], "label": [0, 1, 1]})
    columns = ("item", "label", None)
    assert read_votes(path, columns).totals.tolist() == [0, 1, 0, 2]
    assert read_votes(path, columns, n_rows=6).totals.tolist() == [0, 1, 0, 2, 0, 0]
    with pytest.raises(InvalidInputError, match=r"row 0 of .* a vote on item 3, but there are 3 v"):
        read_votes(path, columns, n_rows=3)
    table = write_columns(tmp_path / "items.parquet", {"id": [3, 2, 1]})
    assert read_votes(path, columns, ids=(table, "id")).totals.tolist() == [2, 0, 1]


def test_items_that_are_ids_are_not_taken_for_row_numbers(tmp_path):
    path = write_columns(tmp_path / "votes.csv", {"item": [5, 10**12, 7], "label": [0, 1, 1]})
    columns = ("item", "label", None)
    with pytest.raises(InvalidInputError, match=r"row 1 of .* item 1000000000000, .* --id-column"):
        read_votes(path, columns)
    table = write_columns(tmp_path / "items.parquet", {"id": [10**12, 7, 5]})
    assert read_votes(path, columns, ids=(table, "id")).totals.tolist() == [1, 1, 1]


def test_what_is_wrong_with_a_long_table_is_named(tmp_path, ids):
    def refused(match, error=InvalidInputError, **changes):
        table = {k: v for k, v in (LONG | changes).items() if v is not None}
        with pytest.raises(error, match=match) as caught:
            read_votes(write_columns(tmp_path / "votes.csv", table), ids=ids)
        assert "\n" not in str(caught.value)

    refused(r"labels\[1\] is missing", label=np.array(["a", None, "b", "b"], object))
    refused(r"annotators\[3\] is missing", annotator=np.array(["p", "q", "r", None], object))
    refused("row 0 of .* has None as 'item'", item=np.array([None, "x", "y", "z"], object))
    refused("'ann' votes twice on item 'y'", annotator=np.array(["ann"] * 4, object))
    refused("row 2 of .* has 'nobody' as 'item'", item=np.array(["x", "y", "nobody", "z"], object))
    refused("no column 'label'", MissingInputError, label=None)
    (tmp_path / "empty.csv").write_text("item,annotator,label\n")
    with pytest.raises(InvalidInputError, match="has no rows"):
        read_votes(tmp_path / "empty.csv", ids=ids)


def test_columns_of_counts_by_name_and_by_pattern(tmp_path):
    counts = {"id": ["a", "b"], "votes_cat": [2, 0], "votes_dog": [1, 3], "other": [9, 9]}
    for ending in ("csv", "parquet"):
        path = write_columns(tmp_path / f"counts.{ending}", counts)
        for names in (["votes_*"], ["votes_cat", "votes_dog"], ["votes_cat", "votes_*"]):
            votes = read_vote_counts(path, names)
            assert votes.counts.tolist() == [[2, 1], [0, 3]]
            assert votes.classes.tolist() == ["votes_cat", "votes_dog"]
        with pytest.raises(MissingInputError, match=r"no column 'cat_\*'"):
            read_vote_counts(path, ["cat_*"])
        with pytest.raises(MissingInputError, match="no column 'cat'"):
            read_vote_counts(path, ["cat"])
        with pytest.raises(InvalidInputError, match="must be numbers of votes"):
            read_vote_counts(path, ["id", "votes_cat"])
        with pytest.raises(MissingInputError, match="columns of votes to be named"):
            read_vote_counts(path)
    half = write_columns(tmp_path / "half.csv", {"a": [0.5, 1], "b": [1, 2]})
    with pytest.raises(InvalidInputError, match=r"in .*half.csv, counts\[0, 0\] is 0.5"):
        read_vote_counts(half, ["a", "b"])
    gap = write_columns(tmp_path / "gap.csv", {"a": [None, 1], "b": [1, 2]})
    with pytest.raises(InvalidInputError, match="numbers of votes"):
        read_vote_counts(gap, ["a", "b"])


def test_an_array_of_counts(tmp_path):
    np.save(tmp_path / "counts.npy", np.array([[2, 1], [0, 3]]))
    assert read_vote_counts(tmp_path / "counts.npy").counts.tolist() == [[2, 1], [0, 3]]
    np.save(tmp_path / "shares.npy", np.array([[0.2, 0.8]]))
    with pytest.raises(InvalidInputError, match=r"in .*shares.npy, counts\[0, 0\] is 0.2"):
        read_vote_counts(tmp_path / "shares.npy")
    np.save(tmp_path / "flat.npy", np.arange(3))
    with pytest.raises(InvalidInputError, match="shape"):
        read_vote_counts(tmp_path / "flat.npy")
    with pytest.raises(MissingInputError, match="does not exist"):
        read_vote_counts(tmp_path / "none.npy")
