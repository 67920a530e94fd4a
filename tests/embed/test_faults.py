"""Jobs of which a process is killed: the only one, or the one that drives Ray."""

import signal
import subprocess
import sys

import pytest

from aureole.embed import embed
from tests.embed.conftest import assert_same, by_id

KILLED = """
import os, signal, sys
from aureole.embed import _posterior_table, _worker, embed

def kill(now):
    if now.done >= 64:
        os.kill(os.getpid(), signal.SIGKILL)

_worker._SMALLEST_PIECE = 16
_posterior_table._COMMIT_SECONDS = 0.0
embed(*sys.argv[1:4], workers=int(sys.argv[4]), batch=4, observer=kill)
"""


@pytest.fixture(scope="module")
def whole(pictures, encoder, tmp_path_factory):
    """The rows of a job that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "t.lance"
    embed(pictures, encoder, out)
    return by_id(out)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_loses_nothing_when_a_process_is_killed(pictures, encoder, whole, tmp_path, workers):
    if workers > 1:
        pytest.importorskip("ray")
    out = tmp_path / "t.lance"
    places = [str(pictures), str(encoder), str(out)]
    command = [sys.executable, "-c", KILLED, *places, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    rows = len(by_id(out))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert 60 <= rows < 230
    report = embed(pictures, encoder, out)
    assert (report.new_rows, report.rows, report.errors) == (230 - rows, 230, 0)
    assert_same(by_id(out), whole)
