"""Match probabilities over HTTP: the calibrator's own, reasons for empty results, calibrators that do not fit."""

import json

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.embed import load_embedder
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from aureole.match import GalleryMatcher, MatchOptions
from aureole.serve import Service
from tests.cli.conftest import run
from tests.serve.conftest import (
    PAGE,
    N,
    calibrator_of,
    client_of,
    error_of,
    found,
    in_base64,
    names,
    running,
    serving,
)
from tests.web.visit import Visit


@pytest.fixture
def matcher(calibrator, index):
    return GalleryMatcher(calibrator, index)


@pytest.fixture(scope="module")
def calibrated(made, calibrator):
    """A service with an encoder and a calibrator."""
    embedder = load_embedder(made[0] / "encoder")
    with (
        CredibleIndex.open(made[0] / "gallery.faiss") as index,
        serving(index, embedder, calibrator=calibrator, label_column="label") as service,
    ):
        yield service


@pytest.fixture
def match(calibrated):
    """Ask for the matches of a query."""
    client = client_of(calibrated)
    return lambda query, **rest: found(client.post("/v1/match", json={"query": query, **rest}))


def same(answer, wanted):
    matches = answer["matches"]
    assert [one["id"] for one in matches] == wanted.hits.ids
    assert [one["probability"] for one in matches] == pytest.approx(wanted.probabilities, abs=1e-6)
    assert [one["cosine"] for one in matches] == pytest.approx(wanted.hits.cosine, abs=1e-6)
    assert [one["kappa"] for one in matches] == pytest.approx(wanted.hits.kappa.tolist())
    assert answer["p_value"] == pytest.approx(wanted.p_value)
    assert (answer["threshold"], answer["note"]) == (pytest.approx(wanted.threshold), wanted.note)
    assert (answer["abstained"], answer["reason"] is None) == (
        wanted.abstained,
        wanted.reason is None,
    )


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
def test_matches_are_those_of_the_calibrator(match, matcher, options):
    rng = torch.Generator().manual_seed(3)
    mu = torch.nn.functional.normalize(torch.randn(4, generator=rng), dim=0)
    posterior = VonMisesFisher(mu, torch.tensor(9.0))
    wanted = matcher.match(posterior, MatchOptions(**options), columns=["label", "number"])
    answer = match({"mu": mu.tolist(), "kappa": 9.0}, **options)
    same(answer, wanted)
    payloads = [one["payload"]["number"] for one in answer["matches"]]
    assert payloads == wanted.hits.payload.get("number", [])
    same(match({"id": "item-004"}, **options), matcher.match("item-004", MatchOptions(**options)))


def test_pictures_filters_and_nasty_ids(match, matcher, made):
    image = {"image": in_base64(made[0] / "pictures" / "item-003.png")}
    posterior = load_embedder(made[0] / "encoder").embed([made[2][3]])[0]
    same(match(image), matcher.match(posterior))
    condition = {"number": (50, None), "label": ["cat", "<b>"]}
    asked = {"number": {"low": 50}, "label": ["cat", "<b>"]}
    everything = MatchOptions(threshold=0.0)
    answer = match(image, threshold=0.0, filter=asked)
    same(answer, matcher.match(posterior, everything, filter=condition))
    assert answer["matches"]
    nasty = match({"id": ".."}, threshold=0.0, filter=asked)
    same(nasty, matcher.match("..", everything, filter=condition))
    nothing = match(image, filter={"number": 1000})
    assert (nothing["matches"], nothing["reason"]) == ([], "the search found no items.")


def test_abstaining_says_why(match):
    answer = match({"id": "item-009"}, threshold=0.0, abstain=0.0)
    assert (answer["abstained"], answer["matches"]) == (True, [])
    assert answer["reason"].startswith("abstained: the highest cosine")
    shy = match({"id": "item-009"}, precision=0.999999)
    assert (shy["matches"], shy["abstained"]) == ([], False)
    assert "held-out queries do not show precision" in shy["note"]
    assert "no item reaches the probability 1" in shy["reason"]


