"""The application: its verbs, and how errors are shown."""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from aureole.cli import (
    approximate,
    doctor,
    embed,
    evaluate,
    fit_head,
    index,
    quickstart,
    records,
    report,
    reproduce,
    score,
    search,
    serve,
    train,
)
from aureole.errors import AureoleError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Embeddings that know how sure they are.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("quickstart", help=quickstart.HELP)(quickstart.quickstart)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.command("train", help=train.HELP)(train.train)
app.command("fit-head", help=fit_head.HELP)(fit_head.fit_head)
app.command("score", help=score.HELP)(score.score)
app.command("evaluate", help=evaluate.HELP)(evaluate.evaluate)
app.command("embed", help=embed.HELP)(embed.embed)
index.index.command("approximate", help=approximate.HELP)(approximate.approximate)
app.add_typer(index.index, name="index")
app.command("search", help=search.HELP)(search.search)
app.command("serve", help=serve.HELP)(serve.serve)
app.command("reproduce", help=reproduce.HELP)(reproduce.reproduce)
app.command("results", help=records.HELP)(records.results)
app.command("report")(report.report)


def main() -> None:
    """Run the command line; errors of ours, and of the disk, are one sentence on stderr and exit code 1."""
    try:
        app()
    except (AureoleError, OSError) as error:  # a full disk, a folder that may not be written
        # what an error quotes of a file is text, not markup
        Console(stderr=True, soft_wrap=True).print(
            f"[red]error:[/red] {escape(str(error))}", highlight=False
        )
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command goes on where it was.")
        sys.exit(130)
