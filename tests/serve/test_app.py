"""What the service answers is what the index and the encoder say themselves."""

import json
import math
import time
from collections import Counter
from urllib.parse import quote

import numpy as np
import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.explorer._neighbourhood_map import _MARGIN
from aureole.retrieval import (
    CredibleIndex,
    Origin,
    SearchOptions,
    cap_cosine,
    class_entropy,
    latent_in_cap,
)
from aureole.scale import load_embedder
from aureole.serve import Service, ServiceError
from aureole.serve._batching import _Search, degrade
from aureole.serve._request_models import SearchRequest, search_plan
from aureole.serve._response_models import (
    AboutAnswer,
    ItemAnswer,
    ItemsAnswer,
    MapAnswer,
    SearchAnswer,
)
from tests.serve.conftest import NASTY, N, ask, error_of, in_base64, names, running


def test_about(client, made):
    found = client.about()
    AboutAnswer.model_validate(found)
    assert (found["rows"], found["dim"], found["engine"]) == (N, 4, "FAISS")
    assert (found["modality"], found["kappa_pos"], found["conformal"]) == ("image", 20.0, True)
    assert found["columns"] == {"label": "text", "number": "integer", "caption": "text"}
    kappa = np.sort(made[1].kappa.numpy())
    assert found["kappa"]["quantiles"][0] == [0.0, pytest.approx(kappa[0])]
    assert found["kappa"]["quantiles"][100] == [1.0, pytest.approx(kappa[-1])]
    assert len(found["kappa"]["quantiles"]) == 101
    assert {c["label"]: c["count"] for c in found["classes"]} == {"cat": 20, "dog": 20, "<b>": 20}


def test_pages_follow_kappa_and_miss_nobody(client, made):
    order = [names()[i] for i in np.argsort(made[1].kappa.numpy(), kind="stable")]
    seen = []
    for offset in range(0, N + 20, 20):
        page = client.items(offset=offset, limit=20)
        ItemsAnswer.model_validate(page)
        assert (page["total"], page["offset"]) == (N, offset)
        seen += [item["id"] for item in page["items"]]
    assert seen == order
    assert [item["id"] for item in client.items("certain", limit=9)["items"]] == order[::-1][:9]
    same = client._request("GET", "v1/ambiguous?limit=7&offset=3")
    assert [item["id"] for item in same["items"]] == order[3:10]
    dogs = client.items(label="dog", limit=500)
    labels = dict(zip(names(), [("cat", "dog", "<b>")[i % 3] for i in range(N)], strict=True))
    assert [item["id"] for item in dogs["items"]] == [n for n in order if labels[n] == "dog"]
    assert dogs["total"] == 20
    assert client.items(label="none")["items"] == []


@pytest.mark.parametrize("name", ["item-007", *NASTY])
def test_an_item_has_its_posterior(client, made, name):
    found = client.item(name)
    ItemAnswer.model_validate(found)
    row = names().index(name)
    kappa = made[1].kappa
    assert found["mu"] == pytest.approx(made[1].mu[row].tolist())
    assert found["kappa"] == pytest.approx(float(kappa[row]))
    assert found["kappa_rank"] == pytest.approx(float((kappa < kappa[row]).double().mean()))
    assert found["text"] == f"picture {row} & more"
    own = VonMisesFisher(made[1].mu[row], kappa[row])
    for cap in found["caps"]:
        assert cap["cosine"] == pytest.approx(float(cap_cosine(own, cap["mass"])))
    assert (found["picture"] is None) == (name in NASTY)


def test_unknown_items_and_addresses(place):
    for path in ("/v1/items/nobody", "/v1/items/", "/v1/nothing", "/v1/pictures/item-007x"):
        error_of(ask(place, "GET", path), 404, "not_found")
    error_of(ask(place, "DELETE", "/v1/about"), 405, "not_allowed")
    message = error_of(ask(place, "GET", "/v1/items?limit=0"), 422, "invalid_input")
    assert message.startswith("limit: ")


def test_a_conformal_guarantee_needs_predictive_caps(place):
    body = {"query": {"id": "item-003"}, "kind": "credible", "guarantee": "conformal"}
    message = error_of(ask(place, "POST", "/v1/search", body), 422, "invalid_input")
    assert "kind 'predictive'" in message


