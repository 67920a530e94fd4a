"""What an operator relies on: health, readiness, named keys that rotate, rate limits per key, and the request log."""

import json
import logging
import threading
import time

import pytest

from aureole.errors import InvalidInputError, MissingInputError
from aureole.serve import ApiKeys, Limits, _readiness
from aureole.serve._connections import ConnectionTable
from aureole.serve._request_log import JsonLines
from tests.serve.conftest import ask, error_of, running
from tests.serve.test_errors import Faulty, broken


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_ready_while_engine_and_encoder_answer(service, monkeypatch):
    monkeypatch.setattr(_readiness, "_CACHED", 0.0)
    monkeypatch.setattr(_readiness, "_PROBE_SECONDS", 2.0)
    engine, encoder = (
        Faulty(service.engine.index, "search"),
        Faulty(service.encoder.embedder, "embed"),
    )
    service.engine.index, service.encoder.embedder = engine, encoder
    with running(service, key="a-secret-key") as place:
        status, _, body = ask(place, "GET", "/readyz")  # without a key
        assert (status, json.loads(body)) == (
            200,
            {"status": "ready", "engine": "ok", "encoder": "ok", "rollout": None},
        )
        for part, name in ((engine, "engine"), (encoder, "encoder")):
            part.fail = broken
            message = error_of(ask(place, "GET", "/readyz"), 503, "unavailable")
            assert f"the {name} failed" in message
            assert "secret" not in message
            assert ask(place, "GET", "/healthz")[0] == 200  # a restart would not help
            part.fail = None
        go = threading.Event()
        engine.fail = lambda *_, **__: go.wait(20)
        message = error_of(ask(place, "GET", "/readyz"), 503, "unavailable")
        assert "the engine did not answer within 2 s" in message
        engine.fail = None
        go.set()
        time.sleep(0.2)
        assert ask(place, "GET", "/readyz")[0] == 200


def test_health_sees_a_worker_that_has_ended_or_is_stuck(service, monkeypatch):
    with running(service) as place:
        assert ask(place, "GET", "/healthz")[0] == 200
        error_of(ask(place, "GET", "/healthz", b"{}"), 422, "invalid_input")
        monkeypatch.setattr(_readiness, "_STUCK", -1.0)
        assert "one call" in error_of(ask(place, "GET", "/healthz"), 503, "unavailable")
        monkeypatch.setattr(service.engine.queue, "is_alive", lambda: False)
        assert "has ended" in error_of(ask(place, "GET", "/healthz"), 503, "unavailable")
        error_of(ask(place, "GET", "/readyz"), 503, "unavailable")


def test_keys_rotate_without_a_restart(service, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("aureole.serve._keys._INTERVAL", 0.0)
    file = tmp_path / "keys"
    file.write_text("# team\nalice alices-key\n\nbob bobs-secret 2\n")
    keys = ApiKeys.read(file)
    with running(service, keys=keys) as place:
        get = lambda key: ask(place, "GET", "/v1/about", headers=bearer(key))  # noqa: E731
        assert [get(key)[0] for key in ("alices-key", "bobs-secret", "carols-key")] == [
            200,
            200,
            401,
        ]
        file.write_text(
            json.dumps({"carol": "carols-key", "bob": {"key": "bobs-secret", "rate": 2}})
        )
        assert [get(key)[0] for key in ("alices-key", "bobs-secret", "carols-key")] == [
            401,
            200,
            200,
        ]
        file.write_text("carol short\n")  # an edit that failed locks nobody out
        assert get("carols-key")[0] == 200
        file.unlink()
        assert get("carols-key")[0] == 200
        assert "carols-key" not in caplog.text


def test_a_rate_per_key(service, tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice alices-key\nbob bobs-secret 2\n")
    with running(service, keys=ApiKeys.read(file), limits=Limits(key_rate=1000)) as place:
        answers = [ask(place, "GET", "/v1/about", headers=bearer("bobs-secret")) for _ in range(12)]
        assert answers[0][0] == 200
        limited = [answer for answer in answers if answer[0] == 429]
        assert limited
        assert int(limited[0][1]["retry-after"]) >= 1
        assert "2 requests per second with one key" in error_of(limited[0], 429, "rate_limited")
        assert ask(place, "GET", "/v1/about", headers=bearer("alices-key"))[0] == 200


@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "alice", "alice alices-key 5 more", "alice short", "alice alices-key x", "alice alices-key nan",
     "alice alices-key -1", "alice alices-key\nalice another-key", "a same-secret\nb same-secret", "{", "{}",
     '{"a": 7}', '{"a": {"key": "alices-key", "role": "x"}}', '{"a": {"key": "alices-key", "rate": true}}',
     '{"a b": "alices-key"}', "\x00" * 100, "[" * 10, '{"a":' * 100_000, "a " + "k" * 2**20, '{"a": ["alices-key"]}'],
)  # fmt: skip
def test_files_that_have_no_keys(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        ApiKeys.read(file)
    assert "alices-key" not in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_keys_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingInputError):
        ApiKeys.read(tmp_path / "nothing")
    with pytest.raises(MissingInputError):
        ApiKeys.read(tmp_path)
    (tmp_path / "coded").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError):
        ApiKeys.read(tmp_path / "coded")


