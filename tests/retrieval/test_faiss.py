"""FAISS: snapshots that survive a killed writer, damaged folders, readers that follow."""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.retrieval import (
    CredibleIndex,
    Rows,
    _faiss,
)
from aureole.retrieval._faiss import FaissStore
from aureole.retrieval._schema import object_array
from tests.retrieval import dying_writer
from tests.retrieval.conftest import assert_exact, brute_force, everything, names, posteriors

NOBODY = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))

pytest.importorskip("faiss")


@pytest.mark.parametrize("file", dying_writer.FILES)
def test_a_kill_during_a_snapshot_leaves_the_previous_one(tmp_path, file):
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(100, 4), names(100)
    CredibleIndex.create(where, gallery, ids).close()
    before = (where / "manifest.json").read_bytes()
    command = [sys.executable, "-m", "tests.retrieval.dying_writer", where, file]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (where / "manifest.json").read_bytes() == before
    index = CredibleIndex.open(where)
    assert sorted(everything(index)) == sorted(ids)
    assert index.approximate is None
    index.append(
        posteriors(1, 4, seed=1), ["new"]
    )  # the dead writer holds no lock, and its files go
    assert CredibleIndex.open(where).count() == 101
    assert {path.suffix for path in where.iterdir()} == {"", ".json", ".safetensors"}
    assert len(list(where.iterdir())) == 3


