"""``aureole report``: one page of HTML from a table, a gallery, or a folder of records."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from aureole.cli._inputs import EncoderSpec, InputOptions, default_group
from aureole.cli._options import Normalized, OptionalHead, VectorColumn, expanded, option
from aureole.engines._addresses import is_local, shown_address
from aureole.errors import MissingPackageError

HELP = r"""Write one self-contained HTML page about a table, a gallery, or a folder of records.

For a table, with --head: the certainty of its rows, and the most and the least certain of them; with groups, also the
head's quality. For a gallery: the explorer as a static page, with the least and most certain items of each class, their
neighbourhoods, and the rejection curve. For a folder of records, all of one experiment: its tables and figures.

To fit a head and write the page in one command, use `aureole fit-head --report`.

Examples:

    aureole report captions.csv --text-column caption --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --out page.html
    aureole report gallery.lance --pictures pictures --out gallery.html
    aureole report gallery.lance --calibrator calibrator --out gallery.html
    aureole report results/sweep --out sweep.html
"""


@dataclass(frozen=True)
class GalleryOptions:
    """A gallery."""

    pictures: Path | None = option("Folder of its pictures, named after the ids.")
    label_column: str | None = option("Label column (default: label).")
    items: int | None = option("Number of items to show (default: 240).", min=2, max=2000)
    calibrator: Path | None = option(
        "Folder of a calibrator of this gallery: show match probabilities instead of cosines."
    )


@dataclass(frozen=True)
class TableOptions:
    """A table of vectors, texts or pictures."""

    head: OptionalHead = None
    encoder: EncoderSpec = None
    image_column: str | None = option("Column of pictures, bytes or paths.")
    vector_column: VectorColumn = None
    group_column: str | None = option("Column of groups, to measure the head on.")
    normalized: Normalized = None


@expanded
def report(
    what: Annotated[
        str,
        Argument(
            help="Table, address of a gallery, or folder of records written by reproduce.",
            metavar="TABLE|ADDRESS|FOLDER",
        ),
    ],
    gallery: GalleryOptions,
    rows: TableOptions,
    out: Annotated[
        Path | None,
        Option(help="Page to write (default: report.html in the folder, or NAME.html)."),
    ] = None,
    text_column: Annotated[
        str | None, Option(help="Text column of a table, or of a gallery (default: text).")
    ] = None,
) -> None:
    """Write a page; ``HELP`` is the text users see."""
    given = {name: value for name, value in vars(gallery).items() if value is not None}
    table = [name for name, value in vars(rows).items() if value is not None]
    is_gallery = not is_local(what) or what.removesuffix("/").endswith((".lance", ".faiss"))
    if rows.head is not None:
        if given:
            raise typer.BadParameter(f"--{_flag(next(iter(given)))} is for a gallery.")
        typer.echo(
            _table_page(Path(what), rows, text_column, out or Path(what).with_suffix(".html"))
        )
        return
    if table:
        raise typer.BadParameter(f"--{_flag(table[0])} is for a table, which needs --head.")
    if is_gallery:
        given |= {} if text_column is None else {"text_column": text_column}
        typer.echo(_explorer(what, out, given))
        return
    if given or text_column is not None:
        raise typer.BadParameter(
            f"--{_flag(next(iter(given), 'text_column'))} is for a gallery, but {what} is not the address of one: it "
            "must end in .lance or .faiss, or start with postgresql://. A table needs --head."
        )
    # aureole-paper registers the function that writes this page
    entry = next(iter(entry_points(group="aureole.reports")), None)
    if entry is None:
        raise MissingPackageError(
            "pages about the paper's records need aureole-paper: run `pip install ./paper` in the aureole repository."
        )
    typer.echo(entry.load()(Path(what), out or Path(what) / "report.html"))


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _table_page(table: Path, rows: TableOptions, text_column: str | None, out: Path) -> Path:
    """Write the page about a table with an existing head."""
    from aureole.data import read_groups
    from aureole.data._tables import check_columns
    from aureole.explorer import write_head_report
    from aureole.explorer._head import write_kappa_report
    from aureole.explorer._page import check_page
    from aureole.training import FrozenHead
    from aureole.training._assessment import assess, kappas

    inputs = InputOptions(rows.encoder, text_column, rows.image_column, rows.normalized)
    assert rows.head is not None  # the caller checked
    check_page()
    inputs.check(table, vector_column=rows.vector_column)
    group_column = default_group(table, rows.group_column)
    check_columns(table, group_column)
    head, encoder = FrozenHead.load(rows.head), inputs.load(rows.head)
    groups = None if group_column is None else read_groups(table, group_column)
    shown = sys.stderr.isatty()
    vectors = inputs.vectors(table, encoder, rows.vector_column, work=out.parent, shown=shown)
    if groups is None:
        kappa = kappas(head, vectors)
        galleries = inputs.galleries(kappa, table)
        return write_kappa_report(kappa, out, source=table.name, galleries=galleries)
    result = assess(head, vectors, groups)
    galleries = inputs.galleries(result.kappa, table)
    return write_head_report(result, out, source=table.name, galleries=galleries)


def _explorer(address: str, out: Path | None, given: dict[str, Any]) -> Path:
    from aureole.caps import CredibleIndex
    from aureole.cli._output import rows_bar
    from aureole.explorer import explorer_data, write_explorer
    from aureole.explorer._explorer import choose_columns
    from aureole.match import MatchCalibrator

    if out is None and not is_local(address):
        raise typer.BadParameter("the gallery is not local: choose the page to write with --out.")
    out = out or Path(address).with_suffix(".html")
    if "calibrator" in given:
        given["calibrator"] = MatchCalibrator.load(given["calibrator"])
    with CredibleIndex.open(address) as index:
        names = (given.get("label_column"), given.get("text_column"))
        label, text = choose_columns(index.schema.columns, *names)
        given |= {"label_column": label, "text_column": text}
        with rows_bar("exploring", shown=sys.stderr.isatty()) as bar:
            data = explorer_data(index, progress=lambda done, _: bar(done), **given)
    return write_explorer(data, out, Path(shown_address(address)).stem)
