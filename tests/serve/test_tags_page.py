"""Tags in the explorer's page, in Chromium: on a service, where they are read-only, and in a file."""

import json
from urllib.parse import quote

import pytest

from aureole.explorer import explorer_data, write_explorer
from aureole.retrieval import Tags, read_tag_table
from aureole.serve import TagService
from tests.web.visit import Visit, browser, chromium
from tests.serve.conftest import names, running

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="the page is tried in Chromium"),
]
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def chrome():
    with browser() as found:
        yield found


@pytest.fixture
def tags(tmp_path):
    with Tags(tmp_path / "gallery.tags.sqlite") as opened:
        yield opened


@pytest.fixture
def address(service, tags):
    with running(service, tags=TagService(tags)) as place:
        yield f"http://{place[0]}:{place[1]}/"


def fill(page, text):
    """Answer the dialog that is open."""
    page.locator("dialog #tag-value").fill(text)
    page.locator("dialog button[type=submit]").click()


def chips(page):
    return page.locator(".tag-chip > span").all_inner_texts()


def stored(tags):
    return {(e.id, e.kind, e.value, e.author) for e in tags.entries()}


def open_item(visit, name):
    visit.page.goto(f"{visit.base}#/item/{name}")
    visit.page.locator(".tagging .tag-buttons button").first.wait_for()


def test_an_item_is_tagged_by_mouse_and_by_keys(chrome, address, tags):
    with Visit(chrome, address) as visit:
        page = visit.page
        open_item(visit, "item-001")
        page.get_by_role("button", name="Tag", exact=False).first.click()
        fill(page, MARKUP)
        fill(page, "Ann")  # her name, once
        page.locator(".tag-chip").wait_for()
        page.keyboard.press("r")
        fill(page, "dog")
        page.locator(".tag-chip.relabel").wait_for()
        page.keyboard.press("n")
        fill(page, "two\nlines")
        page.locator(".tag-chip.note").wait_for()
        page.keyboard.press("d")
        fill(page, "item-002")
        page.locator(".tag-chip.duplicate").wait_for()
        expected = {
            ("item-001", "tag", MARKUP, "Ann"), ("item-001", "relabel", "dog", "Ann"),
            ("item-001", "note", "two\nlines", "Ann"), ("item-001", "duplicate", "item-002", "Ann"),
        }  # fmt: skip
        assert stored(tags) == expected
        assert chips(page) == [
            "duplicate of item-002",
            "two\nlines",
            "needs relabelling → dog",
            MARKUP,
        ]
        assert page.locator(".tag-chip img").count() == 0
        page.keyboard.press("u")
        page.locator(".tagging .status", has_text="Undone").wait_for()
        assert stored(tags) == {e for e in expected if e[1] != "duplicate"}
        page.get_by_role("button", name="Remove this note").click()
        page.locator(".tag-chip.note").wait_for(state="detached")
        page.reload()
        page.locator(".tag-chip.relabel").wait_for()
        assert chips(page) == ["needs relabelling → dog", MARKUP]
        page.keyboard.press("t")  # the name is known after a reload, too
        fill(page, "sharp")
        page.locator(".tag-chip", has_text="sharp").wait_for()
        assert ("item-001", "tag", "sharp", "Ann") in stored(tags)
        assert visit.errors == []


def test_mistakes_are_shown_and_nothing_is_stored(chrome, address, tags):
    with Visit(chrome, address) as visit:
        page = visit.page
        open_item(visit, "item-001")
        page.keyboard.press("d")
        fill(page, "nobody")
        fill(page, "")
        page.locator(".tagging .trouble", has_text="does not exist").wait_for()
        page.keyboard.press("t")
        page.keyboard.press("Escape")
        assert page.locator("dialog").count() == 0
        page.keyboard.press("t")
        page.keyboard.type("r tag")  # letters in a field are no shortcuts
        assert page.locator("dialog #tag-value").input_value() == "r tag"
        page.locator("dialog .cancel").click()
        assert list(tags.entries()) == []
        visit.errors = [each for each in visit.errors if "422" not in each]
        assert visit.errors == []


def test_the_list_of_tags_and_its_downloads(chrome, address, tags, tmp_path):
    pytest.importorskip("pyarrow")
    tags.add(names()[:20], "tag", "=blurred")
    tags.add(names()[:3], "relabel", "dog")
    with Visit(chrome, address) as visit:
        page = visit.page
        page.goto(f"{address}#/tags")
        page.locator(".tag-list a").first.wait_for()
        assert page.locator(".tag-list li").all_inner_texts() == [
            "=blurred 20",
            "Needs relabelling 3",
        ]
        link = page.locator(".tag-list a").first.get_attribute("href")
        assert json.loads(
            page.evaluate("h => new URLSearchParams(h.split('?')[1]).get('s')", link)
        ) == [{"tag": "=blurred"}]
        page.locator(".export summary").click()
        for title, name in (
            ("All tags, CSV", "tags.csv"),
            ("Relabel queue, Parquet", "relabel.parquet"),
        ):
            with page.expect_download() as waiting:
                page.get_by_role("button", name=title).click()
            assert waiting.value.suggested_filename == name
            waiting.value.save_as(tmp_path / name)
        assert set(read_tag_table(tmp_path / "tags.csv")) == set(tags.entries())
        page.get_by_label("Keyboard shortcuts").uncheck()
        open_item(visit, "item-001")
        page.keyboard.press("t")
        assert page.locator("dialog").count() == 0
        assert page.locator(".tagging kbd").count() == 0
        assert visit.errors == []


