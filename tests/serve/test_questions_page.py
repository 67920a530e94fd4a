"""Questions in a browser, against the real service."""

import os

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.explorer import inspect_gallery, write_map
from tests.web.visit import Visit, browser, chromium, serving

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
    """A folder with a gallery with three planted labels and an outlier, and small pictures."""
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
    posterior = VonMisesFisher(torch.nn.functional.normalize(mu, dim=1), kappa)
    with CredibleIndex.create(folder / "one.faiss", posterior, ids, {"label": names}) as index:
        index.origin = Origin(kappa_pos=30.0)
        write_map(index)
    return folder


@pytest.fixture(scope="module")
def address(work):
    options = ["--index", str(work / "one.faiss"), "--label-column", "label"]
    options += ["--images", str(work / "pictures")]
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


def test_a_gallery_without_labels_says_so(chrome, work):
    options = ["--index", str(work / "one.faiss")]
    with (
        serving(options, log=work / "log2", env=dict(os.environ)) as found,
        Visit(chrome, found) as visit,
    ):
        visit.load()
        visit.go("#/questions")
        labels = visit.page.get_by_role("article", name="Suspicious labels")
        labels.get_by_text("no label column").wait_for()
        assert visit.errors == []
