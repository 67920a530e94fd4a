"""Every view of the page: no accessibility violation, no console error, and state that survives reload and Back."""

import shutil
import urllib.parse
from importlib.resources import files

import pytest

from aureole.caps import CredibleIndex
from aureole.embed import load_embedder
from aureole.explorer import explorer_data, inspect_gallery, write_explorer, write_map
from tests.serve.conftest import PAGE, page_of
from tests.web.visit import Visit

pytest.importorskip("openTSNE")
pytestmark = PAGE

# each with what is there once it has loaded
VIEWS = {
    "#/": ".lane .tile",
    "#/item/item-001": ".members .tile",
    "#/ask": ".studio img",
    "#/map": ".linked .page[data-count]",
    "#/questions": ".question .tile",
    "#/threshold": ".rejection .handle",
    "#/calibration": ".calibration .curve",
}
IN_FILE = {view: VIEWS[view] for view in VIEWS if view not in ("#/ask", "#/questions")}


@pytest.fixture(scope="module")
def work(made, tmp_path_factory):
    """A folder with an encoder, pictures, and a gallery with a map."""
    folder = tmp_path_factory.mktemp("views") / "work"
    shutil.copytree(made[0], folder)
    with CredibleIndex.open(folder / "gallery.faiss") as index:
        write_map(index)
    return folder


@pytest.fixture(scope="module")
def address(work):
    """The address of a service with everything that the page can show."""
    with (
        CredibleIndex.open(str(work / "gallery.faiss")) as index,
        page_of(
            index,
            load_embedder(work / "encoder"),
            pictures=work / "pictures",
            label_column="label",
            text_column="caption",
            questions=inspect_gallery(index, label_column="label"),
        ) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def report(work):
    """The address of a report of the gallery."""
    with CredibleIndex.open(work / "gallery.faiss") as index:
        data = explorer_data(
            index, pictures=work / "pictures", label_column="label", text_column="caption"
        )
    return write_explorer(data, work / "report.html").as_uri()


@pytest.fixture
def visit(chrome, address):
    with Visit(chrome, address) as found:
        yield found
        assert found.errors == []


EVERY_SCREEN = pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)


def violations(page):
    """(Rule, elements) of each violation on a page that axe-core finds; skips the test where it is not installed."""
    package = pytest.importorskip("axe_playwright_python")
    if not page.evaluate("'axe' in window"):
        page.evaluate((files(package) / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        (each["id"], [node["target"] for node in each["nodes"]]) for each in found["violations"]
    ]


def faults(visit, views):
    """What is wrong with each of the views: accessibility violations, and pixels beyond the screen."""
    found = {}
    for view, loaded in views.items():
        visit.go(view)
        visit.page.locator(loaded).first.wait_for()
        visit.page.wait_for_load_state("networkidle")
        found[view] = (violations(visit.page), max(0, visit.overflow()))
    return {view: fault for view, fault in found.items() if fault != ([], 0)}


@EVERY_SCREEN
def test_every_view_is_accessible(chrome, address, width, scheme):
    with Visit(chrome, address, width=width, color_scheme=scheme) as visit:
        visit.load()
        assert faults(visit, VIEWS) == {}
        assert visit.errors == []


@EVERY_SCREEN
def test_every_view_of_a_report_is_accessible(chrome, report, width, scheme):
    with Visit(chrome, report, width=width, color_scheme=scheme) as visit:
        visit.page.goto(report)
        assert faults(visit, IN_FILE) == {}
        assert visit.errors == []


def query(visit):
    """The values in the address."""
    return dict(
        urllib.parse.parse_qsl(urllib.parse.urlsplit(visit.page.url).fragment.partition("?")[2])
    )


def test_the_gallery_keeps_its_order_and_class(visit):
    page = visit.page
    visit.load()
    page.get_by_text("Most certain first", exact=True).click()
    page.get_by_label("Class", exact=True).select_option(label="dog")
    assert query(visit) == {"order": "certain", "class": "dog"}

    def check_state() -> None:
        page.locator(".all .status", has_text="of 20").wait_for()
        assert page.get_by_label("Class", exact=True).input_value() == "dog"
        assert page.locator(".gallery .choice input:checked").get_attribute("value") == "certain"
        kappas = visit.kappas(".all .grid")
        assert kappas == sorted(kappas, reverse=True)

    check_state()
    page.reload()
    check_state()
    page.locator(".all .tile[href*=item-]").first.click()
    page.locator(".back a").wait_for()
    page.locator(".back a").click()
    check_state()
    page.go_back()
    page.locator(".back a").wait_for()
    page.go_back()
    check_state()
    page.get_by_label("Class", exact=True).select_option(label="All classes")
    page.locator(".all .status", has_text="of 60").wait_for()
    page.go_back()
    check_state()
    page.get_by_role("link", name="Questions", exact=True).click()
    page.locator(".question .tile").first.wait_for()
    page.get_by_role("link", name="Gallery", exact=True).click()
    check_state()
    page.locator("a.brand").click()
    page.locator(".all .status", has_text="of 60").wait_for()
    assert page.locator(".gallery .choice input:checked").get_attribute("value") == "ambiguous"


def test_the_threshold_stays(visit):
    visit.load()
    visit.go("#/threshold")
    first = visit.threshold()
    visit.page.locator(".handle").focus()
    for _ in range(4):
        visit.page.keyboard.press("ArrowRight")
    chosen = visit.threshold()
    assert chosen != first
    visit.page.wait_for_url("**/#/threshold?kappa=*")
    visit.page.reload()
    assert visit.threshold() == chosen
    visit.go("#/questions")
    visit.page.locator(".question .tile").first.wait_for()
    visit.page.go_back()
    assert visit.threshold() == chosen


def test_a_pair_of_classes_stays(visit):
    visit.load()
    visit.go("#/questions")
    mixed = visit.page.get_by_role("article", name="Confused classes")
    pairs = mixed.locator("button[aria-pressed]")
    pairs.first.click()
    chosen = mixed.locator("button[aria-pressed=true]")
    chosen.wait_for()
    words = mixed.get_by_role("status").inner_text()
    visit.page.reload()
    chosen.wait_for()
    assert mixed.get_by_role("status").inner_text() == words
    pairs.nth(1).click()
    mixed.locator("tr:nth-child(2) button[aria-pressed=true]").wait_for()
    visit.page.go_back()
    mixed.locator("tr:nth-child(1) button[aria-pressed=true]").wait_for()
    assert mixed.get_by_role("status").inner_text() == words
    visit.page.go_back()
    chosen.wait_for(state="detached")
    assert query(visit) == {}
