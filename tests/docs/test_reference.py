"""The API reference has every public name, and names nothing that is not there."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import rooms

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def documented():
    """The paths of all things that the pages of the reference document."""
    found = set()
    for page in REFERENCE:
        for block in re.findall(
            r"^\.\. room::(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            first, *modules = block.strip("\n").split("\n")
            lines = rooms.room_lines(
                first.strip() or None, [m.strip() for m in modules if m.strip()]
            )
            found |= {
                line.split(":: ")[1]
                for line in lines
                if re.match(r"\.\. auto(class|function)::", line)
            }
    return found


def test_every_exported_name_of_every_room_is_documented():
    missing = []
    for room in rooms.ROOMS:
        module = importlib.import_module(f"aureole.{room}")
        for name, _ in rooms.public(f"aureole.{room}") if hasattr(module, "__all__") else []:
            if f"aureole.{room}.{name}" not in documented():
                missing.append(f"aureole.{room}.{name}")
    assert missing == []


def test_every_name_of_the_package_is_documented_somewhere():
    things = {rooms_object(path) for path in documented()}
    assert [name for name, thing in rooms.public("aureole") if thing not in things] == []


def rooms_object(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    assert [
        page.stem for page in REFERENCE if page.stem != "index" and f"\n{page.stem}\n" not in index
    ] == []


@pytest.mark.parametrize("path", sorted(documented()))
def test_a_docstring_says_what_it_is(path):
    text = inspect.getdoc(rooms_object(path))
    assert text, path
    assert len(text.split("\n\n")[0]) > 10
