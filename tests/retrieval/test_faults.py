"""Killed writers, two writers at once, a server that restarts, folders that were damaged."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import AureoleError, InvalidInputError
from aureole.retrieval import CredibleIndex, Rows
from aureole.retrieval._faiss import FaissStore
from aureole.retrieval._rows import strings
from aureole.retrieval._segments import Folder
from tests.retrieval import appender
from tests.retrieval.conftest import assert_exact, brute_force, names, posteriors


def everything(index):
    """All ids of an index."""
    return index.search(au.VonMisesFisher(torch.eye(index.schema.dim)[0], 0.0), 1.0).ids


@pytest.mark.slow
def test_killed_writers_lose_nothing_that_was_acknowledged(durable):
    where = durable()
    none = au.VonMisesFisher(torch.zeros(0, appender.DIM), torch.zeros(0))
    index = CredibleIndex.create(where, none, [])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.retrieval.appender", where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    rng = random.Random(0)
    acknowledged: set[str] = set()
    for round_ in range(10):
        process.stdin.write(f"{round_}\n")
        child = int(process.stdout.readline().removeprefix("pid "))
        first = process.stdout.readline()
        timer = threading.Timer(rng.uniform(0, 0.15), os.kill, (child, signal.SIGKILL))
        timer.start()
        lines = [first]
        while lines[-1] not in ("end\n", ""):
            lines.append(process.stdout.readline())
        timer.join()
        assert lines[-1] == "end\n"
        batches = [int(line) for line in lines[:-1]]
        assert batches == list(range(len(batches)))
        acknowledged |= {f"{round_}/{b}/{i}" for b in batches for i in range(appender.BATCH)}
        fresh = CredibleIndex.open(where)
        for reader in (index, fresh):
            ids = everything(reader)
            assert len(ids) == len(set(ids)) == reader.count()
            assert acknowledged <= set(ids)
            # a batch that was not acknowledged is there as a whole or not at all, and is one a round
            sizes = Counter(i.rsplit("/", 1)[0] for i in set(ids) - acknowledged)
            assert set(sizes.values()) <= {appender.BATCH}
            assert len(sizes) <= round_ + 1
        fresh.close()
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    assert len(acknowledged) >= 10 * appender.BATCH
    index.close()


def test_two_writers_take_turns(durable):
    where = durable()
    gallery = posteriors(200, 4)
    CredibleIndex.create(where, posteriors(1, 4, seed=9), ["first"]).close()
    won: list[str] = []
    lost: list[str] = []

    def write(writer):
        index = CredibleIndex.open(where)
        for batch in range(8):
            rows = slice(writer * 100 + batch * 10, writer * 100 + batch * 10 + 10)
            part = au.VonMisesFisher(gallery.mu[rows], gallery.kappa[rows])
            index.append(part, [f"{writer}/{i}" for i in range(batch * 10, batch * 10 + 10)])
            try:
                index.append(part, [f"both/{batch}/{i}" for i in range(10)])
                won.append(f"{batch}")
            except InvalidInputError as error:
                lost.append(str(error))
        index.close()

    writers = [threading.Thread(target=write, args=(w,)) for w in (0, 1)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(timeout=60)
    index = CredibleIndex.open(where)
    ids = everything(index)
    assert len(ids) == len(set(ids)) == 1 + 160 + 80
    assert sorted(won) == [str(batch) for batch in range(8)]  # each contested batch was taken once
    assert len(lost) == 8
    assert all("already" in message for message in lost)
    index.close()


def test_a_client_outlives_a_restart_of_the_server(server):
    where = f"{server.get_uri()}#restarted"
    gallery, ids = posteriors(100, 6), names(100)
    index = CredibleIndex.create(where, gallery, ids)
    query = au.VonMisesFisher(gallery.mu[3], 9.0)
    expected = brute_force(gallery, ids, query, 0.9)
    assert_exact(index.search(query, 0.9), expected)
    results, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            try:
                results.append(index.search(query, 0.9).ids)
            except AureoleError as error:
                results.append(str(error))

    client = threading.Thread(target=ask)
    client.start()
    time.sleep(0.3)
    before = len(results)
    server.stop()
    server.ensure_postgres_running()
    deadline = time.monotonic() + 30
    while len(results) < before + 50 and time.monotonic() < deadline:
        time.sleep(0.1)
    stop.set()
    client.join(timeout=30)
    assert before > 0
    assert len(results) >= before + 50
    right = [name for name, _ in expected]
    assert all(found == right or "connection" in found for found in results)
    assert results[-1] == right
    index.append(posteriors(2, 6, seed=4), ["new 1", "new 2"])
    assert index.count() == 102
    index.close()


def test_a_lost_connection_is_made_again_and_a_lost_server_is_named(server, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    where = f"{server.get_uri()}#lost"
    index = CredibleIndex.create(where, posteriors(20, 4), names(20))
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with psycopg.connect(server.get_uri(), autocommit=True) as other:
        other.execute(kill)
        assert len(everything(index)) == 20
        other.execute(kill)
        index.append(posteriors(1, 4), ["new"])
        other.execute(kill)
        assert index.delete(["new"]) == 1
    monkeypatch.setattr("aureole.retrieval._connection._WAITS", (0.0, 0.05))
    server.stop()
    try:
        with pytest.raises(AureoleError, match="no connection"):
            index.count()
    finally:
        server.ensure_postgres_running()
    assert index.count() == 20
    index.close()


def test_secrets_stay_out_of_messages():
    pytest.importorskip("psycopg")
    with pytest.raises(AureoleError, match="no connection") as caught:
        CredibleIndex.open("postgresql://me:hunter2@127.0.0.1:1/none?connect_timeout=2")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="cannot name a table"):
        CredibleIndex.open("postgresql://127.0.0.1:1/none#x; DROP TABLE y")


def test_damaged_folders_are_named(tmp_path):
    pytest.importorskip("faiss")
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
    pytest.importorskip("faiss")
    resource = pytest.importorskip("resource")
    where = tmp_path / "gallery.faiss"
    gallery, ids = posteriors(500, 6), names(500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a manifest has room, rows have not
    try:
        with pytest.raises(OSError, match="File too large"):
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
    pytest.importorskip("faiss")
    numpy = pytest.importorskip("safetensors.numpy")
    where = tmp_path / "gallery.faiss"
    CredibleIndex.create(where, posteriors(3, 4), names(3), {"stock": [1, 2, 3]})
    segment = where / json.loads((where / "manifest.json").read_text())["log"][0]["rows"]
    arrays = numpy.load_file(segment)
    numpy.save_file(arrays | {"payload.stock": arrays["payload.stock"].astype("float64")}, segment)
    with pytest.raises(InvalidInputError, match="damaged"):
        CredibleIndex.open(where)


def test_a_writer_that_fails_gives_its_turn_back(tmp_path):
    pytest.importorskip("faiss")
    fcntl = pytest.importorskip("fcntl")
    where = tmp_path / "gallery.faiss"
    index = CredibleIndex.create(where, posteriors(3, 4), names(3))
    other = CredibleIndex.open(where)
    other.append(posteriors(1, 4), ["new"])
    segment = where / json.loads((where / "manifest.json").read_text())["log"][1]["rows"]
    good = segment.read_bytes()
    segment.write_bytes(b"")
    with pytest.raises(InvalidInputError, match="cannot be read") as told:
        index.delete(["row 1"])
    with open(where / "lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free, while the error is still held
    del told
    segment.write_bytes(good)
    index.append(posteriors(1, 4), ["newer"])
    assert other.count() == 5


def test_a_reader_follows_an_index_that_is_built_again(tmp_path):
    pytest.importorskip("faiss")
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


def test_a_reader_survives_an_index_that_is_replaced_while_it_reads(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    where = tmp_path / "gallery.faiss"
    writer = CredibleIndex.create(where, posteriors(100, 6), names(100))
    writer.build("ivf", lists=2)
    manifest = Folder.manifest

    def late(folder):  # what it read is out of date when it is returned
        found = manifest(folder)
        monkeypatch.setattr(Folder, "manifest", manifest)
        writer.build("ivf", lists=3)
        return found

    reader = FaissStore(writer.schema, Folder(where))
    monkeypatch.setattr(Folder, "manifest", late)
    assert reader.approximate() == {"kind": "ivf", "lists": 3}
    (index,) = where.glob("index-*.faiss")
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        CredibleIndex.open(where)


def test_a_reader_follows_a_folder_that_was_made_anew(tmp_path):
    pytest.importorskip("faiss")
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
    rows = Rows(strings(["other"]), np.eye(6, dtype=np.float32)[:1], np.ones(1, np.float32))
    with pytest.raises(InvalidInputError, match="made anew"):  # made for the gallery before
        before._store.append(rows)
    assert CredibleIndex.open(where).count() == 31
    before.close()
    shutil.rmtree(where)
    assert before.schema.dim == 4  # what is closed looks for nothing


def test_an_approximate_faiss_index_is_read_again(tmp_path):
    pytest.importorskip("faiss")
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