def test_a_service_that_does_not_accept_changes(chrome, service, tags):
    tags.add(["item-001"], "tag", "blurred")
    reader = Tags(tags.file, read_only=True)
    with running(service, tags=TagService(reader)) as place:
        address = f"http://{place[0]}:{place[1]}/"
        with Visit(chrome, address) as visit:
            visit.page.goto(f"{address}#/item/item-001")
            visit.page.locator(".tag-chip").wait_for()
            assert chips(visit.page) == ["blurred"]
            assert visit.page.locator(".tagging button").count() == 0
            assert "read-only" in visit.page.locator(".tagging").inner_text()
            assert visit.errors == []


@pytest.fixture
def report(index, tmp_path):
    """The address of a report of the gallery."""
    data = explorer_data(index, label_column="label")
    return write_explorer(data, tmp_path / "report.html").as_uri()


@pytest.mark.parametrize("storage", [True, False])
def test_tags_in_a_file_stay_in_the_browser(chrome, report, tmp_path, storage):
    with Visit(chrome, report) as visit:
        page = visit.page
        if not storage:  # as browsers do for files, or by a setting
            visit.context.add_init_script(
                "Object.defineProperty(window, 'localStorage', "
                "{ get() { throw new DOMException('denied', 'SecurityError'); } })"
            )
        open_item(visit, "item-001")
        page.keyboard.press("t")
        fill(page, "-blurred")
        fill(page, "Ann")
        page.locator(".tag-chip").wait_for()
        page.keyboard.press("r")
        fill(page, "")
        page.locator(".tag-chip.relabel").wait_for()
        page.keyboard.press("r")
        fill(page, "dog")
        page.locator(".tag-chip.relabel", has_text="dog").wait_for()
        page.keyboard.press("u")
        page.locator(".tag-chip.relabel", has_text="dog").wait_for(state="detached")
        visit.go("#/tags")
        page.locator(".tag-list a").first.wait_for()
        assert page.locator(".tag-list li").all_inner_texts() == [
            "-blurred 1",
            "Needs relabelling 1",
        ]
        words = "Stored in this browser only" if storage else "does not store anything"
        page.get_by_text(words).wait_for()
        below = page.locator(".tags-view .check").bounding_box()
        page.locator(".export summary").click()
        page.locator(".export button").first.wait_for()
        assert page.locator(".tags-view .check").bounding_box() == below  # the menu is an overlay
        page.keyboard.press("Escape")
        assert page.locator(".export button").first.is_hidden()
        page.keyboard.press("Enter")
        for title, name in (("All tags, CSV", "tags.csv"), ("All tags, JSON lines", "tags.jsonl")):
            with page.expect_download() as waiting:
                page.get_by_role("button", name=title).click()
            waiting.value.save_as(tmp_path / name)
            found = {(e.id, e.kind, e.value, e.author) for e in read_tag_table(tmp_path / name)}
            assert found == {
                ("item-001", "tag", "-blurred", "Ann"),
                ("item-001", "relabel", "", "Ann"),
            }
        if storage:
            page.reload()
            page.locator(".tag-list a").first.wait_for()
            assert page.locator(".tag-list li").count() == 2
        with Tags(tmp_path / "imported.sqlite") as imported:
            assert imported.load(read_tag_table(tmp_path / "tags.jsonl")).changed == 2
        assert visit.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen(chrome, address, tags, scheme):
    tags.add(["item-001"], "tag", "x" * 64)
    tags.add(["item-001"], "note", "long " * 200)
    with Visit(chrome, address, width=390, color_scheme=scheme) as visit:
        open_item(visit, "item-001")
        visit.page.locator(".tag-chip").first.wait_for()
        assert visit.overflow() <= 0
        visit.page.goto(f"{address}#/tags")
        visit.page.locator(".tag-list a").first.wait_for()
        assert visit.overflow() <= 0
        assert visit.errors == []


def test_a_selection_is_tagged_and_found_again(chrome, address, service, tags, index):
    """The selection of the map: kappa below a bound, then the tag that its items got."""
    if not hasattr(service, "table"):
        pytest.skip("the service has no table yet")
    kappas = {name: k for ids, kappa, _ in index.scan() for name, k in zip(ids, kappa, strict=True)}
    bound = sorted(kappas.values())[19]
    expected = {name for name, kappa in kappas.items() if kappa <= bound}
    with Visit(chrome, address) as visit:
        page = visit.page
        query = json.dumps([{"c": "kappa", "max": float(bound) + 1e-6}])
        page.goto(f"{address}#/map?s={quote(query)}")
        page.locator(".tag-target", has_text="20 items selected").wait_for()
        page.keyboard.press("t")
        fill(page, "vague")
        fill(page, "Ann")
        page.locator(".tagging .status", has_text="Saved").wait_for()
        assert {entry.id for entry in tags.entries(kind="tag", value="vague")} == expected
        tags.remove(sorted(expected)[:5], "tag", "vague")
        page.goto(f"{address}#/tags")
        page.locator(".tag-list a").first.click()
        page.locator(".tag-target", has_text="15 items selected").wait_for()
        page.locator(".export summary").click()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Selected items, JSON lines").click()
        rows = waiting.value.path().read_text().splitlines()
        assert {json.loads(row)["id"] for row in rows} == set(sorted(expected)[5:])
        page.keyboard.press("r")
        fill(page, "")
        page.locator(".tagging .status", has_text="needs relabelling, 15 items").wait_for()
        page.keyboard.press("u")
        page.locator(".tagging .status", has_text="Undone").wait_for()
        assert list(tags.entries(kind="relabel")) == []
        assert visit.errors == []
