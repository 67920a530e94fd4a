"""``aureole results``: all records of a sweep as one table."""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from aureole.cli._results import finite

HELP = """Collect all records below a folder, of a sweep or of several, in one table: a row each.

The columns are the figures (metrics.…), the settings (settings.…), the seed, the commit and the command.
Without --out the table is printed as CSV.

Examples:

    aureole results results/families --out families.parquet
    aureole results results/families | head
"""


def results(
    folder: Annotated[Path, typer.Argument(help="A folder with records in it, at any depth.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write: .csv, .parquet or .jsonl.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows as one JSON array.")
    ] = False,
) -> None:
    """Collect records in one table; ``HELP`` is what users read."""
    from aureole.explorer import record_rows, write_record_table

    rows = record_rows(folder)
    if out is not None:
        path = write_record_table(rows, out)
        typer.echo(f"{len(rows):,} records with {len(rows[0]):,} columns written to {path}")
    elif as_json:
        typer.echo(json.dumps(finite(rows), allow_nan=False))
    else:
        table = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
