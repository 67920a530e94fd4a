"""Tables, pictures and models on S3: read as local ones are, and refused in one line where that is impossible."""

import json
from pathlib import Path

import numpy as np
import pytest

from aureole._io import check_local
from aureole.data import read_column, read_vectors, write_columns
from aureole.data._addresses import (
    _file_system,
    full_address,
    is_remote,
    local_folder,
    resolve,
)
from aureole.data._columns import values_of
from aureole.data._image_files import open_picture
from aureole.data._table_files import table_parts
from aureole.data._tables import check_columns, scan_inputs, table_files
from aureole.errors import InvalidInputError, MissingInputError
from benchmarks.engines import moto_program, s3_server, upload
from tests.made_pictures import make_pictures

pa = pytest.importorskip("pyarrow")
needs_server = pytest.mark.skipif(moto_program() is None, reason="needs moto_server")
VECTORS = np.arange(40, dtype=np.float32).reshape(10, 4)
NAMES = np.array([f"row {i}" for i in range(10)])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """(Environment of a server, local folder): the files of the folder are in ``s3://bucket/data``."""
    folder = tmp_path_factory.mktemp("stored")
    columns = {"v": VECTORS, "name": NAMES}
    write_columns(folder / "one.parquet", columns)
    write_columns(folder / "parts" / "a.parquet", columns)
    write_columns(folder / "parts" / "sub" / "b.parquet", columns)
    write_columns(folder / "texts.csv", {"name": NAMES})
    lines = "".join(json.dumps({"name": name}) + "\n" for name in NAMES.tolist())
    (folder / "lines.jsonl").write_text(lines)
    with pa.OSFile(str(folder / "one.arrow"), "wb") as file:
        table = pa.table({"name": NAMES})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    make_pictures(folder / "photos", 6)
    write_columns(folder / "listed.csv", {"image": np.array(["photos/0000/000001.png"])})
    np.save(folder / "array.npy", VECTORS)
    (folder / "broken.parquet").write_bytes(b"PAR1 no table PAR1")
    with s3_server() as environment:
        upload(environment, folder, "s3://bucket/data")
        yield environment, folder


@pytest.fixture
def store(stored, monkeypatch):
    """The local folder, while the variables of AWS name the server."""
    environment, folder = stored
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _file_system.cache_clear()
    yield folder
    _file_system.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a b/c.parquet", "s3://bucket/a b/c.parquet"),
        ("S3://bucket/folder//", "s3://bucket/folder"),
        (Path("s3://bucket/a"), "s3://bucket/a"),
        ("s3://bucket/what?x=1#y", "s3://bucket/what?x=1#y"),
    ],
)
def test_addresses_are_remote(text, expected):
    assert is_remote(text)
    assert str(resolve(text)) == expected


@pytest.mark.parametrize(
    "text", ["a/b.parquet", "/a/b", "C:/a", "timm:resnet50", "a:b/c", "", "s3:"]
)
def test_paths_are_local(text):
    assert not is_remote(text)
    assert resolve(text) == Path(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/a\nb", "s3://bucket/" + "a" * 3000,
        "ftp://host/file", "http://host/file", "postgresql://host/db", "s3://key:secret@bucket/x",
        "file+s3://a/b",
    ],
)  # fmt: skip
def test_other_addresses_are_refused_in_one_line(text):
    with pytest.raises(InvalidInputError) as caught:
        table_parts(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400
    assert "secret" not in str(caught.value)


def test_an_address_that_a_path_has_shortened_is_complete_again():
    assert str(Path("s3://bucket/a.lance")) == "s3:/bucket/a.lance"
    assert full_address(Path("s3://bucket/a.lance")) == "s3://bucket/a.lance"
    with pytest.raises(InvalidInputError, match=r"^s3://bucket/out\.parquet is the address"):
        check_local(Path("s3://bucket/out.parquet"))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "\n"])
def test_names_in_a_table_stay_below_its_folder(name):
    with pytest.raises(InvalidInputError, match="not a valid address"):
        values_of(pa.array([name]), "image", resolve("s3://bucket/folder"))


@needs_server
@pytest.mark.parametrize(
    "name", ["one.parquet", "parts", "texts.csv", "lines.jsonl", "one.arrow"]
)  # fmt: skip
def test_tables_are_read_as_local_ones(store, name):
    address = f"s3://bucket/data/{name}"
    for remote in (address, Path(address)):
        assert read_column(remote, "name").tolist() == read_column(store / name, "name").tolist()
    local = [part.count() for part in table_parts(store / name)]
    assert [part.count() for part in table_parts(address)] == local
    assert [str(file) for file in table_files(address)] == [
        f"s3://bucket/data/{file.relative_to(store).as_posix()}"
        for file in table_files(store / name)
        if isinstance(file, Path)
    ]


@needs_server
def test_vectors_and_pictures_are_read_as_local_ones(store):
    parts = read_vectors("s3://bucket/data/parts", "v")
    assert np.array_equal(parts, np.concatenate([VECTORS, VECTORS]))
    remote = [value for _, value in scan_inputs("s3://bucket/data/photos", "image", "image")]
    local = [value for _, value in scan_inputs(store / "photos", "image", "image")]
    assert len(remote) == len(local) == 6
    for one, other in zip(remote, local, strict=True):
        assert one.read(2**20) == other.read_bytes()
        with open_picture(one) as a, open_picture(other) as b:
            assert a.tobytes() == b.tobytes()


@needs_server
def test_pictures_that_a_table_names_are_read_from_its_bucket(store):
    _, named = next(scan_inputs("s3://bucket/data/listed.csv", "image", "image"))
    assert named.read(2**20) == (store / "photos/0000/000001.png").read_bytes()
    with pytest.raises(InvalidInputError, match="the limit is 10"):
        named.read(10)


@needs_server
def test_a_folder_is_copied_with_all_its_files(store):
    copy = local_folder("s3://bucket/data/photos")
    for path in (store / "photos").rglob("*.*"):
        assert (copy / path.relative_to(store / "photos")).read_bytes() == path.read_bytes()
    assert local_folder(store) == store


@needs_server
@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("s3://missing/x.parquet", MissingInputError, "s3://missing/x.parquet does not exist"),
        ("s3://bucket/none.parquet", MissingInputError, "s3://bucket/none.parquet does not exist"),
        ("s3://bucket/data/broken.parquet", InvalidInputError, "cannot be read"),
        ("s3://bucket/data/array.npy", InvalidInputError, "must be a local file"),
    ],
)
def test_what_is_missing_or_damaged_is_reported_in_one_line(store, address, kind, message):
    with pytest.raises(kind, match=message) as caught:
        check_columns(address, "v")
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(MissingInputError, match="not a folder"):
        local_folder("s3://bucket/data/one.parquet")
