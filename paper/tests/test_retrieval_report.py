"""The report of credible retrieval: its sentences, tables and figure from records, and what is missing."""

import pytest

from aureole_paper.records import Summary, read_runs, summary
from aureole_paper.report import read_report
from aureole_paper.retrieval_report import coverage_figure, percent, verdict
from paper.tests.conftest import anchors, save

NAME = "retrieval/credible-retrieval"
METHODS = ("model", "calibrated", "refitted", "conformal")
PARTS = ("all", "clear", "ambiguous", "sure", "vague")
MEASURES = ("map", "ndcg", "ndcg_10", "recall_at_1")


def metrics(gain=0.01):
    """All metrics of a fold, made up."""
    masses = ("0.5", "0.8", "0.9", "0.95")
    parts = dict.fromkeys(PARTS, 0.25)
    by_method = {method: dict.fromkeys(masses, parts) for method in METHODS}
    coverage = {
        method: {mass: {"all": min(1, float(mass) + 0.03 * i)} for mass in ("0.1", *masses)}
        for i, method in enumerate(reversed(METHODS))
    }
    ranks = {method: dict.fromkeys(masses, 0.3) for method in METHODS}
    measures = {measure: dict.fromkeys(PARTS, 0.85) for measure in MEASURES}
    more = {measure: dict.fromkeys(PARTS, gain) for measure in MEASURES}
    rankings = ("cosine", "expected_cosine", "positivity")
    return {
        "queries": 1000,
        "gallery": 1000,
        "coverage": {"votes": coverage, "label": coverage},
        "size": {"votes": by_method, "label": by_method},
        "class_entropy_rank": {"votes": ranks, "label": ranks, "positivity": 0.31, "kappa": 0.32},
        "fitted": {"votes": {"pairs": 750}},
        "ranking": dict.fromkeys(rankings, measures),
        "gain": dict.fromkeys(rankings[1:], more),
        "abstention": {
            "recall_at_1": 0.9, "asked_back": 0.1, "kept": 0.93, "kept_by_votes": 0.92, "kept_best": 1.0
        },
        "index": {"searches": 800, "members": 5000, "differing": 0},
        "seconds_training": 65.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    for fold, gain in enumerate((0.010, 0.012, 0.014)):
        save(folder, NAME, metrics(gain), fold)
    return folder


def test_a_report_has_every_section_and_says_what_records_say(folder, report):
    assert anchors(folder) == ["coverage", "sizes", "ranking", "abstention"]
    text = " ".join(report.results)
    assert "conformal mass 90.0 ± 0.0 %" in text
    assert text.count("+1.20 ± 0.12 points by expected positivity: it helps") == len(MEASURES)
    assert "Recall@1 rises from 90.0 ± 0.0 % to 93.0 ± 0.0 %" in text
    assert "2,400 of these sets, 15,000 items in total: no item differs" in text
    assert "750 disjoint pairs" in report.about
    coverage, _, parts = report.sections[0].tables
    assert coverage.rows[0][3] == "99.0 ± 0.0"
    assert len(coverage.rows) == len(METHODS)
    assert parts.rows[0][1] == "99.0 ± 0.0"


def test_the_figure_has_a_curve_for_every_way_to_make_caps(groups):
    svg = coverage_figure(groups)
    assert svg is not None
    for label in ("as promised", "conformal mass", "κ calibrated, κ_pos refitted"):
        assert f">{label}<" in svg
    assert coverage_figure({}) is None


def test_differences_count_from_three_standard_errors_on():
    assert verdict(Summary(0.31, 0.1, 5)) == "it helps"
    assert verdict(Summary(-0.31, 0.1, 5)) == "it hurts"
    assert verdict(Summary(0.29, 0.1, 5)) == "no difference is shown"
    assert verdict(Summary(0.0, 0.0, 5)) == "no difference is shown"
    assert verdict(Summary(0.3, None, 1)) == "one fold shows no difference"
    assert percent(Summary(0.1234, 0.01, 5)) == "12.3 ± 1.0"
    assert percent(Summary(-0.0123, None, 1), signed=True) == "-1.23"


def test_records_that_lack_figures_are_shown_with_what_they_have(tmp_path):
    some = {key: metrics()[key] for key in ("abstention", "seconds_training")}
    save(tmp_path, NAME, some)
    assert anchors(tmp_path) == ["abstention"]
    assert len(read_report(tmp_path).results) == 1
    assert summary(read_runs(tmp_path), "abstention", "kept", "deeper") is None


def test_an_index_that_differs_is_told(tmp_path):
    save(tmp_path, NAME, metrics() | {"index": {"searches": 8, "members": 50, "differing": 3}})
    assert "3 items differ" in " ".join(read_report(tmp_path).results)
