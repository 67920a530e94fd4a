"""``aureole results``: all records of a sweep as one table."""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from aureole.cli._output import finite

HELP = """Collect all records below a folder in one table, one row per record.

The columns are the metrics (metrics.…), the settings (settings.…), the seed, the commit and the command.
Without --out the table is printed as CSV.

Examples:

    aureole results results/families --out families.parquet
    aureole results results/families | head
"""


def results(
    folder: Annotated[Path, Argument(help="Folder that contains records, at any depth.")],
    out: Annotated[Path | None, Option(help="File to write: .csv, .parquet or .jsonl.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the rows as one JSON array.")] = False,
) -> None:
    """Collect records in one table; ``HELP`` is the text users see."""
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
