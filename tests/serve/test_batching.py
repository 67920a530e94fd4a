"""Batches of concurrent requests."""

import asyncio
import threading
import time

import pytest

from aureole.errors import InvalidInputError
from aureole.serve._batching import Batcher, BatchOptions, decode_picture
from aureole.serve._errors import ApiError


def collect(batcher, items):
    async def work():
        return await asyncio.gather(
            *(batcher.submit(item) for item in items), return_exceptions=True
        )

    return asyncio.run(work())


def test_batches_hold_what_came_together_and_keep_the_order():
    sizes = []

    def work(items):
        sizes.append(len(items))
        time.sleep(0.02)
        return [item * 10 for item in items]

    batcher = Batcher(work, name="test", options=BatchOptions(8), wait=0.01)
    assert collect(batcher, range(30)) == [10 * i for i in range(30)]
    assert max(sizes) == 8
    assert sum(sizes) == 30
    assert len(sizes) <= 6
    batcher.close()
    with pytest.raises(ApiError, match="shutting down"):
        asyncio.run(batcher.submit(1))


def test_a_failure_is_its_own_or_the_batches_and_the_next_works():
    def work(items):
        if "all" in items:
            raise RuntimeError("all")
        return [ValueError("one") if item == "one" else item for item in items]

    batcher = Batcher(work, name="test", options=BatchOptions())
    found = collect(batcher, ["a", "one", "b"])
    assert found[::2] == ["a", "b"]
    assert isinstance(found[1], ValueError)
    assert all(isinstance(e, RuntimeError) for e in collect(batcher, ["a", "all"]))
    assert collect(batcher, ["c"]) == ["c"]
    batcher.close()


def test_a_full_queue_refuses_and_leavers_are_dropped():
    began, go, seen = threading.Event(), threading.Event(), []

    def work(items):
        began.set()
        go.wait(10)
        seen.extend(items)
        return items

    batcher = Batcher(work, name="test", options=BatchOptions(1, 2), wait=0)

    async def run():
        first = asyncio.create_task(batcher.submit("first"))
        await asyncio.to_thread(began.wait, 10)
        second = asyncio.create_task(batcher.submit("second"))
        third = asyncio.create_task(batcher.submit("third"))
        await asyncio.sleep(0.01)
        with pytest.raises(ApiError) as caught:
            await batcher.submit("fourth")
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        second.cancel()
        await asyncio.sleep(0.01)
        go.set()
        assert await first == "first"
        assert await third == "third"

    asyncio.run(run())
    batcher.close()
    assert seen == ["first", "third"]


def test_what_is_no_base64():
    for text in ("a", "a b=", "data:image/png;base64,", "é"):
        with pytest.raises(InvalidInputError, match="base64"):
            decode_picture(text + "*")
