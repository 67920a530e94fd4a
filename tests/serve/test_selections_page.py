"""Selections that are larger than an address and a request: linked views, and the export of their ids."""

import csv
import json

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.explorer import inspect_gallery
from aureole.sphere import normalize
from tests.serve.conftest import PAGE, page_of
from tests.web.visit import Visit

pytestmark = PAGE
ROWS, WRONG = 12_001, 401


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """(Gallery, its answers): three classes far from each other, and labels of 401 items that are wrong."""
    rng = torch.Generator().manual_seed(0)
    code = torch.arange(ROWS) % 3
    mu = normalize(torch.eye(3, 8)[code] + 0.05 * torch.randn(ROWS, 8, generator=rng))
    posterior = VonMisesFisher(mu, 200 + 20 * torch.rand(ROWS, generator=rng))
    wrong = torch.randperm(ROWS, generator=rng)[:WRONG]
    code[wrong] = (code[wrong] + 1) % 3
    labels = [("cat", "dog", "owl")[i] for i in code.tolist()]
    ids = [f"item {i}" for i in range(ROWS - 1)] + ['=HYPERLINK("x", 1)']
    where = tmp_path_factory.mktemp("large") / "gallery.faiss"
    with CredibleIndex.create(where, posterior, ids, {"label": labels}) as index:
        yield index, inspect_gallery(index, label_column="label", kappa_pos=100.0)


@pytest.fixture(scope="module")
def address(gallery):
    with page_of(gallery[0], label_column="label", questions=gallery[1]) as found:
        yield found


@pytest.fixture
def visit(chrome, address):
    with Visit(chrome, address) as found:
        yield found
        assert found.errors == []


def exported(page, path):
    """The ids in the file that the button saves."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export ids (CSV)").click()
    waiting.value.save_as(path)
    with path.open(newline="", encoding="utf-8") as lines:
        return [row["id"] for row in csv.DictReader(lines)]


def test_all_suspicious_labels_are_exported(visit, gallery, tmp_path):
    page, found = visit.page, gallery[1]
    total, _ = found.answer("labels")
    assert total >= WRONG
    visit.load()
    visit.go("#/questions")
    labels = page.get_by_role("article", name="Suspicious labels")
    labels.get_by_role("link", name="Select them on the map").click()
    visit.wait_selected(total)
    assert visit.filters() == [{"question": "labels"}]
    assert len(page.url) < 150
    page.locator(".chip", has_text="Suspicious labels").wait_for()
    page.reload()
    visit.wait_selected(total)
    wanted = [found.ids[row] for row in found.rows("labels")]
    assert exported(page, tmp_path / "ids.csv") == wanted


def test_more_ids_than_a_request_may_have_are_exported(visit, gallery, tmp_path):
    visit.page.goto(f"{visit.base}#/map?s=" + json.dumps([{"c": "kappa", "min": 0}]))
    visit.wait_selected(ROWS)
    ids = exported(visit.page, tmp_path / "ids.csv")
    guarded = [f"'{name}" if name.startswith("=") else name for name in gallery[1].ids]
    assert ids == guarded
    visit.page.get_by_text("Saved 12,001 ids").wait_for()


def test_nothing_selected_cannot_be_exported(visit):
    visit.open_map()
    assert visit.page.get_by_role("button", name="Export ids (CSV)").is_disabled()
