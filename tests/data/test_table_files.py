"""The one reader of tables: every format gives the same rows, ranges of rows in any order, and hostile files."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import feather, parquet

from aureole.data import read_column, read_groups, read_vectors
from aureole.data._table_files import is_picture_folder, table_parts
from aureole.data._tables import check_columns, pick_inputs, scan_inputs, table_files
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


ranges = st.tuples(st.integers(0, ROWS - 1), st.integers(1, 400)).map(
    lambda one: (one[0], min(one[1], ROWS - one[0]))
)


@settings(max_examples=30)
@given(wanted=ranges)
def test_any_range_is_the_rows_that_are_there(files, wanted):
    first, count = wanted
    for file in files:
        found = list(file.batches(["n"], rows=100, first=first, count=count))
        assert max(map(len, found)) <= 100
        assert [n for batch in found for n in batch["n"].to_pylist()] == [
            *range(first, first + count)
        ]


TEXTS = ["a dog", 'two "quoted", words', "über\nzwei Zeilen", "=cmd()", " tab\there", "0012"]
TABLE = {
    "text": TEXTS,
    "group": [f"g{i % 2}" for i in range(6)],
    "price": [1, 2, 3, 4, 5, 6],
    "v": [[float(i), 1.0] for i in range(6)],
}


def saved(folder, kind):
    """The table in a format; CSV has no vectors."""
    pytest.importorskip("pandas")
    table = pa.table(TABLE)
    flat = table.drop_columns(["v"])
    path = folder / f"t.{kind}"
    if kind in ("csv", "tsv"):
        flat.to_pandas().to_csv(path, sep="\t" if kind == "tsv" else ",", index=False)
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()) + "\n\n")
    elif kind == "parquet":
        parquet.write_table(table, path)
    elif kind == "arrow":
        feather.write_feather(table, str(path))
    elif kind == "lance":
        pytest.importorskip("lance").write_dataset(table, str(path))
    elif kind == "datasets":
        pytest.importorskip("datasets").Dataset.from_dict(TABLE).save_to_disk(path)
    return path


KINDS = ["csv", "tsv", "jsonl", "parquet", "arrow", "lance", "datasets"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows(tmp_path, kind):
    table = saved(tmp_path, kind)
    assert [value for _, value in scan_inputs(table, "text", "text")] == TEXTS
    assert pick_inputs(table, "text", "text", [4, 1]) == {1: TEXTS[1], 4: TEXTS[4]}
    assert read_groups(table, "group").tolist() == [0, 1] * 3
    assert read_column(table, "price", numbers=True).tolist() == TABLE["price"]
    assert table_parts(table)[0].count() == 6
    if "sv" not in kind:
        assert read_vectors(table, "v").tolist() == TABLE["v"]
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
        ("t.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 of .* is not a JSON object"),
        ("t.jsonl", b"[1, 2]\n", "line 1 of .* is not a JSON object"),
        ("t.jsonl", b'{"text": ' + b"[" * 200_000 + b"\n", "line 1 of .* is not a JSON object"),
        ("t.jsonl", b'{"text": ' + b'{"a":' * 200_000 + b"\n", "line 1 of .* is not a JSON object"),
        ("t.jsonl", b'{"text": "a"}\n{"text": 3}\n', "has values of different types"),
        ("t.jsonl", b'{"text": ' + b"9" * 30 + b"}\n", "has values of different types"),
        ("t.jsonl", b"\xff\xff\n", "line 1 of .* is not a JSON object"),
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


def test_a_saved_dataset_has_no_rows_outside_of_its_folder(tmp_path):
    """The list of files in it is not followed, and the caches beside them are not read."""
    path = saved(tmp_path, "datasets")
    state = json.loads((path / "state.json").read_text())
    state["_data_files"] = [{"filename": "../secret.arrow"}]
    (path / "state.json").write_text(json.dumps(state))
    feather.write_feather(pa.table(TABLE), str(tmp_path / "secret.arrow"))
    feather.write_feather(pa.table(TABLE), str(path / "cache-0.arrow"))
    assert read_column(path, "text").tolist() == TEXTS


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", "a\0b.png"])
def test_a_table_names_no_picture_outside_of_its_folder(tmp_path, name):
    (tmp_path / "received").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (tmp_path / "received" / "link.png").symlink_to(tmp_path / "secret.png")
    parquet.write_table(pa.table({"file": [name]}), tmp_path / "received" / "t.parquet")
    with pytest.raises(InvalidInputError, match=r"picture .* lies outside of"):
        list(scan_inputs(tmp_path / "received" / "t.parquet", "file", "image"))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_number_of_columns_has_a_limit(tmp_path, kind):
    """A CSV file of a million columns, 9 MB, aborts the process in pyarrow."""
    names = [f"c{i}" for i in range(1_000_000 if "sv" in kind else 10_001)]
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.table({name: [1] for name in names}), path)
    elif kind == "jsonl":
        path.write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    else:
        text = ("\t" if kind == "tsv" else ",").join(names)
        path.write_text(f"{text}\n{text}\n")
    with pytest.raises(InvalidInputError, match=r"has [\d,]+ columns; the limit is 10,000"):
        read_column(path, "c1")


def test_a_header_without_an_end_is_refused(tmp_path):
    for header in (b"a" * 3_000_000, b'"' + b"a\n" * 1_500_000):
        (tmp_path / "t.csv").write_bytes(header)
        with pytest.raises(InvalidInputError, match="a header of more than 2 MiB"):
            read_column(tmp_path / "t.csv", "a")
    (tmp_path / "t.csv").write_bytes(b",".join([b"a" * 100_000] * 30))
    with pytest.raises(InvalidInputError, match="a header of more than 2 MiB"):
        read_column(tmp_path / "t.csv", "a")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow", "npy", "safetensors"])
def test_what_never_ends_is_not_read(tmp_path, kind):
    """A FIFO blocks its reader, and a device has no end."""
    fifo, device = tmp_path / f"fifo.{kind}", tmp_path / f"zero.{kind}"
    os.mkfifo(fifo)
    device.symlink_to("/dev/zero")
    for path in (fifo, device):
        for read in (read_vectors, read_column, check_columns):
            with pytest.raises(MissingInputError, match=r"not a (regular )?file"):
                read(path, "v")
    with pytest.raises(InvalidInputError, match="contains no table"):
        read_column(tmp_path, "v")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_two_columns_of_one_name_are_refused_where_they_are_asked_for(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "b", "a"])
    if kind == "csv":
        path.write_text("a,b,a\n1,2,3\n")
    else:
        parquet.write_table(table, path)
    assert read_column(path, "b", numbers=True).tolist() == [2]
    for read in (read_column, read_groups, check_columns, read_vectors):
        with pytest.raises(InvalidInputError, match="several columns named 'a'"):
            read(path, "a")


def test_offsets_of_an_arrow_file_are_checked(tmp_path):
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), pa.schema({"t": pa.string()})) as sink:
        sink.write_batch(pa.record_batch([pa.array(["abc", "def"])], names=["t"]))
    content = (tmp_path / "t.arrow").read_bytes()
    good, wrong = (np.array([0, 3, end], np.int32).tobytes() for end in (6, 10**6))
    assert content.count(good) == 1
    (tmp_path / "t.arrow").write_bytes(content.replace(good, wrong))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_column(tmp_path / "t.arrow", "t")
