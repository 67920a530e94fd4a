"""When the encoder, the engine or the clock fails: a typed answer, and the next request is served."""

import json
import threading
import time

import pytest

from aureole.serve import BatchOptions, Limits, Pictures, Service
from tests.serve.conftest import ask, error_of, in_base64, running


class Faulty:
    """A thing of which one method fails when it is told to."""

    def __init__(self, real, method):
        self._real, self._method = real, method
        self.fail = None

    def __getattr__(self, name):
        found = getattr(self._real, name)
        if name != self._method or self.fail is None:
            return found
        return self.fail


def broken(*_, **__):
    raise RuntimeError("secret path /srv/models is gone")


def embed_body(made):
    return {"image": in_base64(made[0] / "pictures" / "item-001.png")}


def test_a_broken_encoder_is_a_503_and_recovers(service, made, caplog):
    faulty = Faulty(service.encoder.embedder, "embed")
    service.encoder.embedder = faulty
    with running(service) as place:
        assert ask(place, "POST", "/v1/embed", embed_body(made))[0] == 200
        faulty.fail = broken
        answer = ask(place, "POST", "/v1/embed", embed_body(made))
        message = error_of(answer, 503, "unavailable")
        assert "encoder" in message
        assert b"secret path" not in answer[2]
        assert "retry-after" in answer[1]
        assert ask(place, "GET", "/v1/about")[0] == 200
        faulty.fail = None
        assert ask(place, "POST", "/v1/embed", embed_body(made))[0] == 200


@pytest.mark.parametrize("method", ["search", "fetch"])
def test_a_broken_engine_is_a_503_and_recovers(service, method):
    faulty = Faulty(service.engine.index, method)
    service.engine.index = faulty
    body = {"query": {"id": "item-001"}}
    with running(service) as place:
        assert ask(place, "POST", "/v1/search", body)[0] == 200
        faulty.fail = broken
        answer = ask(place, "POST", "/v1/search", body)
        error_of(answer, 503, "unavailable")
        assert b"secret path" not in answer[2]
        if method == "fetch":
            error_of(ask(place, "GET", "/v1/items"), 503, "unavailable")
            error_of(ask(place, "GET", "/v1/items/item-001"), 503, "unavailable")
        assert ask(place, "GET", "/healthz")[0] == 200
        faulty.fail = None
        assert ask(place, "POST", "/v1/search", body)[0] == 200
        assert ask(place, "GET", "/v1/items/item-001")[0] == 200


def test_one_bad_input_does_not_spoil_its_batch(service, made):
    real = service.encoder.embedder
    faulty = Faulty(real, "embed")
    service.encoder.embedder = faulty
    pictures = sorted((made[0] / "pictures").iterdir())[:8]
    bad = real.prepare(pictures[3])

    def picky(prepared):
        if any(bool((one == bad).all()) for one in prepared):
            raise ValueError("this one")
        return real.embed(prepared)

    faulty.fail = picky
    statuses = {}
    with running(service) as place:

        def one(i):
            body = {"image": in_base64(pictures[i])}
            statuses[i] = ask(place, "POST", "/v1/embed", body)[0]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == {i: 503 if i == 3 else 200 for i in range(8)}


def test_what_takes_too_long_is_a_504(service, made):
    faulty = Faulty(service.engine.index, "fetch")
    service.engine.index = faulty
    go = threading.Event()

    def slow(*arguments, **options):
        go.wait(10)
        return faulty._real.fetch(*arguments, **options)

    with running(service, limits=Limits(seconds=3)) as place:  # an ordinary request is faster
        faulty.fail = slow
        error_of(ask(place, "GET", "/v1/items/item-001"), 504, "timeout")
        go.set()
        time.sleep(0.1)
        assert ask(place, "GET", "/v1/items/item-001")[0] == 200


def test_a_full_queue_is_a_503_with_a_time_to_wait(index, made):
    small = Service(index, pictures=Pictures(made[0] / "pictures"), batches=BatchOptions(1, 1))
    faulty = Faulty(index, "fetch")
    small.engine.index = faulty
    go = threading.Event()

    def slow(*arguments, **options):
        go.wait(10)
        return index.fetch(*arguments, **options)

    faulty.fail = slow
    answers = []
    try:
        with running(small) as place:
            threads = [
                threading.Thread(
                    target=lambda: answers.append(ask(place, "GET", "/v1/items/item-001"))
                )
                for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + 10
            while len(answers) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            refused = list(answers)
            go.set()
            for thread in threads:
                thread.join()
    finally:
        small.close()
    assert len(refused) == 4
    for answer in refused:
        error_of(answer, 503, "unavailable")
        assert int(answer[1]["retry-after"]) >= 1
    assert sorted(answer[0] for answer in answers) == [200, 200, 503, 503, 503, 503]


def test_too_many_at_once_and_too_often(service):
    with running(service, limits=Limits(rate=0.01, burst=3)) as place:
        assert [ask(place, "GET", "/v1/about")[0] for _ in range(4)] == [200, 200, 200, 429]
        answer = ask(place, "GET", "/v1/about")
        error_of(answer, 429, "rate_limited")
        assert int(answer[1]["retry-after"]) > 10
        assert ask(place, "GET", "/healthz")[0] == 200
    with running(service, limits=Limits(in_flight=0)) as place:
        error_of(ask(place, "GET", "/v1/about"), 503, "unavailable")


def test_an_error_of_ours_is_a_500_of_the_same_shape(service, monkeypatch):
    monkeypatch.setattr(service, "rejection", broken)
    with running(service) as place:
        answer = ask(place, "GET", "/v1/rejection")
        error_of(answer, 500, "internal")
        assert "secret" not in json.loads(answer[2])["error"]["message"]
        assert ask(place, "GET", "/v1/about")[0] == 200
