"""FAISS: files that survive a killed writer, damaged files, readers that follow, saved approximate indexes."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.engines._schema import Rows, object_array
from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError
from tests.engines.conftest import assert_exact, brute_force, everything, names, posteriors

NOBODY = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))

pytest.importorskip("faiss")


def rewrite(where, change, **replaced):
    """Change the arrays and the description of a gallery's file."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(where, "numpy") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["gallery"])
        metadata = dict(file.metadata())
    change(held, about)
    held = {name: np.ascontiguousarray(array) for name, array in held.items()}
    save_file(held, where, metadata | {"gallery": json.dumps(about)} | replaced)


def test_a_path_that_is_no_file_is_a_typed_error(tmp_path):
    where = tmp_path / "gallery.faiss"
    with pytest.raises(AureoleError, match="holds no gallery"):
        CredibleIndex.open(where)
    where.symlink_to("/dev/zero")
    with pytest.raises(DamagedGalleryError, match="it is not a file"):
        CredibleIndex.open(where)
    where.unlink()
    os.mkfifo(where)
    with pytest.raises(DamagedGalleryError, match="it is not a file"):
        CredibleIndex.open(where)
    where.unlink()
    where.mkdir()
    with pytest.raises(DamagedGalleryError, match="it is not a file"):
        CredibleIndex.open(where)


@pytest.mark.parametrize("key", ["schema", "notes"])
def test_a_missing_key_is_damage(tmp_path, key):
    where = tmp_path / "gallery.faiss"
    CredibleIndex.create(where, posteriors(5, 4), names(5)).close()
    rewrite(where, lambda arrays, about: about.pop(key))
    with pytest.raises(DamagedGalleryError, match=r"gallery\.faiss"):
        CredibleIndex.open(where)


@pytest.mark.parametrize("about", ["[]", "7", "{", '{"schema": 3}', '"x"'])
def test_descriptions_from_anywhere_are_checked(tmp_path, about):
    where = tmp_path / "gallery.faiss"
    CredibleIndex.create(where, posteriors(5, 4), names(5)).close()
    rewrite(where, lambda arrays, _: None, gallery=about)
    with pytest.raises(DamagedGalleryError, match=r"gallery\.faiss"):
        CredibleIndex.open(where)
    where.unlink()
    CredibleIndex.create(where, posteriors(5, 4), names(5)).close()
    rewrite(where, lambda arrays, _: None, format="other")
    with pytest.raises(DamagedGalleryError, match="format"):
        CredibleIndex.open(where)


