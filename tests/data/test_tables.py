"""Tables of vectors: what is read is what was written, in bounded memory, and what is wrong is named."""

import csv
import datetime
import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook
from safetensors.numpy import save_file

with install_import_hook("aureole.data", "beartype.beartype"):
    import aureole.data._tables

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from aureole.data import read_column, read_groups, read_vectors, write_columns
from aureole.data._columns import as_vectors
from aureole.data._tables import ColumnWriter, pick_inputs, read_pairs
from aureole.errors import AureoleError, InvalidInputError

assert aureole.data._tables

VECTORS = np.random.default_rng(0).normal(size=(5000, 6)).astype(np.float32)


def lists(values, kind="fixed", entry=None):
    """Arrow's columns of lists of these vectors."""
    entry = entry or pa.from_numpy_dtype(values.dtype)
    types = {
        "fixed": pa.list_(entry, values.shape[1]),
        "list": pa.list_(entry),
        "large": pa.large_list(entry),
    }
    return pa.array(list(values), types[kind])


def write(path, column, name="v", **more):
    table = pa.table({name: column, **more})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=1500)
    elif path.suffix == ".feather":
        pa.feather.write_feather(table, path)
    else:
        stream = path.stem == "stream"
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(path, table.schema) as sink:
            sink.write_table(table, max_chunksize=3000)
    return path


@pytest.mark.parametrize("name", ["v.parquet", "v.feather", "v.arrow", "stream.arrow"])
@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_vectors_come_back_as_they_were_written(tmp_path, name, kind, dtype):
    wanted = VECTORS.astype(dtype)
    path = write(tmp_path / name, lists(wanted, kind), other=pa.array(["x"] * len(wanted)))
    for column in ("v", None):
        found = read_vectors(path, column)
        assert isinstance(found, np.memmap)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, wanted)


def test_vectors_in_arrays_are_mapped_and_the_files_stay(tmp_path):
    np.save(tmp_path / "v.npy", VECTORS)
    save_file({"v": VECTORS, "g": np.arange(3)}, tmp_path / "v.safetensors")
    for name, column in (("v.npy", None), ("v.safetensors", "v")):
        before = (tmp_path / name).read_bytes()
        found = read_vectors(tmp_path / name, column)
        np.testing.assert_array_equal(found, VECTORS)
        found[:] = 0  # as a careless user may
        del found
        assert (tmp_path / name).read_bytes() == before
    assert read_column(tmp_path / "v.safetensors", "g").tolist() == [0, 1, 2]
    with pytest.raises(InvalidInputError, match=r"several tensors.*'g', 'v'"):
        read_vectors(tmp_path / "v.safetensors")
    with pytest.raises(InvalidInputError, match="no tensor 'w'"):
        read_vectors(tmp_path / "v.safetensors", "w")


def test_a_folder_is_one_table_in_the_order_of_its_names(tmp_path):
    folder = tmp_path / "table"
    (folder / "more").mkdir(parents=True)
    write(folder / "b.parquet", lists(VECTORS[3:5]), id=pa.array([3, 4], pa.int32()))
    write(folder / "a.parquet", lists(VECTORS[:3], "list"), id=pa.array([0, 1, 2]))
    write(folder / "more" / "c.parquet", lists(VECTORS[5:6]), id=pa.array([5]))
    write(folder / "_meta.parquet", lists(VECTORS[5:6]))
    (folder / "notes.txt").write_text("not a table")
    np.testing.assert_array_equal(read_vectors(folder, "v"), VECTORS[:6])
    assert read_column(folder, "id").tolist() == [0, 1, 2, 3, 4, 5]
    write(folder / "d.parquet", lists(VECTORS[:1]), id=pa.array(["six"]))
    with pytest.raises(InvalidInputError, match=r"d\.parquet cannot be read"):
        read_column(folder, "id")


def broken(row, value):
    rows = [list(map(float, v)) for v in VECTORS]
    rows[row] = value
    return rows


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0] * 5, "has 5 entries, but earlier rows have 6"),
        ([], "has 0 entries, but"),
        (None, "is missing"),
        ([1.0, None, 1.0, 1.0, 1.0, 1.0], "has a missing entry"),
        ([1.0, float("nan"), 1.0, 1.0, 1.0, 1.0], "NaN or infinity"),
        ([1.0, float("inf"), 1.0, 1.0, 1.0, 1.0], "NaN or infinity"),
        ([0.0] * 6, "is zero, so it has no direction"),
    ],
)
def test_a_row_that_is_no_vector_is_named(tmp_path, value, message):
    column = pa.array(broken(3210, value), pa.list_(pa.float32()))
    path = write(tmp_path / "v.parquet", column)
    with pytest.raises(InvalidInputError, match=rf"row 3210 of .*v\.parquet.*{message}"):
        read_vectors(path, "v")


