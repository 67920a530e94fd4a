"""The service behind the routes, without HTTP: it answers requests with a gallery, an encoder and pictures."""

import asyncio
import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

import aureole
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation._rejection import SAMPLED, kappa_rejection
from aureole.explorer import (
    MASSES,
    MAX_COUNT,
    SUMMARY_MASSES,
    Questions,
    azimuthal_map,
    class_counts,
    map_caps,
    map_reach,
    match_prior,
    spread_places,
)
from aureole.retrieval import (
    CredibleIndex,
    MatchCalibrator,
    SearchOptions,
    cap_kind,
    class_entropy,
    coverage_curve,
    describe_cap,
    pick_hits,
)
from aureole.scale import Embedder
from aureole.serve import _request_models as requests
from aureole.serve._background import Background
from aureole.serve._batching import (
    BatchOptions,
    Embedding,
    Encoder,
    Engine,
    SearchOutcome,
    SearchPlan,
    item_not_found,
)
from aureole.serve._errors import LOG, ApiError
from aureole.serve._listing import Listing, read_table
from aureole.serve._matching import Matching, match_entries
from aureole.serve._middleware import Metrics
from aureole.serve._pictures import Pictures
from aureole.serve._question_answers import INSPECTED, QuestionAnswers
from aureole.serve._readiness import Readiness
from aureole.serve._request_models import require_kappa_pos
from aureole.serve._response_models import (
    ItemFormatter,
    add_explanations,
    cap_entries,
)
from aureole.serve._tracing import span

_SUMMARY_NAMES = tuple(f"{mass:g}" for mass in SUMMARY_MASSES)


