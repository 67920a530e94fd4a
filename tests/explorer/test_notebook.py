"""The widget: executed in a notebook, and rendered in Chromium by a minimal host without a network."""

import base64
import json
import sys
import zlib

import numpy as np
import pytest
import torch

pytest.importorskip("faiss")
pytest.importorskip("PIL")

import aureole as au
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.explorer import fit_map
from tests.web.visit import browser, chromium

CELL = """
import torch, numpy as np
import aureole as au
rng = torch.Generator().manual_seed(0)
mu = au.sphere.normalize(torch.randn(3000, 16, generator=rng))
q = au.VonMisesFisher(mu, torch.rand(3000, generator=rng) * 300 + 20)
images = [np.full((8, 8, 3), i % 256, np.uint8) for i in range(3000)]
labels = ["ab"[i % 2] for i in range(3000)]
page = au.explore(q, images=images, labels=labels, kappa_pos=50.0, items=150)
page
"""
HOST = """<!doctype html><html data-theme="light"><body><div id="el"></div><script type="module">
const state = STATE;
const model = { get: (name) => state[name], on: () => {} };
const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
const { default: widget } = await import(url);
widget.render({ model, el: document.getElementById("el") });
</script></body></html>"""


def small(n=60):
    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(n, 8, generator=rng))
    return au.VonMisesFisher(mu, torch.rand(n, generator=rng) * 50 + 5)


def escaped(value):
    return json.dumps(value).replace("<", "\\u003c")


def visit(context, page, errors):
    """Look at the gallery and at an item of the explorer in a frame."""
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    frame = page.frame_locator("iframe")
    frame.locator(".lane .tile").first.wait_for()
    frame.locator(".lane .tile").first.click()
    frame.locator(".summary strong").wait_for()
    return frame


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_notebook_shows_three_thousand_items_without_a_network(tmp_path):
    pytest.importorskip("anywidget")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    (output,) = [o for o in notebook.cells[0].outputs if o.output_type == "execute_result"]
    model = output.data["application/vnd.jupyter.widget-view+json"]["model_id"]
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    state = states[model]["state"]
    assert "default-src 'none'" in state["page"]
    kept = {name: state[name] for name in ("_esm", "page", "height")}
    (tmp_path / "host.html").write_text(HOST.replace("STATE", escaped(kept)))
    errors, requests = [], []
    with browser() as chrome:
        context = chrome.new_context(offline=True, viewport={"width": 1000, "height": 820})
        page = context.new_page()
        page.on("request", lambda r: requests.append(r.url.split(":")[0]))
        page.goto((tmp_path / "host.html").as_uri())
        frame = visit(context, page, errors)
        assert "3,000" in frame.locator("body").inner_text()
        assert frame.locator(".portrait img").get_attribute("src").startswith("data:image/jpeg")
        before = frame.locator(".slide output").inner_text()
        frame.locator("#mass").fill("60")
        assert frame.locator(".slide output").inner_text() != before
        frame.get_by_role("link", name="Map", exact=True).click()
        frame.locator(".plane canvas").wait_for()
        frame.locator(".linked .page[data-count]").wait_for()
        whole = frame.locator(".selected strong").inner_text()
        frame.locator(".plane canvas").focus()
        page.keyboard.press("+")
        page.keyboard.press("+")
        frame.get_by_role("button", name="Select view").click()
        frame.locator(".chip", has_text="Area on the map").wait_for()
        number = [
            int(each.replace(",", ""))
            for each in (frame.locator(".selected strong").inner_text(), whole)
        ]
        assert 0 < number[0] < number[1]
        frame.get_by_role("link", name="Gallery", exact=True).click()
        frame.locator(".lane .tile").first.wait_for()
    assert errors == []
    assert set(requests) <= {"file", "blob", "data"}


def column(data, name):
    """A column of the table on the page."""
    (found,) = [each for each in data["table"]["columns"] if each["name"] == name]
    return np.frombuffer(base64.b64decode(found["data"]), "<f4")


def test_a_map_is_fitted_to_all_items():
    pytest.importorskip("openTSNE")
    q = small()
    data = au.explore(q, items=20).data
    assert data["table"]["map"] == {"available": True, "method": "t-SNE", "reason": None}
    with au.CredibleIndex.create("faiss://", q, [str(i) for i in range(60)]) as index:
        found = fit_map(index)
    xy = dict(zip(found.ids, found.xy, strict=True))
    shown = [item["id"] for item in data["items"]]
    assert len(shown) < 60
    given = au.explore(q, items=20, map=found).data
    for axis, name in enumerate(("map.x", "map.y")):
        wanted = [xy[each][axis] for each in shown]
        assert column(data, name).tolist() == column(given, name).tolist() == wanted


def test_without_a_map_the_page_says_how_to_get_one(monkeypatch):
    found = au.explore(small(), map=False).data["table"]["map"]
    assert found["available"] is False
    assert "map=True" in found["reason"]
    monkeypatch.setattr("aureole.explorer._explorer._QUICK", 59)
    found = au.explore(small()).data["table"]["map"]
    assert found["available"] is False
    assert "more than 59 items" in found["reason"]
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    monkeypatch.setattr("aureole.explorer._explorer._QUICK", 60)
    found = au.explore(small()).data["table"]["map"]
    assert found["available"] is False
    assert "pip install 'aureole[explore]'" in found["reason"]
    with pytest.raises(MissingPackageError, match="openTSNE"):
        au.explore(small(), map=True)


def test_a_map_of_another_gallery_is_refused():
    def fitted(q, names):
        with au.CredibleIndex.create("faiss://", q, names) as index:
            return fit_map(index)

    few = small()[:20]
    other = fitted(few, [f"other {i}" for i in range(20)])
    with pytest.raises(InvalidInputError, match="none of its ids exists"):
        au.explore(few, map=other)
    flat = au.VonMisesFisher(torch.eye(3), torch.ones(3))
    with pytest.raises(InvalidInputError, match="another dimension"):
        au.explore(few, map=fitted(flat, ["0", "1", "2"]))


def test_sets_are_those_of_the_index():
    q = small()
    data = au.explore(q, kappa_pos=30.0, items=60).data
    assert data["about"]["kappa_pos"] == 30.0
    stored = data["sets"]
    counts = np.frombuffer(zlib.decompress(base64.b64decode(stored["counts"])), "<u2")
    counts = counts.reshape(60, len(stored["kinds"]), -1)
    mass = data["masses"].index(0.9)
    with au.CredibleIndex.create("faiss://", q, [str(i) for i in range(60)]) as index:
        index.origin = au.engines.Origin(30.0)
        for row, item in enumerate(data["items"][:10]):
            own = q[int(item["id"])]
            for place, kind in enumerate(stored["kinds"]):
                options = au.caps.SearchOptions(kind=kind)
                ids = index.search(own, 0.9, exact=True, options=options).ids
                assert counts[row, place, mass] == len(set(ids) - {item["id"]})


def test_wrong_lengths_and_shapes_are_refused():
    with pytest.raises(InvalidInputError, match="labels has 2 entries for 60"):
        au.explore(small(), labels=["a", "b"])
    with pytest.raises(InvalidInputError, match="shape"):
        au.explore(au.VonMisesFisher(torch.eye(3)[0], 4.0))
