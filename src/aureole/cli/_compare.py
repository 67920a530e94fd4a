"""``aureole compare``: what moved between two galleries of the same ids."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from typer import Argument, Option

import aureole as au
from aureole.cli._lazy import rich
from aureole.cli._options import AsJson
from aureole.cli._output import add_row, is_quiet, print_json, print_text, rows_bar, table

HELP = r"""Compare two galleries of the same ids, such as of two encoders or two heads.

Prints the rank correlation of kappa, Recall@1 and the coverage of predictive caps of each gallery (with labels), how
many of the 10 nearest neighbours they share, and the items that moved most.

Examples:

    aureole compare resnet20.lance resnet56.lance --label-column label
    aureole compare old.lance new.lance --by neighbours --limit 50 --json
"""


def compare(
    first: Annotated[str, Argument(help="Address of a gallery.", metavar="FIRST")],
    second: Annotated[str, Argument(help="Address of another gallery.", metavar="SECOND")],
    label_column: Annotated[str | None, Option(help="Label column (default: label).")] = None,
    by: Annotated[
        Literal["kappa", "up", "down", "neighbours"],
        Option(help="What decides which items moved most."),
    ] = "kappa",
    limit: Annotated[int, Option(help="Items to print.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Compare two galleries; ``HELP`` is the text users see."""
    started, shown = time.monotonic(), not is_quiet(as_json=as_json)
    with (
        au.CredibleIndex.open(first) as one,
        au.CredibleIndex.open(second) as two,
        rows_bar("comparing", one.count(), shown=shown) as bar,
    ):
        label, _ = au.explorer.choose_columns(one.schema.columns, label_column, None)
        found = au.explorer.compare_galleries(
            one,
            two,
            label_column=label,
            names=(au.retrieval.shown_address(first), au.retrieval.shown_address(second)),
            observer=lambda _, done, __: bar(done),
        )
    movers = found.movers(by, limit)
    facts = found.summary() | {"by": by, "movers": movers, "seconds": time.monotonic() - started}
    if as_json:
        print_json(facts)
    else:
        _show_comparison(found, by, limit)


def _show_comparison(found: au.explorer.Comparison, by: str, limit: int) -> None:
    facts = found.summary()
    only = facts["only"]
    print_text(
        f"{facts['items']:,} items in both galleries ({only[0]:,} only in the first, {only[1]:,} only in the second); "
        f"rank correlation of kappa {facts['rank_correlation']:.3f}; "
        f"{100 * facts['overlap']:.0f} % of the 10 nearest neighbours are the same"
    )
    console = rich.console.Console(soft_wrap=True)
    rows = table("galleries", "gallery", "dim", "median kappa", "Recall@1", "caps of 90 % contain")
    for side in facts["galleries"]:
        recall = "" if side["recall_at_1"] is None else f"{100 * side['recall_at_1']:.1f} %"
        coverage = "" if side["coverage"] is None else f"{100 * side['coverage']['0.9']:.1f} %"
        add_row(rows, side["name"], side["dim"], f"{side['kappa'][1]:.4g}", recall, coverage)
    console.print(rows)
    rows = table(
        f"moved most, by {by}",
        *("id", "label", "first kappa", "second kappa", "change of rank", "same neighbours"),
    )
    for entry in found.movers(by, limit):
        label = "" if entry["label"] is None else entry["label"]
        kappas = (f"{kappa:.4g}" for kappa in entry["kappa"])
        change = f"{100 * entry['rank_change']:+.0f} %"
        add_row(rows, entry["id"], label, *kappas, change, f"{100 * entry['overlap']:.0f} %")
    console.print(rows)
