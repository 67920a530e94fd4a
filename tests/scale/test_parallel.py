"""Sweeps in this process and over Ray, and ranks of one machine, with workers that die and jobs that fail."""

import io
import logging
import os
import signal
from pathlib import Path

import pytest
import torch

from aureole.errors import AureoleError, InvalidInputError, MissingInputError, MissingPackageError
from aureole.scale import Failure, launch, sweep
from aureole.scale._parallel import _quiet_after
from aureole.training._distributed import STORE
from tests.scale import ranked

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_killed_rank_is_replaced_and_the_fit_goes_on_to_the_same_weights(tmp_path):
    """SIGKILL in step 12 of 20: the group starts again from the checkpoint and ends bit for bit as if undisturbed."""
    before = dict(os.environ)
    whole, killed = launch(ranked.both, str(tmp_path), ranks=2, restarts=1)
    assert STORE not in os.environ
    assert dict(os.environ) | before == dict(os.environ)
    assert whole[1:] == (2, False)
    assert killed[1:] == (2, True)
    assert killed[0] == whole[0]
    alone = ranked.fitted(str(tmp_path), fatal=False)
    assert alone[1] == 1
    assert torch.allclose(torch.tensor(alone[0]), torch.tensor(whole[0]), atol=1e-5)


@pytest.mark.slow
def test_an_error_of_ours_is_raised_once_and_a_death_after_the_last_restart_is_said(tmp_path):
    with pytest.raises(MissingInputError, match="the config of this run is wrong; give another"):
        launch(ranked.wrong, str(tmp_path), ranks=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0-0", "1-0"]
    with pytest.raises(AureoleError, match="exit code 7 after 1 restarts"):
        launch(ranked.dies, str(tmp_path), ranks=1, restarts=1)
    assert (tmp_path / "0-1").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_over_ray_train_a_killed_rank_is_replaced(tmp_path, monkeypatch):
    """The same over a real Ray: its workers are killed by SIGKILL and go on to the same weights."""
    pytest.importorskip("ray.train")
    from aureole.scale import run_ranks

    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")  # Ray's workers import the function
    whole, killed = run_ranks(
        ranked.both, [str(tmp_path)], ranks=2, address="local", restarts=1, work=tmp_path / "work"
    )
    assert whole[1:] == [2, False]
    assert killed[1:] == [2, True]
    assert killed[0] == whole[0]
    options = {"ranks": 1, "address": "local", "restarts": 1, "work": tmp_path / "more"}
    with pytest.raises(MissingPackageError, match="this needs more"):
        run_ranks(ranked.lacks, [str(tmp_path)], **options)


def test_torch_is_quiet_after_an_error_of_ours_and_only_then(tmp_path):
    said, failure = io.StringIO(), tmp_path / "failure"
    handler, logger = logging.StreamHandler(said), logging.getLogger("torch.distributed.elastic.a")
    logger.addHandler(handler)
    try:
        with _quiet_after(failure):
            logger.error("a rank died")
            failure.touch()
            logger.error("a rank ended with an error of ours, which is raised")
        logger.error("later")
    finally:
        logger.removeHandler(handler)
    assert said.getvalue().splitlines() == ["a rank died", "later"]


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInputError, match="ranks must be 1 or more"):
        launch(print, ranks=0)
    with pytest.raises(InvalidInputError, match="restarts 0 or more"):
        launch(print, ranks=1, restarts=-1)


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
