"""The application: its commands, error messages and exit statuses."""

import errno
import os
import sys
import warnings
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

import aureole
from aureole.cli import (
    _calibrate as calibrate,
    _doctor as doctor,
    _embed as embed,
    _evaluate as evaluate,
    _fit_head as fit_head,
    _index as index,
    _index_copy as _index_copy,  # adds its commands to index
    _near_duplicates as near_duplicates,
    _quickstart as quickstart,
    _report as report,
    _results as results,
    _score as score,
    _search as search,
    _serve as serve,
    _train as train,
)
from aureole.errors import (
    AureoleError,
    AureoleWarning,
    EncoderError,
    MissingInputError,
    MissingPackageError,
)

HELP = """Embeddings that know how sure they are.

Predict a certainty for every vector, build a gallery, and search it: the certainty of each query decides how many
items are returned. Every command supports --help, and most --json.

Examples:

    aureole fit-head photos/ --encoder timm:resnet50 --out head --report p.html
    aureole fit-head vectors.parquet --group-column photo --out head
    aureole score vectors.parquet --head head --out scored.parquet
    aureole index build vectors.parquet --head head --out gallery.lance
    aureole search gallery.lance --id 17
    aureole --install-completion
"""
FAILED, USAGE, INTERRUPTED = 1, 2, 130  # exit statuses
# the base class of usage errors: of click, or of the copy that newer versions of typer contain
_UsageError: Any = typer.BadParameter.__mro__[2]
_PYTHON_FORMAT = warnings.formatwarning
_PLACEHOLDERS = {"reproduce"}  # commands that another package provides


class _Commands(TyperGroup):
    """Our commands, and those (each a ``typer.Typer``) that packages register as entry points ``aureole.commands``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, ours first."""
        ours = super().list_commands(ctx)
        return [*ours, *sorted(entry_points(group="aureole.commands").names - set(ours))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        if cmd_name not in self.commands or cmd_name in _PLACEHOLDERS:
            for entry in entry_points(group="aureole.commands", name=cmd_name):
                return typer.main.get_command(entry.load())
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)
app.command("quickstart", help=quickstart.HELP)(quickstart.quickstart)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.command("train", help=train.HELP)(train.train)
app.command("fit-head", help=fit_head.HELP)(fit_head.fit_head)
app.command("score", help=score.HELP)(score.score)
app.command("evaluate", help=evaluate.HELP)(evaluate.evaluate)
app.command("calibrate", help=calibrate.HELP)(calibrate.calibrate)
app.command("embed", help=embed.HELP)(embed.embed)
app.add_typer(index.index, name="index")
app.command("search", help=search.HELP)(search.search)
app.command("near-duplicates", help=near_duplicates.HELP)(near_duplicates.near_duplicates)
app.command("serve", help=serve.HELP)(serve.serve)
app.command("results", help=results.HELP)(results.results)
app.command("report", help=report.HELP)(report.report)


@app.command("reproduce", context_settings={"ignore_unknown_options": True})
def _reproduce(arguments: Annotated[list[str] | None, Argument(hidden=True)] = None) -> None:  # noqa: ARG001
    """Reproduce the paper's experiments (needs the package aureole-paper)."""
    raise MissingPackageError(
        "`aureole reproduce` needs aureole-paper: run `pip install ./paper` in the aureole repository."
    )


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"aureole {aureole.__version__}")
        raise typer.Exit
    return requested


@app.callback(help=HELP)
def _options(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options without a command; ``HELP`` is the text users see."""


def main() -> None:
    """Run the command line; errors and warnings are printed as one line each on stderr.

    The exit status is 0 for success, 1 for work that failed, 2 for a command that cannot start (an unknown option; a
    missing file, folder, column or package; an encoder that does not work), and 130 after an interruption.
    """
    warnings.formatwarning = _format_warning
    try:
        status = app(prog_name="aureole", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # that error has printed the help
            _print_line(_usage_message(error))
        sys.exit(USAGE)
    except (MissingInputError, MissingPackageError, EncoderError) as error:
        _print_line(f"error: {error}")
        sys.exit(USAGE)
    except AureoleError as error:
        _print_line(f"error: {error}")
        sys.exit(FAILED)
    except OSError as error:
        sys.exit(_system_status(error))
    except SystemExit as end:  # typer exits by itself after a broken pipe
        cause = end.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            sys.exit(_system_status(cause))
        raise
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:
        _print_line("interrupted; run the same command again to resume.")
    sys.exit(status if isinstance(status, int) else 0)


def _format_warning(message: Any, category: type[Warning], *place: Any) -> str:
    """A warning of ours as one line without its place in the code; any other as Python formats it."""
    if issubclass(category, AureoleWarning):
        return f"warning: {' '.join(str(message).split())}\n"
    return _PYTHON_FORMAT(message, category, *place)


def _usage_message(error: Any) -> str:
    """What is wrong with a command, and how to see its help."""
    # our own messages are complete sentences; the others need their parameter
    own = type(error) is typer.BadParameter and error.param is None and error.param_hint is None
    text = error.message if own else error.format_message()
    text = text[:1].lower() + text[1:]
    end = "" if text.endswith((".", "?")) else "."
    return f"error: {text}{end} See {_command_words()} --help."


def _command_words() -> str:
    """The part of the command line that names the command, such as "aureole index build"."""
    command: Any = typer.main.get_command(app)
    words = ["aureole"]
    for word in sys.argv[1:]:
        if not hasattr(command, "get_command"):
            break
        command = command.get_command(None, word)
        if command is None:
            break
        words.append(word)
    return " ".join(words)


def _system_status(error: OSError) -> int:
    """The exit status after an error of the disk or of a pipe; a closed pipe is not an error."""
    if error.errno == errno.EPIPE:
        # the interpreter flushes stdout when it exits: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    if isinstance(error, FileNotFoundError):
        _print_line(f"error: {error}. Check the name.")
        return USAGE
    _print_line(f"error: {error}")  # such as a full disk or missing permissions
    return FAILED


def _print_line(text: str) -> None:
    """Print one line on stderr, without interpreting markup."""
    from rich.console import Console
    from rich.text import Text

    line = Text(" ".join(text.split()))
    line.highlight_regex("^error:", "red")
    Console(stderr=True, soft_wrap=True).print(line)
