"""Launch: a function on several ranks of this machine, started again as a group when one of them dies."""

import json
import logging
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aureole.errors import AureoleError, InvalidInputError, tell_error, told_error
from aureole.training import STORE, joined

_FAILURE = "failure"


def launch(function: Callable[..., Any], *arguments: Any, ranks: int, restarts: int = 3) -> Any:
    """What ``function(*arguments)`` returns on the first of several ranks, processes of this machine.

    They are run by torch.distributed.elastic. When one dies, even by SIGKILL, the others are stopped and all are
    started again, up to ``restarts`` times: a function that keeps checkpoints, as ``training.fit`` does, goes on from
    the last. An ``AureoleError`` is raised here, and not tried again.

    The ranks meet in files and talk over the loopback interface: no port is open to other machines. The function and
    its arguments must be importable, as they go to new processes. A processor's cores are shared out among the ranks
    unless OMP_NUM_THREADS says otherwise.

    Parameters
    ----------
    function
        Called on every rank, which have joined as ``training.ranks.joined`` says.
    arguments
        Of the function.
    ranks
        How many.
    restarts
        How often to start again.
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
                    f"rank {first} ended with exit code {failure.exitcode} after {restarts} restarts. What it said is "
                    "above; the same command goes on from the last checkpoint."
                ) from error
        except SignalException as error:
            raise KeyboardInterrupt from error
        if (folder / _FAILURE).exists():
            raise told_error(json.loads((folder / _FAILURE).read_text()))
        return results[0]


def _on_a_rank(function: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> Any:
    """The result on this rank; an error of ours is left in a file for the process that launched it."""
    failure = Path(name) / _FAILURE
    if failure.exists():  # the group was started again after it: nothing is left to do
        return None
    try:
        with joined():
            return function(*arguments)
    except AureoleError as error:
        part = failure.with_name(f"{_FAILURE}-{os.getpid()}")  # several ranks may fail at once
        part.write_text(json.dumps(tell_error(error)))
        part.replace(failure)
        raise SystemExit(1) from error


@contextmanager
def _quiet_after(failure: Path) -> Iterator[None]:
    """A context in which torch does not tell of ranks that ended with an error of ours: it is raised, and says it."""

    def unknown(_: logging.LogRecord) -> bool:
        return not failure.exists()

    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    own = [logger for logger in loggers if logger.name.partition(".")[0] == "torch"]
    handlers = list(dict.fromkeys(handler for logger in own for handler in logger.handlers))
    for handler in handlers:
        handler.addFilter(unknown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(unknown)


class _environment:  # noqa: N801
    """A context with the environment that ranks start with; afterwards it is as it was."""

    def __init__(self, folder: str, ranks: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // ranks)
        self._values = {
            STORE: folder,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # which would listen on all interfaces
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _loopback()),
        }

    def __enter__(self) -> None:
        self._kept = {name: os.environ.get(name) for name in self._values}
        os.environ.update(self._values)

    def __exit__(self, *_: Any) -> None:
        for name, value in self._kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _loopback() -> str:
    """The name of the interface that leads nowhere else."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), names[0])
