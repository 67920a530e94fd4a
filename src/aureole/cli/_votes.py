"""The option --votes: a long table of votes, columns of counts, or an array of counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import aureole as au
from aureole.cli._lazy import torch
from aureole.cli._options import option
from aureole.errors import InvalidInputError

ANNOTATOR = "annotator"


@dataclass(frozen=True)
class VoteOptions:
    """Votes of several annotators per row."""

    votes: str | None = option(
        "Votes, instead of groups: a table with one vote per row, or the columns of counts in TABLE (a,b,c or "
        "'votes_*'), or an .npy file of counts.",
        metavar="FILE|COLUMNS",
    )
    item_column: str = option("Votes: column of items, which are ids of --id-column.", "item")
    label_column: str = option("Votes: column of labels.", "label")
    annotator_column: str | None = option(
        'Votes: column of annotators (default: annotator, if it exists; "" for none).'
    )

    @property
    def path(self) -> Path | None:
        """The file of votes; None for columns of counts."""
        if self.votes is None:
            return None
        path = Path(self.votes)
        known = self.votes.endswith((*au.data._table_files.FILES, *au.data._array_files.ARRAYS))
        return path if known or path.exists() else None

    @property
    def is_long(self) -> bool:
        """Whether the votes are a table with one vote per row."""
        return self.path is not None and self.path.suffix not in au.data._array_files.ARRAYS

    def check(self) -> None:
        """Raise for options that cannot be used together."""
        if self.votes is not None and not self.votes.strip(", "):
            raise typer.BadParameter("--votes needs a file or the names of columns.")
        names = (self.item_column, self.label_column, self.annotator_column)
        if not self.is_long and names != ("item", "label", None):
            raise typer.BadParameter(
                "--item-column, --label-column and --annotator-column need --votes with a table of one vote per row."
            )

    def read(self, table: Path, id_column: str | None) -> au.data.Votes | None:
        """The votes, one row for each row of the table; with row numbers as items, up to the last with a vote."""
        if self.votes is None:
            return None
        path = self.path
        if path is None:
            columns = [name.strip() for name in self.votes.split(",") if name.strip()]
            return au.data.read_vote_counts(table, columns)
        if path.suffix in au.data._array_files.ARRAYS:
            return au.data.read_vote_counts(path)
        names = (self.item_column, self.label_column, self._annotators(path))
        au.data._tables.check_columns(path, *names)
        return au.data.read_votes(path, names, ids=(table, id_column) if id_column else None)

    def _annotators(self, path: Path) -> str | None:
        if self.annotator_column is not None:
            return self.annotator_column or None
        return (
            ANNOTATOR
            if ANNOTATOR
            in au.data._table_files.require_columns(
                au.data._table_files.table_parts(path)[0], []
            ).names
            else None
        )


def fit_rows(votes: au.data.Votes, rows: int, *, by_number: bool) -> au.data.Votes:
    """The votes with one row per vector; a long table of row numbers may end before the last vector.

    Raises if there are more items than vectors, or fewer in a table with one row per vector.
    """
    missing = rows - len(votes)
    if missing < 0 or (missing and not by_number):
        raise InvalidInputError(
            f"there are {rows} vectors, but votes on {len(votes)} items: the files do not match row by row."
        )
    if not missing:
        return votes
    counts = torch.nn.functional.pad(votes.counts, (0, 0, 0, missing))
    return au.data.Votes.of(counts, classes=votes.classes)


def vote_facts(votes: au.data.Votes) -> dict[str, Any]:
    """Numbers of items and votes, and how often annotators agree, as JSON values; null if no item has two votes."""
    agreement = votes.pair_agreement
    return {
        "items": int((votes.totals > 0).sum()),
        "votes": int(votes.totals.sum()),
        "classes": len(votes.classes),
        "single_votes": int((votes.totals == 1).sum()),
        "agreement": agreement if agreement == agreement else None,
    }


def vote_line(facts: dict[str, Any]) -> str:
    """The numbers of ``vote_facts`` in one line.

    Examples
    --------
    >>> print(vote_line({"items": 20, "votes": 51, "classes": 3, "single_votes": 2, "agreement": 0.75}))
    51 votes on 20 items, 2 of them with one vote; 75 % of the pairs of annotators agree
    """
    line = f"{facts['votes']:,} votes on {facts['items']:,} items, {facts['single_votes']:,} of them with one vote"
    if facts["agreement"] is None:
        return line
    return f"{line}; {facts['agreement']:.0%} of the pairs of annotators agree".replace("%", " %")
