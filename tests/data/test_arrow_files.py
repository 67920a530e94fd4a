"""Ranges of rows of a file: any order of them gives the rows that are there, and going on costs one pass."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import feather, parquet

from aureole.data import RangeReader
from aureole.errors import InvalidInputError

ROWS = 1000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same numbers as Parquet of one and of several row groups, and as Arrow."""
    folder = tmp_path_factory.mktemp("ranges")
    table = pa.table({"n": np.arange(ROWS), "other": np.zeros(ROWS)})
    parquet.write_table(table, folder / "one.parquet")
    parquet.write_table(table, folder / "several.parquet", row_group_size=130)
    feather.write_feather(table, str(folder / "some.arrow"), compression="uncompressed")
    return [folder / name for name in ("one.parquet", "several.parquet", "some.arrow")]


def numbers(reader, first, count):
    return [n for batch in reader.read(first, count) for n in batch["n"].to_pylist()]


ranges = st.tuples(st.integers(0, ROWS - 1), st.integers(0, 400)).map(
    lambda one: (one[0], min(one[1], ROWS - one[0]))
)


@settings(max_examples=30)
@given(wanted=st.lists(ranges, min_size=1, max_size=6))
def test_any_ranges_in_any_order_are_the_rows_that_are_there(files, wanted):
    for file in files:
        reader = RangeReader(file, ["n"])
        for first, count in wanted:
            assert numbers(reader, first, count) == list(range(first, first + count))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_range_that_was_left_half_way_does_not_move_the_next(files, place):
    reader = RangeReader(files[place], ["n"])
    half = reader.read(10, 600)
    next(half)
    assert numbers(reader, 20, 5) == [20, 21, 22, 23, 24]
    assert numbers(reader, 700, 2) == [700, 701]


def test_every_other_range_takes_one_pass(files, monkeypatch):
    reader = RangeReader(files[0], ["n"])
    opened = []
    plain = RangeReader._open
    monkeypatch.setattr(RangeReader, "_open", lambda *a: (opened.append(1), plain(*a))[1])
    for first in range(0, ROWS, 200):
        assert numbers(reader, first, 100) == list(range(first, first + 100))
    assert len(opened) == 1
    assert numbers(reader, 5, 1) == [5]  # behind: a new pass
    assert len(opened) == 2


def test_row_groups_in_between_are_not_read(files):
    reader = RangeReader(files[1], ["n"])
    assert numbers(reader, 0, 3) == [0, 1, 2]
    assert numbers(reader, 905, 2) == [905, 906]
    assert reader._starts[6] == 780


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_that_is_shorter_than_it_was_is_named(files, place):
    reader = RangeReader(files[place], ["n"])
    with pytest.raises(InvalidInputError, match="changed"):
        numbers(reader, ROWS - 1, 2)
    with pytest.raises(InvalidInputError, match="changed"):
        numbers(reader, ROWS + 5, 1)