def test_posteriors_are_the_encoders(client, made):
    folder, _, pictures = made
    embedder = load_embedder(folder / "encoder")
    paths = [folder / "pictures" / f"item-{i:03d}.png" for i in range(5)]
    wanted = embedder.embed(list(pictures[:5]))
    found = client.embed(image=paths)
    torch.testing.assert_close(found.mu, wanted.mu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.kappa, wanted.kappa, rtol=1e-4, atol=1e-4)
    one = client._request("POST", "v1/embed", {"image": in_base64(paths[0])})["posteriors"][0]
    own = VonMisesFisher(wanted.mu[0], torch.tensor(one["kappa"]))
    for mass, cosine in one["credible_cosine"].items():
        assert cosine == pytest.approx(float(cap_cosine(own, float(mass))), abs=1e-6)
    view = {"crop": 0.5, "blur": 1.5}
    spoilt = embedder.embed([degrade(pictures[0], 0.5, 1.5)])
    seen = client.embed(image=paths[0], view=view)
    assert seen.batch_shape == ()
    torch.testing.assert_close(seen.kappa, spoilt.kappa[0], rtol=1e-4, atol=1e-4)
    assert float((seen.mu - wanted.mu[0]).norm()) > 1e-4


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
            {"filter": {"label": ["cat", "dog"], "number": (5, 40)}, "mass": 0.99},
            {"filter": {"label": ["cat", "dog"], "number": (5, 40)}, "mass": 0.99},
        ),
        ({"filter": {"number": (None, 9)}}, {"filter": {"number": (None, 9)}}),
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
    found = client.search(query, **asked)
    SearchAnswer.model_validate(found.raw)
    assert found.hits.ids == true.ids
    torch.testing.assert_close(found.hits.cosine, true.cosine)
    torch.testing.assert_close(found.hits.kappa, true.kappa)
    torch.testing.assert_close(found.hits.log_positivity, true.log_positivity)
    torch.testing.assert_close(found.hits.threshold, true.threshold)
    assert found.hits.payload["number"] == true.payload["number"]
    if "prior" in wanted:
        torch.testing.assert_close(found.hits.probability, true.probability)
    unlimited = {k: v for k, v in plain.items() if k != "limit"}
    everyone = index.search(query, columns=["label"], **unlimited, options=options)
    assert (found.count, found.count_exact) == (len(everyone), True)
    assert found.truncated == (len(everyone) > len(true))
    counted = {one["label"]: one["count"] for one in found.raw["classes"]}
    assert counted == Counter(everyone.payload["label"])  # of all members, also where few are given
    labels = [hit["label"] for hit in found.raw["hits"]]
    assert found.class_entropy == pytest.approx(class_entropy(labels, true.log_positivity))


def test_a_range_and_a_list_in_one_batch_are_two_questions(service, made):
    query = {"mu": made[1].mu[0].tolist(), "kappa": 0.0}
    plans = []
    for demand in ({"low": 5, "high": 40}, [5, 40], 5, True, {"low": 5}):
        request = SearchRequest(
            query=query, mass=1.0, limit=1000, filter={"number": demand, "label": "dog"}
        )
        known = {"kappa_pos": None, "label": None, "columns": ("number",)}
        plans.append(search_plan(request, calibrated=False, **known))
    assert len({repr(plan) for plan in plans}) == len(plans)
    # of one batch, whatever the threads do
    own = VonMisesFisher(made[1].mu[0], torch.tensor(0.0))
    jobs = [_Search(plan, own) for plan in plans]
    between, either, one, _, above = service.engine._work(jobs)
    dogs = range(1, N, 3)
    wanted = {i for i in dogs if 5 <= i <= 40}
    assert set(between.hits.payload["number"]) == wanted
    assert set(either.hits.payload["number"]) == {40}
    assert one.hits.payload["number"] == []
    assert set(above.hits.payload["number"]) == {i for i in dogs if i >= 5}


