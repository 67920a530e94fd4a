"""``aureole report``: one page of HTML from a gallery or a folder of records."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._output import rows_bar
from aureole.engines._addresses import is_local, shown_address
from aureole.errors import MissingPackageError

HELP = r"""Write one self-contained HTML page about a gallery or a folder of records.

For a gallery: the explorer as a static page, with the least and most certain items of each class, their neighbourhoods,
and the rejection curve. For a folder of records, all of one experiment: its tables and figures.

For a page about a table and a head, use `aureole score --report`.

Examples:

    aureole report gallery.lance --pictures pictures --out gallery.html
    aureole report gallery.lance --calibrator calibrator --out gallery.html
    aureole report results/sweep --out sweep.html
"""


def report(
    what: Annotated[
        str,
        Argument(
            help="Address of a gallery, or folder of records written by reproduce.",
            metavar="ADDRESS|FOLDER",
        ),
    ],
    pictures: Annotated[
        Path | None, Option(help="Folder of the gallery's pictures, named after the ids.")
    ] = None,
    label_column: Annotated[
        str | None, Option(help="Label column of the gallery (default: label).")
    ] = None,
    text_column: Annotated[
        str | None, Option(help="Text column of the gallery (default: text).")
    ] = None,
    calibrator: Annotated[
        Path | None,
        Option(help="Calibrator of the gallery: show match probabilities instead of cosines."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Page to write (default: report.html in the folder, or NAME.html)."),
    ] = None,
) -> None:
    """Write a page; ``HELP`` is the text users see."""
    given = {"pictures": pictures, "label_column": label_column, "text_column": text_column}
    given = {k: v for k, v in (given | {"calibrator": calibrator}).items() if v is not None}
    if not is_local(what) or what.removesuffix("/").endswith((".lance", ".faiss")):
        typer.echo(_explorer(what, out, given))
        return
    if given:
        flag = next(iter(given)).replace("_", "-")
        raise typer.BadParameter(
            f"--{flag} is for a gallery, but {what} is not the address of one: it must end in .lance or .faiss, or "
            "start with postgresql://."
        )
    # aureole-paper registers the function that writes this page
    entry = next(iter(entry_points(group="aureole.reports")), None)
    if entry is None:
        raise MissingPackageError(
            "pages about the paper's records need aureole-paper: run `pip install ./paper` in the aureole repository."
        )
    typer.echo(entry.load()(Path(what), out or Path(what) / "report.html"))


def _explorer(address: str, out: Path | None, given: dict[str, Any]) -> Path:
    """Write the explorer of a gallery as a page."""
    from aureole.explorer._explorer import choose_columns

    if out is None and not is_local(address):
        raise typer.BadParameter("the gallery is not local: choose the page to write with --out.")
    out = out or Path(address).with_suffix(".html")
    if "calibrator" in given:
        given["calibrator"] = au.MatchCalibrator.load(given["calibrator"])
    with au.CredibleIndex.open(address) as index:
        names = (given.get("label_column"), given.get("text_column"))
        label, text = choose_columns(index.schema.columns, *names)
        given |= {"label_column": label, "text_column": text}
        with rows_bar("exploring", shown=sys.stderr.isatty()) as bar:
            data = au.explorer.explorer_data(index, progress=lambda done, _: bar(done), **given)
    return au.explorer.write_explorer(data, out, Path(shown_address(address)).stem)
