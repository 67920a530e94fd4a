"""Indexes of sharded galleries, built by workers of a real Ray; without workers, Ray is not imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aureole as au
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.retrieval import CredibleIndex
from aureole.scale import build_index
from aureole.scale._ray_shards import ShardJob, build_shard
from tests.cli.conftest import run
from tests.retrieval.conftest import names, posteriors

ROOT = Path(__file__).parents[2]
ROWS, DIM = 5000, 16


@pytest.fixture
def sharded(tmp_path):
    """The address of a gallery with two shards."""
    where = str(tmp_path / "many.shards")
    with CredibleIndex.create("faiss://", posteriors(ROWS, DIM), names(ROWS)) as one:
        one.copy(where, shards=2).close()
    return where


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_index_all_shards(sharded, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")  # Ray's workers import the function
    # all lists: these caps have more members than the number of probes is chosen for
    sizes = ("--lists", "20", "--probes", "20")
    done = run("index", "approximate", sharded, "--compress", "--workers", "2", *sizes, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["approximate"]["compressed"] == "pq"
    assert facts["approximate"]["lists"] == 20
    assert facts["recall"] >= 0.98
    gallery = posteriors(ROWS, DIM)
    with CredibleIndex.open(sharded) as index:
        assert index.check() == []
        queries = au.VonMisesFisher(gallery.mu[:20], torch.full((20,), 30.0))
        assert index.check_recall(queries, 0.9, least=0.0).share >= 0.98
        exact = index.search(queries, 0.9, exact=True)
        for left, right in zip(index.search(queries, 0.9), exact, strict=True):
            assert set(left.ids) <= set(right.ids)
    seen: list[int] = []
    build_index(sharded, workers=2, lists=10, observer=seen.append)
    assert len(seen) == 2
    assert seen[-1] == ROWS
    with CredibleIndex.open(sharded) as index:
        assert index.approximate == {"kind": "ivf", "lists": 10}
    with pytest.raises(InvalidInputError, match="lists"):
        build_index(sharded, workers=2, lists=0)
    shard = Path(sharded, "1-1.lance")
    for version in (shard / "_versions").iterdir():
        version.unlink()
    with pytest.raises((DamagedGalleryError, MissingInputError)):
        build_index(sharded, workers=2, lists=10)


def test_a_task_opens_its_shard_alone_and_returns_errors_as_values(sharded, tmp_path):
    job = ShardJob(f"{sharded}/1-0.lance", 2, True, {"lists": 10})
    rows = build_shard(job)["rows"]
    assert 0 < rows < ROWS
    with CredibleIndex.open(f"{sharded}/1-0.lance") as first:
        assert first.count() == rows
        assert first.approximate["lists"] == 10
    with CredibleIndex.open(sharded) as index:
        assert index.approximate is None  # the other shard has none yet
    missing = build_shard(ShardJob(str(tmp_path / "no.lance"), 2, True, {}))
    assert missing["kind"] == "MissingInputError"
    empty = au.VonMisesFisher(torch.zeros(0, DIM), torch.zeros(0))
    CredibleIndex.create(tmp_path / "empty.lance", empty, []).close()
    assert build_shard(ShardJob(str(tmp_path / "empty.lance"), 2, True, {})) == {"rows": 0}


def test_one_table_cannot_be_compressed_by_several_workers(sharded):
    with pytest.raises(InvalidInputError, match="copy it to shards"):
        build_index(f"{sharded}/1-0.lance", workers=2, compressed=True)
    assert (
        run(
            "index", "approximate", f"{sharded}/1-0.lance", "--compress", "--workers", "2"
        ).exit_code
        == 2
    )


def test_without_workers_ray_is_not_imported(sharded):
    program = (
        "import sys; from aureole.cli._app import app\n"
        f"try: app(['index', 'approximate', {sharded!r}, '--compress', '--lists', '10', '--json'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'ray' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["approximate"]["lists"] == 10
