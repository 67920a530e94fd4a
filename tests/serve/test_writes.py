"""Items stored and deleted over HTTP: all or none, with a key only, and visible at once."""

import json

import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, Origin
from aureole.scale import load_embedder
from aureole.serve import Client, Service, ServiceError, create_app
from tests.serve.conftest import ask, error_of, in_base64, running

KEY = {"Authorization": "Bearer a-secret-key"}
PAYLOAD = {"label": ["cat", "dog"], "number": [1, 2]}


@pytest.fixture
def writable(made, tmp_path):
    """(Address of a service, its gallery on Lance)."""
    pytest.importorskip("lance")
    where = str(tmp_path / "gallery.lance")
    embedder = load_embedder(made[0] / "encoder")
    mu = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    payload = {"label": ["cat", "dog", "cat"], "number": [7, 8, 9]}
    with CredibleIndex.create(where, VonMisesFisher(mu, 5.0), list("abc"), payload) as index:
        index.origin = Origin(20.0, embedder.weights)
        service = Service(index, embedder, writable=True, label_column="label")
        with running(service, key="a-secret-key") as place:
            yield place, where
        service.close()


def posteriors(*kappas):
    rows = torch.eye(4)[: len(kappas)].tolist()
    return [{"mu": mu, "kappa": kappa} for mu, kappa in zip(rows, kappas, strict=True)]


def test_items_come_and_go(writable, made):
    place, where = writable
    items = {"ids": ["a", "new/one"], "items": {"posteriors": posteriors(50.0, 60.0)}}
    status, _, body = ask(place, "POST", "/v1/items", items | {"payload": PAYLOAD}, KEY)
    assert (status, json.loads(body)) == (200, {"stored": 2, "replaced": 1})
    found = json.loads(ask(place, "GET", "/v1/items/new/one", headers=KEY)[2])
    assert (found["kappa"], found["payload"]) == (60.0, {"label": "dog", "number": 2})
    query = {"query": {"mu": [1.0, 0.0, 0.0, 0.0], "kappa": 1e6}}
    hits = json.loads(ask(place, "POST", "/v1/search", query, KEY)[2])["hits"]
    assert [hit["id"] for hit in hits] == ["a"]
    picture = {
        "ids": ["picture"],
        "items": {"images": [in_base64(made[0] / "pictures" / "item-000.png")]},
    }
    stored = ask(
        place, "POST", "/v1/items", picture | {"payload": {"label": ["x"], "number": [3]}}, KEY
    )
    assert json.loads(stored[2]) == {"stored": 1, "replaced": 0}
    with CredibleIndex.open(where) as index:
        expected = load_embedder(made[0] / "encoder").embed([made[2][0]])
        torch.testing.assert_close(index.fetch(["picture"])[0].mu, expected.mu, atol=1e-5, rtol=0)
    status, _, body = ask(place, "DELETE", "/v1/items/new/one", headers=KEY)
    assert (status, json.loads(body)) == (200, {"deleted": 1})
    error_of(ask(place, "DELETE", "/v1/items/new/one", headers=KEY), 404, "not_found")
    with CredibleIndex.open(where) as index:
        assert sorted(i for ids, _, _ in index.scan() for i in ids) == ["a", "b", "c", "picture"]


def test_wrong_items_store_nothing(writable):
    place, where = writable
    good = {"ids": ["x", "y"], "items": {"posteriors": posteriors(5.0, 6.0)}, "payload": PAYLOAD}
    for change in (
        {"ids": ["x"]},
        {"ids": ["x", "x"]},
        {"ids": ["x", "\0"]},
        {"ids": ["x", "\ud800"]},
        {"ids": ["x", "y" * 1025]},
        {"ids": []},
        {"ids": "xy"},
        {"payload": {"label": ["cat", "dog"]}},
        {"payload": PAYLOAD | {"number": [1, "2"]}},
        {"payload": PAYLOAD | {"number": [1]}},
        {"payload": PAYLOAD | {"more": [1, 2]}},
        {"items": {"posteriors": [{"mu": [3.0, 0.0, 0.0, 0.0], "kappa": 1.0}] * 2}},
        {"items": {"posteriors": [{"mu": [1.0, 0.0], "kappa": 1.0}] * 2}},
        {"items": {"posteriors": [{"mu": [1.0, 0.0, 0.0, 0.0], "kappa": -1.0}] * 2}},
        {"items": {"texts": ["a", "b"]}},
        {"items": {}},
        {"mode": "append"},
    ):
        error_of(ask(place, "POST", "/v1/items", good | change, KEY), 422, "invalid_input")
    error_of(ask(place, "POST", "/v1/items", good), 401, "unauthorized")
    error_of(ask(place, "DELETE", "/v1/items/a"), 401, "unauthorized")
    with CredibleIndex.open(where) as index:
        assert sorted(i for ids, _, _ in index.scan() for i in ids) == ["a", "b", "c"]


def test_the_client_stores_and_deletes(writable, made):
    (host, port), where = writable
    new = VonMisesFisher(torch.eye(4)[:2], torch.tensor([8.0, 9.0]))
    with Client(f"http://{host}:{port}", key="a-secret-key") as client:
        assert client.upsert(["b", "../d"], new, payload=PAYLOAD) == 1
        assert client.item("../d")["kappa"] == 9.0
        picture = made[0] / "pictures" / "item-000.png"
        assert client.upsert(["e"], image=[picture], payload={"label": ["x"], "number": [3]}) == 0
        assert client.delete("../d") is True
        assert client.delete("../d") is False
        with pytest.raises(InvalidInputError, match="not both"):
            client.upsert(["f"], new, text=["x"])
        with pytest.raises(ServiceError, match="payload columns"):
            client.upsert(["f", "g"], new)
    with CredibleIndex.open(where) as index:
        assert index.count() == 4


def test_writes_need_a_key_and_an_engine(made, index, service):
    with running(service, key="a-secret-key") as place:  # not writable
        error_of(ask(place, "POST", "/v1/items", {}, KEY), 405, "not_allowed")
        error_of(ask(place, "DELETE", "/v1/items/item-001", headers=KEY), 405, "not_allowed")
    with pytest.raises(InvalidInputError, match="FAISS cannot be changed over HTTP"):
        Service(index, writable=True)
    service.writable = True
    with pytest.raises(InvalidInputError, match="needs an API key"):
        create_app(service)
