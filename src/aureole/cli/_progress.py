"""Progress bars for training and for sweeps, on stderr, readable in 80 columns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as Bar,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from aureole.scale import Progress
from aureole.training import Diagnosis, Phase


@contextmanager
def training_bar(title: str, *, shown: bool = True) -> Iterator["TrainingBar"]:
    """An observer of a fit: phase, loss, length of the mean of mu, and the middle 90 % of kappa.

    What comes before or after the fit (features, other methods) is told to its ``part``.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, disable=not shown, expand=True) as bar:
        yield TrainingBar(bar, bar.add_task(title, total=None, state="starting"))


class TrainingBar:
    """What ``training_bar`` gives."""

    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, step: int, total: int, phase: Phase, loss: float, state: Diagnosis) -> None:
        """Show a step of the fit."""
        kappa = f"{state.kappa_low:.3g}-{state.kappa_high:.3g}"
        text = f"{phase.part:<5} loss {loss:.3f} |mu| {state.mean_length:.2f} kappa {kappa}"
        self._bar.update(self._task, completed=step, total=total, state=text)

    def part(self, name: str, done: int, total: int) -> None:
        """Show how far something else is."""
        self._bar.update(
            self._task, completed=done, total=total, state=f"{name} {done:,}/{total:,}"
        )


@contextmanager
def rows_bar(
    title: str, total: int | None = None, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar that is told how many rows are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[rows]} rows"),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=Console(stderr=True), disable=not shown, expand=True) as bar:
        task = bar.add_task(title, total=total, rows="0")
        yield lambda done: bar.update(task, completed=done, rows=f"{done:,}")


@contextmanager
def embed_bar(title: str, *, shown: bool = True) -> Iterator[Callable[[Progress], None]]:
    """A bar that is told how far a bulk embedding is: rows, rows a second, errors, and the time that is left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[state]}"),
    )
    with Bar(*columns, console=Console(stderr=True), disable=not shown, expand=True) as bar:
        task = bar.add_task(title, total=None, state="starting")

        def observe(now: Progress) -> None:
            done = now.before + now.done
            state = f"{done:,} rows, {now.rate:,.0f}/s, {now.faults:,} errors"
            if now.total is not None and now.rate > 0:
                left = max(0, now.total - done) / now.rate
                state += f", {timedelta(seconds=round(left))} left"
            bar.update(task, completed=done, total=now.total, state=state)

        yield observe


@contextmanager
def sweep_bar(title: str, total: int, *, shown: bool = True) -> Iterator["_Counter"]:
    """A bar that counts runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=Console(stderr=True), disable=not shown, expand=True) as bar:
        yield _Counter(bar, bar.add_task(title, total=total))


class _Counter:
    def __init__(self, bar: Bar, task: object) -> None:
        self._bar, self._task = bar, task

    def advance(self, message: str) -> None:
        """Count one more run and say which."""
        self._bar.console.print(message, highlight=False)
        self._bar.advance(self._task)  # type: ignore[arg-type]
