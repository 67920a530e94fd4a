"""The API reference has every public name, and names only what exists."""

import importlib
import inspect
import re
from pathlib import Path

import api_reference
import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def documented():
    """The paths of all names on the pages of the reference."""
    paths = set()
    for page in REFERENCE:
        for block in re.findall(
            r"^\.\. package::(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            first, *modules = block.strip("\n").split("\n")
            lines = api_reference.package_lines(
                first.strip() or None, [m.strip() for m in modules if m.strip()]
            )
            paths |= {
                line.split(":: ")[1]
                for line in lines
                if re.match(r"\.\. auto(class|function)::", line)
            }
    return paths


def test_every_exported_name_of_every_package_is_documented():
    missing = []
    for package in api_reference.PACKAGES:
        module = importlib.import_module(f"aureole.{package}")
        for name, _ in (
            api_reference.public(f"aureole.{package}") if hasattr(module, "__all__") else []
        ):
            if f"aureole.{package}.{name}" not in documented():
                missing.append(f"aureole.{package}.{name}")
    assert missing == []


def test_every_name_of_the_package_is_documented_somewhere():
    things = {documented_object(path) for path in documented()}
    assert [name for name, thing in api_reference.public("aureole") if thing not in things] == []


def documented_object(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    assert [
        page.stem for page in REFERENCE if page.stem != "index" and f"\n{page.stem}\n" not in index
    ] == []


@pytest.mark.parametrize("path", sorted(documented()))
def test_a_docstring_says_what_it_is(path):
    text = inspect.getdoc(documented_object(path))
    assert text, path
    assert len(text.split("\n\n")[0]) > 10
