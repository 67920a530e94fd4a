"""``aureole report``: one page of HTML from a folder of records, or from a gallery."""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from aureole.errors import MissingPackageError
from aureole.retrieval import is_local, shown_address

HELP = """Write one self-contained HTML page: of a folder of records, or of a gallery.

Of a folder of records, all of one experiment, its tables and figures; of a gallery the explorer: the least and most
certain items of each class, what lies around each, and the rejection curve, for people without a service.

Examples:

    aureole report paper/results/controlled
    aureole report paper/results/cifar10h --out cifar10h.html
    aureole report gallery.lance --pictures pictures --out gallery.html
"""


def report(
    what: Annotated[
        str,
        typer.Argument(
            help="A folder of records, as reproduce writes it, or the address of a gallery.",
            metavar="FOLDER|ADDRESS",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write; default: report.html in the folder, or beside the gallery."
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="Of a gallery: the folder of its pictures, named after the ids."),
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Of a gallery: the column of classes; default: label.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Of a gallery: the column of texts; default: text.")
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(min=2, max=2000, help="Of a gallery: items to show; default: 240."),
    ] = None,
) -> None:
    """Write a page; ``HELP`` is what users read."""
    options = {"pictures": pictures, "label_column": label_column, "text_column": text_column}
    given = {
        name: value for name, value in {**options, "items": items}.items() if value is not None
    }
    if _names_gallery(what):
        typer.echo(_explorer(what, out, given))
        return
    if given:
        raise typer.BadParameter(
            f"--{next(iter(given)).replace('_', '-')} is for a gallery, but {what} names none: an address ends in "
            ".lance or .faiss, or is a postgresql:// one."
        )
    write_report = _records_report()
    typer.echo(write_report(Path(what), out or Path(what) / "report.html"))


def _records_report() -> Callable[[Path, Path], Path]:
    """The function that writes the page of a folder of records: other packages add it by an entry point."""
    for entry in entry_points(group="aureole.reports"):
        return entry.load()
    raise MissingPackageError(
        "pages about the paper's records are part of aureole-paper: run `pip install ./paper` in aureole's repository."
    )


def _names_gallery(what: str) -> bool:
    return not is_local(what) or what.removesuffix("/").endswith((".lance", ".faiss"))


def _explorer(address: str, out: Path | None, given: dict[str, Any]) -> Path:
    from aureole.cli._progress import rows_bar
    from aureole.explorer import choose_columns, explorer_data, write_explorer
    from aureole.retrieval import CredibleIndex

    if out is None:
        if not is_local(address):
            raise typer.BadParameter(
                "a gallery that is no folder has no place beside it: say --out PATH."
            )
        out = Path(address).with_suffix(".html")
    with CredibleIndex.open(address) as index:
        label, text = choose_columns(
            index.schema.columns, given.pop("label_column", None), given.pop("text_column", None)
        )
        with rows_bar("looking around", shown=sys.stderr.isatty()) as bar:
            data = explorer_data(
                index,
                label_column=label,
                text_column=text,
                progress=lambda done, _: bar(done),
                **given,
            )
    return write_explorer(data, out, Path(shown_address(address)).stem)
