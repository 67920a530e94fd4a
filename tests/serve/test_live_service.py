"""Services of live galleries: they follow releases with their models, and no answer mixes two versions."""

import json
import shutil
import threading
import time

import pytest
import torch

from aureole.data import read_square
from aureole.distributions import VonMisesFisher
from aureole.errors import EncoderError
from aureole.models import Card, CifarResNet, KappaFromNorm, PosteriorEncoder
from aureole.retrieval import CredibleIndex, LiveVersion, Origin, release, rollback
from aureole.scale import ModelSpec, load_embedder
from aureole.serve import LiveService, QueryModel, Service
from tests.serve.conftest import ask, in_base64, running

N = 24
IDS = [f"item-{i:03d}" for i in range(N)]
KEY = {"Authorization": "Bearer a-secret-key"}


def picture(made, number=0):
    return made[0] / "pictures" / f"{IDS[number]}.png"


@pytest.fixture(scope="module")
def versions(made, tmp_path_factory):
    """A folder with two encoders, and a gallery of each."""
    folder = tmp_path_factory.mktemp("versions")
    shutil.copytree(made[0] / "encoder", folder / "encoder-1")
    torch.manual_seed(7)
    card = Card(name="Toy", kappa_pos=20.0)
    PosteriorEncoder(CifarResNet(8), KappaFromNorm(64, 4), card=card).save(folder / "encoder-2")
    squares = [read_square(picture(made, i).read_bytes(), 32) for i in range(N)]
    for number in (1, 2):
        embedder = load_embedder(folder / f"encoder-{number}")
        posterior = embedder.embed(squares)
        where = folder / f"shop-{number}.lance"
        with CredibleIndex.create(where, posterior, IDS, {"version": [number] * N}) as index:
            index.origin = Origin(20.0, embedder.weights)
    return folder


@pytest.fixture
def live(versions, tmp_path):
    """A live file at the first version."""
    pytest.importorskip("lance")
    where = tmp_path / "shop.live"
    release(versions / "shop-1.lance", where, model={"encoder": versions / "encoder-1"})
    return where


@pytest.fixture
def plain(tmp_path):
    """(A live file, two galleries without a known model)."""
    pytest.importorskip("lance")
    rng = torch.Generator().manual_seed(0)
    for number in (1, 2):
        mu = torch.nn.functional.normalize(torch.randn(N, 4, generator=rng), dim=-1)
        rows = VonMisesFisher(mu, torch.linspace(1, 40, N))
        made = CredibleIndex.create(
            tmp_path / f"{number}.lance", rows, IDS, {"version": [number] * N}
        )
        made.close()
    release(tmp_path / "1.lance", tmp_path / "shop.live")
    return tmp_path / "shop.live", tmp_path / "1.lance", tmp_path / "2.lance"


def search(place, query):
    status, _, body = ask(place, "POST", "/v1/search", {"query": query, "mass": 0.99, "limit": 30})
    assert status == 200, body
    return json.loads(body)


def versions_of(answer):
    return {hit["payload"]["version"] for hit in answer["hits"]}


def wait_until(condition, seconds=60):
    patience = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < patience
        time.sleep(0.02)


def release_of(place):
    return json.loads(ask(place, "GET", "/v1/about")[2])["release"]


@pytest.mark.long
def test_gallery_and_model_are_swapped_together(live, versions, made):
    image = {"image": in_base64(picture(made))}
    queries = {"id": {"id": IDS[0]}, "input": image, "posterior": {"mu": [1, 0, 0, 0], "kappa": 9}}
    service = LiveService(live)
    found = {kind: [] for kind in queries}
    stop = threading.Event()
    with running(service) as place:
        service.follow(0.1)

        def loop(kind):
            while not stop.is_set():
                found[kind].append(search(place, queries[kind]))

        threads = [threading.Thread(target=loop, args=(kind,)) for kind in queries]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(found.values()))
        release(
            versions / "shop-2.lance", live, model={"encoder": versions / "encoder-2"}, force=True
        )
        wait_until(lambda: release_of(place) == 2)
        counts = {kind: len(answers) for kind, answers in found.items()}
        wait_until(lambda: all(len(found[kind]) >= counts[kind] + 2 for kind in queries))
        stop.set()
        for thread in threads:
            thread.join()
        ready = json.loads(ask(place, "GET", "/readyz")[2])
    service.close()
    assert ready["rollout"] is None
    expected = {
        number: float(load_embedder(versions / f"encoder-{number}")([picture(made)]).kappa[0])
        for number in (1, 2)
    }
    for kind, answers in found.items():
        seen = [answer for answer in answers if answer["hits"]]
        assert all(len(versions_of(answer)) == 1 for answer in seen)
        if kind == "input":  # the query's kappa comes from the model, its hits from the gallery
            for answer in seen:
                (number,) = versions_of(answer)
                assert answer["query"]["kappa"] == pytest.approx(expected[number], rel=1e-4)
        assert len({without_last_digits(answer) for answer in answers}) == 2, kind


