"""Batches of concurrent requests, and what happens when the index or the model fails."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aureole.caps import CredibleIndex
from aureole.embed import load_embedder
from aureole.errors import InvalidInputError
from aureole.serve._batching import Batcher, BatchOptions, decode_base64
from aureole.serve._errors import ApiError
from aureole.serve._middleware import Access
from tests.serve.conftest import client_of, error_of, found, in_base64, serving


def collect(batcher, items):
    async def work():
        return await asyncio.gather(
            *(batcher.submit(item) for item in items), return_exceptions=True
        )

    return asyncio.run(work())


def batcher_of(work, *sizes):
    return Batcher(work, name="test", options=BatchOptions(*sizes))


def test_batches_hold_what_came_together_and_keep_the_order():
    sizes = []
    batcher = batcher_of(lambda items: sizes.append(len(items)) or [10 * i for i in items], 8)
    assert collect(batcher, range(30)) == [10 * i for i in range(30)]
    assert sizes == [8, 8, 8, 6]
    batcher.close()


def test_a_failure_is_its_own_or_the_batches_and_the_next_works():
    def work(items):
        if "all" in items:
            raise RuntimeError("all")
        return [ValueError("one") if item == "one" else item for item in items]

    batcher = batcher_of(work)
    answers = collect(batcher, ["a", "one", "b"])
    assert answers[::2] == ["a", "b"]
    assert isinstance(answers[1], ValueError)
    kept, failed = collect(batcher, ["a", "all"])
    assert kept == "a"
    assert isinstance(failed, RuntimeError)
    assert collect(batcher, ["c"]) == ["c"]
    batcher.close()


def test_a_full_queue_refuses_and_leavers_are_dropped():
    began, go, seen = threading.Event(), threading.Event(), []

    def work(items):
        began.set()
        go.wait(10)
        seen.extend(items)
        return items

    batcher = batcher_of(work, 1, 2)

    async def run():
        first = asyncio.create_task(batcher.submit("first"))
        await asyncio.to_thread(began.wait, 10)
        second = asyncio.create_task(batcher.submit("second"))
        third = asyncio.create_task(batcher.submit("third"))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await batcher.submit("fourth")
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        second.cancel()
        go.set()
        assert await first == "first"
        assert await third == "third"

    asyncio.run(run())
    batcher.close()
    assert seen == ["first", "third"]


def test_what_is_no_base64():
    for text in ("a", "a b=", "data:image/png;base64,", "é"):
        with pytest.raises(InvalidInputError, match="base64"):
            decode_base64(text + "*")


def broken(*_, **__):
    raise RuntimeError("secret path /srv/models is gone")


@pytest.mark.parametrize("method", ["search", "fetch"])
def test_a_broken_engine_is_a_503_and_recovers(made, method, monkeypatch):
    body = {"query": {"id": "item-001"}}
    with CredibleIndex.open(made[0] / "gallery.faiss") as index, serving(index) as service:
        client = client_of(service)
        with monkeypatch.context() as patch:
            patch.setattr(index, method, broken)
            answer = client.post("/v1/search", json=body)
            error_of(answer, 503, "unavailable")
            assert b"secret path" not in answer.content
            assert answer.headers["retry-after"] == "1"
            if method == "fetch":
                error_of(client.get("/v1/items"), 503, "unavailable")
            else:
                error_of(client.get("/readyz"), 503, "unavailable")
            found(client.get("/healthz"))
        found(client.post("/v1/search", json=body))
        found(client.get("/v1/items/item-001"))


def test_one_bad_input_does_not_spoil_its_batch(made, index, monkeypatch):
    embedder = load_embedder(made[0] / "encoder")
    pictures = sorted((made[0] / "pictures").iterdir())[:8]
    bad = embedder.prepare(pictures[3])
    embed = embedder.embed

    def picky(prepared, **options):
        if any(bool((one == bad).all()) for one in prepared):
            raise ValueError("this one")
        return embed(prepared, **options)

    monkeypatch.setattr(embedder, "embed", picky)
    with serving(index, embedder) as service, client_of(service) as client:
        bodies = [{"image": in_base64(path)} for path in pictures]
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda body: client.post("/v1/embed", json=body), bodies)
        statuses = [answer.status_code for answer in answers]
    assert statuses == [503 if i == 3 else 200 for i in range(8)]


def test_what_takes_too_long_is_a_504(index, monkeypatch):
    go = threading.Event()
    with serving(index) as service, client_of(service, Access(seconds=0.5)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(index, "fetch", lambda *_, **__: go.wait(10))
            error_of(client.get("/v1/items/item-001"), 504, "timeout")
            go.set()
        found(client.get("/v1/items/item-001"))


def test_a_full_service_is_a_503(service):
    client = client_of(service, Access(in_flight=0))
    answer = client.get("/v1/about")
    assert "already in progress" in error_of(answer, 503, "unavailable")
    found(client.get("/healthz"))


def test_an_error_of_ours_is_a_500_of_the_same_shape(service, monkeypatch):
    monkeypatch.setattr(service.listing.table, "quantiles", broken)
    answer = client_of(service).get("/v1/about")
    assert "secret" not in error_of(answer, 500, "internal")


def test_embeddings_of_a_batch_are_those_of_one(service, made):
    embedder = service.encoder.embedder
    pictures = [picture.permute(1, 2, 0).numpy() for picture in made[2][:5]]
    together = service.encoder._work(pictures)
    wanted = embedder.embed(list(made[2][:5]))
    for i, one in enumerate(together):
        np.testing.assert_allclose(one.mu, wanted.mu[i], atol=1e-5)
