"""Selections that are larger than an address and a request: linked views, tags, exports and the relabel queue."""

import csv
import json

import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.explorer import inspect_gallery
from aureole.retrieval import CredibleIndex, Tags
from aureole.serve import Service, TagService
from aureole.sphere import normalize
from tests.web.visit import Visit, browser, chromium
from tests.serve.conftest import running

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium"),
]
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
    ids = [f"item {i}" for i in range(ROWS)]
    where = tmp_path_factory.mktemp("large") / "gallery.faiss"
    with CredibleIndex.create(where, posterior, ids, {"label": labels}) as index:
        yield index, inspect_gallery(index, label_column="label", kappa_pos=100.0)


@pytest.fixture(scope="module")
def chrome():
    with browser() as found:
        yield found


@pytest.fixture
def tags(tmp_path):
    with Tags(tmp_path / "tags.sqlite") as opened:
        yield opened


@pytest.fixture
def visit(chrome, gallery, tags):
    service = Service(gallery[0], label_column="label", questions=gallery[1])
    with (
        running(service, tags=TagService(tags)) as (host, port),
        Visit(chrome, f"http://{host}:{port}/") as found,
    ):
        found.context.add_init_script("localStorage.setItem('aureole-author', 'Ann')")
        yield found
    service.close()


def answer_dialog(page, text):
    page.locator("dialog #tag-value").fill(text)
    page.locator("dialog button[type=submit]").click()


def download(page, title, path):
    with page.expect_download() as waiting:
        page.get_by_role("button", name=title, exact=True).click()
    waiting.value.save_as(path)


def test_all_suspicious_labels_reach_the_relabel_queue(visit, gallery, tags, tmp_path):
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
    page.keyboard.press("r")
    answer_dialog(page, "")
    page.locator(".tagging .status", has_text=f"Saved: needs relabelling, {total} items").wait_for()
    wanted = {found.ids[row] for row in found.rows("labels")}
    assert set(tags.ids("relabel")) == wanted
    page.locator(".export summary").click()
    download(page, "Relabel queue, CSV", tmp_path / "queue.csv")
    with (tmp_path / "queue.csv").open(newline="") as lines:
        assert {row["id"] for row in csv.DictReader(lines)} == wanted
    assert visit.errors == []


def select_all(visit):
    visit.page.goto(f"{visit.base}#/map?s=" + json.dumps([{"c": "kappa", "min": 0}]))
    visit.wait_selected(ROWS)
    visit.page.locator(".tag-target", has_text="12,001 items selected").wait_for()


def test_more_items_than_a_request_may_have_are_tagged_and_exported(visit, tags, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    page = visit.page
    select_all(visit)
    page.keyboard.press("t")
    answer_dialog(page, "seen")
    page.locator(".tagging .status", has_text="Saved: tag “seen”, 12,001 items").wait_for()
    assert len(tags.ids("tag", "seen")) == ROWS
    page.keyboard.press("u")
    page.locator(".tagging .status", has_text="Undone").wait_for()
    assert tags.ids("tag", "seen") == []
    page.locator(".export summary").click()
    download(page, "Selected items, Parquet", tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.column_names == ["id", "kappa", "label", "text"]
    assert len(set(table["id"].to_pylist())) == ROWS
    download(page, "Selected items, CSV", tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["id"] for row in rows] == table["id"].to_pylist()
    assert [row["label"] for row in rows] == table["label"].to_pylist()
    assert visit.errors == []


def test_what_is_saved_before_a_failure_is_reported_and_can_be_undone(visit, tags):
    page = visit.page
    select_all(visit)
    asked = []

    def fail_second(route) -> None:
        asked.append(len(route.request.post_data_json["ids"]))
        if len(asked) == 2:
            error = {"code": "unavailable", "message": "the tags are locked.", "field": None}
            route.fulfill(status=503, json={"error": error})
        else:
            route.continue_()

    page.route(
        "**/v1/tags", lambda r: fail_second(r) if r.request.method == "POST" else r.continue_()
    )
    page.keyboard.press("t")
    answer_dialog(page, "seen")
    message = page.locator(".tagging .trouble")
    message.get_by_text("the tags are locked. The first 10,000 items are saved").wait_for()
    assert asked == [10_000, 2_001]
    assert len(tags.ids("tag", "seen")) == 10_000
    page.keyboard.press("u")
    page.locator(".tagging .status", has_text="Undone").wait_for()
    assert tags.ids("tag", "seen") == []
