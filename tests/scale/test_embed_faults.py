"""Bulk embedding under SIGKILL, over Ray, on two nodes of which one dies, and without Ray."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from aureole.errors import AureoleError
from aureole.retrieval import CredibleIndex
from aureole.scale import EmbedOptions, SourceSpec, embed
from tests.scale.embed_faults import Commands, Moment, differences, disturbed, draw, make_job
from tests.scale.conftest import assert_same, by_id

BLOCKED = """
import sys
for name in ("ray", "lance_ray"):
    sys.modules[name] = None  # as where it is not installed
import aureole
from aureole.cli import main
main()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(Commands, folder, its undisturbed table)."""
    folder = tmp_path_factory.mktemp("faults")
    source, encoder = make_job(folder, 1500, depth=8)
    reference = folder / "reference.lance"
    embed(
        SourceSpec(str(source), rows_per_chunk=64),
        encoder,
        reference,
        options=EmbedOptions(batch=32, commit_seconds=0.2),
    )
    return Commands(source, encoder), folder, reference


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 400, 800])
def test_a_killed_process_is_followed_by_one_that_makes_the_rest(job, tmp_path, rows):
    commands, _, reference = job
    run = disturbed(commands, "process", tmp_path / "t.lance", Moment(rows))
    assert run["killed"] == 1
    assert rows <= run["rows before"] < 1500
    assert commands.wait_gone()
    assert differences(tmp_path / "t.lance", reference) == []


def test_moments_lie_between_the_first_and_the_last_commit():
    commits, rng = [(0.0, 16), (0.5, 64), (0.7, 100)], random.Random(0)
    moments = [draw(commits, rng) for _ in range(100)]
    assert {moment.rows for moment in moments} == {16, 64}
    assert max(moment.pause for moment in moments if moment.rows == 16) < 0.5
    assert max(moment.pause for moment in moments if moment.rows == 64) < 0.2 + 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["worker", "both"])
def test_over_ray_a_killed_worker_or_driver_loses_nothing(job, tmp_path, kind):
    pytest.importorskip("ray")
    commands, _, reference = job
    run = disturbed(commands, kind, tmp_path / "t.lance", Moment(1))
    assert run["killed"] == (1 if kind == "worker" else 2)
    assert run["runs"] == (1 if kind == "worker" else 2)
    assert differences(tmp_path / "t.lance", reference) == []


@pytest.mark.slow
def test_without_ray_installed_the_table_is_the_same(job, tmp_path):
    _, folder, reference = job
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-c", BLOCKED, "embed", str(folder / "pictures"), "--encoder",
        str(folder / "encoder"), "--out", str(tmp_path / "t.lance"), "--batch", "32",
        "--chunk-rows", "64",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert differences(tmp_path / "t.lance", reference) == []
    more = subprocess.run(
        [*command, "--workers", "2"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert more.returncode == 2
    assert "several workers need Ray" in more.stderr


@pytest.mark.slow
def test_a_cluster_of_two_nodes_outlives_one_of_them_and_builds_the_index(job, tmp_path):
    """Two raylets; one is removed while its worker is in the middle of a chunk."""
    pytest.importorskip("ray")
    pytest.importorskip("lance_ray")
    _, folder, reference = job
    out = tmp_path / "t.lance"
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.scale.two_nodes", str(folder / "pictures"),
            str(folder / "encoder"), str(out),
        ],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["nodes"] == 1  # the other is dead
    assert said["chunks"] > 10  # and died early
    assert said["rows"] == 1500
    assert (said["table"], said["errors_table"]) == ("t.lance", "t.errors.lance")  # as given
    assert differences(out, reference) == []
    with CredibleIndex.open(out) as index:
        assert index.approximate == {"kind": "ivf", "lists": 12, "probes": 12}
        queries, _ = index.fetch(["0003/000301.png", "0011/001140.jpg"])
        recall = index.check_recall(queries, 0.9)
        assert recall.members > 2
        assert recall.share == 1  # every list is looked at


@pytest.mark.slow
def test_an_address_where_nobody_listens_is_refused_at_once(job, tmp_path):
    pytest.importorskip("ray")
    _, folder, _ = job
    with pytest.raises(AureoleError, match="no Ray cluster responds"):
        embed(folder / "pictures", folder / "encoder", tmp_path / "n.lance", address="127.0.0.1:1")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_rows(head, tmp_path):
    """Peak memory of processes that embed 4,000 and 64,000 vectors."""
    import pyarrow as pa
    from pyarrow import parquet

    code = (
        "import re, sys\n"
        "import torch; torch.set_num_threads(1)\n"
        "from aureole.scale import embed\n"
        "embed(*sys.argv[1:4])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
    )
    peaks = []
    for n in (4_000, 64_000):
        vectors = np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), 8)
        parquet.write_table(pa.table({"v": column}), tmp_path / f"{n}.parquet")
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / f"{n}.parquet", head, tmp_path / f"{n}.lance"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0]
    small, large = (by_id(tmp_path / f"{n}.lance") for n in (4_000, 64_000))
    assert (len(small), len(large)) == (4_000, 64_000)
    some = [str(i) for i in range(0, 4_000, 97)]
    assert_same({i: small[i] for i in some}, {i: large[i] for i in some})
