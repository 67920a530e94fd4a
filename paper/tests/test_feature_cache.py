"""Features that are computed once: also where several processes want them at once."""

import subprocess
import sys

import numpy as np

from aureole_paper.feature_cache import cached_features

ASK = """
import sys, time
from pathlib import Path
import numpy as np
from aureole_paper.feature_cache import cached_features

folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.here").touch()
while len(list(folder.glob("*.here"))) < 3:  # all start on a cold cache
    time.sleep(0.01)

def encode(rows):
    time.sleep(0.05)
    (folder / f"{name}-{rows.start}.encoded").touch()
    return np.arange(rows.start, rows.stop, dtype=np.float32)[:, None]

found = cached_features(folder / "features" / "x.npy", 12, encode, chunk=2)
assert found[:, 0].tolist() == list(range(12))
"""


def test_processes_that_start_on_a_cold_cache_compute_it_once(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, str(tmp_path), name], stderr=subprocess.PIPE, text=True
        )
        for name in "abc"
    ]
    told = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], told
    assert len(list(tmp_path.glob("*.encoded"))) == 6
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["x.npy"]


def test_parts_of_a_run_that_was_killed_are_used_whatever_lock_it_left(tmp_path):
    np.save(tmp_path / "x.0.npy", np.full((2, 1), 7.0, np.float32))
    (tmp_path / "x.lock").touch()
    found = cached_features(
        tmp_path / "x.npy", 4, lambda rows: np.zeros((2, 1), np.float32), chunk=2
    )
    assert found[:, 0].tolist() == [7, 7, 0, 0]
