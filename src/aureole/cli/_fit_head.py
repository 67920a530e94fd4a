"""``aureole fit-head``: fit a head on a table, and on request score its rows and write a page."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import aureole as au
from aureole.cli._lazy import assessment, np, pages, torch
from aureole.cli._options import (
    AsJson,
    GroupedVectors,
    InputOptions,
    Vectors,
    check_out,
    default_group,
    expanded,
    option,
    resumable,
    run_digest,
)
from aureole.cli._output import (
    coverage_table,
    print_json,
    print_table,
    print_text,
    table,
    training_bar,
)
from aureole.errors import InvalidInputError

HELP = r"""Fit a head that predicts how certain each row of a table is, from positives, and save it.

Rows are vectors (a column of lists of floats, an .npy or .safetensors file), or texts or pictures that --encoder turns
into vectors. Positives are rows that share a group (a label, a photo with several captions, the class folder of a
picture), or that a table of pairs names. With --votes, rows match as often as the votes of their annotators do, and
annotators who disagree on a row lower its kappa. If the command is interrupted, even killed, run it again to resume.

With --report, a fifth of the groups is held out of the fit, and the page shows the head's quality on them, and the most
and the least certain of all rows. `aureole score` writes the kappa of every row.

Examples:

    aureole fit-head captions.csv --text-column caption --group-column photo \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --out head \
      --report page.html
    aureole fit-head photos/ --encoder timm:resnet50 --out head --report p.html
    aureole fit-head vectors.parquet --group-column photo --out head
    aureole fit-head vectors.npy --columns-from labels.csv \
      --group-column label --out head
    aureole fit-head vectors.parquet --pairs clicks.parquet \
      --left query --right item --id-column id --out head
    aureole fit-head vectors.parquet --votes votes.csv --id-column id --out head