def test_queries_of_all_kinds(client, index, made):
    folder, posterior, _ = made
    own = VonMisesFisher(posterior.mu[20], posterior.kappa[20])
    true = [name for name in index.search(own, 0.95).ids if name != "item-020"]
    found = client.search(id="item-020", mass=0.95)
    assert found.hits.ids == true
    assert found.count == len(true)
    assert client.search(id="item-020", limit=1).hits.ids == true[:1]
    path = folder / "pictures" / "item-003.png"
    seen = client.embed(image=path)
    by_image = client.search(image=path, mass=0.9)
    assert by_image.hits.ids == index.search(seen, 0.9).ids
    assert by_image.kappa == pytest.approx(float(seen.kappa), rel=1e-4)
    with pytest.raises(ServiceError) as caught:
        client.search(id="nobody")
    assert (caught.value.status, caught.value.code, caught.value.field) == (
        404,
        "not_found",
        "query.id",
    )
    for wrong in ({"text": "a cat"}, {"vector": [0.1, 0.2]}):
        with pytest.raises(ServiceError, match="takes images"):
            client.search(**wrong)


def test_reasons_are_those_of_the_formulas(client, made):
    found = client.search(id="item-004", mass=0.9, explain=True, prior=0.05, limit=5)
    t = found.hits.threshold[0]
    chance = latent_in_cap(found.hits.cosine, found.hits.kappa, t, 4)
    assert found.latent_in_cap == pytest.approx(chance.tolist())
    degrees = math.degrees(math.acos(found.hits.cosine[0]))
    assert f"{degrees:.1f}°" in found.explanations[0]
    assert client.search(id="item-004", limit=5).explanations is None


def test_a_vague_query_is_asked_back(client):
    vague = VonMisesFisher(torch.eye(4)[0], 1.0)
    assert not client.search(vague, widest=180).hits.asks_back
    found = client.search(vague, widest=20)
    assert found.hits.asks_back
    assert found.hits.ids == []


def test_the_map_keeps_angles_to_the_query(client, index, made):
    for dims in (2, 3):
        found = client.map({"id": "item-004"}, mass=0.8, kind="credible", limit=30, dims=dims)
        MapAnswer.model_validate(found)
        own, _ = index.fetch(["item-004"])
        t = float(cap_cosine(own, 0.8)[0])
        assert found["cap"]["radius"] == pytest.approx(math.acos(t))
        assert len(found["points"]) == 30
        members = set(index.search(own, 0.8, options=SearchOptions(kind="credible"))[0].ids)
        for point in found["points"]:
            far = math.hypot(*(point[axis] for axis in "xyz"[:dims]))
            assert far == pytest.approx(math.acos(point["cosine"]), abs=1e-6)
            assert point["inside"] == (point["id"] in members)
            assert point["inside"] == (far <= found["cap"]["radius"])


def test_the_map_of_partners(client, index):
    own, _ = index.fetch(["item-004"])
    found = client.map({"id": "item-004"}, mass=0.8, limit=30)
    MapAnswer.model_validate(found)
    other = index.schema.typical_kappa
    for cap in (found["caps"][0], found["caps"][30], found["caps"][-1]):
        cosine = own.to(torch.float64).predictive_cosine(cap["mass"], 20.0, other)
        wanted = torch.cos(torch.acos(cosine) * (1 + _MARGIN))
        assert cap["cosine"] == pytest.approx(float(wanted[0]), abs=1e-9)
    options = SearchOptions(kind="predictive", kappa_pos=20.0)
    members = set(index.search(own, 0.8, options=options)[0].ids)
    assert {p["id"] for p in found["points"] if p["inside"]} <= members
    whole = client.map({"id": "item-004"}, mass=1.0, kind="predictive")
    assert whole["cap"]["radius"] > found["cap"]["radius"]


def test_no_map_of_partners_without_kappa_pos(index, made):
    index.origin = Origin(None, index.origin.weights)
    service = Service(index)
    try:
        with running(service) as place:
            body = {"query": {"id": "item-004"}, "kind": "predictive"}
            assert "kappa_pos" in error_of(
                ask(place, "POST", "/v1/map", body), 422, "invalid_input"
            )
    finally:
        service.close()
        index.origin = Origin(20.0, index.origin.weights)


