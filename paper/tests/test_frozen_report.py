"""The report of heads on frozen encoders: every section, what is missing, and sentences read off the numbers."""

import re

import pytest

from aureole_paper.frozen_report import (
    ambient_text,
    caption_figure,
    changes,
    coverage_figure,
    images_text,
    main_results,
    rejection_figure,
    settings_with,
)
from aureole_paper.records import MISSING, group, read_runs
from paper.tests.conftest import anchors, changed, checked_page, page, save
from paper.tests.test_tables import cells
from tests.explorer.test_page import Outline

SECTIONS = ["captions", "coverage", "far", "pairs", "extremes", "images"]
PEERS = ("words", "characters", "norm")


def text_metrics(**changes):
    """All metrics of a head on sentence vectors; a change to None leaves one out."""
    side = {
        "kappa": {"all": [0.12, 0.08, 0.16], "given_length": [0.1, 0.05, 0.15]},
        **{name: {"all": [0.01, -0.03, 0.05]} for name in PEERS},
    }
    flat = side | {"kappa": {"all": [0.02, -0.01, 0.04], "given_length": [0.01, -0.02, 0.03]}}
    against = flat | {"kappa": flat["kappa"] | {"all": [-0.1, -0.14, -0.0501]}}
    values = {
        "information": 4.2,
        "coverage": {"0.5": 0.52, "0.9": 0.89, "0.95": 0.93},
        "held_out_coverage": {"0.5": 0.51, "0.9": 0.9, "0.95": 0.94},
        "recall_at_1": 0.6, "recall_at_1_of_mu": 0.64,
        "gains": {
            "kappa": {"half": 0.1, "fifth": -0.15},
            **{name: {"half": 0.04, "fifth": -0.06} for name in PEERS},
        },
        "gains_of_mu": {"half": 0.11, "fifth": -0.16},
        "rejection": [0.6 + 0.02 * k for k in range(10)],
        "kappa_by_caption": [90.0, 80.0, 70.0, 60.0, 50.0],
        "words_rank": 0.45,
        "ambient": {
            "pairs": 1200, "pairs_of_equal_length": 150,
            "kappa": {"all": [0.62, 0.58, 0.66], "equal_length": [0.52, 0.44, 0.6]},
            "words": {"all": [0.85, 0.82, 0.88], "equal_length": [0.5, 0.5, 0.5]},
        },
        "chaos": {
            "snli": {"pairs": 1514, "premise": flat, "hypothesis": side},
            "mnli_m": {"pairs": 1599, "premise": against, "hypothesis": against},
        },
        "extremes": {"highest": [["A man in a red shirt rides a mule.", 400.5]], "lowest": [["People.", 3.5]]},
        "seconds_training": 31.0, "curve": [],
    }  # fmt: skip
    return changed(values, changes)


def method(level, **own):
    """The metrics of a method, all about one level."""
    added = {"entropy_rank": 0.0, "crop_rank": 0.3, "r_auroc": 0.4, "rejection_area": 0.5}
    return {name: level + more for name, more in added.items()} | {"seconds": 12.0} | own


def image_metrics(changes):
    """The metrics of heads on image features; further methods by name."""
    own = {"recall_at_1": 0.8, "own_r_auroc": 0.79, "own_rejection_area": 0.91}
    own["kappa_median"] = 18.0
    methods = {
        "class-head": method(0.32, **own, coverage={"0.5": 0.47, "0.9": 0.91}),
        "ensemble": method(0.33),
        "frozen-head": method(0.25, **own),
        "norm": method(0.1),
        "softmax": method(0.31) | {"crop_rank": 0.9},
    }
    features = {"recall_at_1": 0.7566, "rejection_area_oracle": 0.96}
    return {"methods": methods | changes, "features": features, "seconds_training": 0.0}


def add(folder, setting, seed=0, metrics=None, *, views="captions"):
    """Write the record of a seed and return the folder."""
    settings = {"views": views, "dim": 32, "lr": 4e-3, "photos": None}
    metrics = text_metrics() if metrics is None else metrics
    return save(folder, f"frozen/{setting}", metrics, seed, **settings)


