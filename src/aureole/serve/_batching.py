"""Batching: concurrent requests share calls of the index (``Engine``) and of the model (``Encoder``)."""

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from aureole.caps import CredibleIndex, Hits, SearchOptions
from aureole.distributions import VonMisesFisher
from aureole.embed._embedder import Embedder, prepare_vector
from aureole.encoders._encoder import check_text
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.explorer._neighbourhood_map import MAX_COUNT
from aureole.match._gallery import without_item
from aureole.serve._errors import ApiError, item_not_found, map_failures
from aureole.serve._workers import Decoder, ModelProcess, WorkerError, embed_arrays, tiny_input

_WAIT = 0.002  # seconds that the first item after a pause waits for others
_MAX_DECODED = 2**28  # bytes of all decoded pictures of a request
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class BatchOptions:
    """The maximum size of a batch, and the size of the queue, beyond which items are rejected with a 503."""

    max_batch: int = 32
    queue_size: int = 1024


class Batcher(Generic[_T, _R]):
    """A queue whose items are processed in batches, in order of arrival, by one thread.

    ``work`` maps a list of items to a list of results of the same length, in which an exception is the result of an
    item that failed; if it raises, see ``attempt``. Items that arrive meanwhile form the next batch.
    """

    def __init__(
        self,
        work: Callable[[list[_T]], Sequence[_R | BaseException]],
        *,
        name: str,
        options: BatchOptions,
    ) -> None:
        self._work, self._name, self._options = work, name, options
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"aureole-{name}")
        self._queue: deque[tuple[_T, asyncio.Future[_R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: _T) -> _R:
        """The result of an item. If the caller is cancelled while the item is queued, the item is dropped."""
        if (waiting := len(self._queue)) >= self._options.queue_size:
            message = (
                f"{waiting} requests are already waiting for the {self._name}. Try again later."
            )
            raise ApiError("unavailable", message, retry_after=1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_R] = loop.create_future()
        self._queue.append((item, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._drain())
        return await future

    def close(self) -> None:
        """Drop the queued items, and let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        await asyncio.sleep(_WAIT)
        while self._queue:
            count = min(self._options.max_batch, len(self._queue))
            batch = [self._queue.popleft() for _ in range(count)]
            batch = [entry for entry in batch if not entry[1].cancelled()]
            if not batch:
                continue
            items = [item for item, _ in batch]
            results = await asyncio.get_running_loop().run_in_executor(
                self._thread, attempt, self._work, items
            )
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)


def attempt(work: Callable[[list[_T]], Sequence[_R]], items: list[_T]) -> Sequence[_R | Exception]:
    """The results of a batch. If it fails, each item is retried alone, and an exception is its result.

    After a ``WorkerError`` nothing is retried: what killed a process could kill the next one too.
    """
    try:
        return work(items)
    except Exception as error:
        if len(items) == 1 or isinstance(error, WorkerError):
            return [error] * len(items)
        return [attempt(work, [item])[0] for item in items]


@dataclass(frozen=True)
class SearchPlan:
    """How to search. Queries whose plans have the same ``repr`` share a call."""

    mass: float
    limit: int
    options: SearchOptions = field(default_factory=SearchOptions)
    filter: dict[str, Any] | None = None
    count: bool = True
    columns: tuple[str, ...] = ()

    @property
    def most(self) -> int:
        """How many items the index has to find: all that are counted or ranked, or the hits."""
        everything = self.count or self.options.rank == "positivity"
        return max(MAX_COUNT, self.limit) if everything else self.limit


@dataclass(frozen=True)
class Search:
    """A query by its posterior, or by the id of an item, which is excluded from the hits."""

    plan: SearchPlan
    query: VonMisesFisher | str


class Engine:
    """An index behind a queue. An index is not thread-safe, so calls are serialised in one thread."""

    def __init__(self, index: CredibleIndex, options: BatchOptions) -> None:
        self.index = index
        self.queue: Batcher[Any, Any] = Batcher(self._work, name="engine", options=options)

    async def search(
        self, plan: SearchPlan, query: VonMisesFisher | str
    ) -> tuple[VonMisesFisher, Hits]:
        """(The posterior of a query, the nearest items inside its cap: one more than ``plan.most`` at most)."""
        with map_failures("engine"):
            return await self.queue.submit(Search(plan, query))

    async def call(self, work: Callable[[CredibleIndex], _R]) -> _R:
        """Run a function of the index in the engine's thread."""
        with map_failures("engine"):
            return await self.queue.submit(work)

    def _work(self, jobs: list[Any]) -> Sequence[Any]:
        """The results of one function of the index, or of searches, grouped by their plans."""
        results: list[Any] = [None] * len(jobs)
        groups: dict[str, list[int]] = {}
        for place, job in enumerate(jobs):
            if isinstance(job, Search):
                groups.setdefault(repr(job.plan), []).append(place)
            else:
                (results[place],) = attempt(lambda works: [works[0](self.index)], [job])
        for places in groups.values():
            found = attempt(partial(search_index, self.index), [jobs[place] for place in places])
            for place, outcome in zip(places, found, strict=True):
                results[place] = outcome
        return results


def search_index(index: CredibleIndex, jobs: list[Search]) -> list[tuple[VonMisesFisher, Hits]]:
    """The results of searches with the same plan, in one call of the index."""
    plan = jobs[0].plan
    names = list(dict.fromkeys(job.query for job in jobs if isinstance(job.query, str)))
    stored = fetch_posteriors(index, names, "query.id") if names else {}
    posteriors = [stored[job.query] if isinstance(job.query, str) else job.query for job in jobs]
    results = index.search(
        VonMisesFisher(
            torch.stack([one.mu.float() for one in posteriors]),
            torch.stack([one.kappa.float() for one in posteriors]),
            validate_args=False,
        ),
        plan.mass,
        # the query's own item, and one that shows whether there are more
        limit=plan.most + 2,
        filter=plan.filter,
        columns=plan.columns,
        options=replace(plan.options, rank="cosine"),
    )
    assert isinstance(results, list)
    return [
        (own, without_item(hits, job.query if isinstance(job.query, str) else None))
        for job, own, hits in zip(jobs, posteriors, results, strict=True)
    ]


def fetch_posteriors(
    index: CredibleIndex, names: list[str], field: str | None = None
) -> dict[Any, VonMisesFisher]:
    """The posteriors of items by id; a 404 names the first, since a batch is retried one by one."""
    found, _ = fetch_items(index, names, field=field)
    pairs = zip(names, found.mu, found.kappa, strict=True)
    return {name: VonMisesFisher(mu, kappa, validate_args=False) for name, mu, kappa in pairs}


def fetch_items(
    index: CredibleIndex, names: list[str], columns: Sequence[str] = (), field: str | None = None
) -> tuple[VonMisesFisher, dict[str, list[Any]]]:
    """The posteriors and payloads of items; a 404 if one of them does not exist."""
    try:
        return index.fetch(names, columns=list(columns))
    except DamagedGalleryError:
        raise
    except InvalidInputError as error:
        raise item_not_found(names[0], field) from error


class Encoder:
    """A model behind a queue, in this process or in its own. Pictures are decoded by a process with limits."""

    def __init__(self, embedder: Embedder | ModelProcess, options: BatchOptions) -> None:
        self.embedder = embedder
        self._decoder = Decoder() if embedder.modality == "image" else None
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="aureole-decoder")
        self.queue: Batcher[Any, VonMisesFisher] = Batcher(
            self._work, name="encoder", options=options
        )

    async def embed(self, kind: str, inputs: Sequence[Any]) -> list[VonMisesFisher]:
        """The posteriors of texts, vectors or base64-encoded images."""
        modality = self.embedder.modality
        if kind != modality:
            message = f"the encoder of this service takes {modality}s, not {kind}s."
            raise ApiError("invalid_input", message, field=kind)
        with map_failures("encoder"):
            if kind == "image":
                prepared = await self._decode(inputs)
            elif kind == "text":
                prepared = [check_text(one) for one in inputs]
            else:
                prepared = [prepare_vector(one, self.embedder.features or 0) for one in inputs]
            return list(await asyncio.gather(*(self.queue.submit(one) for one in prepared)))

    async def probe(self) -> None:
        """Embed a tiny input; raises if the model fails."""
        with map_failures("encoder"):
            await self.queue.submit(tiny_input(self.embedder))

    def close(self) -> None:
        """Drop the queued inputs, and end the decoder."""
        self.queue.close()
        self._decoding.shutdown(wait=False, cancel_futures=True)
        if self._decoder is not None:
            self._decoder.close()

    async def _decode(self, inputs: Sequence[str]) -> list[Any]:
        assert self._decoder is not None
        side = self.embedder.resolution if self.embedder.squares else None
        loop, pictures, size = asyncio.get_running_loop(), [], 0
        for text in inputs:
            file = decode_base64(text)
            pictures.append(
                await loop.run_in_executor(self._decoding, self._decoder.decode, file, side)
            )
            size += pictures[-1].nbytes
            if size > _MAX_DECODED:
                raise InvalidInputError(
                    f"the pictures of a request may take {_MAX_DECODED:,} bytes when decoded. Send fewer."
                )
        return pictures

    def _work(self, prepared: list[Any]) -> list[VonMisesFisher]:
        """The posteriors of a batch."""
        if isinstance(self.embedder, ModelProcess):
            arrays = self.embedder.arrays(prepared)
        else:
            arrays = embed_arrays(self.embedder, prepared)
        mu, kappa = map(torch.as_tensor, arrays)
        return [VonMisesFisher(*one, validate_args=False) for one in zip(mu, kappa, strict=True)]


def decode_base64(text: str) -> bytes:
    r"""The bytes of a base64 string or of a data URL (``data:image/png;base64,...``).

    Examples
    --------
    >>> decode_base64("data:image/png;base64,iVBORw==")
    b'\x89PNG'
    """
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"the picture is not valid base64: {error}.") from error
