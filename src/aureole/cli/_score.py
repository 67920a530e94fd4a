"""``aureole score``: the kappa of every row of a table, and with groups what a head is worth on them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import aureole as au
from aureole._io import check_local
from aureole.cli._lazy import assessment, head_report, np
from aureole.cli._options import (
    IMAGE,
    AsJson,
    GroupedVectors,
    Head,
    InputOptions,
    Vectors,
    default_group,
    expanded,
    is_pictures,
    option,
)
from aureole.cli._output import (
    about_kappa,
    coverage_table,
    kappa_quantiles,
    print_json,
    print_table,
    print_text,
    rows_bar,
    table,
)
from aureole.errors import InvalidInputError

HELP = r"""Write the certainty (kappa) of every row of a table of vectors, texts or pictures, or measure a head on it.

With --out, the columns are id (the row number, unless you name an --id-column), kappa, and cosine_90: a positive of the
row has at least this cosine to its mu with probability 90 %, if it is as certain as the median row. The table may be
larger than memory.

With groups, measures the head: the information in nats, the coverage of predictive caps, and Recall@1 (is the nearest
other row of the same group?) while the least certain rows are rejected. Use vectors that the head was not fitted on.
--report writes a page.

Examples:

    aureole score vectors.parquet --head head --id-column id --out scored.csv
    aureole score vectors.npy --head head --with-mu --out scored.parquet
    aureole score photos/ --encoder timm:resnet50 --head head --out scored.csv
    aureole score test.parquet --head head --group-column photo
    aureole score test.csv --encoder sentence-transformers:all-MiniLM-L6-v2 \
      --text-column caption --group-column photo --head head --report p.html
"""


@dataclass(frozen=True)
class ScoreOptions:
    """The score of every row."""

    out: Path | None = option("File to write or replace: .parquet, .csv or .jsonl.")
    id_column: str | None = option("Column of ids (default: row numbers from 0).")
    mass: float = option("Probability that a positive is within the cosine.", 0.9)
    with_mu: bool = option("Also write mu.", False, "--with-mu")

    def check(self, inputs: tuple[Path, ...]) -> None:
        """Raise for a mass that gives no cosine, and before an input is overwritten."""
        if not 0 < self.mass < 1:
            raise typer.BadParameter(f"--mass must be between 0 and 1, not {self.mass}.")
        if self.out is None:
            return
        for path in inputs:
            if self.out.resolve() == path.resolve():
                raise InvalidInputError(
                    f"--out would overwrite the input {path}. Choose another file."
                )
        check_local(self.out)
        au.data._tables.ColumnWriter(self.out)  # raises for an unknown ending


@expanded
def score(
    vectors: Vectors,
    head: Head,
    columns: GroupedVectors,
    inputs: InputOptions,
    scores: ScoreOptions,
    report: Annotated[
        Path | None,
        Option(help="HTML page to write; with texts or pictures it shows the extremes of kappa."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the kappa of each row, or measure a head; ``HELP`` is the text users see."""
    started, others = time.monotonic(), columns.columns_from or vectors
    scores.check((vectors, others))
    shown_from = others if inputs.encoder is None else vectors
    if inputs.encoder is None and inputs.column(others) and report is None:
        raise typer.BadParameter("--text-column and --image-column need --encoder or --report.")
    inputs.check(shown_from, vector_column=columns.vector_column)
    au.data._tables.check_columns(others, scores.id_column)
    fitted, groups = au.FrozenHead.load(head), None
    column, in_array = columns.group_column, columns.in_array
    if scores.out is None:  # an array of other columns has groups, but with --out it has ids
        column = default_group(others, column)
        if column is None and not in_array and report is None:
            raise typer.BadParameter(
                "name --out for the kappa of every row, --group-column to measure the head, or --report."
            )
    if column is not None or (in_array and scores.out is None):
        groups = au.data.read_groups(others, column)
    encoder, shown = inputs.load(head), not as_json
    work = (scores.out or report or Path()).parent
    rows = inputs.vectors(vectors, encoder, columns.vector_column, work=work, shown=shown)
    with rows_bar("scoring", len(rows), shown=shown) as observer:
        if groups is None:
            result, kappa = None, assessment.kappas(fitted, rows, observer=observer)
        else:
            result = assessment.assess(fitted, rows, groups, observer=observer)
            kappa = result.kappa
    facts = result.to_dict() if result else _facts(fitted, kappa)
    if scores.out is not None:
        _write_scores(fitted, rows, kappa, scores, others, ids_in_array=in_array, shown=shown)
        facts |= {"out": str(scores.out), "mass": scores.mass}
    if report is not None:
        about = {"source": vectors.name, "galleries": inputs.galleries(kappa, shown_from)}
        if result is None:
            head_report.write_kappa_report(kappa, report, **about)
        else:
            au.explorer.write_head_report(result, report, **about)
        facts["report"] = str(report)
    if as_json:
        print_json(facts | {"seconds": time.monotonic() - started})
        return
    _show(kappa, result)
    for path in (scores.out, report):
        if path is not None:
            print_text(f"written to {path}")


