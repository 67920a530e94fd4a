"""Batching: concurrent requests share calls of the index (``Engine``) and of the model (``Encoder``)."""

import asyncio
import base64
import binascii
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from aureole.caps import CredibleIndex, Hits, SearchOptions
from aureole.caps._cap_tables import credible_cosines
from aureole.caps._hits import pick_hits
from aureole.distributions import VonMisesFisher
from aureole.embed._embedder import Embedder, prepare_vector
from aureole.encoders import check_text
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.explorer._neighbourhood_map import MAX_COUNT, SUMMARY_MASSES
from aureole.match._gallery import without_item
from aureole.serve._errors import ApiError, item_not_found, map_failures
from aureole.serve._middleware import Metrics
from aureole.serve._workers import (
    Decoder,
    Look,
    ModelProcess,
    WorkerError,
    embed_arrays,
    tiny_input,
)

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
    item that failed. If ``work`` raises, the whole batch gets that exception. Items that arrive meanwhile form the next
    batch.
    """

    def __init__(
        self,
        work: Callable[[list[_T]], Sequence[_R | BaseException]],
        *,
        name: str,
        options: BatchOptions,
        metrics: Metrics,
    ) -> None:
        self._work, self._name, self._options = work, name, options
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"aureole-{name}")
        self._queue: deque[tuple[_T, asyncio.Future[_R]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._sizes = metrics.sizes.labels(name)
        self._seconds = metrics.batch_seconds.labels(name)
        metrics.waiting.labels(name).set_function(self._queue.__len__)

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
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        await asyncio.sleep(_WAIT)
        loop = asyncio.get_running_loop()
        while self._queue:
            count = min(self._options.max_batch, len(self._queue))
            batch = [self._queue.popleft() for _ in range(count)]
            batch = [entry for entry in batch if not entry[1].cancelled()]
            if not batch:
                continue
            start = time.perf_counter()
            try:
                items = [item for item, _ in batch]
                results = await loop.run_in_executor(self.thread, self._work, items)
            except Exception as error:
                results = [error] * len(batch)
            self._sizes.observe(len(batch))
            self._seconds.observe(time.perf_counter() - start)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)


@dataclass(frozen=True)
class SearchPlan:
    """How to search. Queries whose plans have the same ``repr`` share a call; labels are read from column ``label``."""

    mass: float
    limit: int
    options: SearchOptions = field(default_factory=SearchOptions)
    filter: dict[str, Any] | None = None
    exact: bool = False
    count: bool = True
    columns: tuple[str, ...] = ()
    label: str | None = None


@dataclass(frozen=True)
class SearchOutcome:
    """A query's posterior, its hits up to the limit, and the number of items in the cap, exact below ``MAX_COUNT``.

    ``labels`` are those of all counted items; None without a label column.
    """

    posterior: VonMisesFisher
    hits: Hits
    count: int
    exact: bool
    truncated: bool
    labels: list[Any] | None = None


@dataclass(frozen=True)
class _Search:
    """A query by its posterior, or by the id of an item, which is excluded from the hits."""

    plan: SearchPlan
    posterior: VonMisesFisher | None
    item: str | None = None


class Engine:
    """An index behind a queue. An index is not thread-safe, so calls are serialised in one thread."""

    def __init__(self, index: CredibleIndex, options: BatchOptions, metrics: Metrics) -> None:
        self.index = index
        self.queue: Batcher[Any, Any] = Batcher(
            self._work, name="engine", options=options, metrics=metrics
        )

    async def search(
        self, plan: SearchPlan, posterior: VonMisesFisher | None, item: str | None = None
    ) -> SearchOutcome:
        """The items inside the cap of a posterior, or of an item's posterior."""
        with map_failures("engine"):
            return await self.queue.submit(_Search(plan, posterior, item))

    async def call(self, work: Callable[[CredibleIndex], _R]) -> _R:
        """Run a function of the index in the engine's thread."""
        with map_failures("engine"):
            return await self.queue.submit(work)

    async def posterior_of(self, item: str, field: str | None = None) -> VonMisesFisher:
        """The posterior of an item of the gallery."""
        return (await self.call(lambda index: _stored(index, [item], field)))[item]

    def _work(self, jobs: list[Any]) -> Sequence[Any]:
        results: list[Any] = [None] * len(jobs)
        groups: dict[str, list[int]] = {}
        for place, job in enumerate(jobs):
            if isinstance(job, _Search):
                groups.setdefault(repr(job.plan), []).append(place)
                continue
            try:
                results[place] = job(self.index)
            except Exception as error:
                results[place] = error
        for places in groups.values():
            for place, outcome in zip(places, self._group([jobs[p] for p in places]), strict=True):
                results[place] = outcome
        return results

    def _group(self, jobs: list[_Search]) -> list[Any]:
        """The outcomes of searches with the same plan; if the batch fails, each is retried alone."""
        try:
            return self._search(jobs, jobs[0].plan)
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [self._group([job])[0] for job in jobs]

    def _search(self, jobs: list[_Search], plan: SearchPlan) -> list[SearchOutcome]:
        names = list(dict.fromkeys(job.item for job in jobs if job.posterior is None))
        stored = _stored(self.index, names, "query.id") if names else {}
        posteriors = [stored[job.item] if job.posterior is None else job.posterior for job in jobs]
        everything = plan.count or plan.options.rank == "positivity"
        results = self.index.search(
            VonMisesFisher(
                torch.stack([one.mu.float() for one in posteriors]),
                torch.stack([one.kappa.float() for one in posteriors]),
                validate_args=False,
            ),
            plan.mass,
            # the query's own item, and one that shows whether there are more
            limit=(max(MAX_COUNT, plan.limit) if everything else plan.limit) + 2,
            filter=plan.filter,
            columns=plan.columns,
            exact=plan.exact,
            options=replace(plan.options, rank="cosine"),
        )
        assert isinstance(results, list)
        return [
            _outcome(own, without_item(hits, job.item), plan, everything=everything)
            for job, own, hits in zip(jobs, posteriors, results, strict=True)
        ]