"""


_HELD_OUT = 0.2  # share of the groups that the page measures the head on
_HELD_OUT_ADVICE = "--report holds out a fifth of the groups: give more rows, or no --report."


@dataclass(frozen=True)
class PositiveOptions:
    """Positives as pairs or as votes, instead of groups."""

    pairs: Path | None = option("Table of pairs of positives.")
    left: str = option("First column of the pairs.", "left")
    right: str = option("Second column of the pairs.", "right")
    votes: str | None = option(
        "A table with one vote per row (columns item, label and, if it exists, annotator), the columns of counts in "
        "TABLE (a,b,c or 'votes_*'), or an .npy file of counts.",
        metavar="FILE|COLUMNS",
    )
    id_column: str | None = option(
        "Column of ids, for --pairs and --votes (default: row numbers from 0)."
    )

    @property
    def votes_file(self) -> Path | None:
        """The file of votes; None for columns of counts."""
        if self.votes is None:
            return None
        path = Path(self.votes)
        known = self.votes.endswith((*au.data._table_files.FILES, *au.data._array_files.ARRAYS))
        return path if known or path.exists() else None

    def check(self, *, grouped: bool) -> None:
        """Raise unless exactly one of groups, pairs and votes is given."""
        if sum((grouped, self.pairs is not None, self.votes is not None)) != 1:
            raise typer.BadParameter("use one of --group-column, --pairs and --votes.")
        if self.votes is not None and not self.votes.strip(", "):
            raise typer.BadParameter("--votes needs a file or the names of columns.")

    def read_pairs(self, table: Path) -> np.ndarray | None:
        """Return the pairs of row numbers [p, 2]; None without --pairs."""
        if self.pairs is None:
            return None
        ids = (table, self.id_column) if self.id_column else None
        return au.data._tables.read_pairs(self.pairs, (self.left, self.right), ids=ids)

    def read_votes(self, table: Path) -> au.data.Votes | None:
        """Return the votes, one row for each row of the table; with row numbers as items, up to the last vote."""
        if self.votes is None:
            return None
        path = self.votes_file
        if path is None:
            columns = [name.strip() for name in self.votes.split(",") if name.strip()]
            return au.data._votes.read_vote_counts(table, columns)
        if path.suffix in au.data._array_files.ARRAYS:
            return au.data._votes.read_vote_counts(path)
        first = au.data._table_files.table_parts(path)[0]
        schema = au.data._table_files.require_columns(first, ["item", "label"])
        names = ("item", "label", "annotator" if "annotator" in schema.names else None)
        return au.data.read_votes(
            path, names, ids=(table, self.id_column) if self.id_column else None
        )

    def fit_votes(self, votes: au.data.Votes, rows: int) -> au.data.Votes:
        """Return the votes with one row per vector; a long table of row numbers may end before the last vector."""
        missing, path = rows - len(votes), self.votes_file
        by_number = path and path.suffix not in au.data._array_files.ARRAYS and not self.id_column
        if missing < 0 or (missing and not by_number):
            raise InvalidInputError(
                f"there are {rows} vectors, but votes on {len(votes)} items: the files do not match row by row."
            )
        if not missing:
            return votes
        counts = torch.nn.functional.pad(votes.counts, (0, 0, 0, missing))
        return au.data.Votes.of(counts, classes=votes.classes)


@dataclass(frozen=True)
class FitOptions:
    """The head and its training."""

    dim: str | None = option('Dimension of the posteriors, or "auto".', metavar="N|auto")
    kappa_pos: float | None = option(
        "Concentration of positives around latents (default: 2 * dim)."
    )
    steps: int | None = option("Number of training steps.", min=1)
    items: int | None = option("Vectors per batch.", min=4)
    seed: int = option("Random seed.", 0, min=0)

    def head(self) -> au.FrozenHead:
        """Return an unfitted head with the options that were given."""
        given: dict[str, Any] = {k: v for k, v in vars(self).items() if v is not None}
        if self.dim not in (None, "auto"):
            if not self.dim.isdecimal() or int(self.dim) < 2:
                raise typer.BadParameter(
                    f'--dim must be an integer of 2 or more, or "auto", not {self.dim!r}.'
                )
            given["dim"] = int(self.dim)
        return au.FrozenHead(**given)


@dataclass(frozen=True)
class OutputOptions:
    """What to write."""

    overwrite: bool = option("Replace an existing head.", False, "--overwrite")
    report: Path | None = option(
        "HTML page: quality on held-out groups, most and least certain rows."
    )
    as_json: AsJson = False

    def check(self, *, grouped: bool) -> None:
        """Raise for options that cannot be used together and for missing packages, before anything is computed."""
        from aureole.training._fit import check_fabric

        check_fabric()
        if self.report is not None:
            if not grouped:
                raise typer.BadParameter(
                    "--report needs groups: it measures the head on some of them."
                )
            pages.check_page()  # raises if its packages are missing


@expanded
def fit_head(
    vectors: Vectors,
    out: Annotated[Path, Option(help="Folder to save the head in.")],
    columns: GroupedVectors,
    inputs: InputOptions,
    positives: PositiveOptions,
    fit: FitOptions,
    reports: OutputOptions,
) -> None:
    """Fit and save a head; ``HELP`` is the text users see."""
    started = time.monotonic()
    check_out(out, "head", overwrite=reports.overwrite)
    others, column = columns.columns_from or vectors, columns.group_column
    if positives.pairs is None and positives.votes is None:
        column = default_group(others, column)
    grouped = column is not None or columns.in_array
    positives.check(grouped=grouped)
    reports.check(grouped=grouped)
    shown_from = others if inputs.encoder is None else vectors
    inputs.check(shown_from, vector_column=columns.vector_column)
    au.data._tables.check_columns(others, positives.id_column)
    head, shown = fit.head(), not reports.as_json
    groups = au.data.read_groups(others, column) if grouped else None
    pairs, votes = positives.read_pairs(others), positives.read_votes(others)
    encoder = inputs.load()
    held = None if groups is None or reports.report is None else _held_out(groups, fit.seed)
    paths = (vectors, others, positives.pairs, positives.votes_file)
    files = [file for path in paths if path for file in au.data._tables.table_files(path)]
    settings = [vars(columns), vars(positives), inputs.column(vectors), held is not None]
    settings += [encoder and encoder.fingerprint, head.get_params()]
    partial = out.with_name(f"{out.name}.partial-{run_digest(settings, files)}")
    with resumable(partial):
        places = {"work": partial, "resume": partial / "vectors"}
        rows = inputs.vectors(vectors, encoder, columns.vector_column, **places, shown=shown)
        _check_rows(groups, pairs, positives.pairs, len(rows))
        if votes is not None:
            votes = positives.fit_votes(votes, len(rows))
        try:
            with training_bar("fitting", shown=shown) as observer:
                head.fit(
                    rows,
                    groups if held is None else held.training,
                    pairs=pairs,
                    votes=votes,
                    checkpoint=partial / "checkpoint.safetensors",
                    observer=observer,
                )
        except InvalidInputError as error:
            if held is None:
                raise
            raise InvalidInputError(f"{error} {_HELD_OUT_ADVICE}") from error
    head.fingerprint_ = head.fingerprint_ if encoder is None else encoder.fingerprint
    head.save(out)
    facts: dict[str, Any] = {"head": str(out), "rows": len(rows)}
    if held is not None and reports.report is not None:
        facts |= _write_report(head, rows, held, inputs, reports.report, shown_from)
    shutil.rmtree(partial, ignore_errors=True)
    if votes is not None:
        facts["votes"] = _vote_facts(votes)
    elif pairs is not None:
        facts["pairs"] = len(pairs)
    else:
        facts["groups"] = 0 if groups is None else len(np.unique(groups))
    if reports.as_json:
        print_json(facts | _facts(head) | {"seconds": time.monotonic() - started})
        return
    if votes is not None:
        said = facts["votes"]
        line = f"{said['votes']:,} votes on {said['items']:,} items"
        if said["agreement"] is not None:
            line += f"; {100 * said['agreement']:.0f} % of the pairs of annotators agree"
        print_text(line)
    _show(head, len(rows), out)
    if reports.report is not None:
        print_text(f"report written to {reports.report}")


def _check_rows(
    groups: np.ndarray | None, pairs: np.ndarray | None, pairs_from: Path | None, rows: int
) -> None:
    """Raise unless groups and pairs are of as many rows as there are vectors."""
    if groups is not None and len(groups) != rows:
        raise InvalidInputError(
            f"there are {rows} vectors, but {len(groups)} groups: the files do not match row by row."
        )
    if pairs is not None and (pairs >= rows).any():
        row = int((pairs >= rows).any(1).argmax())
        raise InvalidInputError(
            f"row {row} of {pairs_from} (counted from 0) refers to row {pairs[row].max()}, but there are {rows} "
            "vectors."
        )


@dataclass(frozen=True)
class _HeldOut:
    """Groups for the fit and for the page; a row that does not take part has a group of its own."""

    training: np.ndarray
    testing: np.ndarray
    groups: int
    rows: int


def _held_out(groups: np.ndarray, seed: int) -> _HeldOut:
    """Return a random split of the groups."""
    rng = torch.Generator().manual_seed(seed)
    _, held = au.data._pairs.Groups.of(groups).split(_HELD_OUT, rng)
    chosen = np.zeros(len(groups), bool)
    chosen[held.members.numpy()] = True
    alone = groups.max() + 1 + np.arange(len(groups))  # rows without a partner are left out
    parts = np.where(chosen, alone, groups), np.where(chosen, groups, alone)
    return _HeldOut(*parts, len(np.unique(groups)), int(chosen.sum()))


def _write_report(
    head: au.FrozenHead,
    rows: np.ndarray,
    held: _HeldOut,
    inputs: InputOptions,
    report: Path,
    table: Path,
) -> dict[str, Any]:
    """Write the page, and return its path and the metrics on it."""
    result = replace(assessment.assess(head, rows, held.testing), groups=held.groups)
    note = f"The metrics are from {held.rows:,} held-out rows; the head was fitted on the groups of the others."
    galleries = inputs.galleries(result.kappa, table)
    au.explorer.write_head_report(result, report, source=table.name, galleries=galleries, note=note)
    names = ("information", "area", "area_best", "auroc")
    metrics = {name: getattr(result, name) for name in names} | {"recall_at_1": result.recall}
    return {"report": str(report), "test": {"rows": held.rows, **metrics}}


def _facts(head: au.FrozenHead) -> dict[str, Any]:
    """Return facts about a head as JSON values."""
    return {
        "dim": head.dim_,
        "kappa_pos": head.kappa_pos_,
        "information": head.information_,
        "dims": [{"dim": d, "information": v} for d, v in head.dims_.items()],
        "profile": [{"kappa_pos": k, "information": v} for k, v in head.profile_.items()],
        "coverage": [{"mass": m, "measured": share} for m, share in head.coverage_.items()],
    }


def _show(head: au.FrozenHead, rows: int, out: Path) -> None:
    print_text(
        f"{rows:,} rows; dim {head.dim_}; κ_pos {head.kappa_pos_:.4g}; "
        f"held-out information {head.information_:.3f} nats"
    )
    titles = ("held-out information, short fits", "dim"), ("held-out information", "κ_pos")
    for (title, name), values in zip(titles, (head.dims_, head.profile_), strict=True):
        rows_of = table(title, name, "nats")
        for value, information in values.items():
            rows_of.add_row(f"{value:.4g}", f"{information:.3f}")
        if values:
            print_table(rows_of)
    print_table(coverage_table(head.coverage_))
    print_text(f"saved in {out}", wrap=False)


def _vote_facts(votes: au.data.Votes) -> dict[str, Any]:
    """Return numbers of items and votes, and how often annotators agree (null if no item has two votes), as JSON."""
    agreement = votes.pair_agreement
    return {
        "items": int((votes.totals > 0).sum()),
        "votes": int(votes.totals.sum()),
        "classes": len(votes.classes),
        "agreement": agreement if agreement == agreement else None,
    }
