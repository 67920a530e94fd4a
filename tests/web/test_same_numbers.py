"""The service's page, the report, the widget and the command line show the same numbers for the same items."""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from typer.testing import CliRunner

import aureole as au
from aureole.cli._app import app
from aureole.distributions import VonMisesFisher
from aureole.explorer import explorer_data, write_explorer
from aureole.explorer._notebook import _ESM
from aureole.retrieval import CredibleIndex, Origin
from aureole.sphere import normalize
from tests.explorer.test_notebook import HOST, escaped
from tests.web.visit import Visit, browser, chromium, serving

pytest.importorskip("playwright")
pytest.importorskip("fastapi")
pytest.importorskip("faiss")
pytest.importorskip("anywidget")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium"),
]

ROWS, DIM, ITEMS, MEMBERS, KAPPA_POS = 240, 6, 50, 12, 24.0
_READ = """() => {
  const text = (where) => document.querySelector(where)?.innerText ?? "";
  return {
    kappa: text(".big strong"),
    rank: text(".head .lead"),
    set: text(".summary"),
    classes: text(".mix"),
    circle: document.querySelector(".map .cap").getAttribute("r"),
    members: [...document.querySelectorAll(".members .tile")].map((tile) => [
      tile.title, tile.querySelector(".kappa").innerText, tile.querySelector(".facts").innerText,
    ]),
  };
}"""


def posteriors() -> tuple[VonMisesFisher, list[str], list[str]]:
    """Posteriors of classes that overlap, their labels and ids."""
    rng = torch.Generator().manual_seed(5)
    label = torch.randint(5, (ROWS,), generator=rng)
    mu = normalize(torch.eye(5, DIM)[label] + 0.35 * torch.randn(ROWS, DIM, generator=rng))
    kappa = 3 * 80 ** torch.rand(ROWS, generator=rng)
    labels = [f"class {k}" for k in label.tolist()]
    return VonMisesFisher(mu, kappa), labels, [f"item {i:03d}" for i in range(ROWS)]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """A folder with the gallery of all items."""
    work = tmp_path_factory.mktemp("same")
    posterior, labels, ids = posteriors()
    index = CredibleIndex.create(work / "g.faiss", posterior, ids, {"label": labels})
    index.origin = Origin(kappa_pos=KAPPA_POS)
    return work


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, int, str]]:
    """50 random items, each with a mass and a kind of cap."""
    rng = random.Random(0)
    names = rng.sample([f"item {i:03d}" for i in range(ROWS)], ITEMS)
    kinds = ("predictive", "credible")
    return [(name, rng.randrange(50, 100), rng.choice(kinds)) for name in names]


@contextmanager
def page_of_the_service(work) -> Iterator[str]:
    options = ["--index", str(work / "g.faiss"), "--label-column", "label"]
    environment = {k: v for k, v in os.environ.items() if k != "AUREOLE_API_KEY"}
    with serving(options, log=work / "log", env=environment) as address:
        yield address


@contextmanager
def page_of_the_report(work) -> Iterator[str]:
    with CredibleIndex.open(work / "g.faiss") as index:
        data = explorer_data(index, label_column="label", items=ROWS)
    assert len(data["items"]) == ROWS
    yield write_explorer(data, work / "report.html").as_uri()


@contextmanager
def page_of_the_widget(work) -> Iterator[str]:
    """A host of the widget, as a notebook is; the page is in a frame."""
    posterior, labels, ids = posteriors()
    found = au.explore(posterior, labels=labels, ids=ids, kappa_pos=KAPPA_POS, items=ROWS)
    assert len(found.data["items"]) == ROWS
    state = {"_esm": _ESM, "page": found.widget().page, "height": 860}
    (work / "host.html").write_text(HOST.replace("STATE", escaped(state)))
    yield (work / "host.html").as_uri()


HOMES: dict[str, Callable] = {
    "service": page_of_the_service,
    "report": page_of_the_report,
    "widget": page_of_the_widget,
}


