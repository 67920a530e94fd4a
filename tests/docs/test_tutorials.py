"""The sources of the tutorials: that they are notebooks, and name no machine. The build of the docs runs them."""

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in (DOCS / "tutorials").glob("*.md") if page.stem != "index")
CELL = re.compile(
    r"^```\{code-cell\}\n(:tags: \[[\w, -]+\]\n)?(.*?)^```$", re.DOTALL | re.MULTILINE
)
EXECUTED = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_a_notebook_of_cells_that_parse(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith(EXECUTED)
    assert text.count("```{code-cell}") == len(CELL.findall(text))
    shown = [code for tags, code in CELL.findall(text) if "remove-cell" not in tags]
    assert 5 <= len(shown) <= 15
    for code in shown:
        ast.parse(code)
    assert any("plt.show()" in code for code in shown)
    assert "## What to try next" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_text_says_is_asserted_by_the_build(page):
    hidden = [code for tags, code in CELL.findall(page.read_text("utf-8")) if "remove-cell" in tags]
    assert any("assert " in code for code in hidden)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_names_no_folder_of_a_machine(page):
    assert not re.search(r"(/tmp|/home|/root|/work)/", page.read_text(encoding="utf-8"))


def test_every_tutorial_is_in_the_table_of_contents():
    index = (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")
    listed = index.split("```{toctree}")[1].split()
    assert {page.stem for page in PAGES} <= set(listed)
    assert all(f"({page.name})" in index for page in PAGES)
