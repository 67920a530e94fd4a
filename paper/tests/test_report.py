"""The reports of the records in the repository, and how a folder's report is chosen."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from aureole.cli._app import app
from aureole.errors import InvalidInputError
from aureole_paper.report import read_report
from paper.tests.conftest import save, writer

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize("name", ["controlled", "cifar10h", "frozen", "retrieval"])
def test_every_record_is_shown_and_tables_are_rectangular(name):
    report = read_report(RESULTS / name)
    shown = {RESULTS / name / run.path for section in report.sections for run in section.runs}
    assert shown == set((RESULTS / name).glob("*/seed-*.json"))
    assert "other" not in {section.anchor for section in report.sections}
    for table in (table for section in report.sections for table in section.tables):
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert not table.spans or sum(width for _, width in table.spans) == len(table.header)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("controlled", "<h1>The controlled experiment: the paper"),
        ("cifar10h", "<h1>CIFAR-10H: the paper"),
        ("retrieval", "Gained over the cosine"),
    ],
)
def test_the_command_picks_the_report(tmp_path, name, shown):
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(RESULTS / name), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert shown in out.read_text(encoding="utf-8")


def test_a_folder_of_several_experiments_is_refused(tmp_path):
    folder = writer(tmp_path)("ambiguous")
    save(folder, "frozen/crops", {})
    match = r"2 experiments: crops/seed-0.* of heads on.*ambiguous/seed-4"
    with pytest.raises(InvalidInputError, match=match):
        read_report(folder)
    save(folder, "cifar10h/elk", {})
    with pytest.raises(InvalidInputError, match=r"3 experiments: elk/seed-0.json is of CIFAR-10H"):
        read_report(folder)