def images(folder, name="crops", seed=0, *, methods=None):
    """Write the record of a seed on images and return the folder."""
    head = {"dim": 16, "probe": {"steps": 1500}}
    settings = {"crops": name == "crops", "side": 112, "head": head}
    return save(folder, f"frozen/{name}", image_metrics(methods or {}), seed, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with records for every section; not to be changed."""
    folder = tmp_path_factory.mktemp("frozen")
    add(folder, "text")
    gains = text_metrics()["gains"] | {"kappa": {"half": 0.12, "fifth": -0.17}}
    add(folder, "text", 1, text_metrics(gains=gains))
    fewer = text_metrics(gains=gains, information=4.1)
    add(folder, "text-stsb", 0, fewer, views="stsb")
    images(folder)
    images(folder, seed=1)
    return images(folder, "whole")


def test_the_whole_report(folder, tmp_path):
    html, found = checked_page(folder, tmp_path)
    assert re.findall(r'<section id="([^"]+)">', html) == SECTIONS
    assert found.tags.count("svg") == 3
    assert "<h1>Heads on frozen encoders</h1>" in html
    assert "People." in html


def test_captions(tables):
    table = tables["Captions"]
    names = ["κ", "number of words", "number of characters", "norm of the vector"]
    assert [row[0] for row in table.rows] == [*names, "κ, with μ as the vectors"]
    row = cells(table, "κ")
    assert row["R@1 of all"] == "60.0"  # the encoder's, the same for all seeds
    assert row["most certain half R@1"] == "71.0 ± 1.0"
    assert row["most certain half points"] == "+11.0 ± 1.0"
    assert row["least certain fifth points"] == "-16.0 ± 1.0"
    assert cells(table, "number of words")["most certain half points"] == "+4.0"
    assert cells(table, "κ, with μ as the vectors")["least certain fifth R@1"] == "48.0"


def test_coverage_of_text_and_images(tables, report):
    table = tables["Coverage"]
    assert table.header == ("head", "50 %", "90 %", "95 %")
    assert cells(table, "text")["90 %"] == "89.0"
    assert cells(table, "text, held-out pairs")["50 %"] == "51.0"
    assert cells(table, "crops, class head")["95 %"] == MISSING
    (section,) = (section for section in report.sections if section.anchor == "coverage")
    assert section.text.endswith("-3.0 points: crops, class head, at 50 %.")


def test_readings(tables):
    table = tables["AmbiEnt"]
    assert table.header[1:] == ("all pairs (1,200), %", "pairs with equally many words (150), %")
    assert [row[0] for row in table.rows] == ["κ", "κ, 2 seeds", "number of words"]
    assert table.rows[0][1:] == ("62.0 [58.0, 66.0]", "52.0 [44.0, 60.0]")
    chaos = tables["ChaosNLI"]
    row = cells(chaos, "κ, given length")
    assert row["SNLI, 1,514 pairs hypothesis"] == "0.100 [0.050, 0.150]"
    assert row["MNLI, 1,599 pairs premise"] == "0.010 [-0.020, 0.030]"


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ([0.52, 0.44, 0.6], "52.0 % (44.0 to 60.0); the interval contains 50 %"),
        ([0.6, 0.55, 0.65], "60.0 % (55.0 to 65.0); the interval lies above 50 %"),
        ([0.4, 0.35, 0.45], "40.0 % (35.0 to 45.0); the interval lies below 50 %"),
    ],
)
def test_what_is_said_of_ambient_depends_on_its_interval(tmp_path, interval, said):
    ambient = text_metrics()["ambient"]
    ambient["kappa"]["equal_length"] = interval
    folder = add(tmp_path / "records", "text", 0, text_metrics(ambient=ambient))
    assert said in ambient_text(group(read_runs(folder)))


def test_changes_are_of_the_same_seeds(groups, tables, report):
    found = changes(groups, "text-stsb", "gains", "kappa", "half")
    assert found is not None
    assert (found.mean, found.n) == (pytest.approx(0.02), 1)
    assert changes(groups, "unheard-of", "information") is None
    row = cells(tables["Training pairs"], "text-stsb")
    assert row["a group holds"] == "captions, and pairs of STS-B"
    assert (row["captions most certain half, points"], row["seeds"]) == ("+12.0", "1")
    (section,) = (section for section in report.sections if section.anchor == "pairs")
    said = "text-stsb, 1 seed: the gain of the most certain half changed by +2.0 points"
    assert said in section.text


def test_images_have_heads_first_and_the_best_marked(tables):
    table = tables["Setting crops"]
    labels = [row[0] for row in table.rows]
    assert labels[:2] == ["class head", "FrozenHead"]
    assert len(labels) == 5
    marked = {table.header[column]: labels[row] for row, column in table.marked}
    assert marked["crop size ↑"] == "1 - max softmax"
    assert marked["entropy ↑"] == "ensemble of classifiers"
    assert len(table.marked) == 4
    row = cells(table, "class head")
    assert row["heads, with their own μ Recall@1, %"] == "80.0"
    assert cells(table, "norm of the features")["heads, with their own μ median κ"] == MISSING
    assert "for 75.7 %" in table.caption
    assert table.caption.startswith("Trained on whole images and a crop of each")
    assert tables["Setting whole"].caption.startswith("Trained on whole images only")


def test_what_is_said_of_images_names_the_baselines_above(groups, tmp_path):
    text = images_text(groups)["above"]
    assert "the votes: class head 0.320; above it ensemble of classifiers 0.330." in text
    assert "crop size: class head 0.620; above it 1 - max softmax 0.900, ensemble" in text
    best = method(0.5, kappa_median=9.0) | {"crop_rank": 0.95}
    folder = images(tmp_path / "records", methods={"own-head": best, "odd one": method(0.05)})
    found = group(read_runs(folder))
    text = images_text(found)["above"]
    assert text.count(": own head ") == text.count("no baseline is above it") == 4
    assert "odd one" in page(folder, tmp_path)


def test_main_results(groups):
    results = main_results(groups)
    assert results[0] == (
        "Captions, 2 seeds: R@1 is 60.0 %; the half with the highest κ differs by +11.0 ± 1.0 points, "
        "the fifth with the lowest κ by -16.0 ± 1.0 points."
    )
    assert results[1].endswith(
        "contain another caption of the photo in 52.0, 89.0, 93.0 % of cases."
    )
    assert main_results({}) == []


@pytest.mark.parametrize(
    ("left_out", "missing"),
    [
        ((), ["pairs", "images"]),
        (("coverage", "held_out_coverage"), ["coverage", "pairs", "images"]),
        (("ambient", "chaos"), ["far", "pairs", "images"]),
    ],
)
def test_what_has_no_records_is_left_out(tmp_path, left_out, missing):
    values = text_metrics(**dict.fromkeys(left_out))
    folder = add(tmp_path / "records", "text", 0, values)
    assert anchors(folder) == [name for name in SECTIONS if name not in missing]


def test_images_alone_and_unknown_settings(tmp_path):
    folder = images(tmp_path / "images", "other-features")
    assert anchors(folder) == ["coverage", "images"]
    folder = add(tmp_path / "unknown", "unheard-of", 0, {"score": 0.5})
    assert anchors(folder) == ["other"]
    folder = add(tmp_path / "only", "text-dropped", 0, views="dropped")
    assert anchors(folder) == ["captions", "coverage", "far", "pairs"]


def test_records_without_metrics_do_not_stop_the_report(folder, tmp_path, groups):
    for name in groups:
        add(tmp_path / "bare", name, 9, {})
        add(tmp_path / "odd", name, 0, dict.fromkeys(text_metrics(), 3) | {"methods": [1]})
        add(tmp_path / "mixed", name, 9, {})
        add(tmp_path / "mixed", name, 1)
        images(tmp_path / "mixed", name, 2)
    for records in ("bare", "odd", "mixed"):
        Outline(page(tmp_path / records, tmp_path))


def test_curves_are_means_over_seeds_of_the_same_length(tmp_path):
    folder = tmp_path / "records"
    for seed, curve in enumerate(([0.5, 0.6], [0.7, 0.8], [0.1])):
        add(folder, "text", seed, {"rejection": curve})
    runs = group(read_runs(folder))["text"]
    assert rejection_figure({"text": runs}) is not None
    assert rejection_figure({"text": runs[2:]}) is None  # a point is no curve
    assert caption_figure({"text": runs}) is None
    assert coverage_figure({}) is None


def test_known_settings_come_first(groups):
    assert settings_with("gains")(groups) == ["text", "text-stsb"]
    assert settings_with("methods")(groups) == ["crops", "whole"]
    assert settings_with("recall")(groups) == []
