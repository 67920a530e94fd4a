"""``aureole index info`` and ``check``: commands for galleries that exist."""

from __future__ import annotations

import time
from typing import Any

import typer

import aureole as au
from aureole.cli._gallery_facts import gallery_facts, show_facts
from aureole.cli._index import index
from aureole.cli._options import AsJson, Gallery
from aureole.cli._output import print_json, print_text, rows_bar
from aureole.engines._addresses import shown_address
from aureole.errors import DamagedGalleryError

INFO = """Print facts about a gallery: rows, dimension, typical kappa, engine, columns, approximate index, calibration.

The gallery is only read.

Examples:

    aureole index info gallery.lance
    aureole index info postgresql://me@localhost/shop#gallery --json
"""
CHECK = """Verify everything that a gallery stores, and print one line for each problem.

Checks every row (distinct ids, mu of length 1, kappa of at least 0, payload types), the metric and the size of the
approximate index, and the notes. The gallery is only read. Status 1 if there are
problems.

Examples:

    aureole index check gallery.lance
    aureole index check gallery.faiss --json
"""


@index.command("info", help=INFO)
def info(gallery: Gallery, as_json: AsJson = False) -> None:
    """Print facts about a gallery; ``INFO`` is the text users see."""
    with au.CredibleIndex.open(gallery) as opened:
        show_facts(gallery_facts(opened, gallery), as_json=as_json)


@index.command("check", help=CHECK)
def check(gallery: Gallery, as_json: AsJson = False) -> None:
    """Check a gallery; ``CHECK`` is the text users see."""
    started = time.monotonic()
    facts: dict[str, Any] = {
        "gallery": shown_address(gallery),
        "engine": None,
        "rows": None,
    }
    try:
        with au.CredibleIndex.open(gallery) as opened:
            facts |= {"engine": opened.engine, "rows": opened.count()}
            shown = not as_json
            with rows_bar("checking", opened.count(), shown=shown) as observer:
                problems = opened.check(observer=observer)
    except DamagedGalleryError as error:  # so damaged that it does not open
        problems = [str(error)]
    if as_json:
        print_json(facts | {"problems": problems, "seconds": time.monotonic() - started})
    elif problems:
        print_text(*problems)
    else:
        print_text(f"{facts['rows']:,} rows in {facts['gallery']} ({facts['engine']}): no problems")
    if problems:
        raise typer.Exit(1)
