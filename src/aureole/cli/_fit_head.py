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
from aureole.cli._inputs import IMAGE, InputOptions, default_group, is_pictures, resumable
from aureole.cli._lazy import np, rich, torch
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
    is_quiet,
    print_json,
    print_text,
    table,
    training_bar,
)
from aureole.cli._score import row_numbers, scored_columns
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
        """The pairs of row numbers [p, 2]; None without --pairs."""
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
        """An unfitted head with the options that were given."""
        given: dict[str, Any] = vars(self) | {"dim": None if self.dim is None else _dim(self.dim)}
        return au.FrozenHead(**{name: value for name, value in given.items() if value is not None})


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

    def check(self, *, grouped: bool) -> None:
        """Raise for options that cannot be used together and for missing packages, before anything is computed."""
        from aureole.training._fit import check_fabric

        check_fabric()
        if self.report is not None and not grouped:
            raise typer.BadParameter("--report needs groups: it measures the head on some of them.")
        if not 0 < self.test_share < 1:
            raise typer.BadParameter(
                f"--test-share must be between 0 and 1, not {self.test_share}."
            )
        if self.scores is not None:
            au.data.ColumnWriter(self.scores)  # raises for an unknown ending
        if self.report is not None:
            au.explorer.check_page()  # raises if its packages are missing


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
    grouped = _is_grouped(others, columns, pairing, voting)
    reports.check(grouped=grouped)
    shown_from = others if inputs.encoder is None else vectors
    inputs.check(shown_from, vector_column=columns.vector_column)
    au.data.check_columns(others, pairing.id_column)
    head, shown = fit.head(), not is_quiet(as_json=reports.as_json)
    group_column = default_group(others, columns.group_column)
    positives = _Positives(
        au.data.read_groups(others, group_column) if grouped else None,
        pairing.read(others),
        voting.read(others, pairing.id_column),
    )
    encoder = inputs.load()
    held = _held_out(positives.groups, reports, fit.seed)
    paths = (vectors, others, pairing.pairs, voting.path)
    files = [file for path in paths if path for file in au.data.table_files(path)]
    settings = [vars(columns), vars(pairing), vars(voting), inputs.column(vectors)]
    settings += [inputs.normalized, encoder and encoder.fingerprint, head.get_params()]
    settings += [held and reports.test_share]
    partial = out.with_name(f"{out.name}.partial-{run_digest(settings, files)}")
    with resumable(partial):
        rows = inputs.vectors(
            vectors,
            encoder,
            columns.vector_column,
            work=partial,
            resume=partial / "vectors",
            shown=shown,
        )
        positives = positives.for_rows(len(rows), pairing, voting)
        _fit(head, rows, positives, held, partial / "checkpoint.safetensors", shown=shown)
    if encoder is not None:
        head.fingerprint_ = encoder.fingerprint
    head.save(out)
    facts: dict[str, Any] = {"head": str(out), "rows": len(rows)}
    if held is not None and reports.report is not None:
        facts |= _write_report(head, rows, held, inputs, reports.report, shown_from)
    if reports.scores is not None:
        facts |= _write_scores(head, rows, reports.scores, others, pairing.id_column)
    shutil.rmtree(partial, ignore_errors=True)
    if reports.as_json:
        facts |= positives.facts() | _facts(head)
        print_json(facts | {"seconds": time.monotonic() - started})
        return
    if positives.votes is not None:
        print_text(vote_line(vote_facts(positives.votes)))
    _show(head, len(rows), out)
    for name in ("report", "scores"):
        if name in facts:
            print_text(f"{name} written to {facts[name]}")


def _is_grouped(
    others: Path, columns: GroupedVectors, pairing: PairOptions, voting: VoteOptions
) -> bool:
    """Whether positives are groups; raise unless exactly one of groups, pairs and votes is given."""
    voting.check()
    given = pairing.pairs is not None, voting.votes is not None
    column = columns.group_column if any(given) else default_group(others, columns.group_column)
    in_array = columns.columns_from is not None and others.suffix in au.data.ARRAYS
    grouped = column is not None or in_array
    if sum((grouped, *given)) != 1:
        raise typer.BadParameter("use one of --group-column, --pairs and --votes.")
    return grouped


def _fit(
    head: au.FrozenHead,
    rows: np.ndarray,
    positives: _Positives,
    held: _HeldOut | None,
    checkpoint: Path,
    *,
    shown: bool,
) -> None:
    """Fit the head, with a progress bar."""
    labels = positives.groups if held is None else held.training
    try:
        with training_bar("fitting", shown=shown) as observer:
            head.fit(
                rows,
                labels,
                pairs=positives.pairs,
                votes=positives.votes,
                checkpoint=checkpoint,
                observer=observer,
            )
    except InvalidInputError as error:
        if held is None:
            raise
        raise InvalidInputError(f"{error} {_HELD_OUT_ADVICE}") from error


