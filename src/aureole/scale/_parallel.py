"""Run a function over many jobs (``sweep``), or on several ranks that work together (``launch``)."""

import json
import logging
import os
import socket
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aureole._io import atomic_write
from aureole.errors import (
    AureoleError,
    InvalidInputError,
    MissingInputError,
    MissingPackageError,
    error_from_dict,
    error_to_dict,
)
from aureole.scale._ray import run_tasks
from aureole.training._distributed import STORE, joined

Job = TypeVar("Job")
Result = TypeVar("Result")
_FAILURE = "failure"


@dataclass(frozen=True)
class Failure:
    """A job that ended with an error.

    Attributes
    ----------
    error
        The message.
    details
        The traceback, empty where the message is enough.
    missing
        Whether a package, file or folder was missing, in which case other jobs may fail in the same way.
    """

    error: str
    details: str
    missing: bool = False


def sweep(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    address: str | None = None,
) -> Iterator[tuple[Job, Result | Failure]]:
    """Yield (job, result or Failure) for each job, as they end.

    With one worker and no address this is a plain loop. Otherwise jobs run as Ray tasks of one CPU and one thread each,
    ``workers`` at a time on this machine, or as many as fit on the cluster at ``address``. A task whose worker dies is
    restarted up to three times, so a function that writes checkpoints resumes from them. Errors that the function
    raises are not retried: they are returned as a ``Failure``, and the other jobs continue.

    Examples
    --------
    >>> list(sweep(lambda x: 10 // x, [1, 5]))
    [(1, 10), (5, 2)]
    """
    if workers < 1:
        raise InvalidInputError(f"workers must be 1 or more, but is {workers}.")
    work = partial(attempt, function)
    if workers == 1 and address is None:
        for job in jobs:
            yield job, work(job)
        return
    for job, result, death in run_tasks(work, jobs, workers=workers, address=address):
        if death is not None:
            result = Failure(f"the worker died too often: {type(death).__name__}", str(death))
        yield job, result


def attempt(function: Callable[[Job], Result], job: Job) -> Result | Failure:
    """The result of a job, or a Failure."""
    try:
        return function(job)
    except (MissingInputError, MissingPackageError) as error:
        return Failure(str(error), "", missing=True)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def launch(
    function: Callable[..., Result], *arguments: Any, ranks: int, restarts: int = 3
) -> Result:
    """Call ``function(*arguments)`` on several ranks, processes of this machine, and return the first rank's result.

    The ranks run under torch.distributed.elastic. When one dies, even by SIGKILL, the others are stopped and all are
    restarted, up to ``restarts`` times; a function that writes checkpoints, as ``training.fit`` does, resumes from the
    last one. An ``AureoleError`` is raised here and not retried.

    The ranks meet through files and communicate over the loopback interface, so no port is open to other machines. The
    function and its arguments must be picklable, as they are sent to new processes. The cores of the machine are
    divided among the ranks unless OMP_NUM_THREADS is set.

    Parameters
    ----------
    function
        Called on every rank, after the ranks have joined one process group.
    arguments
        Arguments of the function.
    ranks
        Number of processes.
    restarts
        How often to restart (default 3).
    """
    if ranks < 1 or restarts < 0:
        raise InvalidInputError(
            f"ranks must be 1 or more and restarts 0 or more, but they are {ranks} and {restarts}."
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="aureole-ranks-") as name, _environment(name, ranks):
        folder = Path(name)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=str(folder / "rendezvous"),
            rdzv_configs={"store_type": "file"},
            local_addr="127.0.0.1",
            max_restarts=restarts,
            monitor_interval=0.2,
            start_method="spawn",
        )
        results: dict[int, Any] = {}
        try:
            with _quiet_after(folder / _FAILURE):
                results = elastic_launch(config, _on_a_rank)(function, arguments, name)
        except ChildFailedError as error:
            first, failure = error.get_first_failure()
            if not (folder / _FAILURE).exists():
                raise AureoleError(
                    f"rank {first} ended with exit code {failure.exitcode} after {restarts} restarts; its output is "
                    "above. Run the same command again to resume from the last checkpoint."
                ) from error
        except SignalException as error:
            raise KeyboardInterrupt from error
        if (folder / _FAILURE).exists():
            raise error_from_dict(json.loads((folder / _FAILURE).read_text()))
        return results[0]


def _on_a_rank(function: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> Any:
    """The result on this rank; an ``AureoleError`` is written to a file for the launching process."""
    failure = Path(name) / _FAILURE
    if failure.exists():  # the group was restarted after the error: nothing is left to do
        return None
    try:
        with joined():
            return function(*arguments)
    except AureoleError as error:
        atomic_write(failure, json.dumps(error_to_dict(error)))  # several ranks may fail at once
        raise SystemExit(1) from error


@contextmanager
def _quiet_after(failure: Path) -> Iterator[None]:
    """Silence torch's log about failed ranks once ``failure`` exists, as that error is raised by ``launch``."""

    def unknown(_: logging.LogRecord) -> bool:
        return not failure.exists()

    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    torch_loggers = [logger for logger in loggers if logger.name.partition(".")[0] == "torch"]
    handlers = list(dict.fromkeys(h for logger in torch_loggers for h in logger.handlers))
    for handler in handlers:
        handler.addFilter(unknown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(unknown)


@contextmanager
def _environment(folder: str, ranks: int) -> Iterator[None]:
    """Set the environment variables that ranks start with, and restore them afterwards."""
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in names if name in ("lo", "lo0")), names[0])
    threads = max(1, (os.cpu_count() or 1) // ranks)
    values = {
        STORE: folder,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # that store would listen on all interfaces
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
    }
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)
