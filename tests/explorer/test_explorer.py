"""The explorer as one file: what is in it is right, harmless and works without a service."""

import base64
import json
import math
import re
import zlib
from collections import Counter

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from aureole.caps import CredibleIndex, Hits, SearchOptions
from aureole.cli._app import app
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.errors import InvalidInputError
from aureole.explorer import explorer_data, write_explorer
from aureole.explorer._explorer import choose_columns, pick_items, render_explorer
from aureole.explorer._neighbourhood_map import MASSES
from aureole.match import GalleryMatcher, MatchCalibrator, MatchOptions
from aureole.sphere import normalize
from tests.web.visit import Visit, browser, chromium

ROWS, DIM = 200, 6


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    pytest.importorskip("faiss")
    work = tmp_path_factory.mktemp("explorer")
    rng = torch.Generator().manual_seed(3)
    label = torch.arange(ROWS) % 4
    mu = normalize(torch.eye(4, DIM)[label] + 0.3 * torch.randn(ROWS, DIM, generator=rng))
    kappa = 2 * 50 ** torch.rand(ROWS, generator=rng)
    payload = {"label": [f"class {k}" for k in label.tolist()], "size": list(range(ROWS))}
    ids = [f"item {i}" for i in range(ROWS)]
    index = CredibleIndex.create(work / "g.faiss", VonMisesFisher(mu, kappa), ids, payload)
    index.origin = Origin(kappa_pos=16.0)
    for i, name in enumerate(ids):
        colour = torch.tensor([40 * (i % 6), 90, 200 - i // 2], dtype=torch.uint8)
        write_picture(colour.reshape(3, 1, 1).expand(3, 20, 20), work / "pictures" / f"{name}.png")
    return work


@pytest.fixture(scope="module")
def data(gallery):
    with CredibleIndex.open(gallery / "g.faiss") as index:
        return explorer_data(index, pictures=gallery / "pictures", label_column="label", items=40)


def numbers(data: dict, name: str, dtype: str) -> np.ndarray:
    """An array of the sets, a row per item."""
    content = zlib.decompress(base64.b64decode(data["sets"][name]))
    return np.frombuffer(content, dtype).reshape(len(data["items"]), -1)


def by_set(data: dict, name: str, dtype: str, *last: int) -> np.ndarray:
    return numbers(data, name, dtype).reshape(-1, len(data["sets"]["kinds"]), len(MASSES), *last)


def test_caps_counts_and_classes_are_the_indexs_own(gallery, data):
    names = [item["id"] for item in data["items"]]
    assert data["sets"]["kinds"] == ["predictive", "credible"]
    caps, counts = by_set(data, "caps", "<f4"), by_set(data, "counts", "<u2")
    classes = np.add.accumulate(by_set(data, "classes", "<u2", 20), axis=2, dtype=np.uint16)
    labels = data["sets"]["labels"]
    sizes = set()
    with CredibleIndex.open(gallery / "g.faiss") as index:
        posterior, _ = index.fetch(names)
        for place in (0, len(names) // 2, len(names) - 1):
            one = VonMisesFisher(posterior.mu[place], posterior.kappa[place])
            for k, kind in enumerate(data["sets"]["kinds"]):
                for at in (0, 30, 49):
                    options = SearchOptions(kind=kind)
                    hits = index.search(one, MASSES[at], columns=["label"], options=options)
                    assert isinstance(hits, Hits)
                    own = [i for i, name in enumerate(hits.ids) if name != names[place]]
                    assert counts[place, k, at] == len(own)
                    sizes.add(len(own))
                    angle = math.acos(float(hits.threshold))
                    assert caps[place, k, at] == pytest.approx(angle, rel=2e-7)
                    wanted = Counter(hits.payload["label"][i] for i in own)
                    pairs = classes[place, k, at].reshape(-1, 2).tolist()
                    found = {labels[code - 1]: n for code, n in pairs if code}
                    assert found == wanted
    assert len(sizes) > 6


def test_neighbours_and_their_probabilities_are_those_of_a_search(gallery, data):
    names = [item["id"] for item in data["items"]]
    places, angles, positive = (
        numbers(data, f"near_{name}", dtype)
        for name, dtype in (("places", "<u2"), ("angles", "<f4"), ("positive", "<f4"))
    )
    prior = data["about"]["prior"]
    assert prior == pytest.approx(0.25)
    with CredibleIndex.open(gallery / "g.faiss") as index:
        query, _ = index.fetch(names[5:6])
        options = SearchOptions(kind="predictive", kappa_pos=16.0, prior=prior)
        results = index.search(query, 1.0, options=options)
    assert isinstance(results, list)
    (hits,) = results
    assert hits.probability is not None
    by_id = {name: i for i, name in enumerate(hits.ids)}
    for place, angle, chance in zip(places[5], angles[5], positive[5], strict=True):
        hit = by_id[names[place]]
        assert angle == pytest.approx(math.acos(min(1, float(hits.cosine[hit]))), abs=1e-6)
        assert chance == pytest.approx(float(hits.probability[hit]), rel=1e-5)
    assert 5 not in places[5]
    assert (np.diff(angles, axis=1) >= 0).all()


def test_ranks_and_order_are_those_of_the_whole_gallery(gallery, data):
    with CredibleIndex.open(gallery / "g.faiss") as index:
        kappa = index.fetch([f"item {i}" for i in range(ROWS)])[0].kappa
    for item in data["items"]:
        assert item["rank"] == pytest.approx(
            float((kappa < item["kappa"]).float().mean()), abs=1e-5
        )
    kept = {item["kappa"] for item in data["items"]}
    assert float(kappa.min()) in kept
    assert float(kappa.max()) in kept
    assert data["about"]["rows"] == ROWS
    assert data["about"]["kappa"]["quantiles"][100][1] == float(kappa.max())
    assert data["rejection"]["curve"][0]["kept"] == 1.0


@pytest.fixture(scope="module")
def calibrator(gallery):
    """The folder of a calibrator of the gallery."""
    with CredibleIndex.open(gallery / "g.faiss") as index:
        ids = [f"item {i}" for i in range(ROWS)]
        mu = index.fetch(ids)[0].mu.numpy()
        rng = np.random.default_rng(0)
        right = rng.integers(ROWS, size=300)
        queries = mu[right] + 0.05 * rng.standard_normal((300, DIM))
        fitted = MatchCalibrator().fit(queries, mu, [[ids[row]] for row in right], ids=ids)
    fitted.save(gallery / "calibrator")
    return gallery / "calibrator"


def test_match_probabilities_are_the_calibrators_own(gallery, data, calibrator):
    assert data["about"]["calibrator"] is None
    assert "matches" not in data["items"][0]
    loaded = MatchCalibrator.load(calibrator)
    with CredibleIndex.open(gallery / "g.faiss") as index:
        found = explorer_data(index, label_column="label", items=40, calibrator=loaded)
        matcher = GalleryMatcher(loaded, index)
        names = [item["id"] for item in found["items"]]
        for place in (0, len(names) // 2, len(names) - 1):
            own = matcher.match(names[place], MatchOptions(threshold=0.0, limit=ROWS))
            wanted = dict(zip(own.hits.ids, own.probabilities, strict=True))
            matches = found["items"][place]["matches"]
            assert len(matches) == 48
            assert place not in {other for other, _ in matches}
            for other, probability in matches:
                assert probability == pytest.approx(wanted[names[other]], abs=1e-4)
            assert found["items"][place]["p_value"] == pytest.approx(own.p_value, abs=1e-4)
        assert found["about"]["calibrator"] == matcher.about()
    posterior = VonMisesFisher(torch.eye(DIM), torch.ones(DIM))
    index = CredibleIndex.create("faiss://", posterior, [f"item {i}" for i in range(DIM)])
    index.delete([f"item {i}" for i in range(DIM - 1)])
    (alone,) = explorer_data(index, calibrator=loaded)["items"]
    assert (alone["matches"], alone["p_value"]) == ([], 1.0)
    index.delete([f"item {DIM - 1}"])
    assert explorer_data(index, calibrator=loaded)["items"] == []


def test_each_class_keeps_its_ends():
    labels = ["ab"[i % 2] for i in range(1000)]
    picked = pick_items(1000, labels, 60)
    assert set(range(16)) | set(range(984, 1000)) <= set(picked)
    assert len(picked) <= 60
    assert pick_items(0, None, 10) == []
    assert pick_items(1, ["a"], 10) == [0]


def test_columns_that_are_not_there_are_refused():
    with pytest.raises(InvalidInputError, match="payload column 'shop' does not exist"):
        choose_columns({"label": "text"}, "shop", None)
    with pytest.raises(InvalidInputError, match="holds integers, not text"):
        choose_columns({"size": "integer"}, None, "size")
    assert choose_columns({"text": "integer", "label": "integer"}, None, None) == ("label", None)


def test_pictures_outside_of_the_folder_are_not_taken(tmp_path):
    pytest.importorskip("faiss")
    write_picture(torch.zeros(3, 4, 4, dtype=torch.uint8), tmp_path / "secret.png")
    write_picture(torch.zeros(3, 4, 4, dtype=torch.uint8), tmp_path / "in" / "a.png")
    posterior = VonMisesFisher(torch.eye(3), torch.ones(3))
    index = CredibleIndex.create("faiss://", posterior, ["../secret", "a", "b"])
    found = explorer_data(index, pictures=tmp_path / "in")
    assert {item["id"]: item["picture"] is not None for item in found["items"]} == {
        "../secret": False, "a": True, "b": False,
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"folder of pictures .* does not exist"):
        explorer_data(index, pictures=tmp_path / "nowhere")


def test_an_infinite_kappa_and_an_empty_gallery_are_plain_json():
    pytest.importorskip("faiss")
    posterior = VonMisesFisher(torch.eye(3), torch.tensor([0.0, 5.0, torch.inf]))
    index = CredibleIndex.create("faiss://", posterior, ["a", "b", "c"])
    render_explorer(explorer_data(index))
    index.delete(["a", "b", "c"])
    assert explorer_data(index)["items"] == []


def test_what_data_says_cannot_leave_its_place():
    sly = "</script><script>alert(1)</script><!--\u2028&"
    page = render_explorer({"items": [{"id": sly}]}, title="</title><b>")
    (text,) = re.findall(r'id="aureole-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(text)["items"][0]["id"] == sly
    assert page.count("<script") == 2
    assert "</title><b>" not in page


def test_the_command_writes_a_small_file(gallery):
    out = gallery / "out" / "page.html"
    options = ["--pictures", str(gallery / "pictures"), "--out", str(out)]
    done = CliRunner().invoke(app, ["report", str(gallery / "g.faiss"), *options])
    assert done.exit_code == 0, done.output
    assert out.stat().st_size < 1_000_000
    refused = CliRunner().invoke(app, ["report", str(gallery), "--pictures", str(gallery)])
    assert refused.exit_code == 2
    assert "--pictures is for a gallery" in refused.output


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="the page is tried in Chromium, which is not here")
def test_the_file_works_without_a_service(data, tmp_path):
    pytest.importorskip("playwright")
    out = write_explorer(data, tmp_path / "page.html", "mine")
    with browser() as chrome, Visit(chrome, out.as_uri()) as visit:
        visit.context.set_offline(True)
        visit.load()
        assert visit.page.locator(".lane h2").count() == 4
        assert "Query" not in visit.page.locator("nav").inner_text()
        visit.open_first()
        name = visit.page.locator(".over code").inner_text()
        place = [item["id"] for item in data["items"]].index(name)
        counts = by_set(data, "counts", "<u2")[place, 0]
        radii = []
        for percent in (50, 80, 99):
            visit.page.locator("#mass").fill(str(percent))
            visit.page.wait_for_timeout(400)
            count, radius = visit.members()
            assert count == counts[percent - 50]
            radii.append(radius)
        assert radii == sorted(radii)
        assert visit.page.locator(".dots circle.in").count() > 0
        visit.go("#/threshold")
        assert "kept" in visit.threshold()
        visit.page.locator(".rejection .handle").wait_for()
        visit.go("#/ask")
        visit.page.locator(".empty").wait_for()
        assert visit.errors == []
