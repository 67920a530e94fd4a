"""The commands in pages: each is one that there is, with options and values that it takes."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

import aureole
from aureole.cli._app import app
from tests.packaging.readme import blocks

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
COMMANDS = [
    (page.relative_to(REPOSITORY).as_posix(), command)
    for page in PAGES
    if "_build" not in page.parts
    for block in blocks(page.read_text())
    for command in block.commands
    if re.search(r"(^|\s)aureole\s", command)
]


def test_pages_have_commands():
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_in_a_page_is_one_that_there_is(page, command):
    line = re.split(r" [|>] ", command.replace("\\\n", " "))[0].rstrip(" &")
    words = shlex.split(line, comments=True)
    given = words[words.index("aureole") + 1 :]
    below = typer.main.get_command(app)
    while hasattr(below, "commands"):
        assert given, f"{page}: {command!r} has no verb"
        if given[0].startswith("-"):
            return  # an option of the program itself
        assert given[0] in below.commands, f"{page}: there is no {given[0]!r}"
        below = below.commands[given.pop(0)]
    if "--help" not in given:
        assert below.make_context("aureole", given).params is not None


SKETCHES = [
    (page.relative_to(REPOSITORY).as_posix(), found[1])
    for page in PAGES
    if "_build" not in page.parts
    for found in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if ">>>" not in found[1]
]


@pytest.mark.parametrize(("page", "code"), SKETCHES)
def test_a_sketch_in_a_page_names_what_there_is(page, code):
    """What needs a server or files of a reader is not run; its names must exist all the same."""
    tree = ast.parse(code, page)
    scope = {"au": aureole}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aureole"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("au."):
            assert eval(ast.unparse(node), scope) is not None