@dataclass(frozen=True)
class _Positives:
    """Which rows match: exactly one of groups [n], pairs [p, 2] and votes."""

    groups: np.ndarray | None
    pairs: np.ndarray | None
    votes: au.data.Votes | None

    def for_rows(self, rows: int, pairing: PairOptions, voting: VoteOptions) -> _Positives:
        """The same with one row of votes per vector; raise unless groups, pairs and votes match the vectors."""
        if self.groups is not None and len(self.groups) != rows:
            raise InvalidInputError(
                f"there are {rows} vectors, but {len(self.groups)} groups: the files do not match row by row."
            )
        if self.pairs is not None and (self.pairs >= rows).any():
            row = int((self.pairs >= rows).any(1).argmax())
            raise InvalidInputError(
                f"row {row} of {pairing.pairs} (counted from 0) refers to row {self.pairs[row].max()}, but there are "
                f"{rows} vectors."
            )
        if self.votes is None:
            return self
        by_number = voting.is_long and pairing.id_column is None
        return replace(self, votes=fit_rows(self.votes, rows, by_number=by_number))

    def facts(self) -> dict[str, Any]:
        """Their numbers as JSON values."""
        if self.votes is not None:
            return {"votes": vote_facts(self.votes)}
        if self.pairs is not None:
            return {"pairs": len(self.pairs)}
        assert self.groups is not None  # one of the three is given
        return {"groups": len(np.unique(self.groups))}


@dataclass(frozen=True)
class _HeldOut:
    """Groups for the fit and for the page; a row that does not take part has a group of its own."""

    training: np.ndarray
    testing: np.ndarray
    groups: int
    rows: int


def _held_out(groups: np.ndarray | None, reports: OutputOptions, seed: int) -> _HeldOut | None:
    """The split of the groups for a page; None without one."""
    if groups is None or reports.report is None:
        return None
    rng = torch.Generator().manual_seed(seed)
    _, held = au.data.Groups.of(groups).split(reports.test_share, rng)
    chosen = np.zeros(len(groups), bool)
    chosen[held.members.numpy()] = True
    alone = groups.max() + 1 + np.arange(len(groups))  # rows without a partner are left out
    return _HeldOut(
        np.where(chosen, alone, groups),
        np.where(chosen, groups, alone),
        len(np.unique(groups)),
        int(chosen.sum()),
    )


def _write_report(
    head: au.FrozenHead,
    rows: np.ndarray,
    held: _HeldOut,
    inputs: InputOptions,
    report: Path,
    table: Path,
) -> dict[str, Any]:
    """Write the page, and return its path and the metrics on it."""
    from aureole.training._assessment import assess

    result = replace(assess(head, rows, held.testing), groups=held.groups)
    note = f"The metrics are from {held.rows:,} held-out rows; the head was fitted on the groups of the others."
    galleries = inputs.galleries(result.kappa, table)
    au.explorer.write_head_report(result, report, source=table.name, galleries=galleries, note=note)
    return {
        "report": str(report),
        "test": {
            "rows": held.rows,
            "information": result.information,
            "recall_at_1": result.recall,
            "area": result.area,
            "area_best": result.area_best,
            "auroc": result.auroc,
        },
    }


def _write_scores(
    head: au.FrozenHead, rows: np.ndarray, out: Path, table: Path, id_column: str | None
) -> dict[str, Any]:
    """Write the kappa of every row, as ``aureole score`` does, and return the path."""
    from aureole.training._assessment import kappas

    if id_column is None and is_pictures(table):
        id_column = IMAGE
    ids = row_numbers(len(rows)) if id_column is None else au.data.scan_column(table, id_column)
    with au.data.ColumnWriter(out) as writer:
        for part in scored_columns(head, rows, kappas(head, rows), 0.9, ids=ids):
            writer.write(part)
    return {"scores": str(out)}


def _facts(head: au.FrozenHead) -> dict[str, Any]:
    """Facts about a head as JSON values."""
    return {
        "dim": head.dim_,
        "kappa_pos": head.kappa_pos_,
        "information": head.information_,
        "dims": [{"dim": d, "information": v} for d, v in head.dims_.items()],
        "profile": [{"kappa_pos": k, "information": v} for k, v in head.profile_.items()],
        "coverage": [{"mass": m, "measured": share} for m, share in head.coverage_.items()],
    }


def _dim(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 2:
        raise typer.BadParameter(f'--dim must be an integer of 2 or more, or "auto", not {text!r}.')
    return int(text)


def _show(head: au.FrozenHead, rows: int, out: Path) -> None:
    console = rich.console.Console(highlight=False)
    console.print(
        f"{rows:,} rows; dim {head.dim_}; κ_pos {head.kappa_pos_:.4g}; "
        f"held-out information {head.information_:.3f} nats"
    )
    if head.dims_:
        dims = table("held-out information, short fits", "dim", "nats")
        for dim, information in head.dims_.items():
            dims.add_row(str(dim), f"{information:.3f}")
        console.print(dims)
    profile = table("held-out information", "κ_pos", "nats")
    for kappa_pos, information in head.profile_.items():
        profile.add_row(f"{kappa_pos:.4g}", f"{information:.3f}")
    console.print(profile)
    console.print(coverage_table(head.coverage_))
    console.print(f"saved in {out}", markup=False, soft_wrap=True)
