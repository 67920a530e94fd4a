"""Shards in processes of Ray Serve: the same sets as in this process, and what remains when one dies."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex
from aureole.scale import open_shards

ray = pytest.importorskip("ray")


def make_gallery(folder, rows=900, dim=8):
    """(Address of a gallery with three shards, its directions)."""
    mu = np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)
    posteriors = au.VonMisesFisher(torch.nn.functional.normalize(torch.from_numpy(mu)), 40.0)
    ids = [f"item-{i}" for i in range(rows)]
    plain, where = folder / "plain.lance", folder / "gallery.shards"
    with CredibleIndex.create(plain, posteriors, ids) as index:
        index.copy(where, shards=3)
    return str(where), posteriors


def replica_pids(shard):
    """The processes of a shard's replicas."""
    name = f"ServeReplica:aureole-shard-{shard}-".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process that has just ended
            if name in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def shard_ids(where):
    """The ids of a shard."""
    with CredibleIndex.open(where) as shard:
        return {name for names, _, _ in shard.scan() for name in names}


def connect_without_token(address):
    """Use a Ray from a process that does not know its token."""
    code = f"import ray; ray.init(address={address!r}); assert ray.get(ray.put(1)) == 1"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=60)


def same(found, expected):
    return [hits.ids for hits in found] == [hits.ids for hits in expected]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Serve's import
def test_processes_return_the_same_sets_and_survive_a_kill(tmp_path):
    where, posteriors = make_gallery(tmp_path)
    queries = au.VonMisesFisher(posteriors.mu[:20], torch.full((20,), 25.0))
    with CredibleIndex.open(where) as here, open_shards(where, timeout=1.0) as index:
        everything = here.search(queries, 0.9)
        assert same(index.search(queries, 0.9), everything)
        assert same(index.search(queries, 0.9, limit=3), here.search(queries, 0.9, limit=3))

        index.upsert(au.VonMisesFisher(posteriors.mu[:1], 40.0), ["new"])
        assert "new" in index.search(queries, 0.9)[0].ids
        index.delete(["new"])
        assert same(index.search(queries, 0.9), everything)

        with pytest.raises(subprocess.CalledProcessError):
            connect_without_token(ray.get_runtime_context().gcs_address)

        rows = {shard: shard_ids(Path(where) / shard) for shard in here.shards}
        (victim,) = replica_pids(1)
        assert os.getpriority(os.PRIO_PROCESS, victim) == os.getpriority(os.PRIO_PROCESS, 0)
        os.kill(victim, signal.SIGKILL)
        deadline, missed, back = time.monotonic() + 120, set(), False
        while time.monotonic() < deadline and not back:
            started = time.monotonic()
            found = index.search(queries, 0.9)
            assert (
                time.monotonic() - started < 1.0 + 10.0
            )  # the timeout, and the search on a busy machine
            missing = found[0].missing_shards
            lost = {name for shard in missing for name in rows[shard]}
            expected = [[name for name in hits.ids if name not in lost] for hits in everything]
            assert [hits.ids for hits in found] == expected
            missed.update(missing)
            back = "1-1.lance" in missed and not missing
            time.sleep(0.1)
        assert "1-1.lance" in missed, "the dead shard was never missed"
        assert back, "the shard did not come back"
    assert not ray.is_initialized()


def test_galleries_without_shards_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="index copy"):
        open_shards(str(tmp_path / "gallery.lance"))
    with pytest.raises(InvalidInputError, match="replicas"):
        open_shards(str(tmp_path / "gallery.shards"), replicas=0)


def test_ray_is_not_imported_without_replicas():
    code = (
        "import sys; import aureole.scale, aureole.serve; "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'ray']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
