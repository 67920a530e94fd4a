"""What commands print: one JSON object, tables that fit the terminal, and progress on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from aureole.cli._lazy import np, rich

if TYPE_CHECKING:
    from aureole.evaluation._diagnosis import Diagnosis
    from aureole.training import Phase

_LOG_SECONDS = 10  # between two lines of progress where stderr is no terminal


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
        if wrap and (console.is_terminal or "COLUMNS" in os.environ):
            line = wrapped(line, console.width)
        console.print(line, markup=False, soft_wrap=True)


def wrapped(line: str, width: int) -> str:
    """Return a line broken between words, with the indentation of its start; longer words stay whole."""
    indent = line[: len(line) - len(line.lstrip())]
    plain: dict[str, Any] = dict.fromkeys(("break_long_words", "break_on_hyphens"), False)
    return textwrap.fill(line, width, subsequent_indent=indent, replace_whitespace=False, **plain)


def print_table(rows: rich.table.Table) -> None:
    """Print a table to stdout, as wide as the terminal; a piped one is as wide as its content.

    No cell is cut, and no word broken where that fits: only the first column, of ids or names, is broken after 40
    characters.
    """
    console = rich.console.Console(highlight=False)
    free = console.options.update(max_width=10_000)
    least, widths = [], []
    for number, column in enumerate(rows.columns):
        sizes = [console.measure(cell, options=free) for cell in (column.header, *column.cells)]
        widths.append(max(size.maximum for size in sizes))
        least.append(max(size.minimum for size in sizes) if number else min(40, widths[0]))
    borders = 3 * len(widths) + 1
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = max(console.width, sum(widths) + borders)
    while sum(widths) + borders > console.width and max(widths) > 1:
        slack = [width - low for width, low in zip(widths, least, strict=True)]
        room = slack if max(slack) > 0 else widths  # narrow the column with the most slack
        widths[room.index(max(room))] -= 1
    for column, width in zip(rows.columns, widths, strict=True):
        column.width, column.overflow = width, "fold"
    console.print(rows)


def table(title: str, *header: str) -> rich.table.Table:
    """Return an empty table under a title, wide enough for it."""
    columns = (rich.table.Column(_plain(name)) for name in header)
    shown = _plain(title, style="table.title")
    return rich.table.Table(*columns, title=shown, title_justify="left", min_width=len(shown))


def add_row(rows: rich.table.Table, *cells: object) -> None:
    """Add a row of plain text, such as ids and labels: brackets are not markup, control characters are escaped."""
    rows.add_row(*map(_plain, cells))


def _plain(value: object, style: str = "") -> rich.text.Text:
    return rich.text.Text(printable(str(value)), style)


def printable(text: str) -> str:
    """Return the text with escaped control characters: terminal escapes, line breaks, changes of direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def coverage_table(coverage: Mapping[float, float]) -> rich.table.Table:
    """Return a table of the nominal and the measured coverage of predictive caps."""
    rows = table("how often caps contain a positive", "nominal", "measured")
    for mass, share in coverage.items():
        rows.add_row(f"{100 * mass:g} %", f"{100 * share:.1f} %")
    return rows


def kappa_quantiles(kappa: np.ndarray) -> tuple[float, float, float]:
    """Return the 5 %, 50 % and 95 % quantiles of kappa."""
    low, median, high = np.quantile(kappa.astype(np.float64), (0.05, 0.5, 0.95))
    return float(low), float(median), float(high)


def about_kappa(low: float, median: float, high: float) -> str:
    """Return the quantiles of kappa in words."""
    return f"κ: median {median:.4g}, 90 % within {low:.4g} to {high:.4g}"


@contextmanager
def progress(title: str, total: int | None = None, *, shown: bool) -> Iterator[Callable[..., None]]:
    """Yield a function of (done, total, state) that shows a bar in a terminal, and otherwise logs now and then."""
    if not shown:
        yield lambda *_: None
    elif not sys.stderr.isatty():
        yield _Log(title)
    else:
        bar = rich.progress.BarColumn(bar_width=None)
        left = rich.progress.TimeRemainingColumn(compact=True)
        layout = ("{task.description}", bar, "{task.fields[state]}", left)
        console = rich.console.Console(stderr=True)
        with rich.progress.Progress(*layout, console=console, expand=True) as shown_bar:
            task = shown_bar.add_task(title, total=total, state="")
            yield lambda done, total, state: shown_bar.update(
                task, completed=done, total=total, state=state
            )


class _Log:
    """Progress in a log: a line on stderr every ten seconds, and so none for quick work."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, time.monotonic()

    def __call__(self, done: int, total: int | None, state: str) -> None:
        if time.monotonic() - self._last < _LOG_SECONDS:
            return
        self._last = time.monotonic()
        share = f"{100 * done / total:.0f} %, " if total else ""
        print(f"{self._title}: {share}{state}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def training_bar(title: str, *, shown: bool = True) -> Iterator[TrainingBar]:
    """Yield an observer of ``fit`` that shows phase, loss, length of the mean mu, and the middle 90 % of kappa."""
    with progress(title, shown=shown) as show:
        yield TrainingBar(show)


class TrainingBar:
    """The observer that ``training_bar`` yields; ``part`` shows work before or after the fit."""

    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show

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
        self._show(step, total, text)

    def part(self, name: str, done: int, total: int) -> None:
        """Show the progress of other work, such as computing features."""
        self._show(done, total, f"{name} {done:,}/{total:,}")


@contextmanager
def rows_bar(
    title: str, total: int | None = None, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Yield a function of the number of rows done."""
    with progress(title, total, shown=shown) as show:
        yield lambda done: show(done, total, f"{done:,} rows")
