"""The embeddings protocol: order, batches, retries, limits of patience, and the secrecy of the key."""

import logging

import numpy as np
import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi")

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from aureole.encoders import load
from aureole.errors import EncoderError
from tests.encoders.conftest import TEXTS, Api, served


@pytest.fixture(scope="module")
def toy():
    """(URL, application) of an encoder that counts characters."""
    api = Api(lambda texts: [[len(text), text.count("a"), 1.0] for text in texts])
    with served(api.app) as url:
        yield url, api


@pytest.fixture(autouse=True)
def one_try(monkeypatch):
    monkeypatch.setenv("AUREOLE_API_RETRIES", "0")


def test_gte_small_behind_the_protocol(gte, gte_api):
    encoder = load(f"openai:{gte_api[0]}/v1#gte-small")
    expected = load(f"sentence-transformers:{gte}").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=1), expected, atol=1e-5)
    assert (encoder.kind, encoder.dim) == ("text", 384)


def test_rows_keep_their_order_over_batches(toy):
    encoder = load(f"openai:{toy[0]}#gte-small")
    toy[1].seen.clear()
    texts = ["a" * (1 + (7 * i) % 50) for i in range(100)]
    found = encoder.encode(texts, batch_size=8)
    assert found[:, 0].tolist() == [len(text) for text in texts]
    assert max(len(body["input"]) for body in toy[1].seen) == 8


def test_faults_that_pass_are_retried_and_others_are_one_line(toy, monkeypatch):
    url, api = toy
    monkeypatch.setenv("AUREOLE_API_RETRIES", "2")
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: None)
    api.faults = [(429, {}), (503, {"Retry-After": "7"})]
    assert load(f"openai:{url}#gte-small").encode(["a"]).tolist() == [[1, 1, 1]]
    api.faults = [(429, {})] * 3
    with pytest.raises(EncoderError, match=r"Error code: 429 .*slow") as caught:
        load(f"openai:{url}#gte-small")
    assert "\n" not in str(caught.value)
    api.seen.clear()
    with pytest.raises(EncoderError, match=r"Error code: 404 .*no such model"):
        load(f"openai:{url}#other")
    assert len(api.seen) == 1  # an error that stays is not repeated


def test_a_slow_api_and_one_that_is_down(toy, monkeypatch):
    url, api = toy
    monkeypatch.setenv("AUREOLE_API_TIMEOUT", "0.2")
    monkeypatch.setattr(api, "delay", 1.0)
    with pytest.raises(EncoderError, match="timed out"):
        load(f"openai:{url}/v1#gte-small")
    with pytest.raises(EncoderError, match="Connection error"):
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

    with (
        served(app) as url,
        pytest.raises(EncoderError, match=r"did not (answer as|encode)") as caught,
    ):
        load(f"openai:{url}/v1#m")
    assert "\n" not in str(caught.value)


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
