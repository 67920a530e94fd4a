"""Questions and the comparison in a browser, against the real service."""

import os

import pytest
import torch

from aureole.data import write_picture
from aureole.distributions import VonMisesFisher
from aureole.explorer import compare_galleries, inspect_gallery
from aureole.retrieval import CredibleIndex, Origin
from benchmarks.explorer_visit import Visit, browser, chromium, serving

pytest.importorskip("playwright")
pytest.importorskip("fastapi")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium() is None, reason="the page is tried in Chromium, which is not here"
    ),
]
N, COLOURS = 150, ("red", "green", "blue")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with two galleries of the same ids, with three planted labels and an outlier, and small pictures."""
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
    for name, factor in (("one", 1.0), ("two", 1.0)):
        moved = kappa.clone() * factor
        if name == "two":
            moved[9] = 500.0
        posterior = VonMisesFisher(torch.nn.functional.normalize(mu, dim=1), moved)
        index = CredibleIndex.create(folder / f"{name}.faiss", posterior, ids, {"label": names})
        index.origin = Origin(kappa_pos=30.0)
        index.close()
    return folder


@pytest.fixture(scope="module")
def address(work):
    options = [
        "--index", str(work / "one.faiss"), "--label-column", "label",
        "--images", str(work / "pictures"), "--compare-with", str(work / "two.faiss"),
    ]  # fmt: skip
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


def test_a_link_selects_the_items(visit):
    visit.load()
    visit.go("#/questions")
    labels = visit.page.get_by_role("article", name="Suspicious labels")
    labels.get_by_role("link", name="on the map").click()
    visit.page.wait_for_url("**/#/map?s=**")
    assert "rows" in visit.page.url


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
    box = panel.locator("canvas").bounding_box()
    visit.page.mouse.move(box["x"] + 60, box["y"] + 20)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + box["width"] - 10, box["y"] + box["height"] - 60, steps=4)
    visit.page.mouse.up()
    panel.locator(".scatter .tile").first.wait_for()
    assert "in the rectangle" in panel.locator(".scatter").inner_text()


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
