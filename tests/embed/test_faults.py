"""Jobs of which a process is killed: the only one, the one that drives Ray, or a worker of Ray."""

import signal
import subprocess
import sys

import pytest

from aureole.embed import embed
from tests.embed.conftest import assert_same, by_id

KILLED = """
import os, signal, sys
import psutil
from aureole.embed import _posterior_table, _worker, embed

killed = []

def victim():
    if sys.argv[5] == "driver":
        return os.getpid()
    for process in psutil.Process().children(recursive=True):
        if " ".join(process.cmdline()).startswith("ray::Map"):
            return process.pid

def kill(now):
    if now.done >= 64 and not killed and (process := victim()):
        killed.append(process)
        os.kill(process, signal.SIGKILL)

_worker._SMALLEST_PIECE = 16
_posterior_table._COMMIT_SECONDS = 0.0
embed(*sys.argv[1:4], workers=int(sys.argv[4]), batch=4, observer=kill)
assert killed
"""


@pytest.fixture(scope="module")
def whole(pictures, encoder, tmp_path_factory):
    """The rows of a job that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "t.lance"
    embed(pictures, encoder, out)
    return by_id(out)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "victim"), [(1, "driver"), (2, "driver"), (2, "worker")])
def test_a_job_loses_nothing_when_a_process_is_killed(
    pictures, encoder, whole, tmp_path, workers, victim
):
    pytest.importorskip("psutil")
    if workers > 1:
        pytest.importorskip("ray")
    out = tmp_path / "t.lance"
    places = [str(pictures), str(encoder), str(out)]
    command = [sys.executable, "-c", KILLED, *places, str(workers), victim]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    rows = len(by_id(out))
    if victim == "worker":  # whose pieces another one repeats
        assert done.returncode == 0, done.stderr
        assert rows == 230
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert 60 <= rows < 230
    report = embed(pictures, encoder, out)
    assert (report.new_rows, report.rows, report.errors) == (230 - rows, 230, 0)
    assert_same(by_id(out), whole)
