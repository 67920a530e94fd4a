"""The page on a match calibrator: every part, numbers that agree with the calibrator, and safe with any text."""

import math
import re
import warnings

import numpy as np
import pytest

from aureole.errors import InvalidInputError
from aureole.explorer import write_match_report
from aureole.explorer._match_report import (
    Aim,
    _rounded,
    calibration_error,
    match_page,
    radius_verdict,
    threshold_aims,
    usage_code,
)
from aureole.match import MatchCalibrator, SetSizes, compare_set_sizes
from aureole.match._sets import RuleSizes
from tests.explorer.test_page import HOSTILE, Outline

PARTS = ["thresholds", "code", "curve", "reliability", "sets", "guarantee"]


def data(queries=300, items=200, seed=0):
    rng = np.random.default_rng(seed)
    gallery = rng.standard_normal((items, 16))
    right = rng.integers(items, size=queries)
    noise = rng.uniform(0.2, 1.3, (queries, 1)) * rng.standard_normal((queries, 16))
    return gallery[right] + noise, gallery, [[int(row)] for row in right]


@pytest.fixture(scope="module")
def fitted():
    """(Calibrator, set sizes on its held-out queries)."""
    queries, gallery, matches = data()
    calibrator = MatchCalibrator().fit(queries, gallery, matches)
    held = calibrator.held_out_rows_
    own = [matches[row] for row in held]
    return calibrator, compare_set_sizes(calibrator, queries[held], gallery, own)


def text_of(html):
    return re.sub(r"\s+", " ", html)


def page(fitted, **changes):
    calibrator, sizes = fitted
    values = {"folder": "c", "aims": threshold_aims(calibrator), "sizes": sizes, "note": ""}
    return match_page(calibrator, "pairs.csv", **(values | changes))


def test_the_page_has_every_part(fitted):
    html = page(fitted)
    found = Outline(html)
    assert [i for i in found.ids if i in PARTS] == PARTS
    assert html.count("<svg") == 3
    assert all(link.startswith(("#", "data:")) for link in found.links)  # nothing is loaded
    text = text_of(html)
    assert "pairs.csv: 200 items. All numbers are from 150 held-out queries." in text
    assert "MatchCalibrator.load(&#39;c&#39;)" in text
    assert "such as [0, 1]" in text
    assert "with a confidence of 90 %" in text
    assert "at most 10 results per query" in text
    assert text.count("A radius per query") == 2  # at the top and with the sizes


def test_thresholds_are_those_of_the_calibrator(fitted):
    calibrator, _ = fitted
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
    html = match_page(calibrator, "few.csv", folder="c", aims=aims, sizes=None, note="")
    assert "12 held-out queries do not show a precision of" in text_of(html)
    assert "sets" not in Outline(html).ids
    assert usage_code(calibrator, "c", [aims[2]])[1].endswith("threshold=0.5)")


def sizes(one, own, pair):
    rules = (RuleSizes(results, (0.5,) * len(results)) for results in (one, own, pair))
    return SetSizes((0.5, 0.7, 0.9), *rules, queries=100, items=5000)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ((1.0, 4.0, 800.0), "A radius per query helps here"),
        ((2.0, 10.1, 930.0), "makes no difference here"),
        ((3.0, 12.0, 1200.0), "does not help here"),
        ((1.0, 10.0, 1200.0), "helps at some recalls only"),
    ],
)
def test_the_verdict_on_radii(own, words):
    found = radius_verdict(sizes((2.0, 10.0, 930.0), own, (0.5, 2.0, 340.0)))
    assert words in found
    assert "to find 90 % of the matches, one cosine for all queries returns 930 items" in found
    assert "which also corrects for the item, 340." in found


def test_calibration_error_is_weighted_and_leaves_out_the_low_ones():
    assert calibration_error([(0.01, 0.9, 1000), (0.2, 0.3, 30), (0.6, 0.6, 10)]) == pytest.approx(
        0.075
    )
    assert math.isnan(calibration_error([(0.01, 0.0, 5)]))


def test_hostile_text_and_ids_are_escaped(fitted, tmp_path):
    queries, gallery, matches = data()
    ids = [f"{HOSTILE}\n{row}" for row in range(len(gallery))]
    named = [[ids[row] for row in group] for group in matches]
    calibrator = MatchCalibrator().fit(queries, gallery, named, ids=ids)
    options = {"source": HOSTILE, "folder": HOSTILE, "note": HOSTILE, "sizes": fitted[1]}
    path = write_match_report(calibrator, tmp_path / "deep" / "r.html", **options)
    found = Outline(path.read_text())
    assert "script" not in found.tags
    assert "img" not in found.tags
    assert not [name for name in found.attributes if name.startswith("on")]
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    assert "\n" not in usage_code(calibrator, "c", [])[2]


def test_set_sizes_against_a_slow_loop():
    queries, gallery, matches = data(queries=120, items=60, seed=1)
    calibrator = MatchCalibrator().fit(queries[:80], gallery, matches[:80])
    rest, own = queries[80:], [[*group, (group[0] + 1) % 60] for group in matches[80:]]
    own[3] = []  # is left out
    found = compare_set_sizes(calibrator, rest, gallery, own, recalls=[0.5, 0.9])
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rest, gallery)]
    cosines = unit[0] @ unit[1].T
    level = calibrator.level(cosines)[:, None]
    weights = calibrator.weights_
    rules = {
        "one_cosine": cosines,
        "query_radius": cosines - weights.level / weights.cosine * level,
        "match_score": weights.score(cosines, level, calibrator.hubness_),
    }
    asked = [row for row in range(40) if own[row]]
    assert (found.queries, found.items) == (39, 60)
    for name, scores in rules.items():
        for place, recall in enumerate((0.5, 0.9)):
            for cutoff in np.sort(scores[asked].ravel())[::-1]:
                kept = scores >= cutoff
                if np.mean([kept[row, own[row]].mean() for row in asked]) >= recall - 1e-9:
                    break
            measured = getattr(found, name)
            assert measured.results[place] == pytest.approx(kept[asked].sum() / 39, abs=0.06)
            right = sum(kept[row, own[row]].sum() for row in asked)
            assert measured.precision[place] == pytest.approx(right / kept[asked].sum(), abs=0.01)


def test_set_sizes_refuse_what_does_not_fit(fitted):
    calibrator, _ = fitted
    queries, gallery, matches = data()
    for arguments, match in (
        ((queries[:3], gallery, matches[:2]), "3 queries and 2 lists"),
        ((queries[:2], gallery, [[], []]), "0 of them not empty"),
        ((queries[:2], gallery[:50], [[1], [2]]), "50 items and the calibrator 200"),
        ((queries[:2], gallery, [[1], [200]]), "matches as its rows"),
        ((queries[:2], gallery, [[1], [-1]]), "matches as its rows"),
        ((queries[:2], gallery * np.inf, [[1], [2]]), "not finite"),
        ((queries[:2, :5], gallery, [[1], [2]]), "dimension 5"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            compare_set_sizes(calibrator, *arguments)
