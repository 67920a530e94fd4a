"""``aureole evaluate``: what a head is worth on a table of vectors, and a page about it."""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from aureole.cli._options import AsJson, ColumnsFrom, GroupColumn, Head, VectorColumn, Vectors
from aureole.cli._progress import rows_bar
from aureole.cli._results import coverage_table, print_json, table
from aureole.data import pick_rows, read_groups, read_vectors
from aureole.explorer import Gallery, extremes, picture_items, text_items, write_head_report
from aureole.training import Assessment, FrozenHead, assess

HELP = r"""Measure what a head is worth on vectors whose groups are known, and write a page about it.

Give vectors that the head was not fitted on: on its own, every figure is too good. Measured are the information in
nats, whether caps hold partners as often as they promise, and Recall@1 (is the nearest other row of the same group?)
while the least certain rows are set aside.

Examples:

    aureole evaluate test.parquet --head head --group-column photo
    aureole evaluate test.parquet --head head --group-column photo \
      --text-column caption --report report.html
    aureole evaluate test.npy --columns-from test.csv --head head \
      --group-column label
"""


def evaluate(
    vectors: Vectors,
    head: Head,
    vector_column: VectorColumn = None,
    group_column: GroupColumn = None,
    columns_from: ColumnsFrom = None,
    report: Annotated[Path | None, typer.Option(help="The HTML page to write.")] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Texts, to show those at the ends of kappa on the page.")
    ] = None,
    image_column: Annotated[
        str | None,
        typer.Option(help="Paths of pictures, relative to their table, to show such on the page."),
    ] = None,
    items: Annotated[
        int, typer.Option(min=2, help="For how many rows the nearest other is looked up.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Decides which rows.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Assess a head and write a page; ``HELP`` is what users read."""
    if text_column and image_column:
        raise typer.BadParameter("give --text-column or --image-column, not both.")
    if (text_column or image_column) and report is None:
        raise typer.BadParameter(
            "--text-column and --image-column are for the page: give --report."
        )
    others = columns_from or vectors
    fitted = FrozenHead.load(head)
    groups = read_groups(others, group_column)
    quiet = as_json or not sys.stderr.isatty()
    with rows_bar("reading", shown=not quiet) as observer:
        found = read_vectors(
            vectors, vector_column, work=report.parent if report else None, observer=observer
        )
    with rows_bar("scoring", len(found), shown=not quiet) as observer:
        result = assess(fitted, found, groups, items=items, seed=seed, observer=observer)
    if report is not None:
        galleries = _galleries(result.kappa, others, text_column, image_column)
        write_head_report(result, report, source=vectors.name, galleries=galleries)
    if as_json:
        written = {"report": str(report)} if report else {}
        print_json(result.figures() | written)
        return
    _show(result)
    if report is not None:
        typer.echo(report)


def _galleries(
    kappa: np.ndarray, others: Path, text_column: str | None, image_column: str | None
) -> tuple[Gallery, ...]:
    column = text_column or image_column
    if column is None:
        return ()
    shown = pick_rows(others, column, np.concatenate(extremes(kappa)).tolist())
    if text_column:
        return text_items(kappa, shown)
    return picture_items(kappa, shown, others if others.is_dir() else others.parent)


def _show(found: Assessment) -> None:
    console = Console(highlight=False)
    low, median, high = np.quantile(found.kappa.astype(np.float64), (0.05, 0.5, 0.95))
    console.print(
        f"{len(found.kappa):,} rows in {found.groups:,} groups; information {found.information:.3f} nats"
    )
    console.print(f"κ: median {median:.4g}, 90 % within {low:.4g} to {high:.4g}")
    console.print(coverage_table(found.coverage))
    recall = table("Recall@1 of the others", "set aside", "by κ", "best order")
    for share in (0, 10, 25, 50, 75):
        at = round(share / 100 * (len(found.rejected) - 1))
        recall.add_row(f"{share} %", f"{found.kept[at]:.3f}", f"{found.best[at]:.3f}")
    console.print(recall)
