"""Bulk embedding and galleries on S3: the same rows as on the local disk."""

from pathlib import Path

import pytest

from aureole.caps import CredibleIndex
from aureole.data import write_columns
from aureole.data._addresses import _file_system
from aureole.embed import SourceSpec, embed
from aureole.engines._lance import open_table, table_exists
from aureole.errors import AureoleError, InvalidInputError, MissingInputError
from benchmarks.engines import moto_program, s3_server, upload
from tests.cli.conftest import columns
from tests.embed.conftest import assert_same, rows

pytestmark = pytest.mark.skipif(moto_program() is None, reason="needs moto_server")


@pytest.fixture(scope="module")
def server():
    """The environment of a server with an empty bucket."""
    with s3_server() as environment:
        yield environment


@pytest.fixture
def store(server, monkeypatch):
    """The environment of the server, which is that of the test."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    _file_system.cache_clear()
    yield server
    _file_system.cache_clear()


def remote_rows(where):
    """The rows of a table on the server by id, each of which must occur once."""
    found = open_table(where).to_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def test_embed_from_and_to_the_store_gives_the_local_rows(store, pictures, encoder, tmp_path):
    upload(store, pictures, "s3://bucket/pictures")
    upload(store, encoder, "s3://bucket/encoder")
    spec = SourceSpec("s3://bucket/pictures")
    report = embed(spec, "s3://bucket/encoder", "s3://bucket/out.lance")
    embed(pictures, encoder, tmp_path / "t.lance")
    local = {row["id"]: row for row in rows(tmp_path / "t.lance")}
    assert report.rows == len(local) == 230
    assert_same(remote_rows("s3://bucket/out.lance"), local)
    for name, row in remote_rows("s3://bucket/out.lance").items():
        assert [row[key] for key in ("source", "model")] == [
            local[name][key] for key in ("source", "model")
        ]
    again = embed(spec, "s3://bucket/encoder", "s3://bucket/out.lance")
    assert (again.new_rows, again.rows) == (0, 230)


def test_addresses_that_are_paths_are_printed_whole(store, pictures, encoder):
    upload(store, pictures, "s3://bucket/few")
    upload(store, encoder, "s3://bucket/model")
    report = embed(Path("s3://bucket/few"), Path("s3://bucket/model"), Path("s3://bucket/p.lance"))
    assert (report.rows, report.table) == (230, "s3://bucket/p.lance")
    with CredibleIndex.open(Path("s3://bucket/p.lance")) as index:
        assert index.count() == 230
    with pytest.raises(MissingInputError, match=r"^s3://bucket/none does not exist"):
        embed(Path("s3://bucket/none"), Path("s3://bucket/model"), Path("s3://bucket/p.lance"))


def test_a_table_of_vectors_and_a_head_on_the_store(store, head, tmp_path):
    write_columns(tmp_path / "v.parquet", {"v": columns()["v"]})
    upload(store, tmp_path / "v.parquet", "s3://bucket/v.parquet")
    upload(store, head, "s3://bucket/head")
    embed(tmp_path / "v.parquet", head, tmp_path / "t.lance")
    embed("s3://bucket/v.parquet", "s3://bucket/head", tmp_path / "s.lance")
    local, remote = (
        {row["id"]: row for row in rows(tmp_path / name)} for name in ("t.lance", "s.lance")
    )
    assert_same(remote, local)


def test_what_the_store_refuses_is_reported_in_one_line(store, encoder, pictures, monkeypatch):
    with pytest.raises(MissingInputError, match="the bucket s3://none does not exist"):
        embed(pictures, encoder, "s3://none/t.lance")
    with pytest.raises(MissingInputError, match="s3://bucket/none does not exist"):
        embed(pictures, "s3://bucket/none", "s3://bucket/t.lance")
    with pytest.raises(MissingInputError, match="does not exist"):
        CredibleIndex.open("s3://bucket/none.lance")
    _file_system.cache_clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(InvalidInputError, match=r"cannot be read: .*Check the address"):
        table_exists("s3://bucket/t.lance")  # not False: the table may well exist


def test_a_store_that_fails_ends_the_job_and_blames_no_input(
    store, pictures, encoder, tmp_path, monkeypatch
):
    upload(store, pictures, "s3://bucket/p")
    read = "aureole.data._addresses.RemotePath.read"
    with monkeypatch.context() as failing:
        failing.setattr(read, lambda *_: (_ for _ in ()).throw(InvalidInputError("no answer.")))
        with pytest.raises(AureoleError, match=r"no answer\. Run the same command again") as caught:
            embed("s3://bucket/p", encoder, tmp_path / "t.lance")
    assert not isinstance(caught.value, InvalidInputError)
    assert embed("s3://bucket/p", encoder, tmp_path / "t.lance").errors == 0
