"""The adapter to Ray: jobs, training and indexes."""

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
from typing import Any, TypeVar

from aureole._io import atomic_write
from aureole.errors import (
    AureoleError,
    InvalidInputError,
    MissingPackageError,
    error_from_dict,
    error_to_dict,
)
from aureole.retrieval import LanceStore, check_build, default_lists, shown_address
from aureole.embed._embedder import ModelSpec
from aureole.embed._posterior_table import Done, absolute_address
from aureole.embed._sources import Chunk
from aureole.embed._worker import ChunkWorker, WorkOrder

Result = TypeVar("Result")
_STORE_BYTES = 200 * 2**20  # shared memory of a local Ray: jobs and records are small
_BLOCK_BYTES = 2**20  # upper bound of what a task returns; Ray reserves several of them
_ONE_THREAD = {"env_vars": {"OMP_NUM_THREADS": "1"}}


def run_tasks(
    function: Callable[[Any], Any], jobs: Sequence[Any], *, workers: int, address: str | None
) -> Iterator[tuple[Any, Any, Exception | None]]:
    """Yield (job, result, None) as jobs end, or (job, None, error) where the worker died more than three times.

    A local Ray is started for the sweep and stopped afterwards; a cluster at an address is left running. A local Ray
    listens on all interfaces of this machine while it runs, and requires the token in ``~/.ray/auth_token``.
    """
    with ray_running(workers, address) as ray:
        from ray.exceptions import RayError

        task = ray.remote(num_cpus=1, max_retries=3, runtime_env=_ONE_THREAD)(_single_threaded)
        running = {task.remote(function, job): job for job in jobs}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(done)
            try:
                result, death = ray.get(done), None
            except RayError as error:
                result, death = None, error
            yield job, result, death


def check_parallel(model: ModelSpec) -> None:
    """Raise if Ray is missing, or if workers could not load the model."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "several workers need Ray: pip install 'aureole[ray]'."
        ) from error
    if not isinstance(model.encoder, str | None):
        raise InvalidInputError(
            "several workers cannot share an encoder object: name it, as in python:MODULE:FUNCTION."
        )


def map_chunks(
    order: WorkOrder, chunks: Iterable[Chunk], *, workers: int, address: str | None
) -> Iterator[Done]:
    """Embed chunks with Ray Data, ``workers`` at a time; chunks of dead workers or nodes are retried.

    Chunks run as tasks, not actors: when a node dies, its tasks move to any other node, while an actor would wait for
    its own. Worker processes keep the model loaded between tasks.
    """
    items = [{"chunk": json.dumps(asdict(chunk))} for chunk in chunks]
    if not items:
        return
    with ray_running(workers, address):
        import ray.data
        from ray.exceptions import RayError

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = _BLOCK_BYTES
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        work: Any = partial(_work, job=token_hex(8), order=order)
        try:
            done = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                work,
                batch_size=1,
                compute=ray.data.TaskPoolStrategy(workers),
                num_cpus=1,
                runtime_env=_ONE_THREAD,
            )
            for row in done.iter_rows():
                if row["error"]:
                    raise error_from_dict(json.loads(row["error"]))
                yield Done.from_json(row["done"])
        except RayError as error:
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise AureoleError(
                f"a worker failed permanently: {first[-1][:300]} Run the same command again to resume."
            ) from error


def build_lists(
    where: str,
    *,
    workers: int,
    address: str | None = None,
    lists: int | None = None,
    probes: int | None = None,
) -> None:
    """Build the approximate index (IVF) of a Lance gallery with several Ray workers.

    The calling process learns the centres of the lists from a sample; each worker then assigns the rows of some
    fragments to lists, and one commit makes all parts the gallery's index.

    Parameters
    ----------
    where
        The address of the gallery.
    workers, address
        The number of workers, on this machine or on the Ray cluster at the address.
    lists, probes
        As in ``CredibleIndex.build``.
    """
    given = {"lists": lists, "probes": probes}
    sizes = {name: size for name, size in given.items() if size is not None}
    check_build("ivf", sizes)
    if not where.removesuffix("/").endswith(".lance"):
        raise InvalidInputError(
            f"several workers can only index a Lance table, but {shown_address(where)} is not one. Use one worker."
        )
    store = LanceStore.open(where)
    rows = store.count()
    lists = lists or default_lists(rows)
    if rows < 2 * lists:
        raise InvalidInputError(
            f"{lists:,} lists need {2 * lists:,} rows or more, but {shown_address(where)} has {rows:,}. Use fewer "
            "lists, or no index: searching so few rows is fast without one."
        )
    with ray_running(workers, address) as ray:
        try:
            from lance_ray import create_index
        except ImportError as error:
            raise MissingPackageError(
                "building lists with several workers needs lance-ray: pip install 'aureole[ray]', or use one worker."
            ) from error

        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        logging.getLogger("lance_ray").setLevel(logging.ERROR)
        create_index(
            absolute_address(where),
            "mu",
            "IVF_FLAT",
            metric="dot",
            replace=True,
            num_workers=min(workers, cores),  # a larger pool would wait for ever
            num_segments=workers,
            num_partitions=lists,
            sample_rate=max(2, min(256, rows // lists)),
            ray_remote_args={"num_cpus": 1, "runtime_env": _ONE_THREAD},
        )
    store.adopt(lists, sizes)


def run_ranks(
    function: Callable[..., Result],
    arguments: Sequence[Any],
    *,
    ranks: int,
    address: str,
    restarts: int,
    work: Path,
) -> Result:
    """Call ``function(*arguments)`` on several Ray Train workers, and return the first rank's (JSON) result.

    When a worker dies, all are restarted, up to ``restarts`` times, and resume from the function's own checkpoint.
    ``work`` is a folder shared by all nodes; the result is passed through a file in it, since Ray Train only returns
    metrics together with its own checkpoints. With the address "local", a Ray is started on this machine for the run;
    it listens on all interfaces. An ``AureoleError`` is raised here and not retried.
    """
    outcome = work / "outcome.json"
    work.mkdir(parents=True, exist_ok=True)
    outcome.unlink(missing_ok=True)
    # one more, as the trainer's own process counts too
    with ray_running(ranks + 1, None if address == "local" else address) as ray:
        _train(ray, function, arguments, ranks, restarts, outcome)
    answer = json.loads(outcome.read_text())
    if "error" in answer:
        raise error_from_dict(answer)
    return answer["result"]


def _train(
    ray: Any,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    ranks: int,
    restarts: int,
    outcome: Path,
) -> None:
    """Run Ray Train until the first rank has written its outcome."""
    import torch
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    gpus = bool(ray.cluster_resources().get("GPU")) and torch.cuda.is_available()
    config = {"function": function, "arguments": tuple(arguments)}
    config |= {"outcome": str(outcome), "single_threaded": not gpus}
    try:
        trainer = TorchTrainer(
            _on_worker,
            train_loop_config=config,
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
                "Run the same command again to resume from the last checkpoint."
            ) from error


def _on_worker(config: dict[str, Any]) -> None:
    """Run the function on this worker, one rank of Ray's process group; the first rank writes the result to a file."""
    import torch

    from aureole.losses._negatives import rank

    outcome = Path(config["outcome"])
    if config["single_threaded"]:
        torch.set_num_threads(1)
    if outcome.exists():  # restarted after an AureoleError: nothing is left to do
        return
    try:
        result = config["function"](*config["arguments"])
    except AureoleError as error:
        atomic_write(outcome, json.dumps(error_to_dict(error)))
        raise
    if rank() == 0:
        atomic_write(outcome, json.dumps({"result": result}))


