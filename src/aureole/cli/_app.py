"""The application: its commands, error messages and exit statuses."""

import errno
import os
import sys
import warnings
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

import aureole as au
from aureole.errors import (
    AureoleError,
    AureoleWarning,
    EncoderError,
    MissingInputError,
    MissingPackageError,
)

HELP = r"""Embeddings that know how sure they are.

Find out which results of a search are good enough (calibrate) and which of your data are ambiguous (fit-head), or train
an encoder with uncertainty (train). Every command supports --help, and most --json.

Examples:

    aureole quickstart
    aureole calibrate pairs.csv --text-column question \
      --match-text-column answer --precision 0.5 --out calibrator \
      --encoder sentence-transformers:all-MiniLM-L6-v2
    aureole fit-head vectors.parquet --group-column photo --out head
    aureole score vectors.parquet --head head --out scored.parquet
    aureole index build vectors.parquet --head head --out gallery.lance
    aureole search gallery.lance --id 17
    aureole --install-completion
"""
FAILED, USAGE, INTERRUPTED = 1, 2, 130  # exit statuses
# the base class of usage errors: of click, or of the copy that newer versions of typer contain
_UsageError: Any = typer.BadParameter.__mro__[2]
_CANNOT_START = (MissingInputError, MissingPackageError, EncoderError, FileNotFoundError)
_PYTHON_FORMAT = warnings.formatwarning


_START, _SCORE, _SEARCH, _PAGES = "Start", "Uncertainty", "Galleries and search", "Results"
# The panel and the line of each command in ``aureole --help``. Its module has its name, and is imported when used.
_COMMANDS = {
    "quickstart": (_START, "See it work on synthetic shapes, offline."),
    "doctor": (_START, "Check this machine and installation."),
    "fit-head": (_SCORE, "Learn the certainty of the vectors you have."),
    "score": (_SCORE, "Write the certainty of every row; measure a head."),
    "train": (_SCORE, "Train an encoder that predicts its certainty."),
    "embed": (_SCORE, "Embed pictures or tables of any size."),
    "calibrate": (_SEARCH, "Learn which results are good enough."),
    "index": (_SEARCH, "Build, extend and inspect galleries."),
    "search": (_SEARCH, "Search a gallery."),
    "inspect": (_SEARCH, "Suspicious labels, confused classes, outliers."),
    "serve": (_SEARCH, "Serve a gallery over HTTP, with a page."),
    "report": (_PAGES, "Write a page about a gallery or records."),
}


class _Commands(TyperGroup):
    """Our commands, and those (each a ``typer.Typer``) that packages register as entry points ``aureole.commands``."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, ours first."""
        others = entry_points(group="aureole.commands").names | set(self.commands)
        return [*_COMMANDS, *sorted(others - set(_COMMANDS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, or None; imports its module."""
        if cmd_name in _COMMANDS:
            return _own_command(cmd_name)
        for entry in entry_points(group="aureole.commands", name=cmd_name):
            return typer.main.get_command(entry.load())
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that arguments start with; an unknown one raises an error that suggests similar names."""
        try:
            return self._click_resolve_command(ctx, args)
        except _UsageError as error:
            similar = get_close_matches(args[0], self.list_commands(ctx))
            if similar:
                names = ", ".join(map(repr, similar))
                error.message = f"{error.message.rstrip('.')}. Did you mean {names}?"
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; no command is imported."""
        self._listing().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the names that start with a text; no command is imported."""
        return self._listing().shell_complete(ctx, incomplete)

    def _listing(self) -> TyperGroup:
        """Return the group with commands that have a name and a line, but no function."""
        shown: dict[str, Any] = {}
        for name in self.list_commands(None):
            panel, about = _COMMANDS.get(name) or (_PAGES, self._about(name))
            shown[name] = TyperCommand(name=name, help=about, rich_help_panel=panel)
        same: Any = {"params": self.params, "rich_markup_mode": self.rich_markup_mode}
        return TyperGroup(name=self.name, help=self.help, commands=shown, **same)

    def _about(self, name: str) -> str:
        """Return the summary of the distribution that a command comes from."""
        for entry in entry_points(group="aureole.commands", name=name):
            summary = entry.dist.metadata["Summary"] if entry.dist else None
            return summary or f"A command of {entry.module}."
        return self.commands[name].help or ""


@cache
def _own_command(name: str) -> Any:
    """Import the module of a command, and return it."""
    stem = name.replace("-", "_")
    module = import_module(f"aureole.cli._{stem}")
    made = getattr(module, stem)
    if not isinstance(made, typer.Typer):
        function, made = made, typer.Typer(add_completion=False, rich_markup_mode="markdown")
        made.command(name, help=module.HELP)(function)
    command = typer.main.get_command(made)
    command.name = name
    return command


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


@app.command("reproduce", context_settings={"ignore_unknown_options": True})
def _reproduce(arguments: Annotated[list[str] | None, Argument(hidden=True)] = None) -> None:  # noqa: ARG001
    """Reproduce the paper's experiments (needs the package aureole-paper)."""
    raise MissingPackageError(
        "`aureole reproduce` needs aureole-paper: run `pip install ./paper` in the aureole repository."
    )


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"aureole {au.__version__}")
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
    except SystemExit as end:  # typer exits by itself after a broken pipe
        cause = end.__context__
        if not (isinstance(cause, OSError) and cause.errno == errno.EPIPE):
            raise
        status = _failed(cause)
    except (Exception, KeyboardInterrupt) as error:
        status = _failed(error)
    if status == INTERRUPTED:
        _print_line("interrupted; run the same command again to resume.")
    sys.exit(status if isinstance(status, int) else 0)


def _failed(error: BaseException) -> int:
    """Print an error as one line and return the exit status; raises what is a bug."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        # a reader that went away is not an error; the interpreter flushes stdout when it exits: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    if isinstance(error, _UsageError):
        if type(error).__name__ != "NoArgsIsHelpError":  # that error has printed the help
            _print_line(_usage_message(error))
        return USAGE
    if not isinstance(error, (AureoleError, OSError)):
        raise error
    _print_line(
        f"error: {error}{'. Check the name.' if isinstance(error, FileNotFoundError) else ''}"
    )
    return USAGE if isinstance(error, _CANNOT_START) else FAILED


def _format_warning(message: Any, category: type[Warning], *place: Any) -> str:
    """Format a warning of ours as one line without its place in the code; any other as Python does."""
    if issubclass(category, AureoleWarning):
        return f"warning: {' '.join(str(message).split())}\n"
    return _PYTHON_FORMAT(message, category, *place)


def _usage_message(error: Any) -> str:
    """Return the error of a wrong command, and how to see its help."""
    # our own messages are complete sentences; the others need their parameter
    own = type(error) is typer.BadParameter and error.param is None and error.param_hint is None
    text = error.message if own else error.format_message()
    text = text[:1].lower() + text[1:]
    end = "" if text.endswith((".", "?")) else "."
    return f"error: {text}{end} See {_command_words()} --help."


def _command_words() -> str:
    """Return the words of the command line that name the command, such as "aureole index build"."""
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


def _print_line(text: str) -> None:
    """Print one line on stderr, without interpreting markup."""
    from rich.console import Console
    from rich.text import Text

    line = Text(" ".join(text.split()))
    line.highlight_regex("^error:", "red")
    Console(stderr=True, soft_wrap=True).print(line)
