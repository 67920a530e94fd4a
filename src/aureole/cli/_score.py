"""``aureole score``: the kappa of every row of a table, and with groups what a head is worth on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import aureole as au
from aureole._io import check_local
from aureole.cli._inputs import IMAGE, InputOptions, default_group, is_pictures
from aureole.cli._lazy import assessment, head_report, np, pages
from aureole.cli._options import AsJson, GroupedVectors, Head, Vectors, expanded, option
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


@dataclass(frozen=True)
class MeasureOptions:
    """Measuring the head, with groups."""

    report: Path | None = option(
        "HTML page to write; with texts or pictures it shows the extremes of kappa."
    )
    items: int = option("Rows to measure Recall@1 on.", 10_000, min=2)
    seed: int = option("Seed that selects these rows.", 0, min=0)


@expanded
def score(
    vectors: Vectors,
    head: Head,
    columns: GroupedVectors,
    inputs: InputOptions,
    scores: ScoreOptions,
    measure: MeasureOptions,
    as_json: AsJson = False,
) -> None:
    """Write the kappa of each row, or measure a head; ``HELP`` is the text users see."""
    started, others = time.monotonic(), columns.columns_from or vectors
    scores.check((vectors, others))
    shown_from = others if inputs.encoder is None else vectors
    if inputs.encoder is None and inputs.column(others) and measure.report is None:
        raise typer.BadParameter("--text-column and --image-column need --encoder or --report.")
    inputs.check(shown_from, vector_column=columns.vector_column)
    au.data._tables.check_columns(others, scores.id_column)
    fitted = au.FrozenHead.load(head)
    groups = _groups(columns, others, scores, measure)
    encoder, shown = inputs.load(head), not as_json
    work = (scores.out or measure.report or Path()).parent
    rows = inputs.vectors(vectors, encoder, columns.vector_column, work=work, shown=shown)
    with rows_bar("scoring", len(rows), shown=shown) as observer:
        if groups is None:
            result, kappa = None, assessment.kappas(fitted, rows, observer=observer)
        else:
            chosen = {"items": measure.items, "seed": measure.seed, "observer": observer}
            result = assessment.assess(fitted, rows, groups, **chosen)
            kappa = result.kappa
    facts = _facts(fitted, kappa, result)
    if scores.out is not None:
        in_array = columns.columns_from is not None and others.suffix in au.data._array_files.ARRAYS
        write_scores(fitted, rows, kappa, scores, others, ids_in_array=in_array, shown=shown)
        facts |= {"out": str(scores.out), "mass": scores.mass}
    if measure.report is not None:
        _write_page(
            measure.report, vectors.name, kappa, result, inputs.galleries(kappa, shown_from)
        )
        facts["report"] = str(measure.report)
    if as_json:
        print_json(facts | {"seconds": time.monotonic() - started})
        return
    _show(kappa, result)
    for path in (scores.out, measure.report):
        if path is not None:
            print_text(f"written to {path}")


def _groups(
    columns: GroupedVectors, others: Path, scores: ScoreOptions, measure: MeasureOptions
) -> np.ndarray | None:
    """Return the groups of the rows; None if only their kappa is needed."""
    column = columns.group_column
    if scores.out is None:  # an array of other columns has groups, but with --out it has ids
        column = default_group(others, column)
        in_array = columns.columns_from is not None and others.suffix in au.data._array_files.ARRAYS
        if column is None and not in_array and measure.report is None:
            raise typer.BadParameter(
                "name --out for the kappa of every row, --group-column to measure the head, or --report."
            )
        if in_array:
            return au.data.read_groups(others, column)
    return None if column is None else au.data.read_groups(others, column)


def write_scores(
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
    ids = au.data._tables.scan_column(ids_from, id_column) if named else _row_numbers(len(rows))
    with (
        au.data._tables.ColumnWriter(scores.out) as out,
        rows_bar("writing", len(rows), shown=shown) as bar,
    ):
        done = 0
        for part in _scored_columns(head, rows, kappa, scores, ids):
            done += len(part["id"])
            if done > len(rows):
                break
            out.write(part)
            bar(done)
        if done != len(rows):
            count = f"{done} or more" if done > len(rows) else done
            raise InvalidInputError(
                f"there are {len(rows)} vectors, but {ids_from} has {count} ids: the files do not match row by row."
            )


def _row_numbers(rows: int) -> Iterator[np.ndarray]:
    starts = range(0, rows, assessment.CHUNK)
    return (np.arange(first, min(first + assessment.CHUNK, rows)) for first in starts)


def _scored_columns(
    head: au.FrozenHead,
    rows: np.ndarray,
    kappa: np.ndarray,
    scores: ScoreOptions,
    ids: Iterator[Any],
) -> Iterator[dict[str, Any]]:
    """Yield the columns to write, for as many rows at a time as there are ids in a part."""
    concentrations = {"kappa_other": float(np.median(kappa)), "kappa_pos": head.kappa_pos_}
    cosines = assessment.partner_cosines(kappa, scores.mass, dim=head.dim_, **concentrations)
    first = 0
    for part in ids:
        here = slice(first, first + len(part))
        columns = {"id": part, "kappa": kappa[here], f"cosine_{100 * scores.mass:g}": cosines[here]}
        if scores.with_mu and here.stop <= len(rows):
            columns["mu"] = head.predict(rows[here]).mu.cpu().numpy()
        yield columns
        first = here.stop


def _facts(
    head: au.FrozenHead, kappa: np.ndarray, result: assessment.Assessment | None
) -> dict[str, Any]:
    if result is not None:
        return result.to_dict()
    quantiles = dict(zip(("0.05", "0.5", "0.95"), kappa_quantiles(kappa), strict=True))
    about = {"rows": len(kappa), "dim": head.dim_, "kappa_pos": head.kappa_pos_}
    return about | {"kappa": {"quantiles": quantiles}}


def _write_page(
    report: Path,
    source: str,
    kappa: np.ndarray,
    result: assessment.Assessment | None,
    galleries: tuple[pages.Gallery, ...],
) -> None:
    """Write the page about the rows: with groups also the metrics of the head."""
    if result is None:
        head_report.write_kappa_report(kappa, report, source=source, galleries=galleries)
    else:
        au.explorer.write_head_report(result, report, source=source, galleries=galleries)


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
