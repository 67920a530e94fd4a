"""The same work with Ray Data: pieces of the source are embedded by tasks, on this machine or on a cluster."""

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from secrets import token_hex
from typing import Any

from aureole.embed._embedder import ModelSpec
from aureole.embed._worker import Order, Piece, Source, Worker
from aureole.errors import AureoleError, InvalidInputError, MissingPackageError

_STORE_BYTES = 200 * 2**20  # shared memory of a local Ray
_BLOCK_BYTES = 2**20  # rows are passed on, and committed, when a task has this many bytes
_SLICES = 4  # per worker, of each file of a table
_ONE_THREAD = {"env_vars": {"OMP_NUM_THREADS": "1"}}


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


def run_ray(order: Order, source: Source, *, workers: int, address: str | None) -> Iterator[Any]:
    """Yield the rows of all pieces; Ray repeats those whose worker or node dies.

    Pieces run as tasks, not actors: tasks of a node that dies move to any other node. A worker process keeps the model
    between its tasks.
    """
    items = [asdict(piece) for piece in source.pieces(_SLICES * workers)]
    if not items:
        return
    with ray_running(workers, address) as ray:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = _BLOCK_BYTES
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            rows = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                partial(_embed_piece, job=token_hex(8), order=ray.put(order)),
                batch_size=1,
                compute=ray.data.TaskPoolStrategy(workers),
                num_cpus=1,
                runtime_env=_ONE_THREAD,
            )
            yield from rows.iter_batches(batch_size=None, batch_format="pyarrow")
        except ray.exceptions.RayError as error:
            raise _cause(error) from error


_WORKERS: dict[str, Worker] = {}  # of this process: the source and model of the current job


def _embed_piece(batch: dict[str, Any], *, job: str, order: Any) -> Iterator[Any]:
    """Yield the rows of one piece, on a worker of Ray."""
    import ray
    import torch

    if job not in _WORKERS:
        torch.set_num_threads(1)
        _WORKERS.clear()
        _WORKERS[job] = Worker(ray.get(order))
    (name,), (first,), (count,) = (batch[key] for key in ("name", "first", "count"))
    yield from _WORKERS[job].run([Piece(str(name), int(first), int(count))])


def _cause(error: BaseException) -> AureoleError:
    """Return the error of ours that ended a task, or one that says why Ray gave up."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, AureoleError):
        found = getattr(found, "cause", None) or found.__cause__
    if found is not None:
        return found
    last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return AureoleError(
        f"a worker failed permanently: {last[:300]} Run the same command again to resume."
    )


@contextmanager
def ray_running(workers: int, address: str | None) -> Iterator[Any]:
    """Yield Ray: the one already started in this process, a cluster at an address, or a temporary local one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    import ray.data
    import ray.exceptions

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": workers, "object_store_memory": _STORE_BYTES}
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    elif not ray.is_initialized():
        _check_answer(address)
    started = not ray.is_initialized()
    if started:
        with warnings.catch_warnings():  # the fork immediately executes another program
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            try:
                ray.init(address=address or "local", **options)
            except Exception as error:
                first = (str(error).strip().splitlines() or [""])[0][:300]
                raise AureoleError(f"Ray did not start: {first}") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def _check_answer(address: str) -> None:
    """Raise at once if nothing listens at an address; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # such as "auto", which Ray resolves
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise AureoleError(
            f"no Ray cluster responds at {address}: {error}. Start one with `ray start --head`, or omit the address."
        ) from error