def _write_scores(
    head: au.FrozenHead,
    rows: np.ndarray,
    kappa: np.ndarray,
    scores: ScoreOptions,
    ids_from: Path,
    *,
    ids_in_array: bool = False,
    shown: bool = False,
) -> None:
    """Write the id, the kappa and the cosine of positives of every row; raises unless each row has one id."""
    assert scores.out is not None  # the caller checked
    id_column = scores.id_column
    if id_column is None and is_pictures(ids_from):
        id_column = IMAGE
    named = id_column is not None or ids_in_array
    if named:
        ids = au.data._tables.scan_column(ids_from, id_column)
    else:
        starts = range(0, len(rows), assessment.CHUNK)
        ids = (np.arange(first, min(first + assessment.CHUNK, len(rows))) for first in starts)
    concentrations = {"kappa_other": float(np.median(kappa)), "kappa_pos": head.kappa_pos_}
    cosines = assessment.partner_cosines(kappa, scores.mass, dim=head.dim_, **concentrations)
    with (
        au.data._tables.ColumnWriter(scores.out) as out,
        rows_bar("writing", len(rows), shown=shown) as bar,
    ):
        done = 0
        for part in ids:
            here = slice(done, done + len(part))
            done = here.stop
            if done > len(rows):
                break
            column = {f"cosine_{100 * scores.mass:g}": cosines[here]}
            if scores.with_mu:
                column["mu"] = head.predict(rows[here]).mu.cpu().numpy()
            out.write({"id": part, "kappa": kappa[here]} | column)
            bar(done)
        if done != len(rows):
            count = f"{done} or more" if done > len(rows) else done
            raise InvalidInputError(
                f"there are {len(rows)} vectors, but {ids_from} has {count} ids: the files do not match row by row."
            )


def _facts(head: au.FrozenHead, kappa: np.ndarray) -> dict[str, Any]:
    quantiles = dict(zip(("0.05", "0.5", "0.95"), kappa_quantiles(kappa), strict=True))
    about = {"rows": len(kappa), "dim": head.dim_, "kappa_pos": head.kappa_pos_}
    return about | {"kappa": {"quantiles": quantiles}}


def _show(kappa: np.ndarray, result: assessment.Assessment | None) -> None:
    about = about_kappa(*kappa_quantiles(kappa))
    if result is None:
        print_text(f"{len(kappa):,} rows; {about}")
        return
    print_text(
        f"{len(kappa):,} rows in {result.groups:,} groups; information {result.information:.3f} nats",
        about,
    )
    print_table(coverage_table(result.coverage))
    recall = table("Recall@1 of the remaining rows", "rejected", "by κ", "best order")
    for share in (0, 10, 25, 50, 75):
        at = round(share / 100 * (len(result.rejected) - 1))
        recall.add_row(f"{share} %", f"{result.kept[at]:.3f}", f"{result.best[at]:.3f}")
    print_table(recall)
