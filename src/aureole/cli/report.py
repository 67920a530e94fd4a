"""``aureole report``: one page of HTML from a folder of records."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of records, as reproduce writes it.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; default: report.html in the folder.")
    ] = None,
) -> None:
    """Write one self-contained HTML page with the tables and figures of a folder of records, all of one experiment.

    aureole report results/controlled

    aureole report results/cifar10h

    aureole report results/frozen
    """
    from aureole.reports.folder import write_report

    typer.echo(write_report(folder, out or folder / "report.html"))
