"""The application: its verbs, and how errors are shown."""

import sys

import typer
from rich.console import Console

from aureole.cli import report, reproduce
from aureole.errors import AureoleError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Embeddings that know how sure they are.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("reproduce", help=reproduce.HELP)(reproduce.reproduce)
app.command("report")(report.report)


def main() -> None:
    """Run the command line; errors of ours are one sentence on stderr and exit code 1."""
    try:
        app()
    except AureoleError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command goes on where it was.")
        sys.exit(130)
