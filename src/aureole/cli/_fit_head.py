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
from aureole.cli._inputs import InputOptions, default_group, resumable
from aureole.cli._lazy import assessment, np, pages, torch
from aureole.cli._options import (
    AsJson,
    GroupedVectors,
    Vectors,
    check_out,
    expanded,
    option,
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
from aureole.cli._score import ScoreOptions, write_scores
from aureole.cli._votes import VoteOptions, fit_rows, vote_facts, vote_line
from aureole.errors import InvalidInputError

HELP = r"""Fit a head that predicts how certain each row of a table is, from positives, and save it.

Rows are vectors (a column of lists of floats, an .npy or .safetensors file), or texts or pictures that --encoder turns
into vectors. Positives are rows that share a group (a label, a photo with several captions, the class folder of a
picture), or that a table of pairs names. With --votes, rows match as often as the votes of their annotators do, and
annotators who disagree on a row lower its kappa. If the command is interrupted, even killed, run it again to resume.

With --report, a share of the groups is held out of the fit, and the page shows the head's quality on them, and the most
and the least certain of all rows. --scores writes the kappa of every row.

Examples:

    aureole fit-head captions.csv --text-column caption --group-column photo \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --out head \
      --report page.html --scores scored.csv
    aureole fit-head photos/ --encoder timm:resnet50 --out head --report p.html
    aureole fit-head vectors.parquet --group-column photo --out head
    aureole fit-head vectors.npy --columns-from labels.csv \
      --group-column label --out head
    aureole fit-head vectors.parquet --pairs clicks.parquet \
      --left query --right item --id-column id --out head
    aureole fit-head vectors.parquet --votes votes.csv --id-column id --out head
"""


_HELD_OUT_ADVICE = (
    "--report holds out some groups: give more rows, a smaller --test-share, or no --report."
)


@dataclass(frozen=True)
class PairOptions:
    """Positives as a table of pairs."""

    pairs: Path | None = option("Table of pairs of positives, instead of groups.")
    left: str = option("First column of the pairs.", "left")
    right: str = option("Second column of the pairs.", "right")
    id_column: str | None = option(
        "Column of ids, for --pairs, --votes and --scores (default: row numbers from 0)."
    )

    def read(self, table: Path) -> np.ndarray | None:
        """Return the pairs of row numbers [p, 2]; None without --pairs."""
        ids = (table, self.id_column) if self.id_column else None
        return (
            au.data.read_pairs(self.pairs, (self.left, self.right), ids=ids) if self.pairs else None
        )


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
    test_share: float = option("With --report: share of the groups to hold out.", 0.2)
    scores: Path | None = option("Kappa of every row: .parquet, .csv or .jsonl.")
    as_json: AsJson = False

    def check(self, inputs: tuple[Path, ...], *, grouped: bool) -> None:
        """Raise for options that cannot be used together and for missing packages, before anything is computed."""
        from aureole.training._fit import check_fabric

        check_fabric()
        if not 0 < self.test_share < 1:
            raise typer.BadParameter(
                f"--test-share must be between 0 and 1, not {self.test_share}."
            )
        ScoreOptions(self.scores).check(inputs)
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
    pairing: PairOptions,
    voting: VoteOptions,
    fit: FitOptions,
    reports: OutputOptions,
) -> None:
    """Fit and save a head; ``HELP`` is the text users see."""
    started = time.monotonic()
    check_out(out, "head", overwrite=reports.overwrite)
    others = columns.columns_from or vectors
    group_column = default_group(others, columns.group_column)
    grouped = _is_grouped(others, columns, pairing, voting)
    reports.check((vectors, others), grouped=grouped)
    shown_from = others if inputs.encoder is None else vectors
    inputs.check(shown_from, vector_column=columns.vector_column)
    au.data._tables.check_columns(others, pairing.id_column)
    head, shown = fit.head(), not reports.as_json
    groups = au.data.read_groups(others, group_column) if grouped else None
    pairs, votes = pairing.read(others), voting.read(others, pairing.id_column)
    encoder = inputs.load()
    held = _held_out(groups, reports, fit.seed)
    paths = (vectors, others, pairing.pairs, voting.path)
    files = [file for path in paths if path for file in au.data._tables.table_files(path)]
    settings = [vars(columns), vars(pairing), vars(voting), inputs.column(vectors)]
    settings += [inputs.normalized, encoder and encoder.fingerprint, head.get_params()]
    settings += [held and reports.test_share]
    partial = out.with_name(f"{out.name}.partial-{run_digest(settings, files)}")
    with resumable(partial):
        places = {"work": partial, "resume": partial / "vectors"}
        rows = inputs.vectors(vectors, encoder, columns.vector_column, **places, shown=shown)
        _check_rows(groups, pairs, pairing.pairs, len(rows))
        if votes is not None:
            by_number = voting.is_long and pairing.id_column is None
            votes = fit_rows(votes, len(rows), by_number=by_number)
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
    if reports.scores is not None:
        scores = ScoreOptions(reports.scores, pairing.id_column)
        write_scores(head, rows, assessment.kappas(head, rows), scores, others)
        facts["scores"] = str(reports.scores)
    shutil.rmtree(partial, ignore_errors=True)
    if reports.as_json:
        facts |= _positives(groups, pairs, votes) | _facts(head)
        print_json(facts | {"seconds": time.monotonic() - started})
        return
    if votes is not None:
        print_text(vote_line(vote_facts(votes)))
    _show(head, len(rows), out)
    for name in ("report", "scores"):
        if name in facts:
            print_text(f"{name} written to {facts[name]}")


def _is_grouped(
    others: Path, columns: GroupedVectors, pairing: PairOptions, voting: VoteOptions
) -> bool:
    """Return whether positives are groups; raise unless exactly one of groups, pairs and votes is given."""
    voting.check()
    given = pairing.pairs is not None, voting.votes is not None
    column = columns.group_column if any(given) else default_group(others, columns.group_column)
    in_array = columns.columns_from is not None and others.suffix in au.data._array_files.ARRAYS
    grouped = column is not None or in_array
    if sum((grouped, *given)) != 1:
        raise typer.BadParameter("use one of --group-column, --pairs and --votes.")
    return grouped


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


def _positives(
    groups: np.ndarray | None, pairs: np.ndarray | None, votes: au.data.Votes | None
) -> dict[str, Any]:
    """Return the number of groups or pairs, or the facts about votes, as JSON values."""
    if votes is not None:
        return {"votes": vote_facts(votes)}
    return {"groups": len(np.unique(groups))} if pairs is None else {"pairs": len(pairs)}


@dataclass(frozen=True)
class _HeldOut:
    """Groups for the fit and for the page; a row that does not take part has a group of its own."""

    training: np.ndarray
    testing: np.ndarray
    groups: int
    rows: int


def _held_out(groups: np.ndarray | None, reports: OutputOptions, seed: int) -> _HeldOut | None:
    """Return the split of the groups for a page; None without one."""
    if groups is None or reports.report is None:
        return None
    rng = torch.Generator().manual_seed(seed)
    _, held = au.data.Groups.of(groups).split(reports.test_share, rng)
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