def _stored(index: CredibleIndex, names: list[Any], field: str | None) -> dict[Any, VonMisesFisher]:
    """The posteriors of items by id; a batch with an unknown item is retried one by one."""
    try:
        found, _ = index.fetch(names)
    except DamagedGalleryError:
        raise
    except InvalidInputError as error:
        raise item_not_found(names[0], field) from error
    pairs = zip(names, found.mu, found.kappa, strict=True)
    return {name: VonMisesFisher(mu, kappa, validate_args=False) for name, mu, kappa in pairs}


def _outcome(
    own: VonMisesFisher, members: Hits, plan: SearchPlan, *, everything: bool
) -> SearchOutcome:
    """The best of the members of a cap; ``everything`` means that they are all, up to ``MAX_COUNT``."""
    count, truncated = len(members), len(members) > plan.limit
    labels = None if plan.label is None else members.payload[plan.label][:MAX_COUNT]
    if plan.options.rank == "positivity" and members.log_positivity is not None:
        order = np.argsort(-members.log_positivity.numpy(), kind="stable")
        members = pick_hits(members, order[: plan.limit].tolist())
    elif truncated:
        members = pick_hits(members, list(range(plan.limit)))
    exact = not truncated or (everything and count <= MAX_COUNT)
    return SearchOutcome(own, members, min(count, MAX_COUNT), exact, truncated, labels)


@dataclass(frozen=True)
class Embedding:
    """A posterior of batch shape (), and the smallest cosines of its credible caps of ``SUMMARY_MASSES``."""

    posterior: VonMisesFisher
    cosines: list[float]


class Encoder:
    """A model behind a queue, in this process or in its own. Pictures are decoded by a process with limits."""

    def __init__(
        self, embedder: Embedder | ModelProcess, options: BatchOptions, metrics: Metrics
    ) -> None:
        self.embedder = embedder
        self._decoder = Decoder() if embedder.modality == "image" else None
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="aureole-decoder")
        self.queue: Batcher[Any, Embedding] = Batcher(
            self._work, name="encoder", options=options, metrics=metrics
        )

    async def embed(
        self, kind: str, inputs: Sequence[Any], *, crop: float = 1.0, blur: float = 0.0
    ) -> list[Embedding]:
        """The posteriors of texts, vectors or base64-encoded images."""
        modality = self.embedder.modality
        if kind != modality:
            message = f"the encoder of this service takes {modality}s, not {kind}s."
            raise ApiError("invalid_input", message, field=kind)
        with map_failures("encoder"):
            if kind == "image":
                side = self.embedder.resolution
                prepared: list[Any] = await self._decode(
                    inputs,
                    Look(
                        side if self.embedder.squares or crop < 1 or blur > 0 else None, crop, blur
                    ),
                )
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

    async def _decode(self, inputs: Sequence[str], look: Look) -> list[Any]:
        assert self._decoder is not None
        run = partial(asyncio.get_running_loop().run_in_executor, self._decoding)
        pictures, size = [], 0
        for text in inputs:
            pictures.append(await run(self._decoder.decode, decode_base64(text), look))
            size += pictures[-1].nbytes
            if size > _MAX_DECODED:
                raise InvalidInputError(
                    f"the pictures of a request may take {_MAX_DECODED:,} bytes when decoded. Send fewer."
                )
        return pictures

    def _work(self, prepared: list[Any]) -> list[Embedding | BaseException]:
        """The embeddings of a batch; if it fails, each input is retried alone."""
        embedder = self.embedder
        try:
            if isinstance(embedder, ModelProcess):
                mu, kappa = embedder.arrays(prepared)
            else:
                mu, kappa = embed_arrays(embedder, prepared)
        except Exception as error:
            # what killed a process could kill the next one too
            if len(prepared) == 1 or isinstance(error, WorkerError):
                return [error] * len(prepared)
            return [self._work([one])[0] for one in prepared]
        cosines = credible_cosines(kappa.astype(np.float64), SUMMARY_MASSES, embedder.dim).tolist()
        return [
            Embedding(VonMisesFisher(*map(torch.as_tensor, one), validate_args=False), cosine)
            for one, cosine in zip(zip(mu, kappa, strict=True), cosines, strict=True)
        ]


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
