"""The report of a folder of records."""

import re

import pytest

from aureole.errors import InvalidInputError
from aureole_paper.controlled_report import main_results
from aureole_paper.report import write_report
from paper.tests.conftest import anchors, check_bare_records, checked_page, page
from tests.explorer.test_page import HOSTILE, Outline


def test_the_whole_report(folder, tmp_path):
    _, found = checked_page(folder, tmp_path)
    assert found.tags.count("svg") == 7


def test_every_section_is_there_and_every_record_is_listed(report, groups):
    assert [section.anchor for section in report.sections] == [
        "recovery", "families", "losses", "mc-samples", "encoder-dim", "high-dim", "self-pairs",
        "ladder", "shared-backbone", "sources", "tilt", "coverage", "bimodal", "other",
    ]  # fmt: skip
    listed = {run.path for section in report.sections for run in section.runs}
    assert listed == {run.path for runs in groups.values() for run in runs}
    assert report.sections[-1].runs[0].setting == "my-own-run"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ambiguous", ["recovery", "coverage"]),
        ("ambiguous-paper", ["recovery", "coverage"]),
        ("gaussian", ["families", "coverage"]),
        ("high-dim-fixed-64", ["high-dim", "coverage"]),
        ("self-pairs-64", ["self-pairs"]),
        ("ladder-2-closed-form", ["ladder"]),
        ("base", ["coverage", "other"]),
        ("mc-samples-16", ["mc-samples"]),
        ("mc-samples-16-paper", ["mc-samples"]),
        ("tuning-elk-1-fixed-joint", ["other"]),
        ("bimodal-single", ["bimodal"]),
        ("unheard-of", ["other"]),
    ],
)
def test_a_section_is_there_only_if_it_has_runs_of_its_own(write, tmp_path, name, expected):
    folder = write(name)
    assert anchors(folder) == expected
    assert re.findall(r'<section id="([^"]+)">', page(folder, tmp_path)) == expected


def test_rows_with_self_pairs_follow_those_without(report):
    (section,) = [s for s in report.sections if s.anchor == "self-pairs"]
    (table,) = section.tables
    rows = [(row[0], row[table.header.index("self-pairs")]) for row in table.rows]
    assert rows[:2] == [("high-dim-fixed-16", "none"), ("self-pairs-16", "weight 8")]
    assert rows[-1] == ("ambiguous-self-pairs", "weight 6")
    assert len(section.figures) == 1


def test_the_ladder_ends_with_our_configuration(report):
    (section,) = [s for s in report.sections if s.anchor == "ladder"]
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["ladder-1-paper", "ladder-2-closed-form", "base"]
    pairs, average = (table.header.index(name) for name in ("pairs", "average of weights"))
    assert [row[pairs] for row in table.rows][1:] == [
        "separate pairs, 8 negatives",
        "pairs among items",
    ]
    assert [row[average] for row in table.rows] == ["no", "no", "yes"]


def test_records_without_metrics_or_settings_do_not_stop_the_report(folder, tmp_path):
    check_bare_records(folder, tmp_path)


def test_hostile_records_come_out_escaped(write, tmp_path):
    folder = write("ambiguous", command=HOSTILE, preset=HOSTILE, family=HOSTILE, rule=HOSTILE)
    write("<b>bold</b>".replace("/", "-"), command=HOSTILE)
    html = page(folder, tmp_path)
    found = Outline(html)
    assert not {"script", "img", "b"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on")]
    assert "&lt;script&gt;alert" in html


def test_the_main_results_name_the_papers_numbers(groups):
    results = main_results(groups)
    assert results[0] == (
        "Ambiguous (preset fast, 2 seeds): κ is recovered with rank correlation 0.960 ± 0.010 (paper: 0.82 ± 0.04) and "
        "mean absolute error 0.700 ± 0.100 (paper: 6.15 ± 0.61)."
    )
    assert results[-1].startswith("Credible caps of mass 90 % contain 89.0 % of the latents")
    assert main_results({}) == []


def test_a_folder_without_records_is_an_error_that_says_what_to_do(tmp_path):
    empty = tmp_path / "empty"
    with pytest.raises(InvalidInputError, match=r"no records in .*empty.*aureole reproduce"):
        write_report(empty, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