def test_a_killed_writer_leaves_the_previous_file(tmp_path):
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(100, 4), names(100)
    CredibleIndex.create(where, gallery, ids).close()
    before = where.read_bytes()
    command = [sys.executable, "-m", "tests.engines.dying_writer", where]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert where.read_bytes() == before
    index = CredibleIndex.open(where)
    assert sorted(everything(index)) == sorted(ids)
    assert index.approximate is None
    index.append(posteriors(1, 4, seed=1), ["new"])  # the dead writer holds no lock
    assert CredibleIndex.open(where).count() == 101


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    where = tmp_path / "gallery.faiss"
    index = CredibleIndex.create(where, posteriors(10, 4), names(10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="file size limit reached while writing"):
            index.append(posteriors(500, 4), names(500, 10))
        with pytest.raises(OSError, match="file size limit reached while writing"):
            CredibleIndex.create(tmp_path / "new.faiss", posteriors(500, 6), names(500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert index.count() == 10
    assert sorted(everything(index)) == sorted(names(10))
    assert not (tmp_path / "new.faiss").exists()


def test_a_graph_of_two_links(tmp_path):
    with CredibleIndex.create(tmp_path / "gallery.faiss", posteriors(30, 4), names(30)) as index:
        index.build("hnsw", links=2)
        assert index.search(au.VonMisesFisher(torch.eye(4)[0], 3.0), limit=2).ids


def test_lists_without_rows_are_refused_by_faiss():
    with CredibleIndex.create("faiss://", NOBODY, []) as index:
        for sizes in ({}, {"lists": 3}):
            with pytest.raises(InvalidInputError, match="FAISS learns lists from rows"):
                index.build("ivf", **sizes)


def test_truncated_files_are_damaged(tmp_path):
    where = tmp_path / "gallery.faiss"
    CredibleIndex.create(where, posteriors(10, 4), names(10)).close()
    good = where.read_bytes()
    for size in (0, 7, 100, len(good) - 1):
        where.write_bytes(good[:size])
        with pytest.raises(DamagedGalleryError, match="cannot be read"):
            CredibleIndex.open(where)


def test_arrays_that_do_not_fit_are_damage(tmp_path):
    where = tmp_path / "gallery.faiss"

    def expect(change):
        where.unlink(missing_ok=True)
        CredibleIndex.create(where, posteriors(5, 4), names(5), {"stock": [1, 2, 3, 4, 5]}).close()
        rewrite(where, change)
        with pytest.raises(DamagedGalleryError, match=r"gallery\.faiss"):
            CredibleIndex.open(where)

    arrays = ["mu", "kappa", "id.text", "id.ends", "payload.stock"]
    for name in arrays:
        expect(lambda held, _, name=name: held.pop(name))
    expect(lambda held, _: held.update({"payload.stock": held["payload.stock"].astype("float64")}))
    expect(lambda held, _: held.update(mu=held["mu"][:3]))
    expect(lambda held, _: held.update(mu=held["mu"] * 3))
    expect(lambda held, _: held.update(kappa=-held["kappa"]))
    for ends in (
        [3, 2, 9, 12, 25],
        [-1, 5, 10, 15, 25],
        [5, 10, 15, 20, 10**9],
        [5, 10, 15, 20, 24],
    ):
        expect(lambda held, _, ends=ends: held.update({"id.ends": np.array(ends)}))
    expect(lambda held, _: held.update({"id.text": np.tile(held["id.text"][:5], 5)}))  # one id


def test_a_saved_index_is_validated(tmp_path):
    where = tmp_path / "gallery.faiss"

    def expect(change):
        where.unlink(missing_ok=True)
        with CredibleIndex.create(where, posteriors(300, 8), names(300)) as index:
            index.build("ivf")
        rewrite(where, change)
        with pytest.raises(DamagedGalleryError, match=r"gallery\.faiss"):
            CredibleIndex.open(where)

    for change in (lambda c: c * np.nan, lambda c: c[:, :-1], lambda c: c[:0], lambda c: c[0]):
        expect(lambda held, _, change=change: held.update(centroids=change(held["centroids"])))
    for note in ("{", '{"kind": "ivf", "sizes": {"probes": "all"}}', '{"kind": "pq", "sizes": {}}'):
        expect(lambda _, about, note=note: about["notes"].update(index=note))


def test_a_writer_that_fails_releases_the_lock(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    where = tmp_path / "gallery.faiss"
    index = CredibleIndex.create(where, posteriors(3, 4), names(3))
    other = CredibleIndex.open(where)
    other.append(posteriors(1, 4), ["new"])
    good = where.read_bytes()
    where.write_bytes(b"")
    with pytest.raises(InvalidInputError, match="cannot be read") as caught:
        index.delete(["row 1"])
    with open(f"{where}.lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free, while the error is still held
    del caught
    where.write_bytes(good)
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
    reader.build("ivf", lists=2)
    assert writer.approximate == {"kind": "ivf", "lists": 2}


def test_a_reader_follows_a_file_that_was_recreated(tmp_path):
    where = tmp_path / "gallery.faiss"
    before = CredibleIndex.create(where, posteriors(50, 6), names(50), {"shop": ["x"] * 50})
    before.build("ivf", lists=2)
    where.unlink()
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
    where.unlink()
    assert before.schema.dim == 4  # a closed gallery reads nothing


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_indexes_follow_changes_and_are_saved(tmp_path, kind):
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(500, 6), names(500)
    index = CredibleIndex.create(where, gallery[:400], ids[:400])
    sizes = {"lists": 8, "probes": 8} if kind == "ivf" else {"width": 500}
    index.build(kind, **sizes)
    index.append(gallery[400:], ids[400:])
    index.delete(ids[10:20])
    kept = [i for i in range(500) if not 10 <= i < 20]
    again = CredibleIndex.open(where)
    assert again.approximate == index.approximate == {"kind": kind, **sizes}
    for row in (0, 450):
        query = au.VonMisesFisher(gallery.mu[row], 20.0)
        expected = brute_force(gallery[kept], [ids[i] for i in kept], query, 0.9)
        assert_exact(again.search(query, 0.9), expected)
        assert_exact(index.search(query, 0.9), expected)
    assert again.check_recall(au.VonMisesFisher(gallery.mu[:9], 20.0)).share == 1


def test_a_scan_keeps_the_rows_with_which_it_began(tmp_path):
    index = CredibleIndex.create(tmp_path / "gallery.faiss", posteriors(40_000, 4), names(40_000))
    blocks = index.posteriors()
    ids, first, _ = next(blocks)
    assert index.delete(ids) == len(ids)
    rest = [
        (name, posterior.mu)
        for part, posterior, _ in blocks
        for name, posterior in [(part, posterior)]
    ]
    assert sum(len(part) for part, _ in rest) + len(ids) == 40_000
    assert torch.allclose(first.mu.norm(dim=-1), torch.ones(len(ids)))
    assert index.count() == 40_000 - len(ids)


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
