"""The page on a match calibrator: every part, numbers that agree with the calibrator, and safe with any text."""

import math
import re
import warnings

import numpy as np
import pytest

from aureole.explorer import write_match_report
from aureole.explorer._match_report import (
    Aim,
    _rounded,
    calibration_error,
    match_page,
    threshold_aims,
    usage_code,
)
from aureole.match import MatchCalibrator
from tests.explorer.test_page import HOSTILE, Outline

PARTS = ["thresholds", "code", "curve", "reliability", "guarantee"]


def data(queries=300, items=200, seed=0):
    rng = np.random.default_rng(seed)
    gallery = rng.standard_normal((items, 16))
    right = rng.integers(items, size=queries)
    noise = rng.uniform(0.2, 1.3, (queries, 1)) * rng.standard_normal((queries, 16))
    return gallery[right] + noise, gallery, [[int(row)] for row in right]


@pytest.fixture(scope="module")
def fitted():
    return MatchCalibrator().fit(*data())


def text_of(html):
    return re.sub(r"\s+", " ", html)


def page(fitted, **changes):
    values = {"folder": "c", "aims": threshold_aims(fitted), "note": ""}
    return match_page(fitted, "pairs.csv", **(values | changes))


def test_the_page_has_every_part(fitted):
    html = page(fitted)
    found = Outline(html)
    assert [i for i in found.ids if i in PARTS] == PARTS
    assert html.count("<svg") == 2
    assert all(link.startswith(("#", "data:")) for link in found.links)  # nothing is loaded
    text = text_of(html)
    assert "pairs.csv: 200 items. All numbers are from 150 held-out queries." in text
    assert "MatchCalibrator.load(&#39;c&#39;)" in text
    assert "such as [0, 1]" in text
    assert "with a confidence of 90 %" in text
    assert "at most 10 results per query" in text


def test_thresholds_are_those_of_the_calibrator(fitted):
    calibrator = fitted
    precise, found = threshold_aims(calibrator, [0.4], [0.6])[:2]
    assert (precise.label, found.label) == ("precision 40 %", "recall 60 %")
    exact = calibrator.threshold(precision=0.4)
    assert exact <= precise.threshold <= exact * 1.01  # rounded to the side of its guarantee
    exact = calibrator.threshold(recall=0.6)
    assert exact * 0.99 <= found.threshold <= exact
    assert precise.quality == calibrator.quality(precise.threshold)
    text = text_of(page(fitted, aims=[precise, found]))
    assert f"return results with a probability of at least {precise.threshold:.3g}" in text


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize(
    "value", [1e-310, 1e-12, 0.000123456, 0.1234, 0.5, 0.12, 0.9994, 0.9999, 1.0]
)
def test_rounding_keeps_the_side(value, down):
    rounded = _rounded(value, down=down)
    assert 0 < rounded < 1
    assert rounded <= value * (1 + 1e-12) if down else rounded >= value * (1 - 1e-12)
    assert math.isclose(rounded, value, rel_tol=0.011)


def test_what_the_queries_do_not_show_is_said_without_a_warning():
    queries, gallery, matches = data(queries=24)
    calibrator = MatchCalibrator().fit(queries, gallery, matches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aims = threshold_aims(calibrator)
    assert aims[2] == Aim("precision", 0.9, None, None)
    html = match_page(calibrator, "few.csv", folder="c", aims=aims, note="")
    assert "12 held-out queries do not show a precision of" in text_of(html)
    assert usage_code(calibrator, "c", [aims[2]])[1].endswith("threshold=0.5)")


def test_calibration_error_is_weighted_and_leaves_out_the_low_ones():
    assert calibration_error([(0.01, 0.9, 1000), (0.2, 0.3, 30), (0.6, 0.6, 10)]) == pytest.approx(
        0.075
    )
    assert math.isnan(calibration_error([(0.01, 0.0, 5)]))


def test_hostile_text_and_ids_are_escaped(tmp_path):
    queries, gallery, matches = data()
    ids = [f"{HOSTILE}\n{row}" for row in range(len(gallery))]
    named = [[ids[row] for row in group] for group in matches]
    calibrator = MatchCalibrator().fit(queries, gallery, named, ids=ids)
    options = {"source": HOSTILE, "folder": HOSTILE, "note": HOSTILE}
    path = write_match_report(calibrator, tmp_path / "deep" / "r.html", **options)
    found = Outline(path.read_text())
    assert "script" not in found.tags
    assert "img" not in found.tags
    assert not [name for name in found.attributes if name.startswith("on")]
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    assert "\n" not in usage_code(calibrator, "c", [])[2]
