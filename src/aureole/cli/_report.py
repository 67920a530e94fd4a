"""``aureole report``: one page of HTML from a folder of records, or from a gallery."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from aureole.errors import MissingPackageError
from aureole.retrieval import is_local, shown_address

HELP = """Write one self-contained HTML page about a folder of records, or about a gallery.

For a folder of records, all of one experiment: its tables and figures. For a gallery: the explorer as a static page,
with the least and most certain items of each class, their neighbourhoods, and the rejection curve.

Examples:

    aureole report paper/results/controlled
    aureole report paper/results/cifar10h --out cifar10h.html
    aureole report gallery.lance --pictures pictures --out gallery.html
"""


def report(
    what: Annotated[
        str,
        Argument(
            help="Folder of records written by reproduce, or address of a gallery.",
            metavar="FOLDER|ADDRESS",
        ),
    ],
    out: Annotated[
        Path | None,
        Option(help="Page to write (default: report.html in the folder, or next to the gallery)."),
    ] = None,
    pictures: Annotated[
        Path | None, Option(help="Gallery: folder of its pictures, named after the ids.")
    ] = None,
    label_column: Annotated[
        str | None, Option(help="Gallery: label column (default: label).")
    ] = None,
    text_column: Annotated[str | None, Option(help="Gallery: text column (default: text).")] = None,
    items: Annotated[
        int | None, Option(min=2, max=2000, help="Gallery: number of items to show (default: 240).")
    ] = None,
) -> None:
    """Write a page; ``HELP`` is the text users see."""
    options = {"pictures": pictures, "label_column": label_column, "text_column": text_column}
    options["items"] = items
    given = {name: value for name, value in options.items() if value is not None}
    if not is_local(what) or what.removesuffix("/").endswith((".lance", ".faiss")):
        typer.echo(_explorer(what, out, given))
        return
    if given:
        raise typer.BadParameter(
            f"--{next(iter(given)).replace('_', '-')} is for a gallery, but {what} is not the address of one: it must "
            "end in .lance or .faiss, or start with postgresql://."
        )
    # aureole-paper registers the function that writes this page
    entry = next(iter(entry_points(group="aureole.reports")), None)
    if entry is None:
        raise MissingPackageError(
            "pages about the paper's records need aureole-paper: run `pip install ./paper` in the aureole repository."
        )
    typer.echo(entry.load()(Path(what), out or Path(what) / "report.html"))


def _explorer(address: str, out: Path | None, given: dict[str, Any]) -> Path:
    from aureole.cli._output import rows_bar
    from aureole.explorer import choose_columns, explorer_data, write_explorer
    from aureole.retrieval import CredibleIndex

    if out is None and not is_local(address):
        raise typer.BadParameter("the gallery is not local: choose the page to write with --out.")
    out = out or Path(address).with_suffix(".html")
    with CredibleIndex.open(address) as index:
        names = (given.get("label_column"), given.get("text_column"))
        label, text = choose_columns(index.schema.columns, *names)
        given |= {"label_column": label, "text_column": text}
        with rows_bar("exploring", shown=sys.stderr.isatty()) as bar:
            data = explorer_data(index, progress=lambda done, _: bar(done), **given)
    return write_explorer(data, out, Path(shown_address(address)).stem)
