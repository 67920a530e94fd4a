"""What commands print: one JSON object, tables, and progress bars on stderr."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as Bar,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from aureole.scale import Progress
from aureole.training import Diagnosis, Phase


def print_json(results: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; numbers that are not finite become null."""
    typer.echo(json.dumps(finite(dict(results)), allow_nan=False))


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, as JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list) else value


def print_text(*lines: str) -> None:
    """Print lines to stdout as plain text: no markup, no wrapping."""
    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)


def table(title: str, *header: str) -> Table:
    """An empty table under a title, wide enough for it."""
    return Table(*header, title=title, title_justify="left", min_width=len(title))


def coverage_table(coverage: Mapping[float, float]) -> Table:
    """Nominal and measured coverage of predictive caps."""
    rows = table("how often caps contain a positive", "nominal", "measured")
    for mass, share in coverage.items():
        rows.add_row(f"{100 * mass:g} %", f"{100 * share:.1f} %")
    return rows


def kappa_quantiles(kappa: np.ndarray) -> tuple[float, float, float]:
    """The 5 %, 50 % and 95 % quantiles of kappa."""
    low, median, high = np.quantile(kappa.astype(np.float64), (0.05, 0.5, 0.95))
    return float(low), float(median), float(high)


def about_kappa(low: float, median: float, high: float) -> str:
    """The quantiles of kappa in words."""
    return f"κ: median {median:.4g}, 90 % within {low:.4g} to {high:.4g}"


def is_quiet(*, as_json: bool) -> bool:
    """Whether to hide progress bars: with --json, and where stderr is not a terminal."""
    return as_json or not sys.stderr.isatty()


@contextmanager
def _bar(*columns: ProgressColumn, shown: bool) -> Iterator[Bar]:
    """A progress bar on stderr, as wide as the terminal."""
    description, *state = columns
    layout = (description, BarColumn(bar_width=None), *state)
    with Bar(*layout, console=Console(stderr=True), disable=not shown, expand=True) as bar:
        yield bar


_TITLE, _STATE = TextColumn("{task.description}"), TextColumn("{task.fields[state]}")
_PERCENT = TextColumn("{task.percentage:>3.0f}%")


@contextmanager
def training_bar(title: str, *, shown: bool = True) -> Iterator["TrainingBar"]:
    """An observer of ``fit`` that shows phase, loss, length of the mean mu, and the middle 90 % of kappa."""
    left = TimeRemainingColumn(compact=True)
    with _bar(_TITLE, _PERCENT, _STATE, left, shown=shown) as bar:
        yield TrainingBar(bar, bar.add_task(title, total=None, state="starting"))


class TrainingBar:
    """The observer that ``training_bar`` yields; ``part`` shows work before or after the fit."""

    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, step: int, total: int, phase: Phase, loss: float, state: Diagnosis) -> None:
        """Show a training step."""
        kappa = f"{state.kappa_low:.3g}-{state.kappa_high:.3g}"
        text = f"{phase.part:<5} loss {loss:.3f} |mu| {state.mean_length:.2f} kappa {kappa}"
        self._bar.update(self._task, completed=step, total=total, state=text)

    def part(self, name: str, done: int, total: int) -> None:
        """Show the progress of other work, such as computing features."""
        text = f"{name} {done:,}/{total:,}"
        self._bar.update(self._task, completed=done, total=total, state=text)


@contextmanager
def rows_bar(
    title: str, total: int | None = None, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar to be called with the number of rows done."""
    with _bar(_TITLE, _STATE, TimeRemainingColumn(compact=True), shown=shown) as bar:
        task = bar.add_task(title, total=total, state="0 rows")
        yield lambda done: bar.update(task, completed=done, state=f"{done:,} rows")


@contextmanager
def embed_bar(title: str, *, shown: bool = True) -> Iterator[Callable[[Progress], None]]:
    """A bar for bulk embedding: rows, rows per second, errors, and the time left."""
    with _bar(_TITLE, _PERCENT, _STATE, shown=shown) as bar:
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
def sweep_bar(title: str, total: int, *, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """A bar that counts runs, to be called with a message after each."""
    with _bar(_TITLE, MofNCompleteColumn(), TimeRemainingColumn(compact=True), shown=shown) as bar:
        task = bar.add_task(title, total=total)

        def advance(message: str) -> None:
            bar.console.print(message, highlight=False)
            bar.advance(task)

        yield advance
