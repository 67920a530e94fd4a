"""The recomputation of README's numbers: they agree with the records, and a wrong one is found."""

import ast
import json
import sys
from pathlib import Path

import pytest

from tools import check_numbers

ROOT = Path(__file__).parents[2]
ROW = (
    "| x | kappa: rank correlation | 0.82 ± 0.04 | {} | `aureole` | [records](paper/results/x) |\n"
)


def test_the_numbers_of_readme_are_those_of_the_records(capsys):
    assert check_numbers.main() == 0, capsys.readouterr().out
    assert capsys.readouterr().out.endswith(" 0 differ\n")


def test_every_cell_of_the_table_is_recomputed():
    """A row whose metric the script does not know would pass unseen."""
    readme = (ROOT / "README.md").read_text()
    linked = [line for line in readme.splitlines() if "](paper/results/" in line and line[0] == "|"]
    rows = list(check_numbers.table_rows(readme))
    assert len(rows) >= len(linked) > 7
    start = readme.index("| experiment |")
    table = readme[start : readme.index("\n\n", start)].splitlines()
    assert len(rows) == len(table) - 2


def test_it_imports_the_standard_library_only():
    tree = ast.parse((ROOT / "tools" / "check_numbers.py").read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with three records and one quote."""
    folder = tmp_path / "paper" / "results" / "x"
    folder.mkdir(parents=True)
    for seed, rank in enumerate((0.9, 0.92, 0.97)):
        record = {"metrics": {"kappa_rank": rank, "a/b": [1000 + seed]}}
        (folder / f"seed-{seed}.json").write_text(json.dumps(record))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "facts.toml").write_text(
        '[[fact]]\nquote = "{} against {} rows"\nfrom = ["paper#x/y", "paper/results/x#a~1b/0:,.0f"]\n'
    )
    monkeypatch.setattr(check_numbers, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("cell", "prose", "status"),
    [
        ("0.930 ± 0.021", "0.5 ± 0.1 against 1,001 rows", 0),
        ("0.93", "0.5 against\n1,001 rows", 0),
        ("0.931 ± 0.021", "0.5 against 1,001 rows", 1),
        ("0.930 ± 0.022", "0.5 against 1,001 rows", 1),
        ("0.930 ± 0.021", "0.5 against 1,002 rows", 1),
        ("0.930 ± 0.021", "", 1),
    ],
)
def test_a_wrong_number_is_found(repository, capsys, cell, prose, status):
    (repository / "README.md").write_text(ROW.format(cell) + "\n" + prose)
    assert check_numbers.main() == status
    assert ("is 0.93" in capsys.readouterr().out) == (cell in ("0.931 ± 0.021", "0.930 ± 0.022"))


def test_rows_without_records_are_an_error(repository):
    text = ROW.format("0.9").replace("results/x", "results/y")
    (repository / "README.md").write_text(text)
    (repository / "paper" / "results" / "y").mkdir()
    with pytest.raises(SystemExit, match="no records in paper/results/y"):
        check_numbers.main()
