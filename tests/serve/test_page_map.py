"""The map and the selection of the explorer's page in a browser, on a small gallery whose table is known."""

import json
import re
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.explorer import read_map, write_map
from aureole.sphere import normalize
from tests.serve.conftest import PAGE, page_of
from tests.serve.test_page import draw
from tests.web.visit import Visit

pytest.importorskip("lance")
pytest.importorskip("openTSNE")
pytestmark = PAGE

SHAPES = ("disc", "ring", "stripes", "square")
ROWS = 160


class Known:
    """The gallery's table as it must appear: rows in the order of kappa."""

    def __init__(self, work: Path) -> None:
        rng = torch.Generator().manual_seed(3)
        labels = [SHAPES[i % 4] for i in range(ROWS)]
        centres = torch.eye(4, 8)
        mu = normalize(centres[torch.arange(ROWS) % 4] + 0.15 * torch.randn(ROWS, 8, generator=rng))
        kappa = 5 * 100 ** torch.rand(ROWS, generator=rng)
        ids = [f"{label} {i}" for i, label in enumerate(labels)]
        price = [round(10 + 0.25 * i, 2) for i in range(ROWS)]
        note = [f"Seen in {('Rome', 'Oslo', 'Lima')[i % 3]}" for i in range(ROWS)]
        for name, label in zip(ids, labels, strict=True):
            write_picture(draw(label, 0.1, rng), work / "pictures" / f"{name}.png")
        payload = {"label": labels, "price": price, "note": note}
        self.where = work / "known.lance"
        posterior = VonMisesFisher(mu, kappa, validate_args=False)
        index = CredibleIndex.create(self.where, posterior, ids, payload)
        write_map(index)
        found = read_map(index)
        assert found is not None
        place = {name: tuple(xy) for name, xy in zip(found.ids, found.xy.tolist(), strict=True)}
        order = np.argsort(kappa.numpy(), kind="stable")
        self.ids = [ids[i] for i in order]
        self.kappa = kappa.numpy()[order]
        self.label = [labels[i] for i in order]
        self.price = np.array(price)[order]
        self.note = [note[i] for i in order]
        self.xy = np.array([place[name] for name in self.ids])


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Known:
    return Known(tmp_path_factory.mktemp("map"))


@pytest.fixture(scope="module")
def address(known):
    with (
        CredibleIndex.open(known.where) as index,
        page_of(index, pictures=known.where.parent / "pictures", label_column="label") as found,
    ):
        yield found


@pytest.fixture
def visit(chrome, address):
    with Visit(chrome, address) as found:
        found.open_map()
        yield found
        assert found.errors == []


def shown(visit: Visit) -> list[str]:
    """The ids of the items on the first page of the table."""
    visit.page.get_by_text("Table", exact=True).click()
    visit.page.locator(".linked table").wait_for()
    return visit.page.locator(".linked tbody th a").all_inner_texts()


def test_everything_follows_a_class(visit, known):
    assert visit.selected() == (ROWS, ROWS)
    visit.page.locator(".classes button", has_text="ring").click()
    visit.wait_selected(ROWS // 4)
    assert shown(visit) == [name for name in known.ids if name.startswith("ring")][:50]
    counts = visit.page.locator(".classes button small").all_inner_texts()
    assert sorted(counts) == [f"0 of {ROWS // 4}"] * 3 + [f"{ROWS // 4} of {ROWS // 4}"]
    visit.page.locator(".classes button", has_text="disc").click()
    visit.wait_selected(ROWS // 2)
    visit.page.locator(".chip").click()
    visit.wait_selected(ROWS)
    assert visit.page.locator(".chip").count() == 0


def test_a_box_on_the_map_selects_what_lies_in_it(visit, known):
    visit.page.get_by_text("Box", exact=True).click()
    (n, corners) = visit.drag_map((0.02, 0.02), (0.5, 0.97))
    (left, low), (right, high) = np.min(corners, 0), np.max(corners, 0)
    x, y = known.xy.T
    inside = (x > left) & (x < right) & (y > low) & (y < high)
    assert 0 < inside.sum() < ROWS
    assert n == inside.sum()
    wanted = [name for name, yes in zip(known.ids, inside, strict=True) if yes]
    assert shown(visit) == wanted[:50]


def test_a_lasso_selects_what_lies_in_it(visit, known):
    from matplotlib.path import Path as Polygon

    visit.page.get_by_text("Lasso", exact=True).click()
    n, corners = visit.drag_map((0.03, 0.03), (0.95, 0.05), (0.5, 0.5), (0.05, 0.95))
    assert n == Polygon(corners).contains_points(known.xy).sum()
    assert 0 < n < ROWS


def test_a_brush_on_the_histogram_and_exact_numbers(visit, known):
    box = visit.page.locator(".bins").bounding_box()
    visit.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 20)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20, steps=4)
    visit.page.mouse.up()
    visit.page.locator(".chip").wait_for()
    (chosen,) = visit.filters()
    inside = (known.kappa >= chosen["min"]) & (known.kappa <= chosen["max"])
    assert visit.selected() == (inside.sum(), ROWS)
    visit.page.get_by_label("Values of").select_option("price")
    visit.page.get_by_label("Smallest value").fill("20")
    visit.page.get_by_label("Largest value").fill("30")
    visit.page.keyboard.press("Enter")
    visit.page.locator(".chip").nth(1).wait_for()
    visit.wait_selected(int((inside & (known.price >= 20) & (known.price <= 30)).sum()))


