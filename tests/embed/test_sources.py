"""Sources: folders, tables, Hugging Face datasets and Lance."""

import os

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from aureole.embed._worker import Source, SourceSpec
from aureole.engines._lance import lance_package
from aureole.errors import InvalidInputError
from tests.made_pictures import make_pictures


def everything(source, slices=1):
    """All (id, input)."""
    return [pair for piece in source.pieces(slices) for pair in source.read(piece)]


def open_(path, modality="image", **options):
    return Source(SourceSpec(str(path), modality, **options))


def test_a_folder_is_read_in_order_of_names_without_hidden_or_other_files(tmp_path):
    names = make_pictures(tmp_path, 12)
    for other in ("notes.txt", ".hidden.png", "0000/.x/y.png"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    source = open_(tmp_path, None)
    assert source.guess() == "image"
    found = dict(everything(source))
    assert list(found) == sorted(names)
    assert all(path.read_bytes() for path in found.values())
    assert (source.rows(), source.named) == (12, True)
    os.rename(tmp_path / names[0], os.fsencode(tmp_path / "0000") + b"/\xff\xfe.jpg")
    with pytest.raises(InvalidInputError, match="is not printable"):
        everything(source)


def write_tables(folder, table, groups=7):
    """The same rows as Parquet, as an Arrow file, as an Arrow stream, and as Lance."""
    folder.mkdir(exist_ok=True)
    parquet.write_table(table, folder / "t.parquet", row_group_size=groups)
    for name, opened in (("file", ipc.new_file), ("stream", ipc.new_stream)):
        with opened(folder / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
    lance_package().write_dataset(table, str(folder / "t.lance"), max_rows_per_file=8)
    return [folder / name for name in ("t.parquet", "file.arrow", "stream.arrow", "t.lance")]


@pytest.mark.parametrize("slices", [1, 2])
def test_tables_give_all_rows_in_any_number_of_pieces(tmp_path, slices):
    n = 2100 if slices > 1 else 20
    texts = [f"text {i}" if i != 3 else None for i in range(n)]
    table = pa.table({"t": texts, "id": [f"n{i}" for i in range(n)]})
    for path in write_tables(tmp_path, table, groups=700):
        source = open_(path, "text", column="t", id_column="id")
        assert len(list(source.pieces(slices))) == slices
        assert everything(source, slices) == [(f"n{i}", texts[i]) for i in range(n)]
        numbered = open_(path, "text", column="t")
        assert [name for name, _ in everything(numbered, slices)] == [str(i) for i in range(n)]
        assert (source.rows(), source.named, numbered.named) == (n, True, False)


@pytest.mark.parametrize("fixed", [True, False])
def test_vectors_come_row_by_row_with_those_that_are_missing(tmp_path, fixed):
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    rows = [row if i != 4 else None for i, row in enumerate(values.tolist())]
    kind = pa.list_(pa.float32(), 3) if fixed else pa.list_(pa.float32())
    for path in write_tables(tmp_path, pa.table({"v": pa.array(rows, kind)})):
        found = everything(open_(path, "vector"))
        assert found[4][1] is None
        for i, (_, vector) in enumerate(found):
            assert i == 4 or np.array_equal(vector, values[i])
        assert open_(path, None).guess() == "vector"


def test_a_folder_of_tables_has_ids_with_the_file(tmp_path):
    for name in ("b", "a"):
        parquet.write_table(pa.table({"t": [f"{name}0", f"{name}1"]}), tmp_path / f"{name}.parquet")
    assert everything(open_(tmp_path, "text")) == [
        ("a.parquet:0", "a0"), ("a.parquet:1", "a1"), ("b.parquet:0", "b0"), ("b.parquet:1", "b1"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_dataset_of_hugging_face_is_read_from_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"t": [f"text {i}" for i in range(10)], "n": range(10)})
    found.select(range(3, 10)).save_to_disk(str(tmp_path / "one"), num_shards=2)
    source = open_(tmp_path / "one", "text", id_column="n")
    assert everything(source) == [(str(i), f"text {i}") for i in range(3, 10)]


def test_what_cannot_be_embedded_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        open_(tmp_path / "none")
    table = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": ["x"], "b": ["y"], "n": [1]}), table)
    with pytest.raises(InvalidInputError, match=r"--text-column; candidates: a, b"):
        _ = open_(table, "text").column
    with pytest.raises(InvalidInputError, match="has no column 'c'"):
        open_(table, "text", column="c")
    with pytest.raises(InvalidInputError, match="does not hold texts"):
        _ = open_(table, "text", column="n").column
    assert open_(table, "text", id_column="a").column == "b"
    make_pictures(tmp_path / "p", 1)
    with pytest.raises(InvalidInputError, match="folder of pictures"):
        open_(tmp_path / "p", "text")
    with pytest.raises(InvalidInputError, match="has no columns"):
        open_(tmp_path / "p", id_column="a")
