"""``aureole index map``: two coordinates per row, for the map in the explorer."""

from __future__ import annotations

import time
from typing import Annotated

from typer import Option

import aureole as au
from aureole.cli._index import index
from aureole.cli._options import AsJson, Gallery, expanded
from aureole.cli._output import print_json, print_text, training_bar

HELP = r"""Make the map of a gallery that `aureole serve` shows.

The layout (t-SNE) is fitted on a sample; every other row is placed at its nearest neighbours in the sample. The map is
stored next to the gallery, in NAME.map, or in the user's cache for a database. Run the command again after adding rows.

Examples:

    aureole index map photos.lance
    aureole index map photos.lance --sample 100000
"""


@index.command("map", help=HELP)
@expanded
def map_(
    gallery: Gallery,
    sample: Annotated[
        int, Option(min=100, help="Rows that the layout is fitted on, at most.")
    ] = 50_000,
    seed: Annotated[int, Option(help="Seed of the sample and of the layout.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a map; ``HELP`` is the text users see."""
    from aureole.explorer import write_map
    from aureole.explorer._gallery_map import map_path

    started = time.monotonic()
    with (
        au.CredibleIndex.open(gallery) as opened,
        training_bar("mapping", shown=not as_json) as bar,
    ):
        made = write_map(opened, sample=sample, seed=seed, observer=bar.part)
        path = str(map_path(opened.where))
    note = made.note
    if as_json:
        facts = {
            name: getattr(note, name) for name in ("method", "rows", "fitted", "neighbours_kept")
        }
        print_json({"map": path, **facts, "seconds": time.monotonic() - started})
        return
    print_text(
        path,
        f"{note.rows:,} rows by {note.method}, fitted on {note.fitted:,}; "
        f"{100 * note.neighbours_kept:.0f} % of the 10 nearest neighbours are among the 10 nearest on the map.",
    )
