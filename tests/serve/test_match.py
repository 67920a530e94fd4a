"""Match probabilities over HTTP: the calibrator's own, reasons for empty results, calibrators that do not fit."""

import json

import numpy as np
import pytest
import torch

from aureole import MatchCalibrator
from aureole.distributions import VonMisesFisher
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from aureole.retrieval import CredibleIndex, GalleryMatcher, MatchOptions
from aureole.scale import load_embedder
from aureole.serve import Client, MatchResult, Service, ServiceError
from aureole.serve._response_models import AboutAnswer, MatchAnswer
from tests.cli.conftest import run
from tests.serve.conftest import N, ask, calibrator_of, error_of, in_base64, names, running
from tests.web.visit import Visit, browser, chromium


@pytest.fixture
def matcher(calibrator, index):
    return GalleryMatcher(calibrator, index)


@pytest.fixture
def calibrated(made, index, calibrator):
    """The place of a service with an encoder and a calibrator."""
    service = Service(
        index, load_embedder(made[0] / "encoder"), calibrator=calibrator, label_column="label"
    )
    with running(service) as place:
        yield place
    service.close()


@pytest.fixture
def asking(calibrated):
    with Client(f"http://{calibrated[0]}:{calibrated[1]}", timeout=20.0) as client:
        yield client


def same(found: MatchResult, wanted):
    assert found.hits.ids == wanted.hits.ids
    assert found.probabilities == pytest.approx(wanted.probabilities, abs=1e-6)
    assert found.hits.cosine.tolist() == pytest.approx(wanted.hits.cosine.tolist(), abs=1e-6)
    assert found.hits.kappa.tolist() == pytest.approx(wanted.hits.kappa.tolist())
    assert found.p_value == pytest.approx(wanted.p_value)
    assert (found.threshold, found.note) == (pytest.approx(wanted.threshold), wanted.note)
    assert (found.abstained, found.reason is None) == (wanted.abstained, wanted.reason is None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 0.0, "limit": 1000},
        {"threshold": 0.0, "abstain": 0.5},
        {"precision": 0.5},
        {"recall": 0.8, "limit": 3},
    ],
)
def test_matches_are_those_of_the_calibrator(asking, matcher, options):
    rng = torch.Generator().manual_seed(3)
    mu = torch.nn.functional.normalize(torch.randn(4, generator=rng), dim=0)
    posterior = VonMisesFisher(mu, torch.tensor(9.0))
    wanted = matcher.match(posterior, MatchOptions(**options), columns=["label", "number"])
    found = asking.match(posterior, **options)
    MatchAnswer.model_validate(found.raw)
    same(found, wanted)
    assert found.hits.payload.get("number") == wanted.hits.payload.get("number")
    assert (found.kappa, found.about) == (9.0, "a posterior")
    same(asking.match(id="item-004", **options), matcher.match("item-004", MatchOptions(**options)))


def test_pictures_filters_and_nasty_ids(asking, matcher, made):
    path = made[0] / "pictures" / "item-003.png"
    posterior = load_embedder(made[0] / "encoder").embed([made[2][3]])[0]
    same(asking.match(image=path), matcher.match(posterior))
    condition = {"number": (50, None), "label": ["cat", "<b>"]}
    everything = MatchOptions(threshold=0.0)
    found = asking.match(image=path, threshold=0.0, filter=condition)
    same(found, matcher.match(posterior, everything, filter=condition))
    payloads = [match["payload"] for match in found.raw["matches"]]
    assert payloads
    assert all(p["number"] >= 50 and p["label"] in ("cat", "<b>") for p in payloads)
    nasty = asking.match(id="..", threshold=0.0, filter=condition)
    same(nasty, matcher.match("..", everything, filter=condition))
    nothing = asking.match(image=path, filter={"number": 1000})
    assert (len(nothing), nothing.reason) == (0, "the search found no items.")


def test_abstaining_says_why(asking):
    found = asking.match(id="item-009", threshold=0.0, abstain=0.0)
    assert found.abstained
    assert found.reason.startswith("abstained: the highest cosine")
    assert (len(found), found.raw["matches"], found.raw["count"]) == (0, [], 0)
    shy = asking.match(id="item-009", precision=0.999999)
    assert (len(shy), shy.abstained) == (0, False)
    assert "held-out queries do not show precision" in shy.note
    assert "no item reaches the probability 1" in shy.reason


def test_about_describes_the_calibrator(asking, client, calibrator):
    found = asking.about()
    AboutAnswer.model_validate(found)
    assert found["calibrator"] == {
        "threshold": pytest.approx(calibrator.threshold(f1=True)),
        "limit": calibrator.limit,
        "queries": len(calibrator.held_out_.levels),
    }
    assert client.about()["calibrator"] is None


def test_without_a_calibrator(place, client):
    body = {"query": {"id": "item-003"}}
    message = error_of(ask(place, "POST", "/v1/match", body), 422, "invalid_input")
    assert (
        message == "this service was started without --calibrator, which match probabilities need."
    )
    with pytest.raises(ServiceError, match="--calibrator"):
        client.match(id="item-003")


