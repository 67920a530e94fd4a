"""What commands print: one JSON object, tables, and progress bars on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer

import aureole as au
from aureole.cli._lazy import np, rich

if TYPE_CHECKING:
    from aureole.evaluation._diagnosis import Diagnosis
    from aureole.training import Phase


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


def print_text(*lines: str, wrap: bool = True) -> None:
    """Print lines to stdout as plain text, without markup.

    In a terminal, lines are wrapped between words, and long words such as paths are not broken. Piped lines, and those
    printed with ``wrap=False`` (commands to copy), are not wrapped.
    """
    console = rich.console.Console(highlight=False)
    for line in lines:
        if wrap and console.is_terminal:
            line = wrapped(line, console.width)
        console.print(line, markup=False, soft_wrap=True)


def wrapped(line: str, width: int) -> str:
    """A line broken between words, with the indentation of its start; a longer word is left whole."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def print_table(rows: rich.table.Table) -> None:
    """Print a table to stdout, as wide as the terminal; a piped one is as wide as its content.

    No cell is cut, and no word broken: cells are wrapped between words, and only those of the first column, which are
    ids or names, after 40 characters. Where that does not fit, each row becomes a few lines.
    """
    console = rich.console.Console(highlight=False)
    free = console.options.update(max_width=10_000)
    least, natural = [], []
    for number, column in enumerate(rows.columns):
        sizes = [console.measure(cell, options=free) for cell in (column.header, *column.cells)]
        natural.append(max(size.maximum for size in sizes))
        least.append(max(size.minimum for size in sizes) if number else min(40, natural[0]))
    borders = 3 * len(natural) + 1
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = max(console.width, sum(natural) + borders)
    if sum(least) + borders > console.width:
        _print_records(rows)
        return
    widths = natural
    while sum(widths) + borders > console.width:  # narrow the column with the most slack
        slack = [width - low for width, low in zip(widths, least, strict=True)]
        widths[slack.index(max(slack))] -= 1
    for column, width in zip(rows.columns, widths, strict=True):
        column.width, column.overflow = width, "fold"
    console.print(rows)


def _print_records(rows: rich.table.Table) -> None:
    """Print a table as lines: the first cell of a row, then the other ones with the names of their columns."""

    def text(cell: Any) -> str:
        return rich.text.Text.from_markup(cell).plain if isinstance(cell, str) else cell.plain

    print_text(*([text(rows.title)] if rows.title else []))
    names = [text(column.header) for column in rows.columns]
    for row in zip(*(map(text, column.cells) for column in rows.columns), strict=True):
        pairs = (f"{name} {cell}" for name, cell in zip(names[1:], row[1:], strict=True) if cell)
        print_text(row[0], f"  {', '.join(pairs)}")


def table(title: str, *header: str) -> rich.table.Table:
    """An empty table under a title, wide enough for it."""
    columns = (rich.table.Column(_plain(name)) for name in header)
    shown = _plain(title, style="table.title")
    return rich.table.Table(*columns, title=shown, title_justify="left", min_width=len(shown))


def add_row(rows: rich.table.Table, *cells: object) -> None:
    """Add a row of plain text, such as ids and labels: brackets are not markup, control characters are escaped."""
    rows.add_row(*map(_plain, cells))


def _plain(value: object, style: str = "") -> rich.text.Text:
    return rich.text.Text(printable(str(value)), style)


def printable(text: str) -> str:
    """The text with escaped control characters: terminal escapes, line breaks, changes of direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def coverage_table(coverage: Mapping[float, float]) -> rich.table.Table:
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
def _bar(*columns: str, left: bool = True, shown: bool) -> Iterator[rich.progress.Progress]:
    """A progress bar on stderr, as wide as the terminal: a title, the bar, columns as formats, and the time left."""
    progress = rich.progress
    layout: list[Any] = ["{task.description}", progress.BarColumn(bar_width=None), *columns]
    if left:
        layout.append(progress.TimeRemainingColumn(compact=True))
    console = rich.console.Console(stderr=True)
    with progress.Progress(*layout, console=console, disable=not shown, expand=True) as bar:
        yield bar


_STATE, _PERCENT, _COUNT = (
    "{task.fields[state]}",
    "{task.percentage:>3.0f}%",
    "{task.completed:.0f}/{task.total:.0f}",
)


@contextmanager
def training_bar(title: str, *, shown: bool = True) -> Iterator[TrainingBar]:
    """An observer of ``fit`` that shows phase, loss, length of the mean mu, and the middle 90 % of kappa."""
    with _bar(_PERCENT, _STATE, shown=shown) as bar:
        yield TrainingBar(bar, bar.add_task(title, total=None, state="starting"))


class TrainingBar:
    """The observer that ``training_bar`` yields; ``part`` shows work before or after the fit."""

    def __init__(self, bar: rich.progress.Progress, task: Any) -> None:
        self._bar, self._task = bar, task

    def __call__(
        self,
        step: int,
        total: int,
        phase: Phase,
        loss: float,
        state: Diagnosis,
    ) -> None:
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
    with _bar(_STATE, shown=shown) as bar:
        task = bar.add_task(title, total=total, state="0 rows")
        yield lambda done: bar.update(task, completed=done, state=f"{done:,} rows")


@contextmanager
def embed_bar(title: str, *, shown: bool = True) -> Iterator[Callable[[au.scale.Progress], None]]:
    """A bar for bulk embedding: rows, rows per second, errors, and the time left."""
    with _bar(_PERCENT, _STATE, left=False, shown=shown) as bar:
        task = bar.add_task(title, total=None, state="starting")

        def observe(now: au.scale.Progress) -> None:
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
    with _bar(_COUNT, shown=shown) as bar:
        task = bar.add_task(title, total=total)

        def advance(message: str) -> None:
            bar.console.print(message, highlight=False)
            bar.advance(task)

        yield advance