@pytest.fixture
def logged():
    """The lines of the request log."""
    lines, handler = [], logging.Handler()
    handler.setFormatter(JsonLines())
    handler.emit = lambda record: lines.append(handler.format(record))
    logs = [logging.getLogger(name) for name in ("aureole.requests", "aureole.serve")]
    for log in logs:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    yield lines
    for log in logs:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def test_one_line_per_request_with_its_id(service, logged):
    engine = Faulty(service.engine.index, "search")
    service.engine.index = engine
    secret = {"query": {"id": "item-001"}, "filter": {"label": "a-private-label"}}
    with running(service, key="a-secret-key") as place:
        ids = [
            ask(place, "GET", "/v1/items?label=a-private-label", headers=bearer("a-secret-key")),
            ask(place, "POST", "/v1/search", secret, bearer("a-secret-key")),
            ask(place, "GET", "/v1/a%0a%22b", headers=bearer("wrong-secret-key")),
            ask(place, "GET", "/healthz", headers={"X-Request-ID": "from-the-proxy"}),
            ask(place, "GET", "/healthz", headers={"X-Request-ID": 'a"b' + "c" * 100}),
        ]
        engine.fail = broken
        failed = ask(place, "POST", "/v1/search", secret, bearer("a-secret-key"))
    lines = [json.loads(line) for line in logged]
    requests = [line for line in lines if line["logger"] == "aureole.requests"]
    ids = [answer[1]["x-request-id"] for answer in [*ids, failed]]
    assert [line["request_id"] for line in requests] == ids
    assert len(set(ids)) == 6
    assert ids[3] == "from-the-proxy"
    assert [line["status"] for line in requests] == [200, 200, 401, 200, 200, 503]
    assert [line["key"] for line in requests] == ["default", "default", None, None, None, "default"]
    assert [line["error"] for line in requests] == [None, None, "unauthorized", None, None, None]
    assert requests[1]["route"] == "/v1/search"
    assert requests[1]["bytes_received"] == len(json.dumps(secret))
    assert requests[2]["path"] == '/v1/a\n"b'
    text = "".join(logged)
    assert "\n" not in text
    for word in ("secret-key", "a-private-label"):
        assert word not in text
    # the traceback has the id of its request
    assert any(line["request_id"] == ids[5] and "exception" in line for line in lines)


def test_the_table_closes_the_connection_that_waits_longest():
    table = ConnectionTable(per_address=2, total=4)
    assert [table.add(i, "192.0.2.1") for i in (1, 2)] == [None, None]
    table.set_busy(1)
    assert table.add(3, "192.0.2.1") == 2
    table.remove(2)
    table.set_busy(3)
    assert table.add(4, "192.0.2.1") == 4  # all others are busy: the new one is refused
    table.remove(4)
    table.remove(4)
    assert [table.add(i, "127.0.0.1") for i in (5, 6, 7)] == [None, None, 5]
    table.remove(5)
    table.set_waiting(1)  # its response was sent
    assert table.add(8, "::1") == 6
    for i in (1, 3, 6, 7, 8):
        table.remove(i)
    assert len(table) == 0
    assert not table._counts
    assert not table._waiting
    assert not table._all_waiting