def test_about_describes_the_calibrator(calibrated, client, calibrator):
    assert found(client_of(calibrated).get("/v1/about"))["calibrator"] == {
        "threshold": pytest.approx(calibrator.threshold(f1=True)),
        "limit": calibrator.limit,
        "queries": len(calibrator.held_out_.levels),
    }
    assert found(client.get("/v1/about"))["calibrator"] is None
    answer = client.post("/v1/match", json={"query": {"id": "item-003"}})
    assert "without --calibrator" in error_of(answer, 422, "invalid_input")


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
        {"recall": 1.0},
        {"abstain": -0.1},
        {"abstain": 1e999},
        {"limit": 0},
        {"limit": 1001},
        {"limit": 3.5},
        {"exact": 1},
        {"filter": {"nothing": 1}},
        {"filter": {str(i): i for i in range(65)}},
        {"mass": 0.9},
        {"query": {"id": "item-003", "text": "a"}},
        {"query": {"mu": [1, 0, 0], "kappa": 1}},
        {"query": None},
    ],
)
def test_requests_that_make_no_sense(calibrated, rest):
    content = json.dumps({"query": {"id": "item-003"}} | rest)
    headers = {"Content-Type": "application/json"}
    answer = client_of(calibrated).post("/v1/match", content=content, headers=headers)
    error_of(answer, 422, "invalid_input")
    assert len(answer.content) < 2000


def test_unknown_items_are_not_found(calibrated):
    answer = client_of(calibrated).post("/v1/match", json={"query": {"id": "<nobody>"}})
    assert "not found" in error_of(answer, 404, "not_found")


def test_rows_that_the_calibrator_does_not_know(made, index, tmp_path):
    with pytest.raises(InvalidInputError, match=r"such as 'xxxx.*MatchCalibrator\.append"):
        Service(index, calibrator=calibrator_of(made[1], names()[: N - 1]))
    with (
        CredibleIndex.create(tmp_path / "g.faiss", made[1], names()) as grows,
        serving(grows, calibrator=calibrator_of(made[1], names())) as service,
    ):
        client, body = client_of(service), {"query": {"id": "item-003"}}
        found(client.post("/v1/match", json=body))
        grows.append(VonMisesFisher(made[1].mu[3:4], torch.ones(1)), ["<new>"])
        answer = client.post("/v1/match", json=body)
        assert "calibrate again" in error_of(answer, 409, "conflict")
        found(client.post("/v1/search", json=body))


def test_calibrators_of_other_models_are_refused_at_the_start(made, index, tmp_path):
    posterior = made[1]
    weights = index.origin.weights
    Service(index, calibrator=calibrator_of(posterior, names(), encoder=weights)).close()
    other = calibrator_of(posterior, names(), encoder="another")
    with pytest.raises(EncoderError, match="fingerprints differ"):
        Service(index, calibrator=other)
    other.save(tmp_path / "other")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "match.json").write_text("{}")
    for folder, match in {
        "other": "fingerprints differ",
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


@pytest.mark.slow
@PAGE[1]
def test_the_page_shows_match_probabilities(calibrated, match, chrome):
    with (
        running(calibrated) as (host, port),
        Visit(chrome, f"http://{host}:{port}/") as visit,
    ):
        visit.load()
        visit.go("#/item/item-004")
        visit.settle()
        visit.move_mass(99)
        wanted = match({"id": "item-004"}, threshold=0.0, limit=100)
        shown = visit.page.locator(".set").inner_text()
        assert "calibrated on 150 held-out queries" in shown
        assert f"p-value that nothing matches: {wanted['p_value']:.2f}" in shown
        tiles = visit.page.locator(".members li .facts").all_inner_texts()
        assert len(tiles) > 1
        for text in tiles:
            assert ("P " in text) != ("cos " in text), text
        assert sum("P " in text for text in tiles) >= len(tiles) - 1  # the item itself has a cosine
        assert visit.errors == []
