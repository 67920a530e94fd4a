"""``aureole quickstart``: a guided run on drawn shapes, from nothing to a page, in about two minutes."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from aureole.cli._options import AsJson
from aureole.cli._progress import TrainingBar, training_bar
from aureole.cli._results import print_json

HELP = """Train an encoder on drawn shapes, see that its certainty is right, and search with it: two minutes, offline.

Needs no data and no GPU. All it makes lies in one folder: a page to look at, the encoder, and a gallery that the other
commands can use. A run that was stopped goes on where it was when the command is given again.

Examples:

    aureole quickstart
    aureole quickstart --out try --seed 3 --json
"""


def quickstart(
    out: Annotated[Path, typer.Option(help="The folder for all that is made.")] = Path(
        "quickstart"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other shapes.")] = 0,
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Train no longer than this; for a first look.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run and print; ``HELP`` is what users read."""
    from aureole.explorer import (
        EXTRAS,
        Quickstart,
        QuickstartSetting,
        missing_packages,
        next_steps,
        run_quickstart,
    )

    missing = missing_packages()
    if missing:
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"quickstart needs {', '.join(missing)}, not installed here: {EXTRAS}", markup=False
        )
        raise typer.Exit(2)
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def watch() -> AbstractContextManager[TrainingBar]:
        return training_bar("training", shown=not as_json and sys.stderr.isatty())

    def say(sentence: str) -> None:
        if not as_json:
            console.print(sentence, markup=False)

    command = "aureole quickstart" + (f" --seed {seed}" if seed else "")
    command += "" if max_batches is None else f" --max-batches {max_batches}"
    done: Quickstart = run_quickstart(
        out,
        seed,
        setting=QuickstartSetting().shortened(max_batches),
        command=command,
        say=say,
        watch=watch,
    )
    if as_json:
        print_json(
            {
                "page": str(done.page),
                "gallery": str(done.gallery),
                "seed": seed,
                **done.record.metrics,
            }
        )
        return
    if done.found:
        say(
            f"{out} holds this quickstart already. To run it again, delete the folder or give another --out."
        )
    _show(console, done.record.metrics)
    say(f"\nLook at {done.page}, and then:")
    for what, line in next_steps(out, done.gallery):
        say(f"\n  # {what}\n  {line}")


def _show(console: Console, metrics: Mapping[str, Any]) -> None:
    sharp, blurred = metrics["searches"]
    lines = [
        f"κ against the known entropy of the labels: rank correlation {-metrics['entropy_rank']:.2f} "
        f"(best possible {-metrics['entropy_rank_best']:.2f})",
        f"Recall@1: {100 * metrics['recall_at_1']:.0f} % of all, {100 * metrics['recall_at_1_sure_half']:.0f} % of the "
        "surer half",
        f"a sharp {metrics['query']}: cap of {sharp['degrees']:.0f}°, {sharp['members']} pictures ({sharp['labels']})",
        f"the same, blurred: cap of {blurred['degrees']:.0f}°, {blurred['members']} pictures ({blurred['labels']})",
    ]
    console.print()
    for line in lines:
        console.print(f"  {line}", markup=False)
