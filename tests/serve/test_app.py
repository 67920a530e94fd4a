"""What the service answers is what the index and the encoder say themselves."""

import math
from collections import Counter
from urllib.parse import quote

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex, SearchOptions, cap_cosine, class_entropy, latent_in_cap
from aureole.distributions import VonMisesFisher
from aureole.embed import load_embedder
from aureole.engines import Origin
from aureole.errors import InvalidInputError
from aureole.explorer._neighbourhood_map import _MARGIN
from aureole.serve import Service, create_app
from aureole.serve._batching import Search
from aureole.serve._middleware import Access
from aureole.serve._models import SearchRequest
from aureole.serve._service import ServiceOptions
from tests.serve.conftest import (
    NASTY,
    N,
    ask,
    client_of,
    error_of,
    found,
    in_base64,
    names,
    serving,
)


def as_query(posterior):
    return {"mu": posterior.mu.tolist(), "kappa": float(posterior.kappa)}


def test_about(client, made):
    about = found(client.get("/v1/about"))
    assert (about["rows"], about["dim"], about["engine"]) == (N, 4, "FAISS")
    assert (about["modality"], about["kappa_pos"], about["conformal"]) == ("image", 20.0, True)
    kappa = np.sort(made[1].kappa.numpy())
    assert about["kappa"]["quantiles"][0] == [0.0, pytest.approx(kappa[0])]
    assert about["kappa"]["quantiles"][100] == [1.0, pytest.approx(kappa[-1])]
    assert len(about["kappa"]["quantiles"]) == 101
    assert {c["label"]: c["count"] for c in about["classes"]} == {"cat": 20, "dog": 20, "<b>": 20}


def test_pages_follow_kappa_and_miss_nobody(client, made):
    order = [names()[i] for i in np.argsort(made[1].kappa.numpy(), kind="stable")]
    seen = []
    for offset in range(0, N + 20, 20):
        page = found(client.get("/v1/items", params={"offset": offset, "limit": 20}))
        assert (page["total"], page["offset"]) == (N, offset)
        seen += [item["id"] for item in page["items"]]
    assert seen == order
    certain = found(client.get("/v1/items?order=certain&limit=9"))
    assert [item["id"] for item in certain["items"]] == order[::-1][:9]
    dogs = found(client.get("/v1/items?label=dog&limit=500"))
    labels = dict(zip(names(), [("cat", "dog", "<b>")[i % 3] for i in range(N)], strict=True))
    assert [item["id"] for item in dogs["items"]] == [n for n in order if labels[n] == "dog"]
    assert found(client.get("/v1/items?label=none"))["items"] == []


@pytest.mark.parametrize("name", ["item-007", *NASTY])
def test_an_item_has_its_posterior(place, made, name):
    item = found(ask(place, "GET", f"/v1/items/{quote(name, safe='')}"))
    row, kappa = names().index(name), made[1].kappa
    assert item["mu"] == pytest.approx(made[1].mu[row].tolist())
    assert item["kappa"] == pytest.approx(float(kappa[row]))
    assert item["kappa_rank"] == pytest.approx(float((kappa < kappa[row]).double().mean()))
    assert item["text"] == f"picture {row} & more"
    own = VonMisesFisher(made[1].mu[row], kappa[row])
    for cap in item["caps"]:
        assert cap["cosine"] == pytest.approx(float(cap_cosine(own, cap["mass"])))
    assert (item["picture"] is None) == (name in NASTY)


def test_unknown_items_and_addresses(client):
    for path in ("/v1/items/nobody", "/v1/items/", "/v1/nothing", "/v1/pictures/item-007x"):
        error_of(client.get(path), 404, "not_found")
    error_of(client.delete("/v1/about"), 405, "not_allowed")
    message = error_of(client.get("/v1/items?limit=0"), 422, "invalid_input")
    assert message.startswith("limit: ")


