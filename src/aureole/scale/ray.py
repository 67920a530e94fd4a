"""The adapter to Ray: the one file that imports it."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aureole.errors import AureoleError
from aureole.scale.sweep import Failure, attempt

__all__ = ["run_tasks"]

_STORE = 200 * 2**20  # bytes of shared memory: jobs and records are small


def run_tasks(
    function: Callable[[Any], Any], jobs: Sequence[Any], *, workers: int, address: str | None
) -> Iterator[tuple[Any, Any]]:
    """(Job, result or Failure) of each job as they end; tasks of dead workers are started again up to three times.

    A local Ray is started for the sweep and stopped after it; at an address the cluster is left running. A local Ray
    listens on this machine's loopback address alone.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        from ray.exceptions import RayError
    except ImportError as error:
        raise AureoleError(
            "more than one worker needs Ray: pip install 'aureole[scale]', or use one worker."
        ) from error

    started = not ray.is_initialized()
    if started and address is None:
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=_STORE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )
    elif started:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        task = ray.remote(
            num_cpus=1, max_retries=3, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}
        )(_single_threaded)
        running = {task.remote(function, job): job for job in jobs}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(done)
            try:
                yield job, ray.get(done)
            except RayError as error:
                yield job, Failure(f"the worker died too often: {type(error).__name__}", str(error))
    finally:
        if started:
            ray.shutdown()


def _single_threaded(function: Callable[[Any], Any], job: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return attempt(function, job)