def test_a_snapshot_that_cannot_be_written_changes_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    where = tmp_path / "gallery.faiss"
    index = CredibleIndex.create(where, posteriors(10, 4), names(10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="file size limit reached while writing"):
            index.append(posteriors(500, 4), names(500, 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert index.count() == 10
    assert sorted(everything(index)) == sorted(names(10))
    assert len(list(where.iterdir())) == 3


def test_a_graph_of_two_links(tmp_path):
    with CredibleIndex.create(tmp_path / "gallery.faiss", posteriors(30, 4), names(30)) as index:
        index.build("hnsw", links=2)
        assert index.search(au.VonMisesFisher(torch.eye(4)[0], 3.0), limit=2).ids


def test_lists_without_rows_are_refused_by_faiss():
    with CredibleIndex.create("faiss://", NOBODY, []) as index:
        for sizes in ({}, {"lists": 3}):
            with pytest.raises(InvalidInputError, match="FAISS learns lists from rows"):
                index.build("ivf", **sizes)


def test_damaged_folders_are_named(tmp_path):
    where = tmp_path / "gallery.faiss"
    CredibleIndex.create(where, posteriors(10, 4), names(10))
    manifest = json.loads((where / "manifest.json").read_text())
    segment = where / manifest["log"][0]["rows"]
    good = segment.read_bytes()
    segment.write_bytes(good[: len(good) // 2])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        CredibleIndex.open(where)
    segment.unlink()
    with pytest.raises(InvalidInputError, match="cannot be read"):
        CredibleIndex.open(where)
    segment.write_bytes(good)
    outside = manifest | {"log": [{"rows": "../../secret.safetensors"}]}
    (where / "manifest.json").write_text(json.dumps(outside))
    with pytest.raises(InvalidInputError, match="outside"):
        CredibleIndex.open(where)
    for text, message in (("{", "JSON"), ("[]", "format"), ('{"format": "other"}', "format")):
        (where / "manifest.json").write_text(text)
        with pytest.raises(InvalidInputError, match=message):
            CredibleIndex.open(where)


def test_a_gallery_that_could_not_be_created_leaves_none_behind(tmp_path):
    resource = pytest.importorskip("resource")
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(500, 6), names(500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a manifest has room, rows have not
    try:
        with pytest.raises(OSError, match="file size limit reached while writing"):
            CredibleIndex.create(where, gallery, ids)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in where.iterdir()] == ["lock"]
    with pytest.raises(InvalidInputError, match="holds no gallery"):
        CredibleIndex.open(where)
    with CredibleIndex.create(where, gallery, ids) as index:
        assert index.count() == 500
    assert CredibleIndex.open(where).count() == 500


def test_rows_of_other_types_than_the_schema_are_damage(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    where = tmp_path / "gallery.faiss"
    CredibleIndex.create(where, posteriors(3, 4), names(3), {"stock": [1, 2, 3]})
    segment = where / json.loads((where / "manifest.json").read_text())["log"][0]["rows"]
    arrays = numpy.load_file(segment)
    numpy.save_file(arrays | {"payload.stock": arrays["payload.stock"].astype("float64")}, segment)
    with pytest.raises(InvalidInputError, match="damaged"):
        CredibleIndex.open(where)


def test_a_writer_that_fails_releases_the_lock(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    where = tmp_path / "gallery.faiss"
    index = CredibleIndex.create(where, posteriors(3, 4), names(3))
    other = CredibleIndex.open(where)
    other.append(posteriors(1, 4), ["new"])
    (rows,) = where.glob("rows-*.safetensors")
    good = rows.read_bytes()
    rows.write_bytes(b"")
    with pytest.raises(InvalidInputError, match="cannot be read") as caught:
        index.delete(["row 1"])
    with open(where / "lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free, while the error is still held
    del caught
    rows.write_bytes(good)
    index.append(posteriors(1, 4), ["newer"])
    assert other.count() == 5


def test_a_reader_follows_an_index_that_is_built_again(tmp_path):
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(400, 6), names(400)
    writer = CredibleIndex.create(where, gallery, ids)
    writer.build("ivf", lists=4, probes=1)
    reader = CredibleIndex.open(where)
    assert reader.approximate == {"kind": "ivf", "lists": 4, "probes": 1}
    writer.build("ivf", lists=8, probes=8)
    assert reader.approximate == {"kind": "ivf", "lists": 8, "probes": 8}
    query = au.VonMisesFisher(gallery.mu[3], 20.0)
    assert_exact(reader.search(query, 0.9), brute_force(gallery, ids, query, 0.9))
    writer.build("hnsw", links=8)
    assert reader.approximate == {"kind": "hnsw", "links": 8}
    assert len(list(where.glob("index-*.faiss"))) == 1  # those before are gone
    reader.build("ivf", lists=2)
    assert writer.approximate == {"kind": "ivf", "lists": 2}
    assert len(list(where.glob("index-*.faiss"))) == 1


def test_a_reader_survives_a_snapshot_that_is_replaced_while_it_reads(tmp_path, monkeypatch):
    where = tmp_path / "gallery.faiss"
    writer = CredibleIndex.create(where, posteriors(100, 6), names(100))
    writer.build("ivf", lists=2)
    read_manifest = _faiss.read_manifest

    def late(folder):  # what it read is out of date when it is returned
        manifest = read_manifest(folder)
        monkeypatch.setattr(_faiss, "read_manifest", read_manifest)
        writer.build("ivf", lists=3)
        return manifest

    reader = FaissStore(writer.schema, where)
    monkeypatch.setattr(_faiss, "read_manifest", late)
    assert reader.approximate() == {"kind": "ivf", "lists": 3}
    (index,) = where.glob("index-*.faiss")
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        CredibleIndex.open(where)


def test_a_reader_follows_a_folder_that_was_made_anew(tmp_path):
    where = tmp_path / "gallery.faiss"
    before = CredibleIndex.create(where, posteriors(50, 6), names(50), {"shop": ["x"] * 50})
    before.build("ivf", lists=2)
    shutil.rmtree(where)
    for attempt in (before.count, lambda: before.delete(["row 1"]), lambda: before.schema):
        with pytest.raises(InvalidInputError, match="holds no gallery"):
            attempt()
    gallery = posteriors(30, 4, seed=3)
    after = CredibleIndex.create(where, gallery, names(30), {"stock": list(range(30))})
    assert before.schema == after.schema
    assert before.approximate is None
    query = au.VonMisesFisher(gallery.mu[0], 0.0)
    assert before.search(query, 1.0, columns=["stock"]).payload.keys() == {"stock"}
    before.append(au.VonMisesFisher(gallery.mu[:1], 3.0), ["new"], {"stock": [30]})
    assert after.count() == before.count() == 31
    rows = Rows(object_array(["other"]), np.eye(6, dtype=np.float32)[:1], np.ones(1, np.float32))
    with pytest.raises(InvalidInputError, match="recreated"):  # made for the gallery before
        before._store.append(rows)
    assert CredibleIndex.open(where).count() == 31
    before.close()
    shutil.rmtree(where)
    assert before.schema.dim == 4  # what is closed looks for nothing


def test_an_approximate_faiss_index_is_read_again(tmp_path):
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(500, 6), names(500)
    first = au.VonMisesFisher(gallery.mu[:400], gallery.kappa[:400])
    index = CredibleIndex.create(where, first, ids[:400])
    index.build("ivf", lists=8, probes=8)
    index.append(au.VonMisesFisher(gallery.mu[400:], gallery.kappa[400:]), ids[400:])
    again = CredibleIndex.open(where)
    for row in (0, 450):
        query = au.VonMisesFisher(gallery.mu[row], 20.0)
        expected = brute_force(gallery, ids, query, 0.9)
        assert_exact(again.search(query, 0.9), expected)  # all lists are probed
        assert_exact(index.search(query, 0.9), expected)
    assert again.check_recall(au.VonMisesFisher(gallery.mu[:9], 20.0)).share == 1


PATCHED = """
import faiss, faiss.contrib.torch_utils, torch
import aureole as au
mu = au.sphere.normalize(torch.randn(300, 8, generator=torch.Generator().manual_seed(0)))
index = au.CredibleIndex.create("faiss://", au.VonMisesFisher(mu, 50.0), [str(i) for i in range(300)])
queries = au.VonMisesFisher(mu[:3], 10.0)
exact = [hits.ids for hits in index.search(queries, mass=0.9, limit=4)]
index.build("hnsw")
assert [hits.ids[0] for hits in index.search(queries, mass=0.9, limit=4)] == ["0", "1", "2"]
flat = faiss.IndexFlatIP(8)
flat.add(mu.numpy())
wrapped = au.CredibleIndex.wrap(flat)
print([[str(i) for i in h.ids] for h in wrapped.search(queries, mass=0.9, limit=4)] == exact)
"""


def test_indexes_patched_for_torch_can_be_searched():
    done = subprocess.run(
        [sys.executable, "-c", PATCHED], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr[-2000:]
