"""The one reader of tables: every format gives the same rows, ranges of rows in any order, and hostile files."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import feather, parquet

from aureole.data import (
    RangeReader,
    is_picture_folder,
    pick_inputs,
    read_column,
    read_groups,
    read_vectors,
    scan_inputs,
    table_files,
    table_parts,
)
from aureole.errors import InvalidInputError, MissingInputError

ROWS = 1000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same numbers as Parquet of one and of several row groups, and as Arrow, Lance and JSON lines."""
    folder = tmp_path_factory.mktemp("ranges")
    table = pa.table({"n": np.arange(ROWS), "other": np.zeros(ROWS)})
    parquet.write_table(table, folder / "one.parquet")
    parquet.write_table(table, folder / "several.parquet", row_group_size=130)
    feather.write_feather(table, str(folder / "some.arrow"), compression="uncompressed")
    (folder / "some.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    names = ["one.parquet", "several.parquet", "some.arrow", "some.jsonl"]
    if pytest.importorskip("lance"):
        import lance

        lance.write_dataset(table, str(folder / "some.lance"))
        names.append("some.lance")
    return [table_parts(folder / name)[0] for name in names]


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


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
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


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_a_file_that_is_shorter_than_it_was_is_named(files, place):
    reader = RangeReader(files[place], ["n"])
    with pytest.raises(InvalidInputError, match="changed"):
        numbers(reader, ROWS - 1, 2)
    with pytest.raises(InvalidInputError, match="changed"):
        numbers(reader, ROWS + 5, 1)


TEXTS = ["a dog", 'two "quoted", words', "über\nzwei Zeilen", "=cmd()", " tab\there", "0012"]
TABLE = {
    "text": TEXTS,
    "group": [f"g{i % 2}" for i in range(6)],
    "price": [1, 2, 3, 4, 5, 6],
    "v": [[float(i), 1.0] for i in range(6)],
}


def saved(folder, kind):
    """The table in a format; CSV has no vectors."""
    pandas, table = pytest.importorskip("pandas"), pa.table(TABLE)
    flat = table.drop_columns(["v"])
    path = folder / f"t.{kind}"
    if kind in ("csv", "tsv", "csv.gz"):
        text = flat.to_pandas().to_csv(sep="\t" if kind == "tsv" else ",", index=False)
        path.write_bytes(gzip.compress(text.encode()) if kind == "csv.gz" else text.encode())
    elif kind in ("jsonl", "jsonl.gz"):
        text = "\n".join(json.dumps(row) for row in table.to_pylist()) + "\n\n"
        path.write_bytes(gzip.compress(text.encode()) if kind == "jsonl.gz" else text.encode())
    elif kind == "parquet":
        parquet.write_table(table, path)
    elif kind == "arrow":
        feather.write_feather(table, str(path))
    elif kind == "lance":
        pytest.importorskip("lance").write_dataset(table, str(path))
    elif kind == "datasets":
        pytest.importorskip("datasets").Dataset.from_dict(TABLE).save_to_disk(path)
    elif kind == "pandas":
        frame = table.to_pandas()
        frame["group"] = frame["group"].astype("category")
        return pandas.DataFrame(frame)
    elif kind == "polars":
        return pytest.importorskip("polars").from_arrow(table)
    else:
        return table
    return path


KINDS = ["csv", "tsv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "arrow", "lance", "datasets"]


@pytest.mark.parametrize("kind", [*KINDS, "pandas", "polars", "pyarrow"])
def test_every_format_gives_the_same_rows(tmp_path, kind):
    table = saved(tmp_path, kind)
    assert [value for _, value in scan_inputs(table, "text", "text")] == TEXTS
    assert pick_inputs(table, "text", "text", [4, 1]) == {1: TEXTS[1], 4: TEXTS[4]}
    assert read_groups(table, "group").tolist() == [0, 1] * 3
    assert read_column(table, "price", numbers=True).tolist() == TABLE["price"]
    assert table_parts(table)[0].count() == 6
    if "sv" not in kind:
        assert read_vectors(table, "v").tolist() == TABLE["v"]
    if kind in KINDS:
        assert all(file.is_file() for file in table_files(table))
    for read in (lambda c: read_groups(table, c), lambda c: list(scan_inputs(table, c, "text"))):
        with pytest.raises(
            MissingInputError, match=r"no column 'nope'; its columns are 'text', 'g"
        ):
            read("nope")


def test_values_of_csv_are_texts_unless_numbers_are_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfid,n,x\r\n007,1,a\r\n008,2.5,\r\n")  # as Excel writes it
    assert read_column(path, "id").tolist() == ["007", "008"]
    assert read_column(path, "n", numbers=True).tolist() == [1.0, 2.5]
    assert read_column(path, "x").tolist() == ["a", None]
    assert read_column(path, "x", numbers=True).tolist() == ["a", None]


@pytest.fixture
def pictures(tmp_path):
    """Pictures in two class folders, and a file that is none."""
    for n, name in enumerate(("dog/2.png", "cat/1.PNG", "cat/deep/0.png")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + n, 8), (n, 0, 0)).save(path)
    (tmp_path / "photos" / "dog" / "notes.txt").write_text("no picture")
    (tmp_path / "photos" / ".hidden.png").write_text("hidden")
    return tmp_path / "photos"


def test_a_folder_of_class_folders_is_a_table(pictures):
    assert is_picture_folder(pictures)
    assert read_column(pictures, "label").tolist() == ["cat", "cat", "dog"]
    names = ["cat/1.PNG", "cat/deep/0.png", "dog/2.png"]
    assert read_column(pictures, "image").tolist() == names
    found = [value for _, value in scan_inputs(pictures, "image", "image")]
    assert found == [pictures / name for name in names]
    assert table_parts(pictures)[0].count() == 3
    with pytest.raises(
        MissingInputError, match=r"no column 'text'; its columns are 'image', 'label'"
    ):
        list(scan_inputs(pictures, "text", "image"))
    Image.new("RGB", (8, 8)).save(pictures / "loose.png")  # without a label
    with pytest.raises(InvalidInputError, match="has no group"):
        read_groups(pictures, "label")


def test_pictures_in_tables_are_bytes_or_paths(pictures, tmp_path):
    data = (pictures / "dog" / "2.png").read_bytes()
    rows = {"bytes": [data, None], "struct": [{"bytes": data, "path": "x"}, None]}
    parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    for column in rows:
        assert [v for _, v in scan_inputs(tmp_path / "t.parquet", column, "image")] == [data, None]
    (tmp_path / "t.csv").write_text(f"file\nphotos/dog/2.png\n{pictures}/cat/1.PNG\n")
    paths = [value for _, value in scan_inputs(tmp_path / "t.csv", "file", "image")]
    assert paths == [pictures / "dog/2.png", pictures / "cat/1.PNG"]
    with pytest.raises(MissingInputError, match="which does not hold texts"):
        list(scan_inputs(tmp_path / "t.parquet", "bytes", "text"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "cannot be read"),
        ("t.csv", b"text\n\xff\xfe\n", "cannot be read"),
        ("t.csv", b"text,b\na\n", "cannot be read"),
        ("t.csv.gz", b"text\nno gzip\n", "cannot be read"),
        ("t.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 of .* is not JSON"),
        ("t.jsonl", b"[1, 2]\n", "line 1 of .* is not a JSON object"),
        ("t.jsonl", b'{"text": ' + b"[" * 200_000 + b"\n", "line 1 of .* is not JSON: is nested too deeply"),
        ("t.jsonl", b'{"text": ' + b'{"a":' * 200_000 + b"\n", "line 1 of .* is not JSON"),
        ("t.jsonl", b'{"text": "a"}\n{"text": 3}\n', "has values of different types"),
        ("t.jsonl", b'{"text": ' + b"9" * 30 + b"}\n", "has values of different types"),
        ("t.jsonl.gz", b"no gzip", "cannot be read"),
        ("t.jsonl", b"\xff\xff\n", "line 1 of .* is not JSON"),
        ("t.parquet", b"PAR1", "cannot be read"),
        ("t.xlsx", b"PK", "unknown format; its name must end in .parquet"),
    ],
)  # fmt: skip
def test_hostile_files_are_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        list(scan_inputs(path, "text", "text"))
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


def test_lines_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("aureole.data._table_files._LINE", 1000)
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "x" * 2000}))
    with pytest.raises(InvalidInputError, match=r"line 1 of .* the limit for a line"):
        list(scan_inputs(tmp_path / "t.jsonl", "text", "text"))
    (tmp_path / "t.csv").write_text('text\n"' + "x" * 5000 + '"\n')
    with pytest.raises(InvalidInputError, match="cannot be read"):
        list(scan_inputs(tmp_path / "t.csv", "text", "text"))


def test_a_dataset_that_points_outside_is_refused(tmp_path):
    path = saved(tmp_path, "datasets")
    state = json.loads((path / "state.json").read_text())
    state["_data_files"] = [{"filename": "../secret.arrow"}]
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(InvalidInputError, match="is missing: the dataset is incomplete"):
        read_column(path, "text")


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="not list"):
        read_column([1, 2], "a")
    with pytest.raises(InvalidInputError, match="contains no table and no picture"):
        read_column(tmp_path, "a")
    with pytest.raises(MissingInputError, match="does not exist"):
        read_column(tmp_path / "no.csv", "a")
