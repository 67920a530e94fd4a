"""Sweeps: in this process and over a real Ray, with workers that die and jobs that fail."""

import os
import signal
from pathlib import Path

import pytest

from aureole.errors import InvalidInputError
from aureole.scale import Failure, sweep


def test_a_plain_loop_keeps_going_after_a_failure():
    results = dict(sweep(lambda x: 6 // x, [3, 0, 2]))
    assert results[3] == 2
    assert results[2] == 3
    assert isinstance(results[0], Failure)
    assert "ZeroDivisionError" in results[0].error
    with pytest.raises(InvalidInputError, match="1 or more"):
        list(sweep(lambda x: x, [1], workers=0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_over_ray_dead_workers_are_replaced_and_errors_reported(tmp_path):
    """One job kills its own worker with SIGKILL the first time, one always raises, the others are fine."""

    def job(x: int, folder: str = str(tmp_path)) -> tuple[int, str]:
        mark = Path(folder) / f"tried-{x}"
        if x == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if x == 2:
            raise ValueError("this job is wrong")
        return 10 * x, os.environ["OMP_NUM_THREADS"]

    results = dict(sweep(job, [0, 1, 2, 3], workers=2))
    assert {x: results[x] for x in (0, 1, 3)} == {0: (0, "1"), 1: (10, "1"), 3: (30, "1")}
    assert (tmp_path / "tried-1").exists()
    assert isinstance(results[2], Failure)
    assert "this job is wrong" in results[2].error