@pytest.fixture(scope="module")
def chrome():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def printed(gallery, asked) -> list[dict]:
    """The answers of ``aureole search --json``."""
    with CredibleIndex.open(gallery / "g.faiss") as index:
        ids = [f"item {i:03d}" for i in range(ROWS)]
        _, payload = index.fetch(ids, columns=["label"])
    sizes = [payload["label"].count(label) for label in set(payload["label"])]
    prior = sum((n / ROWS) ** 2 for n in sizes)
    answers = []
    for name, mass, kind in asked:
        options = ["--id", name, "--mass", f"{mass / 100}", "--kind", kind, "--prior", str(prior)]
        done = CliRunner().invoke(app, ["search", str(gallery / "g.faiss"), *options, "--json"])
        assert done.exit_code == 0, done.output
        answers.append(json.loads(done.stdout))
    return answers


@pytest.fixture(scope="module")
def shown(gallery, asked, chrome) -> dict[str, list[dict]]:
    """What each home of the page shows for the items."""
    found = {}
    for home, opened in HOMES.items():
        with opened(gallery) as base, Visit(chrome, base) as visit:
            page = opened_page(visit, home)
            found[home] = []
            for name, mass, kind in asked:
                route = f"#/item/{name.replace(' ', '%20')}?mass={mass}&kind={kind}"
                page.evaluate("route => { location.hash = route }", route)
                page.locator(".over code", has_text=name).wait_for()
                page.locator(".summary strong").wait_for()
                page.locator("[aria-busy]").first.wait_for(state="detached")
                page.locator(".dots circle").first.wait_for(state="attached")
                found[home].append(page.evaluate(_READ))
            assert visit.errors == []
    return found


def opened_page(visit, home):
    """The page or, of the widget, its frame, with the first items."""
    if home != "widget":
        visit.load()
        return visit.page
    visit.page.goto(visit.base)
    visit.page.frame_locator("iframe").locator(".lane .tile").first.wait_for()
    return visit.page.frames[1]


@pytest.mark.parametrize("home", [home for home in HOMES if home != "service"])
def test_every_home_of_the_page_shows_what_the_service_shows(shown, home):
    for here, there in zip(shown[home], shown["service"], strict=True):
        # the report stores angles as float32
        assert float(here["circle"]) == pytest.approx(float(there["circle"]), rel=1e-6)
        assert here | {"circle": ""} == there | {"circle": ""}
    assert len({each["circle"] for each in shown["service"]}) > ITEMS // 2


@pytest.mark.parametrize("home", HOMES)
def test_the_command_line_prints_what_the_page_shows(shown, printed, gallery, home):
    with CredibleIndex.open(gallery / "g.faiss") as index:
        kappas = index.fetch([f"item {i:03d}" for i in range(ROWS)])[0].kappa
    probabilities = 0
    for page, answer in zip(shown[home], printed, strict=True):
        kappa = answer["query"]["kappa"]
        assert float(page["kappa"]) == pytest.approx(kappa, rel=0.006)
        rank = float((kappas < kappa).double().mean())
        share = re.search(r"(less|more) certain than (\d+)\s%", page["rank"].lower())
        if share:
            wanted = 1 - rank if share[1] == "less" else rank
            assert int(share[2]) == pytest.approx(100 * wanted, abs=0.51)
        else:
            assert min(rank, 1 - rank) <= 0.005
        pattern = r"(\d+) of (\d+) items lie within ([\d.]+)°\s*cosine ≥ (-?[\d.]+)"
        ((count, rows, degrees, cosine),) = re.findall(pattern, page["set"])
        assert (int(count), int(rows)) == (answer["count"], ROWS)
        assert float(degrees) == pytest.approx(answer["cap"]["degrees"][0], abs=0.51)
        assert float(cosine) == pytest.approx(answer["cap"]["cosine"][0], abs=0.00051)
        members = page["members"]
        assert len(members) == min(48, answer["count"])
        by_id = {hit["id"]: hit for hit in answer["hits"]}
        for name, angle, facts in members[:MEMBERS]:
            hit = by_id[name]
            assert float(angle.rstrip("°")) == pytest.approx(hit["degrees"], abs=0.51)
            ((beyond, chance),) = re.findall(r"P ([<>] )?([\d.]+)", facts)
            wanted = hit["probability"]
            if beyond:
                assert wanted < 0.001 if beyond == "< " else 0.995 <= wanted < 1
            else:
                assert float(chance) == pytest.approx(wanted, abs=0.0051)
            probabilities += 1
    assert probabilities > ITEMS