def test_search_finds_ids_and_texts(visit, known):
    for words, wanted in (("oslo", known.note), ("RING 1", known.ids)):
        visit.page.locator("#find").fill(words)
        visit.page.keyboard.press("Enter")
        visit.page.locator(".chip", has_text=words).wait_for()
        visit.wait_selected(sum(words.lower() in text.lower() for text in wanted))


def test_the_table_sorts_and_pages(visit, known):
    shown(visit)
    visit.page.get_by_role("button", name="price").click()
    order = np.argsort(known.price, kind="stable")
    rows = visit.page.locator(".linked tbody th a")
    visit.page.locator("th[aria-sort=ascending]", has_text="price").wait_for()
    assert rows.all_inner_texts() == [known.ids[i] for i in order[:50]]
    visit.page.get_by_role("button", name="Next").click()
    visit.page.locator(".pager span", has_text=re.compile("^51 ")).wait_for()
    assert rows.all_inner_texts() == [known.ids[i] for i in order[50:100]]
    visit.page.get_by_role("button", name="price").click()
    visit.page.locator("th[aria-sort=descending]", has_text="price").wait_for()
    assert rows.all_inner_texts() == [known.ids[i] for i in order[::-1][:50]]


def test_reload_back_and_a_shared_link_restore_the_selection(visit, chrome, address):
    page = visit.page
    page.locator(".classes button", has_text="ring").click()
    visit.wait_selected(ROWS // 4)
    page.get_by_label("Colour by").select_option("kappa")
    page.locator(".ramp").wait_for()
    page.reload()
    visit.wait_selected(ROWS // 4)
    assert page.get_by_label("Colour by").input_value() == "kappa"
    page.locator(".classes button", has_text="disc").click()
    visit.wait_selected(ROWS // 2)
    page.go_back()
    visit.wait_selected(ROWS // 4)
    page.locator(".linked .tile").first.click()
    page.locator(".head h1").wait_for()
    page.go_back()
    visit.wait_selected(ROWS // 4)
    with Visit(chrome, address) as other:
        other.page.goto(page.url)
        other.wait_selected(ROWS // 4)
        assert other.errors == []


def test_a_gallery_without_a_map_says_how_to_make_one(chrome, tmp_path):
    posterior = VonMisesFisher(
        normalize(torch.randn(20, 4, generator=torch.Generator().manual_seed(0))), 9.0
    )
    with (
        CredibleIndex.create(
            tmp_path / "plain.lance", posterior, [str(i) for i in range(20)]
        ) as index,
        page_of(index) as address,
        Visit(chrome, address) as visit,
    ):
        visit.open_map()
        words = visit.page.locator(".atlas").inner_text()
        assert words.count("aureole index map") == words.lower().count("no map") == 1
        assert "Reload this page" in words
        visit.page.get_by_label("Smallest value").fill("10")
        visit.page.keyboard.press("Enter")
        visit.wait_selected(0)
        assert "No item passes" in visit.page.locator(".linked .empty").inner_text()
        assert visit.errors == []


def test_odd_filters_in_the_address_are_ignored(chrome, address):
    bad = [{"lasso": [[0, 0]]}, {"c": "kappa"}, 7, None, {"find": 3}, {"c": "label", "in": [1]}]
    bad += [{"question": "__proto__"}, {"question": 3}, {"compared": None}]
    with Visit(chrome, address) as visit:
        visit.page.goto(f"{address}#/map?s={urllib.parse.quote(json.dumps(bad))}")
        visit.wait_selected(ROWS // 4)
        assert visit.errors == []
