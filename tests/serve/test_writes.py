"""Items stored and deleted over HTTP: all or none, with the key only, and visible at once."""

import json

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.embed import load_embedder
from aureole.engines import Origin
from aureole.serve._middleware import Access
from tests.serve.conftest import client_of, error_of, found, in_base64, serving

PAYLOAD = {"label": ["cat", "dog"], "number": [1, 2]}


@pytest.fixture
def writable(made, tmp_path):
    """(Client of a service on Lance, its gallery)."""
    pytest.importorskip("lance")
    where = str(tmp_path / "gallery.lance")
    embedder = load_embedder(made[0] / "encoder")
    mu = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    payload = {"label": ["cat", "dog", "cat"], "number": [7, 8, 9]}
    with CredibleIndex.create(where, VonMisesFisher(mu, 5.0), list("abc"), payload) as index:
        index.origin = Origin(20.0, embedder.weights)
        with serving(index, embedder, writable=True, label_column="label") as service:
            client = client_of(service, Access(key="a-secret-key"))
            client.headers["Authorization"] = "Bearer a-secret-key"
            yield client, where


def ids_of(where):
    with CredibleIndex.open(where) as index:
        return sorted(name for ids, _, _ in index.scan() for name in ids)


def posteriors(*kappas):
    rows = torch.eye(4)[: len(kappas)].tolist()
    return [{"mu": mu, "kappa": kappa} for mu, kappa in zip(rows, kappas, strict=True)]


def test_items_come_and_go(writable, made):
    client, where = writable
    items = {"ids": ["a", "new/one"], "items": {"posteriors": posteriors(50.0, 60.0)}}
    stored = client.post("/v1/items", json=items | {"payload": PAYLOAD})
    assert found(stored) == {"stored": 2, "replaced": 1}
    item = found(client.get("/v1/items/new/one"))
    assert (item["kappa"], item["payload"]) == (60.0, {"label": "dog", "number": 2})
    query = {"query": {"mu": [1.0, 0.0, 0.0, 0.0], "kappa": 1e6}}
    hits = found(client.post("/v1/search", json=query))["hits"]
    assert [hit["id"] for hit in hits] == ["a"]
    picture = {
        "ids": ["picture"],
        "items": {"images": [in_base64(made[0] / "pictures" / "item-000.png")]},
        "payload": {"label": ["x"], "number": [3]},
    }
    assert found(client.post("/v1/items", json=picture)) == {"stored": 1, "replaced": 0}
    with CredibleIndex.open(where) as index:
        expected = load_embedder(made[0] / "encoder").embed([made[2][0]])
        torch.testing.assert_close(index.fetch(["picture"])[0].mu, expected.mu, atol=1e-5, rtol=0)
    assert found(client.delete("/v1/items/new/one")) == {"deleted": 1}
    error_of(client.delete("/v1/items/new/one"), 404, "not_found")
    assert ids_of(where) == ["a", "b", "c", "picture"]


def test_wrong_items_store_nothing(writable):
    client, where = writable
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
        content = json.dumps(good | change)
        headers = {"Content-Type": "application/json"}
        error_of(client.post("/v1/items", content=content, headers=headers), 422, "invalid_input")
    for key in ("", "Bearer another-key"):
        headers = {"Authorization": key}
        error_of(client.post("/v1/items", json=good, headers=headers), 401, "unauthorized")
        error_of(client.delete("/v1/items/a", headers=headers), 401, "unauthorized")
    assert ids_of(where) == ["a", "b", "c"]


def test_a_page_of_another_site_cannot_write(writable):
    client, where = writable
    good = {"ids": ["x"], "items": {"posteriors": posteriors(5.0)}}
    good["payload"] = {"label": ["cat"], "number": [1]}
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    content = json.dumps(good)
    basic = "Basic " + in_base64(b"anyone:a-secret-key")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        for key in ("", basic):  # a form has no key, and a browser adds a password at most
            headers = foreign | {"Content-Type": kind, "Authorization": key}
            answer = client.post("/v1/items", content=content, headers=headers)
            error_of(answer, 401, "unauthorized")
            assert "access-control-allow-origin" not in answer.headers
    asked = foreign | {"Access-Control-Request-Method": "POST"}
    for path in ("/v1/items", "/v1/items/a", "/v1/search"):  # what a script asks before a request
        answer = client.options(path, headers=asked)
        assert answer.status_code == 405
        assert not any(name.startswith("access-control") for name in answer.headers)
    headers = {"Content-Type": "text/plain"}
    error_of(client.post("/v1/items", content=content, headers=headers), 422, "invalid_input")
    assert ids_of(where) == ["a", "b", "c"]


def test_a_service_that_is_not_writable_has_no_such_routes(client):
    error_of(client.post("/v1/items", json={}), 405, "not_allowed")
    error_of(client.delete("/v1/items/item-001"), 405, "not_allowed")
