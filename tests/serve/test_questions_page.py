"""Questions and the comparison in a browser, against the real service."""

import os

import numpy as np
import pytest
import torch

from aureole.data import write_picture
from aureole.distributions import VonMisesFisher
from aureole.explorer import compare_galleries, inspect_gallery, read_map, write_map
from aureole.retrieval import CredibleIndex, Origin
from tests.web.visit import Visit, browser, chromium, serving
from tests.serve.axe import violations

pytest.importorskip("playwright")
pytest.importorskip("fastapi")
pytest.importorskip("openTSNE")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium() is None, reason="the page is tried in Chromium, which is not here"
    ),
]
N, COLOURS = 150, ("red", "green", "blue")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with galleries of the same ids, with three planted labels and an outlier, and small pictures.

    The third gallery has no map.
    """
    folder = tmp_path_factory.mktemp("questions")
    rng = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.rand(3, 6, generator=rng), dim=1)
    label = torch.arange(N) % 3
    mu = centres[label] + 0.08 * torch.randn(N, 6, generator=rng)
    mu[5] = -centres.mean(0)
    kappa = 10 + 40 * torch.rand(N, generator=rng)
    for row in (4, 40, 77):
        label[row] = (label[row] + 1) % 3
    ids = [f"item-{i:03d}" for i in range(N)]
    for row, name in enumerate(ids):
        picture = torch.zeros(3, 16, 16, dtype=torch.uint8)
        picture[row % 3] = 200
        write_picture(picture, folder / "pictures" / f"{name}.png")
    names = [COLOURS[code] for code in label.tolist()]
    for name in ("one", "two", "three"):
        moved = kappa.clone()
        if name == "two":
            moved[9] = 500.0
            mu = mu + 0.03 * torch.randn(N, 6, generator=rng)
        posterior = VonMisesFisher(torch.nn.functional.normalize(mu, dim=1), moved)
        index = CredibleIndex.create(folder / f"{name}.faiss", posterior, ids, {"label": names})
        index.origin = Origin(kappa_pos=30.0)
        if name != "three":
            write_map(index)
        index.close()
    return folder


def options_of(work, other):
    return [
        "--index", str(work / "one.faiss"), "--label-column", "label",
        "--images", str(work / "pictures"), "--compare-with", str(work / f"{other}.faiss"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def address(work):
    options = options_of(work, "two")
    environment = {k: v for k, v in os.environ.items() if k != "AUREOLE_API_KEY"}
    with serving(options, log=work / "log", env=environment) as found:
        yield found


@pytest.fixture(scope="module")
def chrome():
    with browser() as found:
        yield found


@pytest.fixture(params=[1280, 390])
def visit(chrome, address, request):
    with Visit(chrome, address, width=request.param) as found:
        yield found
        assert found.overflow() <= 0
        assert found.errors == []


def ids_of(locator):
    links = locator.evaluate_all("all => all.map(each => each.getAttribute('href'))")
    return [link.removeprefix("#/item/") for link in links]


def test_each_question_shows_what_python_finds(visit, work):
    with CredibleIndex.open(work / "one.faiss") as index:
        found = inspect_gallery(index, label_column="label")
    visit.load()
    visit.go("#/questions")
    labels = visit.page.get_by_role("article", name="Suspicious labels")
    labels.locator(".tile").first.wait_for()
    total, entries = found.answer("labels", 0, 12)
    assert ids_of(labels.locator(".tile")) == [entry["id"] for entry in entries]
    assert {"item-004", "item-040", "item-077"} <= {entry["id"] for entry in entries}
    assert labels.get_by_role("status").inner_text().startswith(str(total))
    outliers = visit.page.get_by_role("article", name="Outliers")
    outliers.locator(".tile").first.wait_for()
    assert ids_of(outliers.locator(".tile"))[0] == "item-005"
    copies = visit.page.get_by_role("article", name="Near duplicates")
    assert "--encoder" in copies.inner_text()
    mixed = visit.page.get_by_role("article", name="Confused classes")
    pair = found.confusions()[0]
    button = mixed.get_by_role("button", name=" or ".join(pair["classes"]))
    button.focus()
    visit.page.keyboard.press("Enter")
    mixed.locator('button[aria-pressed="true"]').wait_for()
    assert pair["classes"][0] in mixed.locator('button[aria-pressed="true"]').inner_text()


def test_a_link_selects_the_items(visit, work):
    with CredibleIndex.open(work / "one.faiss") as index:
        found = inspect_gallery(index, label_column="label")
    pair = found.confusions()[0]
    visit.load()
    visit.go("#/questions")
    labels = visit.page.get_by_role("article", name="Suspicious labels")
    labels.get_by_role("link", name="on the map").click()
    visit.wait_selected(len(found.rows("labels")))
    assert visit.filters() == [{"question": "labels"}]
    visit.page.go_back()
    mixed = visit.page.get_by_role("article", name="Confused classes")
    mixed.get_by_role("button", name=" or ".join(pair["classes"])).click()
    mixed.locator('button[aria-pressed="true"]').wait_for()
    if pair["count"]:
        mixed.get_by_role("link", name="on the map").click()
        visit.wait_selected(pair["count"])
        assert visit.filters() == [{"question": "ambiguous", "classes": pair["codes"]}]


def test_the_comparison_shows_what_python_finds(visit, work):
    with (
        CredibleIndex.open(work / "one.faiss") as one,
        CredibleIndex.open(work / "two.faiss") as two,
    ):
        found = compare_galleries(one, two, label_column="label")
    visit.load()
    visit.page.get_by_role("link", name="Compare").click()
    panel = visit.page.locator(".compare")
    panel.locator(".tile").first.wait_for()
    text = panel.inner_text()
    assert f"{found.rank_correlation:.2f}" in text
    assert "two.faiss" in text
    movers = panel.locator(".panel").last
    assert ids_of(movers.locator(".tile"))[0] == found.movers("kappa", 1)[0]["id"]
    visit.page.get_by_text("More certain", exact=True).click()
    visit.page.locator('.compare .panel:last-child a[href="#/item/item-009"]').wait_for()
    panel.locator(".scatter canvas").scroll_into_view_if_needed()
    box = panel.locator(".scatter canvas").bounding_box()
    visit.page.mouse.move(box["x"] + 60, box["y"] + 20)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + box["width"] - 10, box["y"] + box["height"] - 60, steps=4)
    visit.page.mouse.up()
    panel.locator(".scatter .tile").first.wait_for()
    assert "in the rectangle" in panel.locator(".scatter").inner_text()


def test_a_range_of_both_kappas_by_keyboard(visit, work):
    with (
        CredibleIndex.open(work / "one.faiss") as one,
        CredibleIndex.open(work / "two.faiss") as two,
    ):
        ids = [f"item-{i:03d}" for i in range(N)]
        kappas = [index.fetch(ids)[0].kappa.numpy() for index in (one, two)]
    wanted = int(((kappas[0] >= 20) & (kappas[0] <= 40) & (kappas[1] >= 25)).sum())
    assert 0 < wanted < N
    visit.load()
    visit.go("#/compare")
    panel = visit.page.locator(".scatter")
    first = visit.page.get_by_label("Smallest κ in one.faiss")
    first.focus()
    for value in ("20", "40", "25"):
        visit.page.keyboard.type(value)
        visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    status = panel.get_by_role("status")
    status.get_by_text(f"{wanted} pictures in the rectangle").wait_for()
    panel.locator(".tile").first.wait_for()
    visit.page.get_by_role("button", name="Clear selection").press("Enter")
    status.get_by_text("Drag a rectangle").wait_for()
    assert first.input_value() == ""


def test_a_rectangle_fills_its_fields(visit):
    visit.load()
    visit.go("#/compare")
    canvas = visit.page.locator(".scatter canvas")
    canvas.wait_for()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    visit.page.mouse.move(box["x"] + 80, box["y"] + 60)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 220, box["y"] + 180, steps=4)
    visit.page.mouse.up()
    status = visit.page.locator(".scatter").get_by_role("status")
    status.get_by_text("in the rectangle").wait_for()
    before = status.inner_text()
    values = [float(each.input_value()) for each in visit.page.locator(".ranges input").all()]
    assert values[0] < values[1]
    assert values[2] < values[3]
    visit.page.locator(".ranges input").first.fill(str(values[0]))
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_timeout(400)
    assert status.inner_text() == before


class Plane:
    """One of both maps on the page, and the places of the items on it in pixels of the screen."""

    def __init__(self, visit, work, at):
        self.page = visit.page
        self.canvas = visit.page.locator(".planes canvas").nth(at)
        with CredibleIndex.open(work / f"{('one', 'two')[at]}.faiss") as index:
            found = read_map(index)
        assert found is not None
        self.ids = found.ids
        self.xy = found.xy.astype(float)
        self.size = self.canvas.bounding_box()
        low, high = self.xy.min(0), self.xy.max(0)
        pad = 0.02 * (high - low)
        wide, tall = high - low + 2 * pad
        self.zoom = min(self.size["width"] / wide, self.size["height"] / tall)
        self.middle = (low + high) / 2

    def places(self):
        """Pixels on the canvas [n, 2]."""
        moved = (self.xy - self.middle) * [1, -1] * self.zoom
        return np.add(moved, [self.size["width"] / 2, self.size["height"] / 2])

    def lonely(self, count):
        """The items that are farthest from all others."""
        places = self.places()
        away = np.linalg.norm(places[:, None] - places[None], axis=-1)
        np.fill_diagonal(away, np.inf)
        return np.argsort(-away.min(1))[:count].tolist()

    def opacity(self, rows):
        """Of the pixels at these items."""
        points = np.round(self.places()[rows]).astype(int).tolist()
        return self.canvas.evaluate(
            """(canvas, points) => {
              const copy = document.createElement("canvas");
              [copy.width, copy.height] = [canvas.width, canvas.height];
              const drawn = copy.getContext("2d", { willReadFrequently: true });
              drawn.drawImage(canvas, 0, 0);
              const scale = canvas.width / canvas.clientWidth;
              return points.map(([x, y]) => drawn.getImageData(x * scale, y * scale, 1, 1).data[3]);
            }""",
            points,
        )

    def picture(self):
        return self.canvas.evaluate("canvas => canvas.toDataURL()")

    def drag(self, *corners):
        self.canvas.scroll_into_view_if_needed()
        box = self.canvas.bounding_box()
        mouse = self.page.mouse
        for i, (x, y) in enumerate(corners):
            mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=4)
            if i == 0:
                mouse.down()
        mouse.up()


def open_maps(visit, work):
    visit.load()
    visit.go("#/compare")
    visit.page.locator(".planes canvas").nth(1).wait_for()
    visit.page.locator(".planes .legend span").first.wait_for()
    visit.page.wait_for_timeout(500)  # both maps are painted
    return [Plane(visit, work, at) for at in (0, 1)]


@pytest.mark.parametrize("at", [0, 1])
def test_what_is_selected_on_one_map_is_marked_on_the_other(visit, work, at):
    planes = open_maps(visit, work)
    here, there = planes[at], planes[1 - at]
    visit.page.get_by_text("Box", exact=True).click()
    here.drag((0.01, 0.01), (0.5, 0.99))
    inside = set(np.array(here.ids)[here.places()[:, 0] < 0.5 * here.size["width"]])
    assert 10 < len(inside) < N - 10
    words = visit.page.locator(".scatter").get_by_role("status")
    words.get_by_text(f"{len(inside)} pictures selected on the map of").wait_for()
    visit.page.locator(".scatter .tile").first.wait_for()
    assert set(ids_of(visit.page.locator(".scatter .tile"))) <= inside
    visit.page.wait_for_timeout(300)
    rows = there.lonely(30)
    for row, opacity in zip(rows, there.opacity(rows), strict=True):
        assert (opacity > 170) == (there.ids[row] in inside), there.ids[row]
    visit.page.get_by_role("button", name="Clear selection").click()
    words.get_by_text("Drag a rectangle").wait_for()
    visit.page.wait_for_timeout(300)
    assert min(there.opacity(rows)) > 170
    assert visit.page.locator(".scatter .tile").count() == 0


def test_the_item_under_the_pointer_is_marked_on_the_other_map(visit, work):
    here, there = open_maps(visit, work)
    before = there.picture()
    row = here.lonely(1)[0]
    x, y = here.places()[row]
    here.canvas.scroll_into_view_if_needed()
    box = here.canvas.bounding_box()
    visit.page.mouse.move(box["x"] + x, box["y"] + y)
    visit.page.locator(".both .note a").wait_for()
    assert ids_of(visit.page.locator(".both .note a")) == [here.ids[row]]
    assert there.picture() != before
    visit.page.mouse.click(box["x"] + x, box["y"] + y)
    visit.page.wait_for_url(f"**/#/item/{here.ids[row]}")


def test_both_maps_by_keyboard(visit, work):
    here, there = open_maps(visit, work)
    here.canvas.focus()
    for key in ("ArrowRight", "+"):
        visit.page.keyboard.press(key)
    visit.page.locator(".both .note a").wait_for()
    marked = there.picture()
    visit.page.get_by_role("button", name="Select view, first map").press("Enter")
    words = visit.page.locator(".scatter").get_by_role("status")
    words.get_by_text("selected on the map of one.faiss").wait_for()
    assert 0 < int(words.inner_text().split()[0]) < N
    visit.page.wait_for_timeout(300)
    assert there.picture() != marked
    visit.page.get_by_role("button", name="Clear selection").press("Enter")
    words.get_by_text("Drag a rectangle").wait_for()
    visit.page.get_by_label("Colour by").select_option("kappa")
    visit.page.locator(".planes .ramp").nth(1).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation_in_the_comparison(chrome, address, work, scheme, width):
    with Visit(chrome, address, width=width, color_scheme=scheme) as visit:
        open_maps(visit, work)
        visit.page.get_by_role("button", name="Select view, second map").click()
        visit.page.locator(".scatter .tile").first.wait_for()
        visit.page.locator(".compare .panel").last.locator(".tile").first.wait_for()
        assert violations(visit.page) == []
        assert visit.overflow() <= 0
        assert visit.errors == []


def test_a_compared_gallery_without_a_map_says_how_to_make_one(chrome, work):
    options = options_of(work, "three")
    with (
        serving(options, log=work / "log3", env=dict(os.environ)) as found,
        Visit(chrome, found) as visit,
    ):
        visit.load()
        visit.go("#/compare")
        visit.page.locator(".planes canvas").wait_for()
        empty = visit.page.locator(".planes .empty").inner_text()
        assert "three.faiss has no map" in empty
        assert "aureole index map" in empty
        visit.page.get_by_role("button", name="Select view, first map").click()
        visit.page.get_by_text(f"{N} pictures selected on the map of one.faiss").wait_for()
        assert visit.errors == []


def test_without_a_comparison_there_is_no_link(chrome, work):
    options = ["--index", str(work / "one.faiss")]
    with (
        serving(options, log=work / "log2", env=dict(os.environ)) as found,
        Visit(chrome, found) as visit,
    ):
        visit.load()
        assert visit.page.get_by_role("link", name="Compare").count() == 0
        visit.go("#/questions")
        labels = visit.page.get_by_role("article", name="Suspicious labels")
        labels.get_by_text("no label column").wait_for()
        visit.go("#/compare")
        visit.page.get_by_text("without --compare-with").wait_for()
        assert visit.errors == []
