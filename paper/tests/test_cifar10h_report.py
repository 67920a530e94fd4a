"""The report of CIFAR-10H: every section, what is missing, pictures, and how a folder's report is picked."""

import base64
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from aureole.cli._app import app
from aureole.data._image_files import read_picture, write_picture
from aureole.errors import InvalidInputError
from aureole.explorer._page import Run
from aureole.records import Record
from aureole_paper.cifar10h_report import (
    LOSSES,
    foreign_ratios,
    gallery_figure,
    item_error,
    leading,
    main_results,
    mean_rejection,
    rejection_figure,
    retrieval_figure,
)
from aureole_paper.records import MISSING, group, read_runs
from aureole_paper.report import read_report
from aureole_paper.tables import COLUMNS
from paper.tests.conftest import anchors, changed, check_bare_records, checked_page, page, save
from paper.tests.test_tables import cells

SECTIONS = ["losses", "labels", "rejection", "gallery", "retrieval", "foreign"]
TILES = 10 * 10 + 3  # five and five of ten classes; a query with two images in its cap
TRAINED = ("closed-form", "closed-form-norm", "closed-form-ensemble", "mcinfonce", "elk", "hib", "infonce",
           "labels-hard", "labels-cifar10", "scratch", "resnet56", "resnet56-norm", "cropped")  # fmt: skip


METRICS = {
    "entropy_rank": 0.4, "crop_rank": 0.75, "recall_at_1": 0.9,
    "neighbour_entropy_rank": 0.31, "neighbour_crop_rank": 0.41,
    "r_auroc": 0.8, "r_auroc_softmax": 0.85, "aurc": 0.04, "augrc": 0.03,
    "rejection_area": 0.96, "rejection_area_softmax": 0.97, "rejection_area_oracle": 0.99,
    "rejection": {
        "kept": [0.9 + 0.005 * i for i in range(21)],
        "softmax": [0.9 + 0.1 * (i / 20) ** 0.5 for i in range(21)],
    },
    "foreign": {
        "noise": [30.0, 40.0, 50.0], "test images": [10.0, 20.0, 30.0], "upside down": [4.0, 15.0, 20.0],
        "one grey": [5.0, 5.0, 5.0],
    },
    "curve": [{"step": 20, "crop_rank": 0.6}, {"step": 40, "crop_rank": 0.7}],
    "seconds_training": 65.0,
}  # fmt: skip


def pictures():
    """Which tile is what: the gallery of ten classes, and one query."""
    classes = [
        {"lowest": [*range(10 * c, 10 * c + 5)], "highest": [*range(10 * c + 5, 10 * c + 10)]}
        for c in range(10)
    ]
    query = {"query": 100, "kappa": 12.34, "cosine": 0.5, "inside": 54, "shown": [101, 102]}
    query["classes"] = [0, 0, 0, 41, 1, 11, 0, 0, 1, 0]
    return {"tiles": TILES, "classes": classes, "queries": [query]}


def tile(number):
    """The colour that a thumbnail has, different for each."""
    return [number, 255 - number, 7]


