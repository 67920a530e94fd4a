"""Sweep: the same function over many jobs, one after the other here or many at once over Ray."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError

Job = TypeVar("Job")


@dataclass(frozen=True)
class Failure:
    """A job that ended in an error."""

    error: str
    details: str
    missing: bool = False  # a package, file or folder was: the other jobs may well lack the same


def sweep(
    function: Callable[[Job], Any],
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    address: str | None = None,
) -> Iterator[tuple[Job, Any]]:
    """(Job, result or Failure) of each job, as they end.

    With one worker and no address it is a plain loop and needs no engine. Otherwise jobs run as Ray tasks of one CPU
    and one thread each, ``workers`` at a time on this machine or as many as fit the cluster at ``address``; a task
    whose worker dies is started again up to three times, so a function that keeps checkpoints goes on where it was.
    Errors of a function itself are not tried again: they come back as a ``Failure`` and the other jobs go on.

    Examples
    --------
    >>> list(sweep(lambda x: 10 // x, [1, 5]))
    [(1, 10), (5, 2)]
    """
    if workers < 1:
        raise InvalidInputError(f"workers must be 1 or more, but is {workers}.")
    if workers == 1 and address is None:
        for job in jobs:
            yield job, attempt(function, job)
        return
    from aureole.scale._ray import run_tasks

    yield from run_tasks(function, jobs, workers=workers, address=address)


def attempt(function: Callable[[Any], Any], job: Any) -> Any:
    """The result of a job, or a Failure."""
    try:
        return function(job)
    except Exception as error:
        if isinstance(error, MissingInputError | MissingPackageError):
            return Failure(str(error), "", missing=True)
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
