"""Batching: requests that arrive within some milliseconds become one call of what serves many as cheaply as one."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from aureole.serve._faults import Fault

_T = TypeVar("_T")
_R = TypeVar("_R")


class Batcher(Generic[_T, _R]):
    """Threads, one by default, that work off what is submitted, in batches, in the order of arrival.

    ``work`` takes a list and gives a list as long, in which an exception stands for what failed. An exception that it
    raises is given to all of the batch. What comes while it works is the next batch; a first item after a pause waits
    ``wait`` seconds for company. When ``room`` items wait, more are refused with a typed 503.

    ``seen`` is called with the size of each batch and the seconds it took.
    """

    def __init__(
        self,
        work: Callable[[list[_T]], Sequence[_R | BaseException]],
        *,
        name: str,
        largest: int = 32,
        wait: float = 0.002,
        room: int = 1024,
        threads: int = 1,
        seen: Callable[[int, float], None] | None = None,
    ) -> None:
        self._work, self._largest, self._wait, self._room = work, largest, wait, room
        self._seen = seen
        self._name = name
        self._queue: deque[tuple[_T, asyncio.Future[_R], asyncio.AbstractEventLoop]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"aureole-{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    async def submit(self, item: _T) -> _R:
        """What ``work`` gives for the item; the item is dropped if whoever waits for it leaves before its turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_R] = loop.create_future()
        with self._changed:
            if self._closed:
                raise Fault("unavailable", "the service is stopping.", retry_after=5)
            if len(self._queue) >= self._room:
                raise Fault(
                    "unavailable",
                    f"{self._room} requests wait for the {self._name} already. Try again soon.",
                    retry_after=1,
                )
            self._queue.append((item, future, loop))
            self._changed.notify()
        return await future

    def close(self, timeout: float = 5.0) -> None:
        """Work off what waits, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                return
            if not batch:
                continue
            start = time.perf_counter()
            try:
                results: Sequence[Any] = self._work([item for item, _, _ in batch])
                if len(results) != len(batch):
                    raise RuntimeError(f"{len(batch)} items gave {len(results)} results")
            except BaseException as error:
                results = [error] * len(batch)
            if self._seen is not None:
                self._seen(len(batch), time.perf_counter() - start)
            _deliver(batch, results)

    def _take(self) -> list[Any] | None:
        """The next batch without what nobody waits for any more; None at the end."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()
                if self._queue and self._wait and not self._closed:
                    deadline = time.monotonic() + self._wait
                    while len(self._queue) < self._largest:
                        left = deadline - time.monotonic()
                        if left <= 0 or self._closed:
                            break
                        self._changed.wait(left)
            count = min(self._largest, len(self._queue))
            taken = [self._queue.popleft() for _ in range(count)]
        return [entry for entry in taken if not entry[1].cancelled()]


def _deliver(batch: list[Any], results: Sequence[Any]) -> None:
    """Hand the results to the loops that wait for them, one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for (_, future, loop), result in zip(batch, results, strict=True):
        loops.setdefault(loop, []).append((future, result))

    def settle(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
        for future, result in pairs:
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    for loop, pairs in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, pairs)