@pytest.mark.parametrize(
    "rest",
    [
        {"threshold": 0.5, "precision": 0.5},
        {"precision": 0.5, "recall": 0.5},
        {"precision": 0.5, "limit": 11},
        {"threshold": 1.5},
        {"threshold": "0.5"},
        {"threshold": True},
        {"precision": 0},
        {"precision": 1},
        {"recall": 1.0},
        {"abstain": -0.1},
        {"abstain": 1e999},
        {"limit": 0},
        {"limit": 1001},
        {"limit": 3.5},
        {"exact": 1},
        {"filter": {"nothing": 1}},
        {"filter": {"number": {"low": "x"}}},
        {"filter": {str(i): i for i in range(65)}},
        {"mass": 0.9},
        {"query": {"id": "item-003", "text": "a"}},
        {"query": {"mu": [1, 0, 0], "kappa": 1}},
        {"query": {"mu": [0, 0, 0, 0], "kappa": 1}},
        {"query": {"mu": [1, 0, 0, 0], "kappa": -1}},
        {"query": {"vector": [1.0, 2.0]}},
        {"query": {"text": "<script>"}},
        {"query": {"image": "<script>"}},
        {"query": {"id": ""}},
        {"query": {"id": "\ud800"}},
        {"query": None},
    ],
)
def test_requests_that_make_no_sense(calibrated, rest):
    body = json.dumps({"query": {"id": "item-003"}} | rest).encode()
    answer = ask(calibrated, "POST", "/v1/match", body, {"Content-Type": "application/json"})
    error_of(answer, 422, "invalid_input")
    assert b"<" not in answer[2]
    assert len(answer[2]) < 2000


def test_unknown_items_are_not_found(calibrated):
    answer = ask(calibrated, "POST", "/v1/match", {"query": {"id": "<nobody>"}})
    assert "not found" in error_of(answer, 404, "not_found")
    assert b"<" not in answer[2]


def test_rows_that_the_calibrator_does_not_know(made, index, tmp_path):
    some = calibrator_of(made[1], names()[: N - 1])
    with pytest.raises(InvalidInputError, match=r"such as 'xxxx.*MatchCalibrator\.append"):
        Service(index, calibrator=some)
    with CredibleIndex.create(tmp_path / "g.faiss", made[1], names()) as grows:
        service = Service(grows, calibrator=calibrator_of(made[1], names()))
        with running(service) as place:
            body = {"query": {"id": "item-003"}}
            assert ask(place, "POST", "/v1/match", body)[0] == 200
            grows.append(VonMisesFisher(made[1].mu[3:4], torch.ones(1)), ["<new>"])
            answer = ask(place, "POST", "/v1/match", body)
            assert "calibrate again" in error_of(answer, 409, "conflict")
            assert b"<" not in answer[2]
            assert ask(place, "POST", "/v1/search", body)[0] == 200
        service.close()


def test_calibrators_of_other_models_are_refused_at_the_start(made, index, tmp_path):
    posterior = made[1]
    weights = index.origin.weights
    Service(index, calibrator=calibrator_of(posterior, names(), encoder=weights)).close()
    with pytest.raises(EncoderError, match="fingerprints differ"):
        Service(index, calibrator=calibrator_of(posterior, names(), encoder="another"))
    calibrator_of(posterior, names(), encoder="another").save(tmp_path / "other")
    flat = VonMisesFisher(
        torch.nn.functional.normalize(posterior.mu[:, :3], dim=1), posterior.kappa
    )
    calibrator_of(flat, names()).save(tmp_path / "flat")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "match.json").write_text("{}")
    for folder, match in {
        "other": "fingerprints differ",
        "flat": "dimension 3, but the gallery has dimension 4",
        "none": "match.json not found",
        "broken": "no valid calibrator",
    }.items():
        options = ("--index", made[0] / "gallery.faiss", "--calibrator", tmp_path / folder)
        done = run("serve", *options, "--port", 0)
        assert done.exit_code == 1
        missing = folder == "none"
        assert isinstance(done.exception, MissingInputError if missing else InvalidInputError)
        assert match in str(done.exception)
        assert "\n" not in str(done.exception)


def test_what_the_client_refuses(asking):
    posterior = VonMisesFisher(torch.eye(4)[0], 3.0)
    for call, match in (
        (lambda: asking.match(), "match takes one query"),
        (lambda: asking.match(posterior, id="a"), "match takes one query"),
        (lambda: asking.match(vector=np.ones((2, 4))), "match takes one query"),
        (lambda: asking.match(id="a", threshold=float("nan")), "not finite"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            call()


def test_a_picture_in_base64(calibrated, made):
    body = {"query": {"image": in_base64(made[0] / "pictures" / "item-001.png")}, "threshold": 0.0}
    status, _, content = ask(calibrated, "POST", "/v1/match", body)
    assert status == 200
    assert MatchAnswer.model_validate_json(content).count == 10


def test_a_saved_calibrator_matches_as_before(calibrator, tmp_path, index):
    calibrator.save(tmp_path)
    loaded = GalleryMatcher(MatchCalibrator.load(tmp_path), index)
    wanted = GalleryMatcher(calibrator, index).match("item-001")
    assert loaded.match("item-001").hits.ids == wanted.hits.ids


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="the page is tried in Chromium, which is not here")
def test_the_page_shows_match_probabilities(calibrated, asking):
    pytest.importorskip("playwright")
    address = f"http://{calibrated[0]}:{calibrated[1]}/"
    with browser() as chrome, Visit(chrome, address) as visit:
        visit.load()
        visit.go("#/item/item-004")
        visit.page.locator("#mass").fill("99")
        visit.page.wait_for_timeout(800)
        wanted = asking.match(id="item-004", threshold=0.0, limit=100)
        shown = visit.page.locator(".set").inner_text()
        assert "calibrated on 150 held-out queries" in shown
        assert f"p-value that nothing matches: {wanted.p_value:.2f}" in shown
        tiles = visit.page.locator(".members li .facts").all_inner_texts()
        assert len(tiles) > 1
        for text in tiles:
            assert ("P " in text) != ("cos " in text), text
        assert sum("P " in text for text in tiles) >= len(tiles) - 1  # the item itself has a cosine
        assert visit.errors == []
