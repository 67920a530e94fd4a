"""The adapter to Ray: the one file that imports it."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aureole.errors import AureoleError
from aureole.scale.sweep import Failure, attempt

__all__ = ["run_ranks", "run_tasks"]

_STORE = 200 * 2**20  # bytes of shared memory: jobs and records are small


def run_tasks(
    function: Callable[[Any], Any], jobs: Sequence[Any], *, workers: int, address: str | None
) -> Iterator[tuple[Any, Any]]:
    """(Job, result or Failure) of each job as they end; tasks of dead workers are started again up to three times.

    A local Ray is started for the sweep and stopped after it; at an address the cluster is left running. A local Ray
    listens on all interfaces of this machine while it runs, and has no authentication.
    """
    ray = _ray("more than one worker")
    from ray.exceptions import RayError

    started = not ray.is_initialized()
    if started and address is None:
        _start_local(ray, workers)
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


def _ray(wanted_for: str) -> Any:
    """The package, with its reports of usage off; an error says how to get it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise AureoleError(
            f"{wanted_for} needs Ray: pip install 'aureole[scale]', or use one worker."
        ) from error
    return ray


def _start_local(ray: Any, cpus: int) -> None:
    """Start a Ray on this machine; whatever address it is given, it listens on all interfaces."""
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=_STORE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _single_threaded(function: Callable[[Any], Any], job: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return attempt(function, job)


def run_ranks(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    ranks: int,
    address: str,
    restarts: int,
    work: Path,
) -> Any:
    """What ``function(*arguments)`` returns on the first of several ranks, workers of Ray Train; it must be JSON.

    When a worker dies, all are started again, up to ``restarts`` times, and go on from the checkpoint that the function
    keeps. ``work`` is a folder that all nodes share: the result comes by a file in it, as Ray Train returns metrics
    with checkpoints of its own alone. At the address "local" a Ray is started on this machine and stopped after it; it
    listens on all interfaces meanwhile. An ``AureoleError`` is raised here, and not tried again.
    """
    ray = _ray("training over Ray")
    import torch
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    started = not ray.is_initialized()
    if started and address == "local":
        _start_local(ray, ranks + 1)  # the trainer's own process counts as well
    elif started:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    outcome = work / "outcome.json"
    work.mkdir(parents=True, exist_ok=True)
    outcome.unlink(missing_ok=True)
    gpus = bool(ray.cluster_resources().get("GPU")) and torch.cuda.is_available()
    threads = {} if gpus else {"OMP_NUM_THREADS": "1"}
    try:
        trainer = TorchTrainer(
            _on_worker,
            train_loop_config={
                "function": function,
                "arguments": tuple(arguments),
                "outcome": str(outcome),
                "environment": threads,
            },
            torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
            scaling_config=ScalingConfig(num_workers=ranks, use_gpu=gpus),
            run_config=RunConfig(
                name=work.name,
                storage_path=str(work / "ray"),
                failure_config=FailureConfig(max_failures=restarts),
            ),
        )
        trainer.fit()
    except Exception as error:
        if not outcome.exists():
            raise AureoleError(
                f"training over Ray failed after {restarts} restarts: {type(error).__name__}: {str(error)[:2000]}. "
                "The same command goes on from the last checkpoint."
            ) from error
    finally:
        if started:
            ray.shutdown()
    found = json.loads(outcome.read_text())
    if "error" in found:
        raise AureoleError(found["error"])
    return found["result"]


def _on_worker(config: dict[str, Any]) -> None:
    """Run the function on this worker, which Ray has joined with the others; the first leaves the result in a file."""
    import torch

    from aureole.training.ranks import rank

    outcome = Path(config["outcome"])
    if config["environment"]:
        torch.set_num_threads(1)
    if outcome.exists():  # started again after an error of ours: nothing is left to do
        return
    try:
        result = config["function"](*config["arguments"])
    except AureoleError as error:
        _write(outcome, {"error": str(error)})
        raise
    if rank() == 0:
        _write(outcome, {"result": result})


def _write(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)