def test_posteriors_are_the_encoders(client, made):
    folder, _, pictures = made
    embedder = load_embedder(folder / "encoder")
    files = [in_base64(folder / "pictures" / f"item-{i:03d}.png") for i in range(5)]
    wanted = embedder.embed(list(pictures[:5]))
    posteriors = found(client.post("/v1/embed", json={"images": files}))["posteriors"]
    for i, one in enumerate(posteriors):
        assert one["mu"] == pytest.approx(wanted.mu[i].tolist(), abs=1e-5)
        assert one["kappa"] == pytest.approx(float(wanted.kappa[i]), rel=1e-4)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, {}),
        ({"mass": 0.5}, {"mass": 0.5}),
        ({"limit": 3}, {"limit": 3}),
        ({"kind": "predictive", "limit": 1000}, {"kind": "predictive"}),
        ({"rank": "positivity", "limit": 5}, {"rank": "positivity", "limit": 5}),
        ({"prior": 0.1}, {"prior": 0.1}),
        (
            {"filter": {"label": ["cat", "dog"], "number": {"low": 5, "high": 40}}, "mass": 0.99},
            {"filter": {"label": ["cat", "dog"], "number": (5, 40)}, "mass": 0.99},
        ),
        ({"filter": {"number": {"high": 9}}}, {"filter": {"number": (None, 9)}}),
        (
            {"guarantee": "conformal", "mass": 0.9},
            {"guarantee": "conformal", "kind": "predictive", "mass": 0.9},
        ),
    ],
)
def test_hits_are_the_indexes(client, index, made, asked, wanted):
    query = VonMisesFisher(made[1].mu[3], torch.tensor(8.0))
    plain = {k: v for k, v in wanted.items() if k in ("mass", "limit", "filter")}
    known = {} if "guarantee" in wanted else {"kappa_pos": 20.0}
    known |= {k: v for k, v in wanted.items() if k not in plain}
    options = SearchOptions(**known)
    true = index.search(query, columns=["number"], **plain, options=options)
    assert len(true)
    answer = found(client.post("/v1/search", json={"query": as_query(query), **asked}))
    hits = answer["hits"]
    assert [hit["id"] for hit in hits] == true.ids
    for name, values in {
        "cosine": true.cosine,
        "kappa": true.kappa,
        "positivity": true.log_positivity,
    }.items():
        assert [hit[name] for hit in hits] == pytest.approx(values.tolist(), rel=1e-5)
    assert answer["threshold"] == pytest.approx(true.threshold.item())
    assert [hit["payload"]["number"] for hit in hits] == true.payload["number"]
    if "prior" in wanted:
        positive = [hit["positive"] for hit in hits]
        assert positive == pytest.approx(true.probability.tolist(), rel=1e-5)
    unlimited = {k: v for k, v in plain.items() if k != "limit"}
    everyone = index.search(query, columns=["label"], **unlimited, options=options)
    assert (answer["count"], answer["count_exact"]) == (len(everyone), True)
    assert answer["truncated"] == (len(everyone) > len(true))
    counted = {one["label"]: one["count"] for one in answer["classes"]}
    assert counted == Counter(everyone.payload["label"])  # of all members, also where few are given
    labels = [hit["label"] for hit in hits]
    assert answer["class_entropy"] == pytest.approx(class_entropy(labels, true.log_positivity))
    body = {"query": as_query(query), **asked, "count": False}
    uncounted = found(client.post("/v1/search", json=body))
    assert uncounted["hits"] == hits
    assert uncounted["count"] <= answer["count"]


def test_a_range_and_a_list_in_one_batch_are_two_questions(service, made):
    query = {"mu": made[1].mu[0].tolist(), "kappa": 0.0}
    plans = []
    for demand in ({"low": 5, "high": 40}, [5, 40], 5, True, {"low": 5}):
        request = SearchRequest(
            query=query, mass=1.0, limit=1000, filter={"number": demand, "label": "dog"}
        )
        plans.append(service._plan(request))
    assert len({repr(plan) for plan in plans}) == len(plans)
    own = VonMisesFisher(made[1].mu[0], torch.tensor(0.0))
    outcomes = service.engine._work([Search(plan, own) for plan in plans])
    assert isinstance(outcomes.pop(3), InvalidInputError)  # True is no number
    between, either, one, above = (hits for _, hits in outcomes)
    dogs = range(1, N, 3)
    assert set(between.payload["number"]) == {i for i in dogs if 5 <= i <= 40}
    assert set(either.payload["number"]) == {40}
    assert one.payload["number"] == []
    assert set(above.payload["number"]) == {i for i in dogs if i >= 5}


def test_a_search_is_one_search_of_the_engine(client, service, monkeypatch):
    calls = []
    search = service.engine.index.search
    monkeypatch.setattr(
        service.engine.index, "search", lambda *a, **o: calls.append(o) or search(*a, **o)
    )
    query = {"query": {"id": "item-003"}, "mass": 0.99, "limit": 2}
    assert found(client.post("/v1/search", json=query))["truncated"]
    assert len(calls) == 1  # 2 before, the second one to count


