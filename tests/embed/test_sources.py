"""Sources: folders, Parquet and Arrow, Hugging Face datasets, Lance and WebDataset, whole and damaged."""

import io
import json
import os
import tarfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from aureole.embed._sources import Broken, Chunk, SourceSpec, guess_modality, open_source
from aureole.errors import InvalidInputError
from aureole.retrieval import lance_package
from tests.made_pictures import make_pictures


def everything(source):
    """All (id, input); each chunk is sent as plain values first, as to a worker."""
    found = []
    for chunk in source.chunks():
        sent = Chunk(**json.loads(json.dumps(asdict(chunk))))
        part = list(source.read(sent))
        assert chunk.rows in (None, len(part))
        found += part
    return found


def keys(source):
    return [chunk.key for chunk in source.chunks()]


def open_(path, modality="image", **options):
    return open_source(SourceSpec(str(path), modality, **options))


def test_a_folder_is_read_in_order_of_names_without_hidden_or_other_files(tmp_path):
    names = make_pictures(tmp_path, 12)
    for other in ("notes.txt", ".hidden.png", "0000/.x/y.png"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    source = open_(tmp_path, rows_per_chunk=5)
    assert [name for name, _ in everything(source)] == sorted(names)
    assert [chunk.rows for chunk in source.chunks()] == [5, 5, 2]
    assert source.rows() == 12
    assert keys(source) == keys(open_(tmp_path, rows_per_chunk=5))
    make_pictures(tmp_path, 5, first=900)  # at the end: whole chunks before keep their keys
    assert keys(open_(tmp_path, rows_per_chunk=5))[:2] == keys(source)[:2]


def test_names_that_are_no_unicode_can_be_read(tmp_path):
    make_pictures(tmp_path, 1)
    os.rename(tmp_path / "0000/000000.jpg", os.fsencode(tmp_path / "0000") + b"/\xff\xfe.jpg")
    ((name, path),) = everything(open_(tmp_path))
    assert name == "0000/\\udcff\\udcfe.jpg"
    assert path.read_bytes()


def write_tables(folder, table, groups=7):
    """The same rows as Parquet, as an Arrow file, as an Arrow stream, and as Lance."""
    folder.mkdir(exist_ok=True)
    parquet.write_table(table, folder / "t.parquet", row_group_size=groups)
    for name, opened in (("file", ipc.new_file), ("stream", ipc.new_stream)):
        with opened(folder / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
    lance_package().write_dataset(table, str(folder / "t.lance"), max_rows_per_file=8)
    return [folder / name for name in ("t.parquet", "file.arrow", "stream.arrow", "t.lance")]


@pytest.mark.parametrize("rows_per_chunk", [1, 4, 5, 7, 100])
def test_tables_give_all_rows_in_any_order_of_chunks(tmp_path, rows_per_chunk):
    texts = [f"text {i}" if i != 3 else None for i in range(20)]
    table = pa.table({"t": texts, "id": [f"n{i}" for i in range(20)], "x": list(range(20))})
    for path in write_tables(tmp_path, table):
        options = {"column": "t", "id_column": "id", "rows_per_chunk": rows_per_chunk}
        source = open_(path, "text", **options)
        assert everything(source) == [(f"n{i}", texts[i]) for i in range(20)]
        backwards = [list(source.read(chunk)) for chunk in reversed(list(source.chunks()))]
        again = [pair for part in reversed(backwards) for pair in part]
        assert again == [(f"n{i}", texts[i]) for i in range(20)]
        assert source.rows() == 20
        numbered = open_(path, "text", column="t", rows_per_chunk=rows_per_chunk)
        assert [name for name, _ in everything(numbered)] == [str(i) for i in range(20)]
        assert source.named
        assert not numbered.named


@pytest.mark.parametrize("fixed", [True, False])
def test_vectors_come_row_by_row_with_those_that_are_missing(tmp_path, fixed):
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    rows = [row if i != 4 else None for i, row in enumerate(values.tolist())]
    kind = pa.list_(pa.float32(), 3) if fixed else pa.list_(pa.float32())
    for path in write_tables(tmp_path, pa.table({"v": pa.array(rows, kind)})):
        found = everything(open_(path, "vector", rows_per_chunk=6))
        assert found[4][1] is None
        for i, (_, vector) in enumerate(found):
            assert i == 4 or np.array_equal(vector, values[i])
        assert guess_modality(str(path), None) == "vector"


def test_pictures_in_tables_are_bytes_alone_or_as_datasets_has_them(tmp_path):
    data = [b"one", b"two", None]
    struct = pa.array([{"bytes": d, "path": "x"} for d in data[:2]] + [None])
    for number, column in enumerate((pa.array(data), struct)):
        for path in write_tables(tmp_path / str(number), pa.table({"image": column})):
            assert [raw for _, raw in everything(open_(path))] == data


def test_a_folder_of_tables_has_ids_with_the_file_and_grows_at_its_end(tmp_path):
    for name in ("b", "a"):
        parquet.write_table(pa.table({"t": [f"{name}0", f"{name}1"]}), tmp_path / f"{name}.parquet")
    source = open_(tmp_path, "text")
    assert everything(source) == [
        ("a.parquet:0", "a0"), ("a.parquet:1", "a1"), ("b.parquet:0", "b0"), ("b.parquet:1", "b1"),
    ]  # fmt: skip
    parquet.write_table(pa.table({"t": ["c"]}), tmp_path / "c.parquet")
    assert keys(open_(tmp_path, "text"))[:2] == keys(source)


@pytest.mark.slow
def test_a_dataset_of_hugging_face_is_read_from_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"t": [f"text {i}" for i in range(10)], "n": range(10)})
    found.select(range(3, 10)).save_to_disk(str(tmp_path / "one"), num_shards=2)
    source = open_(tmp_path / "one", "text", id_column="n")
    assert everything(source) == [(str(i), f"text {i}") for i in range(3, 10)]
    cache = tmp_path / "one" / "cache-1234.arrow"
    cache.write_bytes(b"not a part of it")
    assert len(everything(open_(tmp_path / "one", "text"))) == 7
    both = datasets.DatasetDict({"test": found, "train": found})
    both.save_to_disk(str(tmp_path / "both"))
    ids = [name for name, _ in everything(open_(tmp_path / "both", "text"))]
    assert len(set(ids)) == 20
    assert ids[0].startswith("test/")
    state = tmp_path / "one" / "state.json"
    state.write_text(json.dumps({"_data_files": [{"filename": "../both/secret.arrow"}]}))
    with pytest.raises(InvalidInputError, match="is incomplete"):
        open_(tmp_path / "one", "text")