class _Hostile:
    def __reduce__(self):
        return (print, ("code was run",))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["1,2", "3,4"]),
        pa.array([pickle.dumps(_Hostile())] * 2),
        pa.array([[1, 2], [3, 4]]),
        pa.array([["a"], ["b"]]),
        pa.array([[[1.0]], [[2.0]]]),
        pa.array([{"x": 1.0}] * 2),
        pa.array([1.0, 2.0]),
        pa.nulls(2),
    ],
    ids=str,
)
def test_columns_of_other_types_are_no_vectors(tmp_path, column, capsys):
    path = write(tmp_path / "v.parquet", column)
    with pytest.raises(InvalidInputError, match="lists of float16, float32 or float64"):
        read_vectors(path, "v")
    assert "code was run" not in capsys.readouterr().out


def test_an_extension_type_that_is_a_pickle_runs_no_code(tmp_path, capsys):
    """Old versions of pyarrow unpickled such types (CVE-2023-47248)."""
    marks = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_Hostile()),
    }
    field = pa.field("v", pa.list_(pa.float32(), 6), metadata=marks)
    table = pa.table([lists(VECTORS)], schema=pa.schema([field]))
    with pa.ipc.new_file(tmp_path / "v.arrow", table.schema) as sink:
        sink.write_table(table)
    pq.write_table(table, tmp_path / "v.parquet")
    for name in ("v.arrow", "v.parquet"):
        np.testing.assert_array_equal(read_vectors(tmp_path / name, "v"), VECTORS)
    assert "code was run" not in capsys.readouterr().out


def test_arrays_of_objects_are_never_opened(tmp_path, capsys):
    np.save(tmp_path / "v.npy", np.array([_Hostile()], dtype=object), allow_pickle=True)
    for read in (read_vectors, read_column, read_groups):
        with pytest.raises(InvalidInputError, match="Pickled objects are never loaded"):
            read(tmp_path / "v.npy")
    assert "code was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 2), np.int64), "holds int64"),
        (np.zeros(3, np.float32), r"shape \(3,\)"),
        (np.zeros((0, 3), np.float32), r"shape \(0, 3\)"),
        (np.ones((2, 65_537), np.float16), "65537 entries"),
        (np.array([[1.0], [np.nan]]), "row 1 of .* holds NaN"),
        (np.array([[1.0], [0.0]]), "row 1 of .* is zero"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path, array, message):
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(InvalidInputError, match=message):
        read_vectors(tmp_path / "v.npy")


def test_the_columns_there_are_and_the_kinds_that_can_be_read(tmp_path):
    path = write(tmp_path / "v.parquet", lists(VECTORS), w=lists(VECTORS), id=pa.array(range(5000)))
    with pytest.raises(InvalidInputError, match="no column 'x'; its columns are 'v', 'w', 'id'"):
        read_vectors(path, "x")
    with pytest.raises(InvalidInputError, match="several columns of lists"):
        read_vectors(path)
    with pytest.raises(InvalidInputError, match=r"name a column of .* 'v', 'w', 'id'"):
        read_column(path)
    with pytest.raises(InvalidInputError, match="one scalar per row"):
        read_column(path, "v")
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_vectors(tmp_path / "none.parquet", "v")
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(1))
    with pytest.raises(InvalidInputError, match=r"must end in \.parquet"):
        read_vectors(tmp_path / "v.pkl", "v")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="contains no table"):
        read_vectors(tmp_path / "empty", "v")


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather", ".npy", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x80\x04K\x01.", b"x" * 1000])
def test_damaged_files_are_one_sentence(tmp_path, ending, content):
    path = tmp_path / f"v{ending}"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_vectors(path, "v")


