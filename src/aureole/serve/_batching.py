"""Batching: concurrent requests share calls of the index (``Engine``) and of the model (``Encoder``)."""

import asyncio
import base64
import binascii
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from aureole.data import count_pixels, read_square
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.explorer import MAX_COUNT, SUMMARY_MASSES
from aureole.retrieval import (
    CredibleIndex,
    Hits,
    SearchOptions,
    credible_cosines,
    pick_hits,
    without_item,
)
from aureole.scale import Embedder
from aureole.serve._errors import ApiError, map_failures
from aureole.serve._model_process import ModelProcessError, SubprocessEmbedder, tiny_input
from aureole.synthetic import blur_pictures, deteriorate

BLUR_UNITS = (
    32  # a blur of 1 is this fraction of the side, so that it means the same for all encoders
)
_RESTART_WAIT = 5.0  # seconds that requests wait for a model process that is being restarted
_MAX_PIXELS = 2**25  # of one picture: 134 MB in memory
_MAX_TOTAL_PIXELS = 2**27  # of all pictures of a request
_SIDE = 224  # pixels of a degraded picture, where the encoder's resolution is unknown
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class BatchOptions:
    """The maximum size of a batch, and the size of the queue, beyond which items are rejected with a 503."""

    max_batch: int = 32
    queue_size: int = 1024