def test_queries_of_all_kinds(client, index, made):
    folder, posterior, _ = made

    def ids(query, **options):
        answer = found(client.post("/v1/search", json={"query": query, **options}))
        return [hit["id"] for hit in answer["hits"]]

    own = VonMisesFisher(posterior.mu[20], posterior.kappa[20])
    true = [name for name in index.search(own, 0.95).ids if name != "item-020"]
    assert ids({"id": "item-020"}, mass=0.95) == true
    assert ids({"id": "item-020"}, limit=1) == true[:1]
    file = in_base64(folder / "pictures" / "item-003.png")
    (seen,) = found(client.post("/v1/embed", json={"image": file}))["posteriors"]
    own = VonMisesFisher(torch.tensor(seen["mu"]), torch.tensor(seen["kappa"]))
    assert ids({"image": file}, mass=0.9) == index.search(own, 0.9).ids
    answer = client.post("/v1/search", json={"query": {"id": "nobody"}})
    assert "nobody" in error_of(answer, 404, "not_found")
    assert answer.json()["error"]["field"] == "query.id"
    for wrong in ({"text": "a cat"}, {"vector": [0.1, 0.2]}):
        answer = client.post("/v1/search", json={"query": wrong})
        assert "takes images" in error_of(answer, 422, "invalid_input")
    body = {"query": {"id": "item-003"}, "kind": "credible", "guarantee": "conformal"}
    message = error_of(client.post("/v1/search", json=body), 422, "invalid_input")
    assert "kind='predictive'" in message


def test_reasons(client):
    body = {"query": {"id": "item-004"}, "mass": 0.9, "explain": True, "prior": 0.05, "limit": 5}
    answer = found(client.post("/v1/search", json=body))
    first = answer["hits"][0]
    cosine, kappa = (torch.tensor([first[name]]) for name in ("cosine", "kappa"))
    chance = latent_in_cap(cosine.double(), kappa, torch.tensor(answer["threshold"]).double(), 4)
    angle = f"{math.degrees(math.acos(first['cosine'])):.1f}° from the query, inside its cap of "
    assert first["explanation"].startswith(angle)
    latent = f"; its own latent (κ {first['kappa']:.4g}) lies in the cap with probability {chance.item():.2f}; "
    assert latent in first["explanation"]
    assert first["explanation"].endswith(f"P(positive) {first['positive']:.3g}.")


def test_the_map_keeps_angles_to_the_query(client, index):
    body = {"query": {"id": "item-004"}, "mass": 0.8, "kind": "credible", "limit": 30}
    answer = found(client.post("/v1/map", json=body))
    own, _ = index.fetch(["item-004"])
    assert answer["cap"]["radius"] == pytest.approx(math.acos(float(cap_cosine(own, 0.8)[0])))
    assert len(answer["points"]) == 30
    members = set(index.search(own, 0.8, options=SearchOptions(kind="credible"))[0].ids)
    for point in answer["points"]:
        far = math.hypot(point["x"], point["y"])
        assert far == pytest.approx(math.acos(point["cosine"]), abs=1e-6)
        assert point["inside"] == (point["id"] in members)


def test_the_map_of_partners(client, index):
    own, _ = index.fetch(["item-004"])
    body = {"query": {"id": "item-004"}, "mass": 0.8, "limit": 30}
    answer = found(client.post("/v1/map", json=body))
    other = index.schema.typical_kappa
    for cap in (answer["caps"][0], answer["caps"][30], answer["caps"][-1]):
        cosine = own.to(torch.float64).predictive_cosine(cap["mass"], 20.0, other)
        wanted = torch.cos(torch.acos(cosine) * (1 + _MARGIN))
        assert cap["cosine"] == pytest.approx(float(wanted[0]), abs=1e-9)
    options = SearchOptions(kind="predictive", kappa_pos=20.0)
    members = set(index.search(own, 0.8, options=options)[0].ids)
    assert {p["id"] for p in answer["points"] if p["inside"]} <= members


def test_curves(client):
    curve = found(client.get("/v1/rejection"))["curve"]
    kept = [point["kept"] for point in curve]
    assert kept[0] == 1.0
    assert kept == sorted(kept, reverse=True)
    thresholds = [point["threshold"] for point in curve]
    assert thresholds == sorted(thresholds)
    assert found(client.get("/v1/calibration"))["pairs"] == 99


