"""The application: its verbs, and the statuses it ends with."""

import errno
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

import aureole
from aureole.cli import (
    _approximate as approximate,
    _doctor as doctor,
    _embed as embed,
    _evaluate as evaluate,
    _fit_head as fit_head,
    _index as index,
    _quickstart as quickstart,
    _records as records,
    _report as report,
    _score as score,
    _search as search,
    _serve as serve,
    _train as train,
)
from aureole.cli._completion import completion_script, read_verbs
from aureole.errors import AureoleError, MissingInputError, MissingPackageError

HELP = """Embeddings that know how sure they are.

From vectors to a certainty for every row, a gallery, and searches whose own
certainty decides how many items they get.

Examples:

    aureole fit-head vectors.parquet --group-column photo --out head
    aureole score vectors.parquet --head head --out scored.parquet
    aureole index build vectors.parquet --head head --out gallery.lance
    aureole search gallery.lance --id 17
    aureole --show-completion bash
"""
FAILED, WRONG, STOPPED = 1, 2, 130  # the work; the command, or what it names; by Ctrl-C
# of click or of typer's own copy, as the version has it
_CommandError: Any = typer.BadParameter.__mro__[2]


class _Commands(TyperGroup):
    """The commands of this package, and those that other packages add by the entry-point group ``aureole.commands``.

    An entry point names a ``typer.Typer`` with one command. It is loaded when its command or the list of commands is
    asked for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands: ours first."""
        ours = super().list_commands(ctx)
        return [*ours, *sorted({entry.name for entry in _plugins()} - set(ours))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None if it does not exist."""
        if cmd_name in self.commands and cmd_name not in _PLACEHOLDERS:
            return super().get_command(ctx, cmd_name)
        for entry in _plugins():
            if entry.name == cmd_name:
                return typer.main.get_command(entry.load())
        return super().get_command(ctx, cmd_name)


def _plugins() -> list[EntryPoint]:
    return list(entry_points(group="aureole.commands"))


_PLACEHOLDERS = {"reproduce"}  # an installed package replaces these

app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,  # typer's own option guesses the shell, and takes none
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
app.command("results", help=records.HELP)(records.results)
app.command("report", help=report.HELP)(report.report)


@app.command("reproduce", context_settings={"ignore_unknown_options": True})
def _reproduce(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:  # noqa: ARG001
    """Reproduce the paper's experiments (needs the package aureole-paper)."""
    raise MissingPackageError(
        "`aureole reproduce` is part of aureole-paper: run `pip install ./paper` in aureole's repository."
    )


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"aureole {aureole.__version__}")
        raise typer.Exit
    return wanted


def _completion(shell: str | None) -> str | None:
    if shell is not None:
        verbs = read_verbs(typer.main.get_command(app))
        typer.echo(completion_script(shell, "aureole", verbs))
        raise typer.Exit
    return shell


@app.callback(help=HELP)
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        typer.Option(
            "--show-completion",
            help="Print what makes this shell complete commands.",
            callback=_completion,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Options of no verb; ``HELP`` is what users read."""


def main() -> None:
    """Run the command line; what goes wrong is one line on stderr.

    The status is 0 for done, 1 for work that failed, 2 for a command that cannot begin (an option that is none; a file,
    folder or package that is not there), and 130 for one that was stopped.
    """
    if "_AUREOLE_COMPLETE" in os.environ:  # set by the scripts of former versions
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
    try:
        status = app(prog_name="aureole", standalone_mode=False)
        sys.stdout.flush()
    except _CommandError as error:
        if (
            type(error).__name__ != "NoArgsIsHelpError"
        ):  # that has shown the help, which says it all
            _say(_mistake(error))
        sys.exit(WRONG)
    except (MissingInputError, MissingPackageError) as error:
        _say(f"error: {error}")
        sys.exit(WRONG)
    except AureoleError as error:
        _say(f"error: {error}")
        sys.exit(FAILED)
    except OSError as error:
        sys.exit(_system(error))
    except SystemExit as end:  # typer's own end after a broken pipe
        cause = end.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            sys.exit(_system(cause))
        raise
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    if status == STOPPED:
        _say("stopped; the same command goes on where it was.")
    sys.exit(status if isinstance(status, int) else 0)


def _mistake(error: Any) -> str:
    """What is wrong with a command, and where its help is."""
    # our own are sentences; the others say what they are about
    own = type(error) is typer.BadParameter and error.param is None and error.param_hint is None
    text = error.message if own else error.format_message()
    text = text[:1].lower() + text[1:]
    end = "" if text.endswith((".", "?")) else "."
    return f"error: {text}{end} See {_verb()} --help."


def _verb() -> str:
    """The command up to its verb, as it was given."""
    found, words = typer.main.get_command(app), ["aureole"]
    for word in sys.argv[1:]:
        found = getattr(found, "commands", {}).get(word)
        if found is None:
            break
        words.append(word)
    return " ".join(words)


def _system(error: OSError) -> int:
    """The status after an error of the disk or of a pipe; nothing is said to a reader who went away."""
    if error.errno == errno.EPIPE:
        # what is buffered still has no reader: let it go nowhere when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    if isinstance(error, FileNotFoundError):
        _say(f"error: {error}. Check the name.")
        return WRONG
    _say(f"error: {error}")  # a full disk, a folder that may not be written
    return FAILED


def _say(text: str) -> None:
    """Print one line on stderr; what it quotes of a file is text, not markup."""
    from rich.console import Console
    from rich.text import Text

    line = Text(" ".join(text.split()))
    line.highlight_regex("^error:", "red")
    Console(stderr=True, soft_wrap=True).print(line)