def test_the_rejection_curve_comes(service, client):
    assert client.rejection() == {"available": False, "curve": []}
    service.compute_rejection()
    deadline = time.monotonic() + 20
    while not (found := client.rejection())["available"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept = [point["kept"] for point in found["curve"]]
    assert kept[0] == 1.0
    assert kept == sorted(kept, reverse=True)
    thresholds = [point["threshold"] for point in found["curve"]]
    assert thresholds == sorted(thresholds)


def test_pictures_are_small_jpegs_with_tags(place):
    status, headers, body = ask(place, "GET", "/v1/pictures/item-001?side=64")
    assert (status, headers["content-type"], body[:2]) == (200, "image/jpeg", b"\xff\xd8")
    assert "max-age" in headers["cache-control"]
    again = ask(
        place, "GET", "/v1/pictures/item-001?side=64", headers={"If-None-Match": headers["etag"]}
    )
    assert (again[0], again[2]) == (304, b"")
    other = ask(place, "GET", "/v1/pictures/item-001?side=128")
    assert other[1]["etag"] != headers["etag"]
    error_of(ask(place, "GET", "/v1/pictures/item-001?side=5000"), 422, "invalid_input")


def test_a_gallery_alone_is_served_too(index, made):
    bare = Service(index)
    try:
        with running(bare) as place:
            about = json.loads(ask(place, "GET", "/v1/about")[2])
            assert (about["modality"], about["pictures"], about["label_column"]) == (
                None,
                False,
                None,
            )
            answer = ask(place, "POST", "/v1/embed", {"text": "a"})
            assert "without --encoder" in error_of(answer, 422, "invalid_input")
            found = ask(place, "POST", "/v1/search", {"query": {"id": "item-001"}})
            assert json.loads(found[2])["class_entropy"] is None
            assert json.loads(ask(place, "GET", "/v1/rejection")[2])["available"] is False
    finally:
        bare.close()


def test_what_does_not_fit_is_refused_at_the_start(index, made, tmp_path):
    with pytest.raises(InvalidInputError, match="payload column 'nothing' not found"):
        Service(index, label_column="nothing")
    other = VonMisesFisher(torch.eye(5)[:2], torch.ones(2))
    with (
        CredibleIndex.create("faiss://", other, ["a", "b"]) as wide,
        pytest.raises(InvalidInputError, match="dimension 5"),
    ):
        Service(wide, load_embedder(made[0] / "encoder"))


def test_deleted_rows_leave_the_pages(made, tmp_path):
    posterior = VonMisesFisher(torch.eye(4), torch.tensor([1.0, 2, 3, 4]))
    with CredibleIndex.create("faiss://", posterior, list("abcd")) as index:
        made_service = Service(index)
        try:
            index.delete(["b"])
            with running(made_service) as place:
                page = json.loads(ask(place, "GET", "/v1/items")[2])
                assert [item["id"] for item in page["items"]] == ["a", "c", "d"]
        finally:
            made_service.close()


def test_the_page_and_its_headers(place):
    status, headers, body = ask(place, "GET", "/")
    assert status == 200
    assert b"assets/explorer.js" in body
    assert headers["content-type"].startswith("text/html")
    again = ask(place, "GET", "/", headers={"If-None-Match": headers["etag"]})
    assert (again[0], again[2]) == (304, b"")
    script = ask(place, "GET", "/assets/explorer.js")
    assert (script[0], script[1]["content-type"]) == (200, "text/javascript; charset=utf-8")
    error_of(ask(place, "GET", "/SOURCE"), 404, "not_found")
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    for path in ("/assets/..%2f..%2fapp.py", "/assets/../app.py", "/assets/none.js", "/docs"):
        error_of(ask(place, "GET", path), 404, "not_found")
    described = json.loads(ask(place, "GET", "/openapi.json")[2])
    assert {"/v1/search", "/v1/embed", "/healthz"} <= set(described["paths"])


def test_metrics_count_answers_by_route(place):
    ask(place, "GET", f"/v1/items/{quote('item-001')}")
    ask(place, "GET", "/v1/items/nobody")
    text = ask(place, "GET", "/metrics")[2].decode()
    assert 'route="/v1/items/{id:path}",status="200"} 1.0' in text
    assert 'route="/v1/items/{id:path}",status="404"} 1.0' in text
    assert "aureole_rows 60.0" in text
    assert "nobody" not in text