class Batcher(Generic[_T, _R]):
    """A queue whose items are processed in batches, in order of arrival, by one thread or several.

    ``on_batch``, if set, is called with the size of each batch and the seconds it took.

    Parameters
    ----------
    work
        Maps a list of items to a list of results of the same length, in which an exception is the result of an item
        that failed. If ``work`` raises, the whole batch gets that exception.
    wait
        Items that arrive during a call form the next batch. After a pause, the first item waits this many seconds for
        others (default 0.002).
    """

    def __init__(
        self,
        work: Callable[[list[_T]], Sequence[_R | BaseException]],
        *,
        name: str,
        options: BatchOptions,
        wait: float = 0.002,
        threads: int = 1,
    ) -> None:
        self._work, self._name, self._options, self._wait = work, name, options, wait
        self.on_batch: Callable[[int, float], None] | None = None
        self._queue: deque[tuple[_T, asyncio.Future[_R], asyncio.AbstractEventLoop]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._running: dict[int, float] = {}  # start of the current batch, by thread
        self._succeeded = -math.inf  # time of the last batch with a result
        self._threads = [
            threading.Thread(target=self._run, name=f"aureole-{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    def is_alive(self) -> bool:
        """Whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def seconds_busy(self) -> float:
        """Seconds since the start of the oldest batch in progress; 0 if all threads are idle."""
        started = list(self._running.values())
        return time.perf_counter() - min(started) if started else 0.0

    def seconds_since_success(self) -> float:
        """The time since a batch gave a result; infinite if none has."""
        return time.perf_counter() - self._succeeded

    async def submit(self, item: _T) -> _R:
        """The result of an item. If the caller is cancelled while the item is queued, the item is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_R] = loop.create_future()
        with self._changed:
            if self._closed:
                raise ApiError("unavailable", "the service is shutting down.", retry_after=5)
            if (waiting := len(self._queue)) >= self._options.queue_size:
                message = (
                    f"{waiting} requests are already waiting for the {self._name}. Try again later."
                )
                raise ApiError("unavailable", message, retry_after=1)
            self._queue.append((item, future, loop))
            self._changed.notify()
        return await future

    def close(self, timeout: float = 5.0) -> None:
        """Process the queued items, then stop the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            if not batch:
                continue
            start = self._running[threading.get_ident()] = time.perf_counter()
            try:
                results: Sequence[Any] = self._work([item for item, _, _ in batch])
                if len(results) != len(batch):
                    raise RuntimeError(f"{len(batch)} items gave {len(results)} results")
            except BaseException as error:
                results = [error] * len(batch)
            del self._running[threading.get_ident()]
            if not all(isinstance(result, BaseException) for result in results):
                self._succeeded = time.perf_counter()
            if self.on_batch is not None:
                self.on_batch(len(batch), time.perf_counter() - start)
            _deliver(batch, results)

    def _take(self) -> list[Any] | None:
        """The next batch, without cancelled items; None once closed and empty."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()
                if self._queue and self._wait and not self._closed:
                    deadline = time.monotonic() + self._wait
                    while len(self._queue) < self._options.max_batch:
                        left = deadline - time.monotonic()
                        if left <= 0 or self._closed:
                            break
                        self._changed.wait(left)
            count = min(self._options.max_batch, len(self._queue))
            batch = [self._queue.popleft() for _ in range(count)]
        return [entry for entry in batch if not entry[1].cancelled()]


def _deliver(batch: list[Any], results: Sequence[Any]) -> None:
    """Set the futures' results, with one call per event loop."""
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

    ``labels`` are those of all counted items; None if the hits are all.
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

    def __init__(self, index: CredibleIndex, options: BatchOptions) -> None:
        self.index = index
        self.queue: Batcher[Any, Any] = Batcher(self._work, name="engine", options=options)

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

    def _work(self, jobs: list[Any]) -> Sequence[Any]:
        results: list[Any] = [None] * len(jobs)
        groups: dict[str, list[int]] = {}
        for place, job in enumerate(jobs):
            if isinstance(job, _Search):
                groups.setdefault(repr(job.plan), []).append(place)
            else:
                try:
                    results[place] = job(self.index)
                except Exception as error:
                    results[place] = error
        for places in groups.values():
            outcomes = self._group([jobs[place] for place in places], jobs[places[0]].plan)
            for place, outcome in zip(places, outcomes, strict=True):
                results[place] = outcome
        return results

    def _group(self, jobs: list[_Search], plan: SearchPlan) -> list[Any]:
        """The outcomes of searches with the same plan; if the batch fails, each is retried alone."""
        try:
            return self._search(jobs, self._posteriors(jobs), plan)
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [self._group([job], plan)[0] for job in jobs]

    def _posteriors(self, jobs: list[_Search]) -> list[Any]:
        """The posterior of each query."""
        names = list(dict.fromkeys(job.item for job in jobs if job.item is not None))
        stored: dict[str, VonMisesFisher] = {}
        if names:
            try:
                posterior, _ = self.index.fetch(names)
            except InvalidInputError as error:  # a batch is retried one by one
                raise item_not_found(names[0], "query.id") from error
            for name, mu, kappa in zip(names, posterior.mu, posterior.kappa, strict=True):
                stored[name] = VonMisesFisher(mu, kappa, validate_args=False)
        return [job.posterior if job.item is None else stored[job.item] for job in jobs]

    def _search(
        self, jobs: list[_Search], posteriors: list[VonMisesFisher], plan: SearchPlan
    ) -> list[SearchOutcome]:
        posterior = VonMisesFisher(
            torch.stack([own.mu.float() for own in posteriors]),
            torch.stack([own.kappa.float() for own in posteriors]),
            validate_args=False,
        )
        by_positivity = plan.options.rank == "positivity"
        limit = MAX_COUNT if by_positivity else plan.limit
        results = self.index.search(
            posterior,
            plan.mass,
            limit=limit + 2,  # the query's own item, and one that shows whether there are more
            filter=plan.filter,
            columns=plan.columns,
            exact=plan.exact,
            options=replace(plan.options, rank="cosine"),
        )
        assert isinstance(results, list)
        outcomes = []
        for job, own, hits in zip(jobs, posteriors, results, strict=True):
            hits = without_item(hits, job.item)
            if by_positivity and hits.log_positivity is not None:
                order = np.argsort(-hits.log_positivity.numpy(), kind="stable")
                hits = pick_hits(hits, order.tolist())
            truncated = len(hits) > plan.limit
            shown = pick_hits(hits, list(range(plan.limit))) if truncated else hits
            labels = None
            if by_positivity and plan.label is not None:
                labels = hits.payload[plan.label][:MAX_COUNT]
            outcome = SearchOutcome(own, shown, len(hits), True, truncated, labels)
            outcomes.append(self._counted(job, outcome) if truncated else outcome)
        return outcomes

    def _counted(self, job: _Search, outcome: SearchOutcome) -> SearchOutcome:
        """A truncated outcome with the number of items in the cap and their labels."""
        plan, count = job.plan, outcome.count
        options = plan.options
        if plan.count and options.rank == "cosine":
            # without scores, which a count does not need
            kappa_pos = options.kappa_pos if options.kind == "predictive" else None
            members = self.index.search(
                outcome.posterior,
                plan.mass,
                limit=MAX_COUNT + 2,
                filter=plan.filter,
                columns=[] if plan.label is None else [plan.label],
                exact=plan.exact,
                options=replace(options, prior=None, kappa_pos=kappa_pos),
            )
            assert isinstance(members, Hits)
            members = without_item(members, job.item)
            count = len(members)
            if plan.label is not None:
                outcome = replace(outcome, labels=members.payload[plan.label][:MAX_COUNT])
        counted = plan.count or options.rank == "positivity"
        exact = counted and count <= MAX_COUNT
        return replace(outcome, count=min(count, MAX_COUNT), exact=exact)


def item_not_found(name: str, field: str | None = None) -> ApiError:
    """The response to a request for an unknown item."""
    return ApiError("not_found", f"item {name[:60]!r} not found.", field=field)


@dataclass(frozen=True)
class Embedding:
    """A posterior of batch shape (), and the smallest cosines of its credible caps of ``SUMMARY_MASSES``."""

    posterior: VonMisesFisher
    cosines: list[float]


class Encoder:
    """A model behind a queue. Pictures are decoded in a separate thread."""

    def __init__(self, embedder: Embedder, options: BatchOptions) -> None:
        self.embedder = embedder
        credible_cosines(np.ones(1), SUMMARY_MASSES, embedder.dim)  # fills the cache
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="aureole-decoder")
        # with two threads one batch is sent to the model process while it computes another
        threads = 2 if isinstance(embedder, SubprocessEmbedder) else 1
        self.queue: Batcher[Any, Embedding] = Batcher(
            self._work, name="encoder", options=options, threads=threads
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
                decode = partial(asyncio.get_running_loop().run_in_executor, self._decoder)
                files = await decode(read_pictures, inputs)
                prepared = [await decode(self._decode, file, crop, blur) for file in files]
            else:
                prepared = [self.embedder.prepare(one) for one in inputs]
            if len(prepared) == 1:
                return [await self.queue.submit(prepared[0])]
            return list(await asyncio.gather(*(self.queue.submit(one) for one in prepared)))

    async def probe(self) -> None:
        """Embed a tiny input; raises if the model fails."""
        with map_failures("encoder"):
            prepared = self.embedder.prepare(tiny_input(self.embedder))
            await self.queue.submit(prepared)

    def close(self) -> None:
        """Process the queued inputs, then stop."""
        self.queue.close()
        self._decoder.shutdown(wait=False, cancel_futures=True)

    def _decode(self, data: bytes, crop: float, blur: float) -> Any:
        embedder = self.embedder
        if embedder.squares:
            return degrade(embedder.prepare(data), crop, blur)
        if crop >= 1 and blur <= 0:
            return embedder.prepare(data)
        side = embedder.resolution or _SIDE
        square = degrade(read_square(data, side), crop, blur * side / BLUR_UNITS)
        pixels = square.permute(1, 2, 0).contiguous().numpy()
        return embedder.prepare(pixels)

    def _work(self, prepared: list[Any]) -> list[Embedding | BaseException]:
        """The embeddings of a batch; if it fails, each input is retried alone."""
        embedder = self.embedder
        if isinstance(embedder, SubprocessEmbedder) and not embedder.ensure_running(_RESTART_WAIT):
            error = ModelProcessError("the model process is being restarted.")
            return [error] * len(prepared)
        try:
            if isinstance(embedder, SubprocessEmbedder):
                posterior, cosines = embedder.embed_with_cosines(prepared)
            else:
                posterior = self.embedder.embed(prepared)
                kappa = posterior.kappa.double().numpy()
                cosines = credible_cosines(kappa, SUMMARY_MASSES, self.embedder.dim).tolist()
        except ModelProcessError as error:  # retrying could kill the next process too
            if isinstance(embedder, SubprocessEmbedder):
                embedder.ensure_running(0)  # starts at once, not with the next request
            return [error] * len(prepared)
        except Exception as error:
            if len(prepared) == 1:
                return [error]
            return [self._work([one])[0] for one in prepared]
        parts = zip(posterior.mu.unbind(0), posterior.kappa.unbind(0), cosines, strict=True)
        return [
            Embedding(VonMisesFisher(mu, kappa, validate_args=False), cosine)
            for mu, kappa, cosine in parts
        ]


def read_pictures(texts: Sequence[str]) -> list[bytes]:
    """The picture files of a request; raises if they have too many pixels, before any is decompressed."""
    files = [decode_picture(text) for text in texts]
    pixels = [count_pixels(file) for file in files]
    if max(pixels) > _MAX_PIXELS:
        raise InvalidInputError(
            f"the picture has {max(pixels):,} pixels, but at most {_MAX_PIXELS:,} are accepted. Scale it down."
        )
    if sum(pixels) > _MAX_TOTAL_PIXELS:
        raise InvalidInputError(
            f"the pictures of a request may have {_MAX_TOTAL_PIXELS:,} pixels in total, not {sum(pixels):,}."
        )
    return files


def decode_picture(text: str) -> bytes:
    r"""The bytes of a base64 string or of a data URL (``data:image/png;base64,...``).

    Examples
    --------
    >>> decode_picture("data:image/png;base64,iVBORw==")
    b'\x89PNG'
    """
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"the picture is not valid base64: {error}.") from error


def degrade(picture: Tensor, crop: float, blur: float) -> Tensor:
    """A picture uint8 [3, h, w], centre-cropped to a fraction of its side and resized back, then blurred."""
    if crop < 1:
        picture = deteriorate(picture[None], torch.tensor([crop]))[0]
    if blur > 0:
        picture = blur_pictures(picture[None], torch.tensor([blur]))[0]
    return picture
