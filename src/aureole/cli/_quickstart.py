"""``aureole quickstart``: a guided run on synthetic shapes that ends with a page, in about two minutes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from aureole.cli._lazy import rich
from aureole.cli._options import AsJson
from aureole.cli._output import print_json, print_text, training_bar

HELP = """Train an encoder on synthetic shapes, check its certainty, and search with it: a few minutes, offline.

Needs no data and no GPU. Writes one folder: a page to look at, the encoder, and a gallery for the other commands. If
the command is interrupted, run it again to resume.

Examples:

    aureole quickstart
    aureole quickstart --out try --seed 3 --json
"""


def quickstart(
    out: Annotated[Path, Option(help="Folder to write to.")] = Path("quickstart"),
    seed: Annotated[int, Option(min=0, help="Random seed of the shapes and the training.")] = 0,
    max_batches: Annotated[
        int | None, Option(min=1, help="Maximum number of training steps, for a first look.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run and print; ``HELP`` is the text users see."""
    from aureole.explorer._quickstart import (
        EXTRAS,
        QuickstartSetting,
        missing_packages,
        next_steps,
        run_quickstart,
    )

    missing = missing_packages()
    if missing:
        rich.console.Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"quickstart needs {', '.join(missing)}, which is not installed: {EXTRAS}", markup=False
        )
        raise typer.Exit(2)
    steps = _Steps(quiet=as_json)
    command = "aureole quickstart" + (f" --seed {seed}" if seed else "")
    command += "" if max_batches is None else f" --max-batches {max_batches}"
    setting = QuickstartSetting().shortened(max_batches)
    done = run_quickstart(
        out, seed, setting=setting, command=command, say=steps.start, watch=steps.training
    )
    steps.end()
    if as_json:
        places = {"page": str(done.page), "gallery": str(done.gallery), "seed": seed}
        print_json(places | done.record.metrics)
        return
    if done.found:
        again = "To run it again, delete the folder or choose another --out."
        print_text(f"{out} already holds this quickstart. {again}")
    _show(done.record.metrics)
    print_text("", f"Open {done.page}, then try:")
    for what, line in next_steps(out, done.gallery):
        print_text("", f"  # {what}", f"  {line}", wrap=False)


class _Steps:
    """Prints each step and the seconds it took, and the progress of the training."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started: float | None = None

    def start(self, sentence: str) -> None:
        """End the previous step, and print what the next one does."""
        self.end()
        self._started = time.monotonic()
        if not self._quiet:
            print_text(sentence)
            sys.stdout.flush()

    def end(self) -> None:
        """Print the seconds of the step, if there is one."""
        if self._started is not None and not self._quiet:
            print_text(f"  done in {time.monotonic() - self._started:.1f} s")
            sys.stdout.flush()
        self._started = None

    @contextmanager
    def training(self) -> Iterator[Callable[..., None]]:
        """An observer of the training: a bar in a terminal, otherwise a line at every tenth of the steps."""
        if self._quiet or sys.stderr.isatty():
            with training_bar("training", shown=not self._quiet) as bar:
                yield bar
            return
        started, last = time.monotonic(), 0

        def observe(step: int, total: int, *_: Any) -> None:
            nonlocal last
            if 10 * step // total > last:
                last = 10 * step // total
                print_text(f"  {10 * last} %, {time.monotonic() - started:.0f} s")
                sys.stdout.flush()

        yield observe


def _show(metrics: Mapping[str, Any]) -> None:
    sharp, blurred = metrics["searches"]
    lines = [
        f"κ and the true entropy of the labels: rank correlation {-metrics['entropy_rank']:.2f} "
        f"(best possible {-metrics['entropy_rank_best']:.2f})",
        f"Recall@1: {100 * metrics['recall_at_1']:.0f} % of all, {100 * metrics['recall_at_1_sure_half']:.0f} % of the "
        "more certain half",
    ]
    for name, one in ((f"a sharp {metrics['query']}", sharp), ("the same, blurred", blurred)):
        pictures = f"{one['members']} pictures ({one['labels']})"
        lines.append(f"{name}: a cap of {one['degrees']:.0f}°, {pictures}")
    print_text("", *(f"  {line}" for line in lines))
