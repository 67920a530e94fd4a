"""``aureole evaluate``: measure a head on held-out vectors, and write a page about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

import aureole as au
from aureole.cli._inputs import InputOptions, default_group
from aureole.cli._lazy import rich
from aureole.cli._options import AsJson, GroupedVectors, Head, Vectors, expanded
from aureole.cli._output import (
    about_kappa,
    coverage_table,
    is_quiet,
    kappa_quantiles,
    print_json,
    rows_bar,
    table,
)

if TYPE_CHECKING:
    from aureole.training._assessment import Assessment

HELP = r"""Evaluate a head on vectors, texts or pictures with known groups, and optionally write a page about it.

Use vectors that the head was not fitted on: on its training vectors every metric is too optimistic. Measures the
information in nats, the coverage of predictive caps, and Recall@1 (is the nearest other row of the same group?) while
the least certain rows are rejected.

Examples:

    aureole evaluate test.parquet --head head --group-column photo
    aureole evaluate test.parquet --head head --group-column photo \
      --text-column caption --report report.html
    aureole evaluate test.csv --encoder sentence-transformers:all-MiniLM-L6-v2 \
      --text-column caption --group-column photo --head head --report p.html
    aureole evaluate photos/ --encoder timm:resnet50 --head head --report p.html
    aureole evaluate test.npy --columns-from test.csv --head head \
      --group-column label
"""


@expanded
def evaluate(
    vectors: Vectors,
    head: Head,
    columns: GroupedVectors,
    inputs: InputOptions,
    report: Annotated[
        Path | None,
        Option(help="HTML page to write; with texts or pictures it shows the extremes of kappa."),
    ] = None,
    items: Annotated[int, Option(min=2, help="Rows to measure Recall@1 on.")] = 10_000,
    seed: Annotated[int, Option(min=0, help="Seed that selects these rows.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate a head and write a page; ``HELP`` is the text users see."""
    from aureole.training._assessment import assess

    others = columns.columns_from or vectors
    shown_from = others if inputs.encoder is None else vectors
    if inputs.encoder is None and inputs.column(others) and report is None:
        raise typer.BadParameter("--text-column and --image-column need --encoder or --report.")
    inputs.check(shown_from, vector_column=columns.vector_column)
    fitted = au.FrozenHead.load(head)
    groups = au.data.read_groups(others, default_group(others, columns.group_column))
    encoder = inputs.load(head)
    shown = not is_quiet(as_json=as_json)
    work = report.parent if report else None
    rows = inputs.vectors(vectors, encoder, columns.vector_column, work=work, shown=shown)
    with rows_bar("scoring", len(rows), shown=shown) as observer:
        result = assess(fitted, rows, groups, items=items, seed=seed, observer=observer)
    if report is not None:
        galleries = inputs.galleries(result.kappa, shown_from)
        au.explorer.write_head_report(result, report, source=vectors.name, galleries=galleries)
    if as_json:
        print_json(result.to_dict() | ({"report": str(report)} if report else {}))
        return
    _show(result)
    if report is not None:
        typer.echo(report)


def _show(result: Assessment) -> None:
    console = rich.console.Console(highlight=False)
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
