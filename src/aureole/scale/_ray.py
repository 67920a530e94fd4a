"""The adapter to Ray: the one file that imports it, and lance_ray, which builds indexes over it."""

import json
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from aureole.errors import AureoleError, MissingPackageError, tell_error, told_error
from aureole.scale._source import Chunk
from aureole.scale._sweep import Failure, attempt
from aureole.scale._table import Done
from aureole.scale._worker import ChunkWorker, WorkOrder

_STORE = 200 * 2**20  # bytes of shared memory: jobs and records are small
_BLOCK = (
    2**20
)  # bytes that a task is expected to return at most; Ray keeps room for several of them
_THREADS = {"env_vars": {"OMP_NUM_THREADS": "1"}}


def run_tasks(
    function: Callable[[Any], Any], jobs: Sequence[Any], *, workers: int, address: str | None
) -> Iterator[tuple[Any, Any]]:
    """(Job, result or Failure) of each job as they end; tasks of dead workers are started again up to three times.

    A local Ray is started for the sweep and stopped after it; at an address the cluster is left running. A local Ray
    listens on all interfaces of this machine while it runs, and has no authentication.
    """
    with _running(workers, address) as ray:
        from ray.exceptions import RayError

        task = ray.remote(num_cpus=1, max_retries=3, runtime_env=_THREADS)(_single_threaded)
        running = {task.remote(function, job): job for job in jobs}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(done)
            try:
                yield job, ray.get(done)
            except RayError as error:
                yield job, Failure(f"the worker died too often: {type(error).__name__}", str(error))


def map_chunks(
    order: WorkOrder, chunks: Iterable[Chunk], *, workers: int, address: str | None
) -> Iterator[Done]:
    """The chunks as they are done by Ray Data, ``workers`` at a time; those of workers or nodes that died come again.

    The chunks are tasks, not actors: when a node dies for good, its tasks go to any other, where an actor would wait
    for its place. A process keeps the model for the tasks to come.
    """
    items = [{"chunk": json.dumps(asdict(chunk))} for chunk in chunks]
    if not items:
        return
    with _running(workers, address):
        import ray.data
        from ray.exceptions import RayError

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = _BLOCK
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        work: Any = partial(_work, job=token_hex(8), order=order)
        try:
            done = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                work,
                batch_size=1,
                compute=ray.data.TaskPoolStrategy(workers),
                num_cpus=1,
                runtime_env=_THREADS,
            )
            for row in done.iter_rows():
                if row["error"]:
                    raise told_error(json.loads(row["error"]))
                yield Done.from_json(row["done"])
        except RayError as error:
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise AureoleError(
                f"a worker failed for good: {first[-1][:300]} The same command goes on where it was."
            ) from error


def create_lists(where: str, *, lists: int, rows: int, workers: int, address: str | None) -> None:
    """Build IVF_FLAT lists on the column mu of a Lance table by several workers, each for a part of the fragments."""
    with _running(workers, address) as ray:
        try:
            from lance_ray import create_index
        except ImportError as error:
            raise MissingPackageError(
                "lists by several workers need lance-ray: pip install 'aureole[scale]', or use one worker."
            ) from error

        # a pool larger than the cluster would wait for ever
        room = max(1, int(ray.cluster_resources().get("CPU", 1)))

        logging.getLogger("lance_ray").setLevel(logging.ERROR)
        create_index(
            where,
            "mu",
            "IVF_FLAT",
            metric="dot",
            replace=True,
            num_workers=min(workers, room),
            num_segments=workers,
            num_partitions=lists,
            sample_rate=max(2, min(256, rows // lists)),
            ray_remote_args={"num_cpus": 1, "runtime_env": _THREADS},
        )


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
    outcome = work / "outcome.json"
    work.mkdir(parents=True, exist_ok=True)
    outcome.unlink(missing_ok=True)
    # the trainer's own process counts as well
    with _running(ranks + 1, None if address == "local" else address) as ray:
        _train(ray, function, arguments, ranks, restarts, outcome)
    found = json.loads(outcome.read_text())
    if "error" in found:
        raise told_error(found)
    return found["result"]


def _train(
    ray: Any,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    ranks: int,
    restarts: int,
    outcome: Path,
) -> None:
    """Run Ray Train until the first rank has left its outcome."""
    import torch
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

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
                name=outcome.parent.name,
                storage_path=str(outcome.parent / "ray"),
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


def _on_worker(config: dict[str, Any]) -> None:
    """Run the function on this worker, which Ray has joined with the others; the first leaves the result in a file."""
    import torch

    from aureole.losses import rank

    outcome = Path(config["outcome"])
    if config["environment"]:
        torch.set_num_threads(1)
    if outcome.exists():  # started again after an error of ours: nothing is left to do
        return
    try:
        result = config["function"](*config["arguments"])
    except AureoleError as error:
        _write(outcome, tell_error(error))
        raise
    if rank() == 0:
        _write(outcome, {"result": result})


def _write(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


@contextmanager
def _running(workers: int, address: str | None) -> Iterator[Any]:
    """Ray: the one that runs in this process, else a cluster at an address, else a local one for as long as needed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "more than one worker needs Ray: pip install 'aureole[scale]', or use one worker."
        ) from error
    started = not ray.is_initialized()
    if started and address is None:
        with warnings.catch_warnings():  # of a fork that becomes another program at once
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            ray.init(
                address="local",  # not one that runs on this machine already
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=_STORE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
            )
    elif started:
        _check_answer(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0][:300]
            raise AureoleError(f"no Ray cluster answers at {address}: {first}") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def _check_answer(address: str | None) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # such as "auto", which Ray resolves
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise AureoleError(
            f"no Ray cluster answers at {address}: {error}. Start one with `ray start --head`, or leave it out."
        ) from error


def _single_threaded(function: Callable[[Any], Any], job: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return attempt(function, job)


_OPEN: dict[str, ChunkWorker] = {}  # what this process holds of the job that it works for


def _work(batch: dict[str, Any], *, job: str, order: WorkOrder) -> dict[str, list[str]]:
    """One chunk, on a worker; errors of ours are handed over as texts."""
    import torch

    torch.set_num_threads(1)
    try:
        if job not in _OPEN:
            _OPEN.clear()
            _OPEN[job] = ChunkWorker(order)
        (text,) = batch["chunk"]
        return {"done": [_OPEN[job](Chunk(**json.loads(str(text)))).to_json()], "error": [""]}
    except AureoleError as error:
        return {"done": [""], "error": [json.dumps(tell_error(error))]}
