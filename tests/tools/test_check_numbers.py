"""The recomputation of README's numbers: they agree with the records, and a wrong one is found."""

import ast
import json
import sys
from pathlib import Path

import pytest

from tools import check_numbers

ROOT = Path(__file__).parents[2]


def test_the_numbers_of_readme_are_those_of_the_records(capsys):
    assert check_numbers.main() == 0, capsys.readouterr().out
    assert capsys.readouterr().out.endswith(" 0 differ\n")


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
    ("prose", "status"),
    [
        ("0.5 ± 0.1 against 1,001 rows", 0),
        ("0.5 against\n1,001 rows", 0),
        ("0.5 against 1,002 rows", 1),
        ("0.5 against 1,001.5 rows", 1),
        ("", 1),
    ],
)
def test_a_wrong_number_is_found(repository, capsys, prose, status):
    (repository / "README.md").write_text(prose)
    assert check_numbers.main() == status
    assert ("should say: (paper) against 1,001 rows" in capsys.readouterr().out) == bool(status)


def test_a_quote_without_records_is_an_error(repository):
    (repository / "README.md").write_text("0.5 against 1,001 rows")
    for file in (repository / "paper" / "results" / "x").iterdir():
        file.unlink()
    with pytest.raises(SystemExit, match="no records in paper/results/x"):
        check_numbers.main()
