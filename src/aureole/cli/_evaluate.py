"""``aureole evaluate``: measure a head on held-out vectors, and write a page about it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from typer import Option

from aureole.cli._options import AsJson, GroupedVectors, Head, Vectors, expanded, option
from aureole.cli._output import (
    about_kappa,
    coverage_table,
    is_quiet,
    kappa_quantiles,
    print_json,
    rows_bar,
    table,
)
from aureole.data import pick_rows, read_groups, read_vectors
from aureole.explorer import Gallery, extremes, picture_items, text_items, write_head_report
from aureole.training import Assessment, FrozenHead, assess

HELP = r"""Evaluate a head on vectors with known groups, and optionally write a page about it.

Use vectors that the head was not fitted on: on its training vectors every metric is too optimistic. Measures the
information in nats, the coverage of predictive caps, and Recall@1 (is the nearest other row of the same group?) while
the least certain rows are rejected.

Examples:

    aureole evaluate test.parquet --head head --group-column photo
    aureole evaluate test.parquet --head head --group-column photo \
      --text-column caption --report report.html
    aureole evaluate test.npy --columns-from test.csv --head head \
      --group-column label
"""


@dataclass(frozen=True)
class PageOptions:
    """The page to write."""

    report: Path | None = option("HTML page to write.")
    text_column: str | None = option("Column of texts; the page shows the extremes of kappa.")
    image_column: str | None = option("Column of picture paths, relative to the table, to show.")


@expanded
def evaluate(
    vectors: Vectors,
    head: Head,
    columns: GroupedVectors,
    page: PageOptions,
    items: Annotated[int, Option(min=2, help="Rows to measure Recall@1 on.")] = 10_000,
    seed: Annotated[int, Option(min=0, help="Seed that selects these rows.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate a head and write a page; ``HELP`` is the text users see."""
    if page.text_column and page.image_column:
        raise typer.BadParameter("use either --text-column or --image-column, not both.")
    if (page.text_column or page.image_column) and page.report is None:
        raise typer.BadParameter("--text-column and --image-column need --report.")
    others = columns.columns_from or vectors
    fitted = FrozenHead.load(head)
    groups = read_groups(others, columns.group_column)
    shown, report = not is_quiet(as_json=as_json), page.report
    work = report.parent if report else None
    with rows_bar("reading", shown=shown) as observer:
        rows = read_vectors(vectors, columns.vector_column, work=work, observer=observer)
    with rows_bar("scoring", len(rows), shown=shown) as observer:
        result = assess(fitted, rows, groups, items=items, seed=seed, observer=observer)
    if report is not None:
        galleries = _galleries(result.kappa, others, page)
        write_head_report(result, report, source=vectors.name, galleries=galleries)
    if as_json:
        print_json(result.to_dict() | ({"report": str(report)} if report else {}))
        return
    _show(result)
    if report is not None:
        typer.echo(report)


def _galleries(kappa: np.ndarray, others: Path, page: PageOptions) -> tuple[Gallery, ...]:
    column = page.text_column or page.image_column
    if column is None:
        return ()
    items = pick_rows(others, column, np.concatenate(extremes(kappa)).tolist())
    if page.text_column:
        return text_items(kappa, items)
    return picture_items(kappa, items, others if others.is_dir() else others.parent)


def _show(result: Assessment) -> None:
    console = Console(highlight=False)
    console.print(
        f"{len(result.kappa):,} rows in {result.groups:,} groups; information {result.information:.3f} nats"
    )
    console.print(about_kappa(*kappa_quantiles(result.kappa)))
    console.print(coverage_table(result.coverage))
    recall = table("Recall@1 of the remaining rows", "rejected", "by κ", "best order")
    for share in (0, 10, 25, 50, 75):
        at = round(share / 100 * (len(result.rejected) - 1))
        recall.add_row(f"{share} %", f"{result.kept[at]:.3f}", f"{result.best[at]:.3f}")
    console.print(recall)
