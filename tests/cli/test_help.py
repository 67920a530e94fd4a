"""The help of every command: it fits a terminal, and its examples are commands that there are."""

import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from aureole.cli._app import app

ROOT = typer.main.get_command(app)


def walk(command, path=()):
    """(Words, command) of a command and of all below it."""
    yield path, command
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from walk(command.get_command(None, name), (*path, name))


COMMANDS = dict(walk(ROOT))
each_command = pytest.mark.parametrize(
    "path", COMMANDS, ids=lambda path: " ".join(path) or "aureole"
)


def examples(command):
    """The commands below "Examples:" in a help, each as words after ``aureole``."""
    _, _, block = command.help.partition("Examples:\n\n")
    lines = [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    for line in lines:
        assert line.startswith("    "), line
        words = shlex.split(re.split(r" [|>] ", line)[0])
        yield words[words.index("aureole") + 1 :]


def shown_help(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    done = CliRunner().invoke(app, [*path, "--help"], prog_name="aureole")
    assert done.exit_code == 0, done.output
    return done.stdout


def test_all_commands_are_seen():
    assert {("train",), ("index",), ("index", "info"), ("search",), ("report",)} <= COMMANDS.keys()
    assert len(COMMANDS) >= 16


@each_command
def test_help_fits_80_columns_and_shows_its_examples_whole(path, monkeypatch):
    text = shown_help(path, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    _, _, block = COMMANDS[path].help.partition("Examples:\n\n")
    shown = {line.strip() for line in text.splitlines()}
    for line in filter(str.strip, block.splitlines()):
        assert line.strip() in shown, f"{line!r} is broken"


@each_command
def test_examples_are_commands_that_there_are(path):
    command = COMMANDS[path]
    found = list(examples(command))
    assert found
    for words in found:
        below, given = ROOT, list(words)
        while hasattr(below, "get_command") and below.get_command(None, given[0]):
            below = below.get_command(None, given.pop(0))
        mine = words[: len(path)] == list(path)
        assert mine, f"{words} is no example of {path}"
        for word in given:
            if word.startswith("--"):
                assert word in {o for p in below.params for o in (*p.opts, *p.secondary_opts)}, word
        if below is not ROOT:  # its options end the process
            assert below.make_context("aureole", given).params is not None  # values and types fit


@each_command
def test_every_option_says_what_it_is_for(path, monkeypatch):
    for param in COMMANDS[path].params:
        assert getattr(param, "help", None), f"{param.name} has no help"
        assert param.help[0].isupper() or param.help[0].isdigit() or "." in param.help.split()[0]
        assert param.help.endswith("."), param.help
    text = shown_help(path, monkeypatch)
    for param in COMMANDS[path].params:
        for option in param.opts:
            if option.startswith("--"):
                assert option in text, f"{option} is cut"