def test_no_rows_and_one_row(tmp_path):
    empty = write(tmp_path / "empty.parquet", lists(VECTORS[:1]).slice(0, 0), g=pa.array([], "str"))
    for read, column in ((read_vectors, "v"), (read_groups, "g"), (read_column, "g")):
        with pytest.raises(InvalidInputError, match="no rows"):
            read(empty, column)
    one = write(tmp_path / "one.parquet", lists(VECTORS[:1]), g=pa.array(["a"]))
    assert read_vectors(one, "v").shape == (1, 6)
    assert read_groups(one, "g").tolist() == [0]


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "ä", "b", "Z"],
        [3, -1, 3, 7, 0],
        [2.5, -1.0, 2.5, 0.0, 1.0],
        [True, False, True, True, False],
        [b"b", b"a", b"b", b"c", b"a"],
        [datetime.date(2020, 1, d) for d in (3, 1, 3, 2, 1)],
    ],
)
def test_groups_are_numbers_in_the_order_of_the_labels(tmp_path, labels):
    """So that a fit on them is a fit on the labels."""
    path = write(tmp_path / "v.parquet", lists(VECTORS[:5]), g=pa.array(labels))
    wanted = np.unique(np.array(labels), return_inverse=True)[1]
    np.testing.assert_array_equal(read_groups(path, "g"), wanted)
    coded = write(tmp_path / "d.arrow", pa.array(labels).dictionary_encode(), "g")
    np.testing.assert_array_equal(read_groups(coded, "g"), wanted)


def test_rows_without_a_group_are_named(tmp_path):
    path = write(tmp_path / "v.parquet", pa.array(["a", "b", None]), "g")
    with pytest.raises(InvalidInputError, match=r"row 2 .* of the column 'g' .* no group"):
        read_groups(path, "g")
    numbers = write(tmp_path / "n.parquet", pa.array([1.0, float("nan")]), "g")
    with pytest.raises(InvalidInputError, match=r"row 1 .* no group"):
        read_groups(numbers, "g")
    np.save(tmp_path / "g.npy", np.array([0.0, np.nan]))
    with pytest.raises(InvalidInputError, match=r"row 1 .* no group"):
        read_groups(tmp_path / "g.npy")
    (tmp_path / "g.csv").write_text("g,h\na,1\n,2\n")
    with pytest.raises(InvalidInputError, match=r"row 1 .* no group"):
        read_groups(tmp_path / "g.csv", "g")
    np.save(tmp_path / "g.npy", np.array(["b", "a", "b"]))
    assert read_groups(tmp_path / "g.npy").tolist() == [1, 0, 1]


def test_pairs_are_row_numbers_or_ids(tmp_path):
    rows = write(tmp_path / "p.parquet", pa.array([0, 2]), "a", b=pa.array([1, 3]))
    assert read_pairs(rows, ("a", "b")).tolist() == [[0, 1], [2, 3]]
    ids = write(tmp_path / "v.parquet", pa.array(["w", "x", "y", "z"]), "id")
    named = write(tmp_path / "n.parquet", pa.array(["z", "y"]), "a", b=pa.array(["w", "z"]))
    assert read_pairs(named, ("a", "b"), ids=(ids, "id")).tolist() == [[3, 0], [2, 3]]
    (tmp_path / "p.csv").write_text("a,b\n1,0\n")
    assert read_pairs(tmp_path / "p.csv", ("a", "b")).tolist() == [[1, 0]]
    with pytest.raises(InvalidInputError, match=r"column 'a' .*whole numbers"):
        read_pairs(named, ("a", "b"))
    unknown = write(tmp_path / "u.parquet", pa.array(["z", "q"]), "a", b=pa.array(["w", "z"]))
    with pytest.raises(InvalidInputError, match=r"row 1 of .* has 'q' as 'a'"):
        read_pairs(unknown, ("a", "b"), ids=(ids, "id"))
    twice = write(tmp_path / "t.parquet", pa.array(["z", "z"]), "id")
    with pytest.raises(InvalidInputError, match="ids must be unique"):
        read_pairs(named, ("a", "b"), ids=(twice, "id"))
    holes = write(tmp_path / "h.parquet", pa.array([0, None]), "a", b=pa.array([1, -3]))
    with pytest.raises(InvalidInputError, match=r"row 1 of .* has None as 'a'"):
        read_pairs(holes, ("a", "b"))


