"""The embeddings protocol: order, batches, retries, limits of patience, and the secrecy of the key."""

import json
import logging
import time

import numpy as np
import pytest

pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from aureole.encoders import load
from aureole.encoders._openai import ApiEncoder
from aureole.errors import EncoderError
from tests.encoders.conftest import TEXTS, Api, served


@pytest.fixture(scope="module")
def toy():
    """(URL, application) of an encoder that counts characters."""
    api = Api(lambda texts: [[len(text), text.count("a"), 1.0] for text in texts])
    with served(api.app) as url:
        yield url, api


@pytest.fixture
def patient(toy, monkeypatch):
    """The encoder, whose waits are recorded instead of waited for."""
    waits = []
    monkeypatch.setattr("aureole.encoders._openai.time.sleep", waits.append)
    encoder = ApiEncoder(f"{toy[0]}/v1", "gte-small", timeout=5, retries=3)
    return encoder, toy[1], waits


def test_gte_small_behind_the_protocol(gte, gte_api):
    encoder = load(f"openai:{gte_api[0]}/v1#gte-small")
    expected = load(f"sentence-transformers:{gte}").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=1), expected, atol=1e-5)
    assert (encoder.kind, encoder.dim) == ("text", 384)


def test_rows_keep_their_order_over_batches(patient):
    encoder, api, _ = patient
    api.seen.clear()
    texts = ["a" * (1 + (7 * i) % 50) for i in range(100)]
    found = encoder.encode(texts, batch_size=8)
    assert found[:, 0].tolist() == [len(text) for text in texts]
    assert max(len(body["input"]) for body in api.seen) == 8
    assert encoder.encode(TEXTS).shape == (4, 3)


def test_the_url_may_end_in_several_ways(toy):
    for end in ("", "/", "/v1", "/v1/", "/v1/embeddings"):
        assert load(f"openai:{toy[0]}{end}#gte-small").dim == 3


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_passing_faults_are_retried_with_growing_waits(patient, status):
    encoder, api, waits = patient
    api.faults = [(status, {})] * 3
    assert encoder.encode(["a"]).tolist() == [[1, 1, 1]]
    assert len(waits) == 3
    assert 0.4 <= waits[0] < waits[1] < waits[2] <= 2.4


def test_the_server_says_how_long_to_wait(patient):
    encoder, api, waits = patient
    api.faults = [
        (429, {"Retry-After": "7"}),
        (429, {"Retry-After": "1e9"}),
        (429, {"Retry-After": "x"}),
    ]
    encoder.encode(["a"])
    assert waits[:2] == [7.0, 60.0]
    assert waits[2] < 3


def test_patience_ends(patient):
    encoder, api, waits = patient
    api.faults = [(429, {})] * 4
    with pytest.raises(EncoderError, match=r"status 429 \(.*slow\\ndown") as caught:
        encoder.encode(["a"])
    assert len(waits) == 3
    assert "\n" not in str(caught.value)
    assert api.faults == []
    api.seen.clear()
    with pytest.raises(EncoderError, match=r"status 404 .*no such model"):
        ApiEncoder(encoder._url, "other", retries=3)
    assert len(api.seen) == 1  # an error that stays is not repeated


def test_a_slow_api_and_one_that_is_down(toy, monkeypatch):
    url, api = toy
    monkeypatch.setenv("AUREOLE_API_TIMEOUT", "0.2")
    monkeypatch.setenv("AUREOLE_API_RETRIES", "0")
    api.delay = 1.0
    started = time.monotonic()
    with pytest.raises(EncoderError, match=r"no answer within 0\.2 seconds"):
        load(f"openai:{url}/v1#gte-small")
    assert time.monotonic() - started < 5
    api.delay = 0.0
    with pytest.raises(EncoderError, match="Connection refused"):
        load("openai:http://127.0.0.1:9/v1#gte-small")
    monkeypatch.setenv("AUREOLE_API_TIMEOUT", "soon")
    with pytest.raises(EncoderError, match="AUREOLE_API_TIMEOUT must be a number"):
        load(f"openai:{url}/v1#gte-small")


@pytest.mark.parametrize(
    "spec", ["#m", "ftp://h/v1#m", "http://h/v1", "http:///v1#m", "file:///etc/passwd#m", "h#m"]
)
def test_what_is_no_url_is_refused(spec):
    with pytest.raises(EncoderError, match="write openai:URL#MODEL"):
        load(f"openai:{spec}")


ANSWERS = {
    "list": [1, 2],
    "empty": {"data": []},
    "ragged": {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]},
    "text": {"data": [{"index": 0, "embedding": "abc"}]},
    "twice": {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
    "nested": {"data": [{"index": 0, "embedding": [[1.0]]}]},
    "null": {"data": None},
}


@pytest.mark.parametrize("name", [*ANSWERS, "html", "deep"])
def test_hostile_answers_are_one_sentence(name):
    app = FastAPI()

    @app.post("/v1/embeddings")
    def answer():
        if name == "html":
            return Response("<html>", media_type="text/html")
        if name == "deep":
            return Response("[" * 100_000, media_type="application/json")
        return JSONResponse(ANSWERS[name])

    with served(app) as url, pytest.raises(EncoderError, match="did not answer as") as caught:
        load(f"openai:{url}/v1#m")
    assert "\n" not in str(caught.value)


def test_a_dimension_that_changes_is_noticed(toy):
    url, api = toy
    encoder = load(f"openai:{url}/v1#gte-small")
    plain, api.encode = api.encode, lambda texts: [[1.0] for _ in texts]
    try:
        with pytest.raises(EncoderError, match=r"shape \(2, 1\) for 2 inputs, not \(2, 3\)"):
            encoder.encode(["a", "b"])
    finally:
        api.encode = plain


def test_the_key_goes_to_the_url_alone_and_is_never_shown(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    secret, seen, elsewhere = "sk-very-secret-key", [], []
    other, app = FastAPI(), FastAPI()

    @other.post("/v1/embeddings")
    def taken(request: Request):
        elsewhere.append(dict(request.headers))
        return {}

    monkeypatch.setenv("OPENAI_API_KEY", secret)
    with served(other) as thief:

        @app.post("/v1/embeddings")
        def refused(request: Request):
            seen.append(request.headers.get("authorization"))
            return JSONResponse({"error": f"bad key {secret}"}, 401)

        @app.post("/moved/embeddings")
        def moved():
            return RedirectResponse(f"{thief}/v1/embeddings", 307)

        with served(app) as url:
            for end in ("v1", "moved"):
                with pytest.raises(EncoderError) as caught:
                    load(f"openai:{url}/{end}#m")
                assert secret not in str(caught.value)
    assert seen == [f"Bearer {secret}"]
    assert elsewhere == []  # redirects are not followed
    with pytest.raises(EncoderError, match="must not contain a password") as caught:
        load("openai:http://me:hunter2@127.0.0.1:1/v1#m")
    assert "hunter2" not in str(caught.value)
    assert secret not in caplog.text
    encoder = ApiEncoder.__new__(ApiEncoder)
    encoder.name = "openai:http://h/v1#m"
    assert secret not in json.dumps([repr(encoder), str(vars(encoder))])
