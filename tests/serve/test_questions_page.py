"""Questions in a browser, against the real service."""

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.explorer import inspect_gallery, write_map
from tests.serve.conftest import PAGE, page_of
from tests.web.visit import Visit

pytest.importorskip("openTSNE")
pytestmark = PAGE
N, COLOURS = 150, ("red", "green", "blue")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A gallery with three planted labels and an outlier."""
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
    names = [COLOURS[code] for code in label.tolist()]
    posterior = VonMisesFisher(torch.nn.functional.normalize(mu, dim=1), kappa)
    with CredibleIndex.create(folder / "one.faiss", posterior, ids, {"label": names}) as index:
        index.origin = Origin(kappa_pos=30.0)
        write_map(index)
    with CredibleIndex.open(folder / "one.faiss") as index:
        yield index


@pytest.fixture(scope="module")
def found(work):
    return inspect_gallery(work, label_column="label")


@pytest.fixture(scope="module")
def address(work, found):
    with page_of(work, questions=found, label_column="label") as address:
        yield address


@pytest.fixture(params=[1280, 390])
def visit(chrome, address, request):
    with Visit(chrome, address, width=request.param) as found:
        yield found
        assert found.overflow() <= 0
        assert found.errors == []


def ids_of(locator):
    links = locator.evaluate_all("all => all.map(each => each.getAttribute('href'))")
    return [link.removeprefix("#/item/") for link in links]


def test_each_question_shows_what_python_finds(visit, found):
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


def test_a_link_selects_the_items(visit, found):
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
    with (
        page_of(work, questions=inspect_gallery(work)) as address,
        Visit(chrome, address) as visit,
    ):
        visit.load()
        visit.go("#/questions")
        labels = visit.page.get_by_role("article", name="Suspicious labels")
        labels.get_by_text("no label column").wait_for()
        assert visit.errors == []