@contextmanager
def ray_running(workers: int, address: str | None, *, background: bool = True) -> Iterator[Any]:
    """Ray: the one already initialised in this process, else a cluster at an address, else a temporary local one.

    The workers of a local one yield to other processes of the machine (Ray's default, nice 15), unless they answer
    searches that a client waits for: then ``background`` is False, and they have the priority of this process.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "more than one worker needs Ray: pip install 'aureole[ray]', or use one worker."
        ) from error
    started = not ray.is_initialized()
    if started and address is None:
        with warnings.catch_warnings():  # the fork immediately executes another program
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            try:
                ray.init(
                    address="local",  # not a Ray that already runs on this machine
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _node_ip_address="127.0.0.1",
                    _system_config=None if background else {"worker_niceness": 0},
                )
            except Exception as error:
                if "timed out during startup" not in str(error):
                    raise
                raise AureoleError(
                    "Ray did not start within 30 seconds; this machine may be busy. Run the same command again."
                ) from error
    elif started:
        _check_answer(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0][:300]
            raise AureoleError(f"no Ray cluster responds at {address}: {first}") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def _check_answer(address: str | None) -> None:
    """Raise at once if nothing listens at an address; Ray itself would retry for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # such as "auto", which Ray resolves
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise AureoleError(
            f"no Ray cluster responds at {address}: {error}. Start one with `ray start --head`, or omit the address."
        ) from error


def _single_threaded(function: Callable[[Any], Any], job: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return function(job)


_WORKERS: dict[str, ChunkWorker] = {}  # of this process: the source and model of the current job


def _work(batch: dict[str, Any], *, job: str, order: WorkOrder) -> dict[str, list[str]]:
    """Embed one chunk on a worker; an ``AureoleError`` is returned as JSON."""
    import torch

    torch.set_num_threads(1)
    try:
        if job not in _WORKERS:
            _WORKERS.clear()
            _WORKERS[job] = ChunkWorker(order)
        (text,) = batch["chunk"]
        return {"done": [_WORKERS[job](Chunk(**json.loads(str(text)))).to_json()], "error": [""]}
    except AureoleError as error:
        return {"done": [""], "error": [json.dumps(error_to_dict(error))]}