class Service:
    """A gallery with, optionally, the encoder that produced it, pictures of its items and a calibrator of matches.

    ``kappa_pos`` is read from the index, or else from the encoder. ``close`` stops the threads, but does not close the
    index.
    """

    def __init__(
        self,
        index: CredibleIndex,
        embedder: Embedder | None = None,
        *,
        calibrator: MatchCalibrator | None = None,
        pictures: Pictures | None = None,
        label_column: str | None = None,
        text_column: str | None = None,
        writable: bool = False,
        batches: BatchOptions | None = None,
        questions: Questions | None = None,
    ) -> None:
        if writable and index.engine not in ("Lance", "PostgreSQL"):
            raise InvalidInputError(
                f"a gallery on {index.engine} cannot be changed over HTTP: every change writes all of it. Use Lance or "
                "PostgreSQL."
            )
        self.writable, self._engine_name = writable, index.engine
        schema, origin = index.schema, index.origin
        schema.check_columns(label_column, text_column)
        if embedder is not None:
            origin.check_same(embedder.weights, "the encoder", encoder=embedder.fingerprint)
            if embedder.dim != schema.dim:
                raise InvalidInputError(
                    f"the gallery has dimension {schema.dim}, but the encoder has dimension {embedder.dim}."
                )
        self.pictures = pictures
        self.label_column, self.text_column = label_column, text_column
        self._format = ItemFormatter(pictures, label_column, text_column)
        self.kappa_pos = origin.kappa_pos
        if self.kappa_pos is None and embedder is not None:
            self.kappa_pos = embedder.kappa_pos
        self.dim = schema.dim
        table = read_table(index, self._format)
        self._calibration = index.conformal
        self._typical_kappa = schema.typical_kappa
        self._rejection: list[dict[str, float]] | None = None
        batches = batches or BatchOptions()
        self.engine = Engine(index, batches)
        self.encoder = None if embedder is None else Encoder(embedder, batches)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="aureole-pool")
        self.listing = Listing(index, table, self.engine, self._pool, self._format)
        self.share_metrics(Metrics())
        self.readiness = Readiness(self.engine, self.encoder, self.dim)
        self._background = Background()
        self.answers = QuestionAnswers(self._background, questions)
        self._add_answers(stamp=True)
        self._matching: Matching | None = None
        if calibrator is not None:
            try:
                self._matching = Matching(calibrator, index, self.engine, self._pool)
            except BaseException:
                self.close()  # the threads
                raise
        self._about = self._describe()

    def close(self) -> None:
        """Process the queued requests, then stop all threads."""
        self._background.closing.set()
        self.engine.queue.close()
        if self.encoder is not None:
            self.encoder.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._background.close()

    @contextmanager
    def use(self) -> Iterator["Service"]:
        """The service itself."""
        yield self

    def share_metrics(self, metrics: Metrics) -> None:
        """Count in these metrics from now on."""
        self.metrics = metrics
        metrics.set_rows(self.rows)
        metrics.watch("engine", self.engine.queue)
        if self.encoder is not None:
            metrics.watch("encoder", self.encoder.queue)

    @property
    def rows(self) -> int:
        """The number of items."""
        return len(self.listing.table)

    @property
    def map_reason(self) -> str | None:
        """Why the gallery has no map, or which rows are not on it; None if all are."""
        return self.listing.table.map["reason"]

    def about(self) -> dict[str, Any]:
        """A description of the gallery and the encoder."""
        return self._about

    async def embed(self, request: Any) -> dict[str, Any]:
        """The posteriors of inputs, with their credible cosines."""
        kind, inputs, view = requests.inputs_of(request)
        entries = []
        for embedding in await self._encode(kind, inputs, view):
            kappa = float(embedding.posterior.kappa)
            entry = {"mu": embedding.posterior.mu.tolist(), "kappa": kappa}
            entry["kappa_rank"] = self.listing.table.rank(kappa)
            entry["credible_cosine"] = dict(zip(_SUMMARY_NAMES, embedding.cosines, strict=True))
            entries.append(entry)
        return {"posteriors": entries}

    async def search(self, request: requests.SearchRequest) -> dict[str, Any]:
        """The items inside a query's cap, with their scores and, on request, explanations."""
        plan = requests.search_plan(
            request,
            calibrated=self._calibration is not None,
            kappa_pos=self.kappa_pos,
            label=self.label_column,
            columns=tuple(self.listing.columns),
        )
        about, outcome = await self._search(plan, request.query)
        hits, labels = outcome.hits, None
        if self.label_column is not None:
            labels = hits.payload.get(self.label_column)
        entropy = class_entropy(labels, hits.log_positivity) if labels else None
        (threshold,) = hits.threshold.tolist()
        entries = self._format.hits(hits)
        if request.explain and entries:
            loop = asyncio.get_running_loop()
            posterior = outcome.posterior
            await loop.run_in_executor(self._pool, add_explanations, entries, hits, posterior)
        cap = describe_cap(
            plan.mass,
            cap_kind(plan.options.kind, self.kappa_pos),
            kappa_pos=self.kappa_pos,
            typical_kappa=self._typical_kappa,
            conformal=self._calibration if plan.options.guarantee else None,
        )
        return {
            "query": self._query(about, outcome.posterior),
            "cap": cap,
            "threshold": threshold,
            "count": outcome.count,
            "count_exact": outcome.exact,
            "truncated": outcome.truncated,
            "abstain": hits.asks_back,
            "class_entropy": entropy,
            "classes": None if labels is None else class_counts(outcome.labels or labels),
            "hits": entries,
        }

    async def upsert(self, request: requests.UpsertRequest) -> dict[str, Any]:
        """Store items, and replace those whose id exists: all or none."""
        posteriors = await self._posteriors(request)

        def work(index: CredibleIndex) -> int:
            try:
                return index.upsert(posteriors, request.ids, request.payload)
            except InvalidInputError as error:
                raise ApiError("invalid_input", str(error)) from error

        replaced = await self.engine.call(work)
        return {"stored": len(request.ids), "replaced": replaced}

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete an item."""

        def work(index: CredibleIndex) -> int:
            try:
                return index.delete([name])
            except InvalidInputError as error:
                raise ApiError("invalid_input", str(error)) from error

        if not await self.engine.call(work):
            raise item_not_found(name)
        return {"deleted": 1}

    async def match(self, request: requests.MatchRequest) -> dict[str, Any]:
        """The likely matches of a query, with their probabilities, or the reason for an empty result."""
        if self._matching is None:
            message = (
                "this service was started without --calibrator, which match probabilities need."
            )
            raise ApiError("invalid_input", message)
        about, posterior, item = await self._posterior(request.query)
        if posterior is None:
            posterior = await self._matching.posterior_of(item or "")
        with span("search"):
            found = await self._matching.find(request, posterior, item)
        return {
            "query": self._query(about, posterior),
            "threshold": found.threshold,
            "p_value": found.p_value,
            "abstained": found.abstained,
            "reason": found.reason,
            "note": found.note,
            "count": len(found),
            "matches": match_entries(found, self._format),
        }

    async def map(self, request: requests.MapRequest) -> dict[str, Any]:
        """Items around a query on an azimuthal map, with its cap as a circle."""
        predictive = cap_kind(request.kind, self.kappa_pos) == "predictive"
        kappa_pos = require_kappa_pos(self.kappa_pos) if predictive else None
        everything = SearchOptions(kind="credible")
        plan = SearchPlan(
            1.0, MAX_COUNT, everything, count=False, columns=tuple(self.listing.columns)
        )
        about, outcome = await self._search(plan, request.query)
        hits, own = outcome.hits, outcome.posterior
        law = {} if kappa_pos is None else {"kappa_pos": kappa_pos}
        work = partial(map_caps, kappa_other=self._typical_kappa, **law)
        kappa = own.kappa.reshape(1).double().numpy()
        # slow, so in a separate thread
        loop, masses = asyncio.get_running_loop(), (request.mass, *MASSES)
        cosines = await loop.run_in_executor(self._pool, work, kappa, masses, self.dim)
        threshold, *caps = cosines[0].tolist()
        reach = map_reach(hits.cosine.numpy(), math.acos(max(-1.0, min(1.0, caps[-1]))))
        largest_angle = math.acos(max(-1.0, min(threshold, *caps)))
        places = spread_places(hits.cosine.numpy(), largest_angle, request.limit).tolist()
        points: list[dict[str, Any]] = []
        if places:
            names = [hits.ids[place] for place in places]
            stored, _ = await self.engine.call(lambda index: index.fetch(names))
            coordinates = azimuthal_map(own.mu.numpy(), stored.mu.numpy(), request.dims).tolist()
            entries = self._format.hits(pick_hits(hits, places))
            for entry, point in zip(entries, coordinates, strict=True):
                for key in ("payload", "positivity", "positive"):
                    del entry[key]
                entry |= zip("xyz", point, strict=False)
                points.append({**entry, "inside": entry["cosine"] >= threshold})
        return {
            "points": points,
            "cap": {"radius": math.acos(max(-1.0, min(1.0, threshold)))},
            "caps": cap_entries(caps),
            "reach": reach,
            "query": self._query(about, own),
        }

    def warm_up(self) -> None:
        """Run the first page, a search and an embedding, so that caches are filled before the first client connects."""

        async def work() -> None:
            page = await self.listing.page("ambiguous", 0, 60)
            for item in page["items"][:1]:
                query = requests.ById(id=item["id"])
                await self.search(requests.SearchRequest(query=query, limit=1))
            if self.encoder is not None and self.encoder.embedder.modality == "text":
                await self.encoder.embed("text", ["a"])

        asyncio.run(work())

    def calibration(self) -> dict[str, Any]:
        """The coverage curve of the conformal calibration, if the gallery has one."""
        return coverage_curve(self._calibration)

    def rejection(self) -> dict[str, Any]:
        """The rejection curve, once it has been computed."""
        return {"available": self._rejection is not None, "curve": self._rejection or []}

    def compute_rejection(self) -> None:
        """Start a thread that computes the rejection curve of a sample."""
        column = self.label_column
        if column is None or self.rows < 2:
            return
        names = self.listing.table.sample(SAMPLED)

        def run() -> None:
            try:
                fetched = self.engine.call(lambda index: index.fetch(names, columns=[column]))
                posterior, payload = asyncio.run(fetched)
                self._rejection = kappa_rejection(posterior, payload[column])
            except Exception as error:
                LOG.error("computing the rejection curve failed", exc_info=error)

        self._background.start("rejection", run)

    def questions(self) -> dict[str, Any]:
        """Which questions about the gallery have answers."""
        return self.answers.describe(self._rows_version())

    async def answer_question(
        self, name: str, offset: int, limit: int, classes: tuple[int, int] | None
    ) -> dict[str, Any]:
        """The items that a question found."""
        return await self.answers.answer(name, offset, limit, classes, self.listing.items)

    async def question_rows(self, name: str, classes: tuple[int, int] | None) -> dict[str, Any]:
        """The row numbers of all items that a question found."""
        return await self.listing.numbers_of(self.answers.ids(name, classes))

    def inspect(self, where: str) -> None:
        """Start a thread that answers questions about the gallery at an address, if it is small and has no answers."""
        if self.answers.questions is None and self.rows <= INSPECTED:
            self.answers.inspect(where, self.label_column, self._add_answers)

    def follow(self, where: str, seconds: float) -> None:
        """Start a thread that lists changed rows of the gallery at an address; searches find them at once anyway."""

        def run() -> None:
            while not self._background.closing.wait(seconds):
                try:
                    self.refresh(where)
                except Exception as error:
                    LOG.warning("looking for changed rows failed", exc_info=error)

        self._background.start("follow", run)

    def refresh(self, where: str) -> None:
        """List the rows of the gallery at an address again if they have changed."""
        if self.listing.refresh(where):
            self._add_answers(stamp=True)
            self._about = self._describe()
            self.metrics.set_rows(self.rows)

    def _rows_version(self) -> str:
        """The version of the rows; a new map leaves it as it is."""
        return self.listing.version.rpartition(" ")[0]

    def _add_answers(self, *, stamp: bool = False) -> None:
        """Add the columns of suspicious labels and of outliers to the table, unless its rows have changed since.

        With a stamp, the table gets a new version: answers from a file may differ from those of the last start.
        """
        found = self.answers.questions
        if found is None or found.version != self._rows_version():
            return
        columns = {f"questions.{name}": values for name, values in found.columns().items()}
        digest = hashlib.sha256(b"".join(np.asarray(v, "<f4").tobytes() for v in columns.values()))
        self.listing.table.add_numbers(columns, stamp=digest.hexdigest() if stamp else "")

    async def picture(self, name: str, side: int, known: str | None) -> tuple[str, bytes | None]:
        """(ETag, JPEG) of an item's thumbnail; the JPEG is None if ``known`` is its ETag."""
        pictures = self.pictures
        loop = asyncio.get_running_loop()
        location = None
        if pictures is not None:
            location = await loop.run_in_executor(self._pool, pictures.find, name, side)
        if pictures is None or location is None:
            raise ApiError("not_found", f"item {name[:60]!r} has no picture.")
        path, tag = location
        if known == tag:
            return tag, None
        try:
            jpeg = await loop.run_in_executor(self._pool, pictures.thumbnail, path, tag, side)
        except InvalidInputError as error:
            LOG.warning("%s", error)
            message = f"the picture of {name[:60]!r} cannot be read; see the service's log."
            raise ApiError("not_found", message) from error
        return tag, jpeg

    def _describe(self) -> dict[str, Any]:
        quantiles = self.listing.table.quantiles()
        return {
            "rows": self.rows,
            "dim": self.dim,
            "engine": self._engine_name,
            "modality": None if self.encoder is None else self.encoder.embedder.modality,
            "kappa_pos": self.kappa_pos,
            "columns": self.listing.columns,
            "label_column": self.label_column,
            "text_column": self.text_column,
            "pictures": self.pictures is not None,
            "kappa": {"quantiles": quantiles, "median": quantiles[50][1] if quantiles else None},
            "classes": [{"label": label, "count": n} for label, n in self.listing.table.classes],
            "conformal": self._calibration is not None,
            "calibrator": None if self._matching is None else self._matching.about(),
            "prior": match_prior(self.listing.table.labels(), self.rows),
            "version": aureole.__version__,
        }

    def _query(self, about: str, posterior: VonMisesFisher) -> dict[str, Any]:
        kappa = float(posterior.kappa)
        return {"kappa": kappa, "kappa_rank": self.listing.table.rank(kappa), "about": about}

    async def _encode(
        self, kind: str, inputs: list[Any], view: requests.View | None
    ) -> list[Embedding]:
        if self.encoder is None:
            message = "this service was started without --encoder: query by id, or by mu and kappa."
            raise ApiError("invalid_input", message, field=kind)
        view = view or requests.View()
        with span("encode", kind=kind, inputs=len(inputs)):
            return await self.encoder.embed(kind, inputs, crop=view.crop, blur=view.blur)

    async def _posteriors(self, request: requests.UpsertRequest) -> VonMisesFisher:
        """The posteriors of the items of a request."""
        items = request.items
        if isinstance(items, requests.Posteriors):
            found = [requests.posterior_of(each, self.dim) for each in items.posteriors]
        else:
            kind, inputs, view = requests.inputs_of(items)
            found = [each.posterior for each in await self._encode(kind, inputs, view)]
        if len(found) != len(request.ids):
            message = f"{len(request.ids)} ids need as many items, but got {len(found)}."
            raise ApiError("invalid_input", message, field="ids")
        mu, kappa = (torch.stack([getattr(each, n) for each in found]) for n in ("mu", "kappa"))
        return VonMisesFisher(mu, kappa, validate_args=False)

    async def _search(self, plan: SearchPlan, query: Any) -> tuple[str, SearchOutcome]:
        """(A description of a query of any type, the outcome of its search)."""
        about, posterior, item = await self._posterior(query)
        with span("search", limit=plan.limit):
            return about, await self.engine.search(plan, posterior, item)

    async def _posterior(self, query: Any) -> tuple[str, VonMisesFisher | None, str | None]:
        """(A description of a query of any type, its posterior or, for an item of the gallery, None and the id)."""
        if isinstance(query, requests.ById):
            return f"item {query.id[:60]!r}", None, query.id
        if isinstance(query, requests.ByPosterior):
            return "a posterior", requests.posterior_of(query, self.dim), None
        kind, inputs, view = requests.inputs_of(query)
        (embedding,) = await self._encode(kind, inputs, view)
        about = f"text {inputs[0][:60]!r}" if kind == "text" else f"a {kind}"
        return about, embedding.posterior, None