def test_arrow_columns_are_not_copied_where_they_are_of_one_piece():
    column = lists(VECTORS)
    found = as_vectors(column)
    np.testing.assert_array_equal(found, VECTORS)
    assert np.shares_memory(found, column.flatten().to_numpy())
    chunks = pa.chunked_array([column.slice(0, 10), column.slice(10)])
    np.testing.assert_array_equal(as_vectors(chunks), VECTORS)
    np.testing.assert_array_equal(as_vectors(column.slice(7, 5)), VECTORS[7:12])
    tensor = torch.zeros(2, 3)
    assert as_vectors(tensor) is tensor
    assert as_vectors(VECTORS) is VECTORS
    for bad in ([[1.0]], "text", None):
        with pytest.raises(InvalidInputError, match="tensor, an array or an Arrow column"):
            as_vectors(bad)
    with pytest.raises(InvalidInputError, match="no rows"):
        as_vectors(column.slice(0, 0))


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_written_columns_can_be_read(tmp_path, ending):
    long = '=1+1 <b>\n"quoted", ünï' + "x" * 10_000_000
    path = write_columns(
        tmp_path / "deep" / f"out{ending}",
        {
            "id": np.array([long, "b"], object),
            "kappa": torch.tensor([1.5, np.inf]),
            "mu": VECTORS[:2],
        },
    )
    if ending == ".parquet":
        assert read_column(path, "id").tolist() == [long, "b"]
        assert read_column(path, "kappa").tolist() == [1.5, np.inf]
        np.testing.assert_array_equal(read_vectors(path, "mu"), VECTORS[:2])
    elif ending == ".csv":
        assert read_column(path, "id").tolist() == [long, "b"]
        csv.field_size_limit(20_000_000)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows[0]["id"] == long
        assert float(rows[0]["mu_5"]) == pytest.approx(VECTORS[0, 5])
    else:
        rows = [json.loads(line) for line in path.read_text().split("\n") if line]
        assert rows[0]["id"] == long
        assert [row["kappa"] for row in rows] == [1.5, None]
        assert rows[1]["mu"] == pytest.approx(VECTORS[1].tolist())


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "out.parquet"
    write_columns(path, {"a": np.arange(3)})

    def fail():
        with ColumnWriter(path) as table:
            table.write({"a": np.arange(5)})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]
    assert read_column(path, "a").tolist() == [0, 1, 2]
    with pytest.raises(InvalidInputError, match=r"must end in \.parquet, \.csv or \.jsonl"):
        ColumnWriter(tmp_path / "out.xlsx")


def test_some_rows_are_picked(tmp_path):
    names = [f"text {i}" for i in range(5000)]
    path = write(tmp_path / "v.parquet", pa.array(names), "t")
    np.save(tmp_path / "v.npy", np.array(names))
    for file, column in ((path, "t"), (tmp_path / "v.npy", None)):
        wanted = [4999, 0, 1500, 1499, 0]
        assert pick_inputs(file, column, None, wanted) == {i: f"text {i}" for i in wanted}
        for bad in (5000, -1):
            with pytest.raises(InvalidInputError, match=f"has 5000 rows, .* no row {bad} "):
                pick_inputs(file, column, None, [3, bad])
        assert pick_inputs(file, column, None, (i for i in (7, 2))) == {7: "text 7", 2: "text 2"}


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "v.parquet", lists(VECTORS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(AureoleError, match=r"pip install 'aureole\[search\]'"):
        read_vectors(path, "v")


def test_a_full_disk_is_named(tmp_path):
    path = write(tmp_path / "v.parquet", lists(VECTORS))
    (tmp_path / "file").write_text("")
    with pytest.raises(AureoleError, match=re.escape(f"copied to {tmp_path / 'file'}")):
        read_vectors(path, "v", work=tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "row_groups"), [("fixed", 20), ("list", 1)])
def test_memory_does_not_grow_with_the_table(tmp_path, kind, row_groups):
    """400 MB in many row groups, and in one; reading them takes a fraction of it."""
    rows, dim = 10_000, 512
    values = pa.array(np.random.default_rng(0).normal(size=rows * dim).astype(np.float32))
    piece = (
        pa.FixedSizeListArray.from_arrays(values, dim)
        if kind == "fixed"
        else pa.ListArray.from_arrays(np.arange(0, rows * dim + 1, dim, dtype=np.int32), values)
    )
    with pq.ParquetWriter(tmp_path / "v.parquet", pa.schema({"v": piece.type})) as sink:
        for _ in range(row_groups):
            column = pa.chunked_array([piece] * (20 // row_groups))
            sink.write_table(pa.table({"v": column}), row_group_size=len(column))
    code = """
import resource, sys
from pathlib import Path
from aureole.data._tables import read_vectors
read_vectors(Path(sys.argv[1]) / "small.parquet", "v")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = read_vectors(Path(sys.argv[1]) / "v.parquet", "v", work=Path(sys.argv[1]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.nbytes, (after - before) * 1024)
"""
    pq.write_table(pa.table({"v": piece.slice(0, 10)}), tmp_path / "small.parquet")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    size, grown = map(int, done.stdout.split())
    assert size == 20 * rows * dim * 4
    assert grown < 100e6, f"{grown / 1e6:.0f} MB for {size / 1e6:.0f} MB of vectors"