def without_last_digits(answer):
    """The text of an answer; the last of 16 digits depends on what else was in the same batch."""
    rounded = json.loads(json.dumps(answer), parse_float=lambda number: f"{float(number):.9g}")
    return json.dumps(rounded, sort_keys=True)


def test_searches_follow_a_release_and_a_rollback(plain):
    live, _, new = plain
    service = LiveService(live)
    query = {"mu": [1.0, 0.0, 0.0, 0.0], "kappa": 2.0}
    with running(service) as place:
        service.follow(0.05)
        assert versions_of(search(place, query)) == {1}
        release(new, live)
        wait_until(lambda: versions_of(search(place, query)) == {2})
        assert release_of(place) == 2
        assert versions_of(search(place, {"id": IDS[3]})) == {2}
        rollback(live)
        wait_until(lambda: versions_of(search(place, query)) == {1})
        with CredibleIndex.open(live) as index:  # rows of the current version are listed
            index.upsert(index.fetch(IDS[:1])[0], ["fresh"], {"version": [1]})
        wait_until(lambda: json.loads(ask(place, "GET", "/v1/items?limit=1")[2])["total"] == N + 1)
    service.close()


def test_a_request_keeps_its_version(plain):
    live, _, new = plain
    service = LiveService(live)
    with service.use() as first:
        release(new, live)
        service.look()
        with service.use() as second:
            assert second is not first
        time.sleep(0.2)
        assert first.engine.queue.is_alive()
        assert first.metrics is second.metrics
    wait_until(lambda: not first.engine.queue.is_alive(), 10)
    service.close()


def test_a_version_of_another_model_is_not_used(live, versions, made):
    """Without the name of its model, the service keeps its pair and says so."""
    service = LiveService(live)
    with running(service) as place:
        release(versions / "shop-2.lance", live, force=True)
        service.look()
        ready = json.loads(ask(place, "GET", "/readyz")[2])
        assert ready["status"] == "ready"
        assert ready["rollout"] == "release 2 cannot be used; see the service's log"
        assert versions_of(search(place, {"image": in_base64(picture(made))})) == {1}
        pid = service._pair.embedder.pid
        rollback(live)
        service.look()
        assert json.loads(ask(place, "GET", "/readyz")[2])["rollout"] is None
        assert release_of(place) == 3
        assert service._pair.embedder.pid == pid  # the loaded model is kept
        assert versions_of(search(place, {"image": in_base64(picture(made))})) == {1}
    service.close()


@pytest.mark.parametrize(
    "encoder", ["python:os:system", "openai:http://127.0.0.1:9/v1#x", "timm:x"]
)
def test_a_file_cannot_choose_an_encoder_that_runs_code(plain, encoder):
    live, _, new = plain
    service = LiveService(live)
    release(new, live, model={"encoder": encoder})
    service.look()
    assert service.rollout is not None
    with service.use() as current:
        assert current.about()["release"] == 1
    service.close()
    with pytest.raises(EncoderError, match="--allow-encoder"):
        LiveService(live)


def test_what_the_operator_allows_is_loaded(tmp_path):
    version = LiveVersion("a.lance", encoder="timm:x", head="head")
    where = tmp_path / "shop.live"
    spec = QueryModel(ModelSpec("timm:x", "old", normalized=True)).of(version, where)
    assert (spec.encoder, spec.head, spec.normalized) == ("timm:x", str(tmp_path / "head"), True)
    spec = QueryModel(allowed=["timm:x"]).of(version, where)
    assert (spec.encoder, spec.normalized) == ("timm:x", None)
    spec = QueryModel(ModelSpec("timm:y", "old")).of(LiveVersion("a.lance", head="head"), where)
    assert (spec.encoder, spec.head) == ("timm:y", str(tmp_path / "head"))
    assert QueryModel().of(LiveVersion("a.lance"), where) is None


def test_updates_wait_for_the_new_version(plain):
    live, _, new = plain
    service = LiveService(live, settings={"writable": True})
    items = {
        "ids": ["fresh"],
        "items": {"posteriors": [{"mu": [1.0, 0, 0, 0], "kappa": 3.0}]},
        "payload": {"version": [2]},
    }
    with running(service, key="a-secret-key") as place:
        release(new, live)
        status, headers, _ = ask(place, "POST", "/v1/items", items, KEY)
        assert (status, headers["retry-after"]) == (503, "5")
        assert ask(place, "DELETE", f"/v1/items/{IDS[0]}", headers=KEY)[0] == 503
        service.look()
        assert ask(place, "POST", "/v1/items", items, KEY)[0] == 200
    service.close()
    counts = []
    for address in plain[1:]:
        with CredibleIndex.open(address) as index:
            counts.append(index.count())
    assert counts == [N, N + 1]


def test_a_plain_service_has_no_release(plain):
    with CredibleIndex.open(plain[1]) as index:
        service = Service(index)
        assert service.about()["release"] is None
        with service.use() as current:
            assert current is service
        service.close()