def test_pictures_are_small_jpegs_with_tags(client):
    answer = client.get("/v1/pictures/item-001?side=64")
    assert (answer.status_code, answer.content[:2]) == (200, b"\xff\xd8")
    assert answer.headers["content-type"] == "image/jpeg"
    assert "max-age" in answer.headers["cache-control"]
    tag = answer.headers["etag"]
    again = client.get("/v1/pictures/item-001?side=64", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/v1/pictures/item-001?side=128").headers["etag"] != tag
    error_of(client.get("/v1/pictures/item-001?side=5000"), 422, "invalid_input")


def test_files_that_are_no_pictures_are_not_sent(tmp_path):
    (tmp_path / "a.png").write_bytes(b"<script>")
    (tmp_path.parent / "secret.png").write_bytes(b"secret")
    posterior = VonMisesFisher(torch.eye(3), torch.ones(3))
    ids = ["a", "../secret", "c"]
    with (
        CredibleIndex.create("faiss://", posterior, ids) as index,
        serving(index, pictures=tmp_path) as service,
    ):
        client = client_of(service)
        assert "cannot be read" in error_of(client.get("/v1/pictures/a"), 404, "not_found")
        error_of(client.get("/v1/pictures/..%2fsecret"), 404, "not_found")


def test_a_gallery_alone_is_served_too(index):
    with serving(index) as service:
        client = client_of(service)
        about = found(client.get("/v1/about"))
        assert about["modality"] is about["label_column"] is None
        answer = client.post("/v1/embed", json={"text": "a"})
        assert "without --encoder" in error_of(answer, 422, "invalid_input")
        answer = found(client.post("/v1/search", json={"query": {"id": "item-001"}}))
        assert answer["class_entropy"] is answer["classes"] is None
        assert found(client.get("/v1/rejection")) == {"available": False, "curve": []}
    origin = index.origin
    index.origin = Origin(None, origin.weights)
    try:
        with serving(index) as service:
            body = {"query": {"id": "item-004"}, "kind": "predictive"}
            answer = client_of(service).post("/v1/map", json=body)
            assert "kappa_pos" in error_of(answer, 422, "invalid_input")
    finally:
        index.origin = origin


def test_what_does_not_fit_is_refused_at_the_start(index, made):
    with pytest.raises(InvalidInputError, match="payload column 'nothing' not found"):
        Service(index, options=ServiceOptions(label_column="nothing"))
    with pytest.raises(InvalidInputError, match="FAISS cannot be changed over HTTP"):
        Service(index, options=ServiceOptions(writable=True))
    other = VonMisesFisher(torch.eye(5)[:2], torch.ones(2))
    with (
        CredibleIndex.create("faiss://", other, ["a", "b"]) as wide,
        pytest.raises(InvalidInputError, match="dimension 5"),
    ):
        Service(wide, load_embedder(made[0] / "encoder"))


def test_infinite_kappas_are_null():
    posterior = VonMisesFisher(torch.eye(3), torch.tensor([1.0, 2.0, math.inf]))
    with CredibleIndex.create("faiss://", posterior, list("abc")) as index, serving(index) as one:
        assert found(client_of(one).get("/v1/items/c"))["kappa"] is None


def test_the_page_and_its_headers(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert b"assets/explorer.js" in answer.content
    headers = answer.headers
    assert headers["content-type"].startswith("text/html")
    again = client.get("/", headers={"If-None-Match": headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    script = client.get("/assets/explorer.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    error_of(client.get("/SOURCE"), 404, "not_found")
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    for path in ("/assets/..%2f..%2fapp.py", "/assets/../app.py", "/assets/none.js", "/docs"):
        error_of(client.get(path), 404, "not_found")


def test_the_api_is_described(client, service):
    described = found(client.get("/openapi.json"))
    assert {"/v1/search", "/v1/embed", "/healthz"} <= set(described["paths"])
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            assert operation["responses"]["200"]["content"], path
    secured = client_of(service, Access(key="a-secret-key"))
    headers = {"Authorization": "Bearer a-secret-key"}
    described = found(secured.get("/openapi.json", headers=headers))
    assert described["paths"]["/v1/about"]["get"]["security"] == [{"key": []}]
    assert "security" not in described["paths"]["/healthz"]["get"]


def test_writes_need_a_key(made, tmp_path):
    pytest.importorskip("lance")
    with (
        CredibleIndex.create(tmp_path / "g.lance", made[1], names()) as index,
        serving(index, writable=True) as service,
        pytest.raises(InvalidInputError, match="needs an API key"),
    ):
        create_app(service)