def test_a_webdataset_as_its_own_writer_makes_it(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"train-{shard}.tar")) as writer:
            for i in range(3):
                writer.write(
                    {
                        "__key__": f"{shard}{i}",
                        "txt": f"caption {shard}{i}",
                        "png": b"picture",
                        "npy": np.full(2, i, np.float32),
                    }
                )
    ids = [f"train-{s}/{s}{i}" for s in range(2) for i in range(3)]
    texts = everything(open_(tmp_path, "text"))
    assert texts == [(name, f"caption {name[-2:]}") for name in ids]
    assert [raw for _, raw in everything(open_(tmp_path))] == [b"picture"] * 6
    assert [raw.tolist() for _, raw in everything(open_(tmp_path, "vector"))][:2] == [
        [0, 0],
        [1, 1],
    ]
    lacking = everything(open_(tmp_path, "text", column="cls"))
    assert all(isinstance(raw, Broken) and ".cls" in raw.reason for _, raw in lacking)
    assert len(lacking) == 6


def test_a_shard_that_ends_early_gives_what_it_has_and_says_so(tmp_path):
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        for i in range(4):
            about = tarfile.TarInfo(f"{i}.jpg")
            about.size = 2000
            shard.addfile(about, io.BytesIO(b"%d" % i * 2000))
    data = (tmp_path / "s.tar").read_bytes()
    (tmp_path / "s.tar").write_bytes(data[: 2 * 2560 + 800])
    found = everything(open_(tmp_path))
    assert [name for name, raw in found if isinstance(raw, bytes)] == ["s/0", "s/1"]
    assert found[-1][0] == "s.tar"
    assert "is damaged" in found[-1][1].reason
    (tmp_path / "s.tar").write_bytes(b"no tar file at all" * 100)
    ((_, raw),) = everything(open_(tmp_path))
    assert isinstance(raw, Broken)


def test_what_cannot_be_embedded_is_refused_with_the_reason(tmp_path):
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "none.lance", "is not a Lance table"),
        (tmp_path, "contains no supported files"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            open_(path)
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(InvalidInputError, match="not a supported file type"):
        open_(tmp_path / "a.xlsx")
    table = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": ["x"], "b": ["y"], "n": [1]}), table)
    with pytest.raises(InvalidInputError, match=r"--column; candidates: 'a', 'b'"):
        open_(table, "text")
    with pytest.raises(InvalidInputError, match="has no column 'c'"):
        open_(table, "text", column="c")
    with pytest.raises(InvalidInputError, match="does not hold texts"):
        open_(table, "text", column="n")
    with pytest.raises(InvalidInputError, match="has no column 'c'"):
        open_(table, "text", column="a", id_column="c")
    assert open_(table, "text", id_column="a").column == "b"
    table.write_bytes(table.read_bytes()[:40])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        open_(table, "text")
    make_pictures(tmp_path / "p", 1)
    with pytest.raises(InvalidInputError, match="folder of pictures"):
        open_(tmp_path / "p", "text")
    with pytest.raises(InvalidInputError, match="has no columns"):
        open_(tmp_path / "p", id_column="a")


def test_ids_of_a_column_may_be_numbers_and_what_is_none_is_said(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"t": ["a", "b", "c"], "id": [7, None, 8]}), path)
    found = everything(open_(Path(path), "text", id_column="id"))
    assert [name for name, _ in found] == ["7", "row 1", "8"]
    assert isinstance(found[1][1], Broken)