def add(folder, name, fold=0, changes=None, *, bare=False):
    """Write the record of a fold; with pictures, also its thumbnails. Returns the folder."""
    values = (changes or {}) if bare else changed(METRICS, changes or {})
    settings = {"preset": "fast", "steps": 120, "backbone": "resnet20", "loss": name}
    save(folder, f"cifar10h/{name}", values, fold, **settings)
    if "pictures" in values:
        colours = torch.tensor([tile(i) for i in range(TILES)], dtype=torch.uint8)
        column = colours.T[:, :, None].repeat_interleave(32, 1).expand(3, -1, 32)
        write_picture(column, folder / name / f"seed-{fold}.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with records for every section; not to be changed."""
    folder = tmp_path_factory.mktemp("cifar10h")
    for name in TRAINED:
        add(folder, name)
    add(folder, "closed-form", 0, {"pictures": pictures()})
    add(folder, "closed-form", 1, {"entropy_rank": 0.42})
    add(folder, "scratch", 0, {"rejection_area_softmax": None, "r_auroc_softmax": None})
    softmax = {
        "entropy_rank": 0.36, "crop_rank": 0.65, "softmax_entropy_rank": 0.37,
        "softmax_entropy_crop_rank": 0.66, "accuracy": 0.926,
    }  # fmt: skip
    add(folder, "softmax", 0, softmax, bare=True)
    add(folder, "ceiling", 0, {"split_half_rank": 0.55, "ceiling_rank": 0.84}, bare=True)
    return folder


def test_the_whole_report(folder, tmp_path):
    html, found = checked_page(folder, tmp_path, links=("#", "data:image/png;base64,"))
    assert re.findall(r'<section id="([^"]+)">', html) == SECTIONS
    assert "img-src data:" in html
    assert found.tags.count("svg") == 3
    assert "Krizhevsky (2009)" in html


@pytest.mark.parametrize(
    ("title", "label", "entropy", "crop", "recall"),
    [
        ("Losses", "closed form (ours)", MISSING, MISSING, MISSING),
        ("Losses", "MCInfoNCE", "0.29 ± 0.01", "0.68 ± 0.01", "0.863"),
        ("Losses", "ELK", "0.14 ± 0.05", "0.51 ± 0.03", MISSING),
        ("Losses", "HIB", "0.28 ± 0.00", "0.69 ± 0.02", MISSING),
        ("Losses", "InfoNCE, untrained κ", MISSING, MISSING, "0.858"),
        ("Labels", "CIFAR-10H, soft", "0.29 ± 0.01", "0.68 ± 0.01", MISSING),
        ("Labels", "CIFAR-10H, hard", "0.24 ± 0.01", "0.64 ± 0.02", MISSING),
        ("Labels", "CIFAR-10, hard", "0.28 ± 0.01", "0.69 ± 0.02", MISSING),
        ("Pretraining", "with pretraining", "0.33", "0.70", MISSING),
        ("Pretraining", "from scratch", "0.31", "0.62", MISSING),
    ],
)  # fmt: skip
def test_the_papers_numbers(tables, title, label, entropy, crop, recall):
    row = cells(tables[title], label)
    assert row["entropy rank corr. ↑ paper"] == entropy
    assert row["crop rank corr. ↑ paper"] == crop
    assert row["Recall@1 ↑ paper"] == recall


@pytest.mark.parametrize(
    ("title", "label", "entropy", "crop", "recall"),
    [
        ("Losses", "closed form (ours)", "0.410 ± 0.010", "0.750", "0.900"),
        ("Losses", "InfoNCE, distance to neighbours", "0.310", "0.410", "0.900"),
        ("Losses", "InfoNCE, untrained κ", "0.400", "0.750", "0.900"),
        ("Two networks", "closed form, ensemble of two networks", "0.400", "0.750", "0.900"),
        ("Baselines", "classifier, 1 - max softmax", "0.360", "0.650", "accuracy 0.926"),
        ("Baselines", "classifier, entropy of softmax", "0.370", "0.660", "accuracy 0.926"),
        ("Baselines", "votes: one half against the other", "0.550", MISSING, MISSING),
        ("Baselines", "votes: noise ceiling", "0.840", MISSING, MISSING),
    ],
)
def test_our_numbers(tables, title, label, entropy, crop, recall):
    row, ours = cells(tables[title], label), "ours" if title == "Losses" else "mean"
    found = [row[f"{c} ↑ {ours}"] for c in ("entropy rank corr.", "crop rank corr.", "Recall@1")]
    assert found == [entropy, crop, recall]


def test_no_ensemble_is_next_to_a_number_of_the_paper(tables):
    assert not [row for row in tables["Losses"].rows if "ensemble" in row[0] or "+" in row[1]]
    assert not any("paper" in cell for cell in tables["Two networks"].header)


def test_both_standard_errors_are_shown_where_all_records_have_them(tmp_path):
    errors = {"entropy_rank": 0.03, "crop_rank": 0.0, "recall_at_1": 0.04, "r_auroc": 0.01}
    for fold, entropy in enumerate((0.4, 0.42)):
        changes = {"entropy_rank": entropy, "entropy_rank_at_2": 0.43, "bootstrap_errors": errors}
        add(tmp_path, "softmax-mirrored", fold, changes)
        add(tmp_path, "ridge", fold, changes if fold else {})  # one record is older
    groups = group(read_runs(tmp_path))
    assert item_error(groups["softmax-mirrored"], "entropy_rank") == pytest.approx(0.03 / 2**0.5)
    assert item_error(groups["ridge"], "entropy_rank") is None
    assert item_error([], "entropy_rank") is None
    shown = {t.title: t for s in read_report(tmp_path).sections for t in s.tables}["Baselines"]
    row = cells(shown, "classifier, entropy of softmax, mirrored")
    assert row["entropy rank corr. ↑ mean"] == "0.410 ± 0.010"
    assert row["entropy rank corr. ↑ ± images"] == "0.021"
    assert row["R-AUROC ↑ ± images"] == "0.007"
    warm = cells(shown, "the same, T = 2")
    assert warm["entropy rank corr. ↑ mean"] == "0.430"
    assert warm["entropy rank corr. ↑ ± images"] == MISSING
    assert warm["R-AUROC ↑ mean"] == MISSING
    assert cells(shown, "ridge regression of the disagreement")["Recall@1 ↑ ± images"] == MISSING


def test_rows_without_records_are_left_out(tables):
    labels = [row[0] for row in tables["Baselines"].rows]
    assert "closed form and agreement, one vote per image (ours)" not in labels
    assert "the encoder before training" not in labels


def test_rejection_and_out_of_domain_tables(tables):
    row = cells(tables["Rejection"], "MCInfoNCE")
    area = {by: row[f"area under the rejection curve ↑ {by}"] for by in ("random", "by κ", "best")}
    assert area == {"random": "0.900", "by κ": "0.960", "best": "0.990"}
    assert row["area under the rejection curve ↑ by softmax"] == "0.970"
    assert (row["R-AUROC ↑ by κ"], row["AURC ↓"], row["AUGRC ↓"]) == ("0.800", "0.040", "0.030")
    foreign = tables["Out of distribution"]
    assert [line[0] for line in foreign.rows] == ["test images", "noise", "upside down", "one grey"]
    assert cells(foreign, "noise")["κ, quantile 95 %"].startswith("50.0")
    assert cells(foreign, "noise")["median, relative"].startswith("2.00")


def test_the_text_on_foreign_images_is_read_off_the_numbers(report, tmp_path):
    (section,) = (s for s in report.sections if s.anchor == "foreign")
    said = "lower than on test images for upside down, one grey, and not lower for noise."
    assert said in section.text
    assert section.text.endswith("images of these kinds: noise, upside down.")
    foreign = {"test images": [10.0, 20.0, 30.0], "noise": [1.0, 2.0, 3.0]}
    other = add(tmp_path / "other", "closed-form", 0, {"foreign": foreign})
    (section,) = (s for s in read_report(other).sections if s.anchor == "foreign")
    assert "lower than on test images for noise. " in section.text
    assert section.text.endswith("images of these kinds: none.")


def test_main_results(groups):
    results = main_results(groups)
    assert results[0] == (
        "Closed form (ours), 2 folds: rank correlation of κ with people's agreement 0.410 ± 0.010 (paper, MCInfoNCE: "
        "0.29 ± 0.01), with the crop size 0.750 (paper, MCInfoNCE: 0.68 ± 0.01), Recall@1 0.900 "
        "(paper, MCInfoNCE: 0.863)."
    )
    assert "about 0.840 with it" in results[-2]
    assert results[-1].endswith("raises Recall@1 from 0.900 to 0.950 (by softmax: 0.971).")
    assert main_results({}) == []


@pytest.mark.parametrize(
    ("name", "left_out", "expected"),
    [
        ("closed-form", (), ["losses", "rejection", "foreign"]),
        ("closed-form", ("foreign",), ["losses", "rejection"]),
        ("closed-form", ("rejection", "rejection_area", "foreign"), ["losses"]),
        ("infonce", (), ["losses", "rejection", "foreign"]),
        ("labels-hard", (), ["labels"]),
        ("scratch", (), ["labels"]),
        ("mcinfonce-paper", (), ["losses"]),
        ("unheard-of", (), ["other"]),
    ],
)
def test_what_has_no_records_is_left_out(tmp_path, name, left_out, expected):
    folder = add(tmp_path / "records", name, 0, dict.fromkeys(left_out))
    assert re.findall(r'<section id="([^"]+)">', page(folder, tmp_path)) == expected


def test_records_without_metrics_do_not_stop_the_report(folder, tmp_path):
    check_bare_records(folder, tmp_path, "cifar10h/")


def embedded(svg, tmp_path):
    """The pictures in an SVG, as tensors [3, h, w]."""
    found = []
    for text in re.findall(r'"data:image/png;base64,([^"]+)"', svg):
        (tmp_path / "picture.png").write_bytes(base64.b64decode(text))
        found.append(read_picture(tmp_path / "picture.png"))
    return found


def corner(picture, row, column):
    return picture[:, 34 * row + 1, 34 * column + 1].tolist()


def test_the_gallery_has_the_least_certain_left_and_the_most_certain_right(groups, tmp_path):
    svg = gallery_figure(groups)
    least, most = embedded(svg, tmp_path)
    assert least.shape == most.shape == (3, 10 * 34 - 2, 5 * 34 - 2)
    for row, column in ((0, 0), (3, 4), (9, 2)):
        assert corner(least, row, column) == tile(10 * row + column)
        assert corner(most, row, column) == tile(10 * row + column + 5)
    assert svg.index("least certain") < svg.index("most certain")
    assert all(name in svg for name in ("airplane", "automobile", "truck"))


def test_retrieval_shows_query_counts_and_images(groups, tmp_path):
    svg = retrieval_figure(groups)
    query, inside = embedded(svg, tmp_path)
    assert corner(query, 0, 0) == tile(100)
    assert [corner(inside, 0, 0), corner(inside, 0, 1)] == [tile(101), tile(102)]
    assert corner(inside, 1, 5) == [255, 255, 255]  # two are shown, the rest is paper
    for words in ("κ 12.3", "54 images:", "cat 41", "dog 11", "deer 1", "others 1"):
        assert words in svg


def test_without_thumbnails_there_are_no_pictures(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "closed-form" / "seed-0.png").unlink()
    shown = anchors(tmp_path / "copy")
    assert shown == [name for name in SECTIONS if name not in ("gallery", "retrieval")]


def test_thumbnails_of_another_record_are_an_error(tmp_path):
    folder = add(tmp_path / "records", "closed-form", 0, {"pictures": pictures()})
    write_picture(torch.zeros(3, 64, 32, dtype=torch.uint8), folder / "closed-form" / "seed-0.png")
    with pytest.raises(InvalidInputError, match=r"seed-0\.png has 32 x 64 pixels.*103 thumbnails"):
        read_report(folder)


def test_a_report_starts_no_program_for_a_picture(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    called = tmp_path / "called"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {called}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    folder = add(tmp_path / "records", "closed-form", 0, {"pictures": pictures()})
    postscript = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 3296\n%%EndComments\nshowpage\n%%EOF\n"
    )
    (folder / "closed-form" / "seed-0.png").write_bytes(postscript)
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert not called.exists()
    assert isinstance(done.exception, InvalidInputError)
    assert "seed-0.png cannot be read as an image: its format is not one of" in str(done.exception)
    assert not (tmp_path / "page.html").exists()


def test_curves_are_means_over_folds_of_the_same_length(tmp_path):
    kept = [[0.5, 0.6, 1.0], [0.7, 0.8, 1.0], [0.1, 0.2]]
    for fold, curve in enumerate(kept):
        folder = add(tmp_path / "records", "elk", fold, {"rejection": {"kept": curve}})
    groups = group(read_runs(folder))
    assert mean_rejection(groups, "kept").tolist() == pytest.approx([0.6, 0.7, 1.0])
    assert mean_rejection(groups, "softmax") is None
    assert "softmax" not in rejection_figure(groups)


def test_the_rejection_figure_has_its_references(groups):
    svg = rejection_figure(groups)
    assert all(name in svg for name in ("best order", "softmax", "random order"))


def test_the_first_row_with_records_leads(groups, tmp_path):
    assert leading(groups, "rejection") is LOSSES[0]
    folder = add(tmp_path / "records", "hib")
    add(folder, "elk", 0, {"foreign": None})
    found = group(read_runs(folder))
    row = leading(found, "foreign")
    assert row is not None
    assert row.setting == "hib"
    assert list(foreign_ratios(found, row)) == ["noise", "upside down", "one grey"]
    assert leading({}, "foreign") is None


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"backbone": "resnet20"}, "ResNet-20"),
        ({"backbone": "resnet20", "also": []}, "ResNet-20"),
        ({"backbone": "resnet20", "also": ["resnet56"]}, "ResNet-20 + ResNet-56"),
    ],
)
def test_an_ensemble_names_all_its_backbones(settings, shown):
    run = Run("x", Path("x"), Record("cifar10h/x", {}, command="", settings=settings))
    assert COLUMNS["backbone"]([run]) == shown
