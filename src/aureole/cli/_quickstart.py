"""``aureole quickstart``: a guided run on synthetic shapes that ends with a page, in about two minutes."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from aureole.cli._options import AsJson
from aureole.cli._output import print_json, print_text, training_bar
from aureole.errors import MissingPackageError

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
        raise MissingPackageError(
            f"quickstart needs {', '.join(missing)}, which is not installed: {EXTRAS}"
        )
    started = time.monotonic()

    def say(sentence: str) -> None:
        if not as_json:
            print_text(f"{time.monotonic() - started:5.1f} s  {sentence}")
            sys.stdout.flush()

    command = "aureole quickstart" + (f" --seed {seed}" if seed else "")
    command += "" if max_batches is None else f" --max-batches {max_batches}"
    setting = QuickstartSetting().shortened(max_batches)
    done = run_quickstart(
        out,
        seed,
        setting=setting,
        command=command,
        say=say,
        watch=lambda: training_bar("training", shown=not as_json),
    )
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
