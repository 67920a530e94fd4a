"""The page on a head: well-formed with any figures, and safe with any text."""

import re

import numpy as np
import pytest
import torch

from aureole.data._image_files import write_picture
from aureole.explorer import write_head_report
from aureole.explorer._head import extremes, head_page, picture_items, text_items
from aureole.training._assessment import Assessment
from tests.explorer.test_page import HOSTILE, Outline


def assessment(**changes):
    share = np.linspace(0, 1, 101)
    values = {
        "dim": 32,
        "kappa_pos": 64.0,
        "kappa": np.geomspace(2, 300, 500).astype(np.float32),
        "groups": 100,
        "information": 4.5,
        "coverage": {0.5: 0.52, 0.8: 0.81, 0.9: 0.894, 0.95: 0.93},
        "profile": {16.0: 4.4, 32.0: 4.5, 64.0: 4.5, 128.0: 4.45},
        "asked": 500,
        "recall": 0.6,
        "rejected": share,
        "kept": 0.6 + 0.3 * share,
        "best": np.minimum(1, 0.6 / np.maximum(1 - share, 0.01)),
        "area": 0.75,
        "area_best": 0.9,
        "auroc": 0.7,
    }
    return Assessment(**(values | changes))


def test_the_page_has_every_part_and_says_the_main_things():
    html = head_page(assessment(), source="vectors.parquet")
    found = Outline(html)
    parts = ["reading", "certainty", "rejection", "coverage"]
    assert [i for i in found.ids if i in parts] == parts
    assert html.count("<svg") == 3
    text = re.sub(r"\s+", " ", html)
    assert "vectors.parquet: 500 rows in 100 groups; posteriors of 32 dimensions." in text
    assert "carries 4.50 nats of information about a partner: it narrows the search 90-fold" in text
    assert "for 60 % of 500 rows, and for 75 % of the half" in text
    assert "by κ gains 50 % of what the best order would" in text
    assert "of mass 90 % contains the partner in 89.4 % of the pairs" in text
    assert "hardly separates" not in text
    assert "-0.6 points" in text
    assert "record" not in text  # there are none behind it
    assert set(found.links) >= {f"#{part}" for part in parts}
    assert all(link.startswith(("#", "data:")) for link in found.links)  # nothing is loaded


def test_the_page_says_that_there_is_no_information():
    html = re.sub(r"\s+", " ", head_page(assessment(information=-0.49), source="v.npy"))
    assert "carry no information about a partner on average (-0.49 nats)" in html
    assert "-fold" not in html
    html = re.sub(r"\s+", " ", head_page(assessment(information=0.002), source="v.npy"))
    assert "carry no information about a partner (0.00 nats)" in html


@pytest.mark.parametrize(
    "changes",
    [
        {"kappa": np.array([5.0], np.float32), "asked": 2},
        {"kappa": np.full(7, 5.0, np.float32)},
        {"recall": 1.0, "area": 1.0, "area_best": 1.0, "auroc": None, "kept": np.ones(101)},
        {"recall": 0.0, "area": 0.0, "area_best": 0.0, "auroc": None, "kept": np.zeros(101)},
        {"coverage": {0.5: 0.0, 0.9: 1.0}},
        {"information": -0.2},
    ],
)
def test_figures_at_their_ends_make_a_page_too(changes):
    Outline(head_page(assessment(**changes), source="v.npy"))


def test_hostile_texts_are_text():
    kappa = np.arange(1.0, 31.0, dtype=np.float32)
    texts = {i: f"{HOSTILE} {i}" for i in range(30)}
    plain = dict.fromkeys(range(30), "x")
    pages = [
        head_page(assessment(kappa=kappa), source=source, galleries=text_items(kappa, shown))
        for source, shown in ((HOSTILE, texts), ("x", plain))
    ]
    assert Outline(pages[0]).tags == Outline(pages[1]).tags
    assert pages[0].count("&lt;script&gt;") == 25  # 24 texts and the source
    least, most = text_items(kappa, texts)
    assert [item.note for item in least.items][:2] == ["κ 1.00, row 0", "κ 2.00, row 1"]
    assert most.items[0].note == "κ 30.0, row 29"


def test_no_row_is_at_both_ends():
    for n in range(2, 40):
        least, most = extremes(np.arange(n))
        assert not set(least) & set(most)
        assert len(least) == len(most) == min(12, n // 2)


def test_pictures_are_small_and_whatever_is_none_is_a_line(tmp_path):
    write_picture(torch.randint(0, 255, (3, 900, 1400), dtype=torch.uint8), tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"%!PS\nquit")
    least, most = picture_items(np.array([1.0, 2.0]), {0: "a.png", 1: "b.png"}, tmp_path)
    assert least.items[0].picture.startswith("data:image/jpeg;base64,")
    assert len(least.items[0].picture) < 40_000
    assert most.items[0].picture == ""
    assert most.items[0].text == "b.png cannot be read as a picture"


def test_the_file_is_whole(tmp_path):
    path = write_head_report(assessment(), tmp_path / "deep" / "r.html", source="v.npy")
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    assert path.read_text().rstrip().endswith("</html>")
