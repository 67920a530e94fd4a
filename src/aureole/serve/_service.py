"""The service of one gallery: it describes, embeds, searches, matches and writes. Its public coroutines are routes."""

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import Body, Query, Response

import aureole
from aureole.caps import CredibleIndex, SearchOptions, class_entropy
from aureole.caps._caps import cap_kind
from aureole.caps._conformal import coverage_curve
from aureole.caps._hits import describe_cap, pick_hits
from aureole.distributions import VonMisesFisher
from aureole.embed._embedder import Embedder
from aureole.errors import InvalidInputError
from aureole.evaluation._rejection import SAMPLED, kappa_rejection
from aureole.explorer._neighbourhood_map import (
    MASSES,
    MAX_COUNT,
    SUMMARY_MASSES,
    azimuthal_map,
    class_counts,
    map_caps,
    map_reach,
    match_prior,
    spread_places,
)
from aureole.explorer._questions import Questions
from aureole.match import MatchCalibrator
from aureole.serve import _request_models as requests, _response_models as responses
from aureole.serve._batching import (
    BatchOptions,
    Embedding,
    Encoder,
    Engine,
    SearchOutcome,
    SearchPlan,
)
from aureole.serve._errors import LOG, ApiError, item_not_found
from aureole.serve._listing import IfNoneMatch, ItemId, Listing, known_tag
from aureole.serve._matching import Matching, match_entries
from aureole.serve._middleware import Metrics
from aureole.serve._pictures import Pictures
from aureole.serve._questions import QuestionAnswers
from aureole.serve._request_models import require_kappa_pos
from aureole.serve._response_models import ItemFormatter, add_explanations, cap_entries
from aureole.serve._workers import ModelProcess

_SUMMARY_NAMES = tuple(f"{mass:g}" for mass in SUMMARY_MASSES)
_PROBE_SECONDS = 5.0  # after which a worker counts as not answering
_CACHED = 1.0  # seconds for which readiness is reused: the route needs no key
_PROBE = SearchPlan(1.0, 1, SearchOptions(kind="credible"), count=False)
_EVERYTHING = SearchOptions(kind="credible")  # with mass 1


@dataclass(frozen=True)
class ServiceOptions:
    """How items are shown, and what clients may do.

    Parameters
    ----------
    label_column, text_column
        Payload columns with the label and the text of an item.
    pictures
        Folder of pictures named after the ids.
    writable
        Let clients store and delete items; the engine must be Lance or PostgreSQL.
    batches
        Sizes of batches and queues.
    """

    label_column: str | None = None
    text_column: str | None = None
    pictures: Any = None
    writable: bool = False
    batches: BatchOptions = field(default_factory=BatchOptions)


class Service:
    """A gallery with, optionally, the encoder that produced it, a calibrator of matches, and answers to questions.

    ``kappa_pos`` is read from the index, or else from the encoder. ``close`` ends the threads, and closes neither the
    index nor the encoder.

    Examples
    --------
    >>> from aureole.serve import Service, create_app
    >>> posterior = VonMisesFisher(torch.eye(3), torch.tensor([10.0, 20, 30]))
    >>> index = CredibleIndex.create("faiss://", posterior, ["a", "b", "c"])
    >>> service = Service(index)
    >>> app = create_app(service)  # any ASGI server can run it
    >>> service.close()
    """

    def __init__(
        self,
        index: CredibleIndex,
        embedder: Embedder | ModelProcess | None = None,
        *,
        options: ServiceOptions | None = None,
        calibrator: MatchCalibrator | None = None,
        questions: Questions | None = None,
    ) -> None:
        options = options or ServiceOptions()
        self._check(index, embedder, options)
        self.writable, self._engine_name = options.writable, index.engine
        self._pictures = None if options.pictures is None else Pictures(options.pictures)
        self._label_column, self._text_column = options.label_column, options.text_column
        self._format = ItemFormatter(self._pictures, options.label_column, options.text_column)
        self.dim, self.kappa_pos = index.schema.dim, index.origin.kappa_pos
        if self.kappa_pos is None and embedder is not None:
            self.kappa_pos = embedder.kappa_pos
        self._calibration, self._typical_kappa = index.conformal, index.schema.typical_kappa
        self.metrics = Metrics()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="aureole-pool")
        self.engine = Engine(index, options.batches, self.metrics)
        self.encoder = None
        try:
            if embedder is not None:
                self.encoder = Encoder(embedder, options.batches, self.metrics)
            self.listing = Listing(self.engine, self._pool, self._format)
            self.questions = QuestionAnswers(self.listing, questions)
            self._matching: Matching | None = None
            if calibrator is not None:
                self._matching = Matching(calibrator, index, self.engine, self._pool)
        except BaseException:
            self.close()
            raise
        self.metrics.rows.set_function(lambda: len(self.listing.table))
        self._rejection: responses.RejectionAnswer | None = None
        self._ready: tuple[float, dict[str, str | None]] = (-math.inf, {})
        self._probing = asyncio.Lock()

    def _check(self, index: CredibleIndex, embedder: Any, options: ServiceOptions) -> None:
        """Raise unless the parts of the service fit together."""
        if options.writable and index.engine not in ("Lance", "PostgreSQL"):
            raise InvalidInputError(
                f"a gallery on {index.engine} cannot be changed over HTTP: every change writes all of it. Use Lance or "
                "PostgreSQL."
            )
        index.schema.check_columns(options.label_column, options.text_column)
        if embedder is None:
            return
        index.origin.check_same(embedder.weights, "the encoder", encoder=embedder.fingerprint)
        if embedder.dim != index.schema.dim:
            raise InvalidInputError(
                f"the gallery has dimension {index.schema.dim}, but the encoder has dimension {embedder.dim}."
            )

    def close(self) -> None:
        """End all threads and the decoder of pictures."""
        self.engine.queue.close()
        if self.encoder is not None:
            self.encoder.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def warm_up(self) -> None:
        """Fill the caches before the first client connects: answer a page, a search and an embedding."""
        page = await self.listing.items(limit=1)
        for item in page.items:
            await self.search(requests.SearchRequest(query=requests.ById(id=item.id), limit=1))
        if self.encoder is not None:
            await self.encoder.probe()

    async def about(self) -> responses.AboutAnswer:
        """The gallery's size, columns and quantiles of kappa, and the encoder's modality."""
        table = self.listing.table
        quantiles = table.quantiles()
        return responses.AboutAnswer(
            rows=len(table),
            dim=self.dim,
            engine=self._engine_name,
            modality=None if self.encoder is None else self.encoder.embedder.modality,
            kappa_pos=self.kappa_pos,
            columns=self.listing.columns,
            label_column=self._label_column,
            text_column=self._text_column,
            pictures=self._pictures is not None,
            kappa=responses.Kappas(
                quantiles=quantiles, median=quantiles[50][1] if quantiles else None
            ),
            classes=[responses.Class(label=label, count=n) for label, n in table.classes],
            conformal=self._calibration is not None,
            calibrator=None if self._matching is None else self._matching.about(),
            prior=match_prior(table.labels(), len(table)),
            version=aureole.__version__,
        )

    async def embed(
        self, request: Annotated[requests.EmbedRequest, Body()]
    ) -> responses.EmbedAnswer:
        """The posteriors of texts, pictures or vectors."""
        kind, inputs, view = requests.inputs_of(request)
        found = []
        for embedding in await self._encode(kind, inputs, view):
            kappa = float(embedding.posterior.kappa)
            answer = responses.PosteriorAnswer(
                mu=embedding.posterior.mu.tolist(),
                kappa=kappa,
                kappa_rank=self.listing.table.rank(kappa),
                credible_cosine=dict(zip(_SUMMARY_NAMES, embedding.cosines, strict=True)),
            )
            found.append(answer)
        return responses.EmbedAnswer(posteriors=found)

    async def search(self, request: requests.SearchRequest) -> responses.SearchAnswer:
        """The items inside a query's cap, with their scores."""
        plan = requests.search_plan(
            request,
            calibrated=self._calibration is not None,
            kappa_pos=self.kappa_pos,
            label=self._label_column,
            columns=tuple(self.listing.columns),
        )
        query, outcome = await self._search(plan, request.query)
        hits = outcome.hits
        labels = None if plan.label is None else hits.payload.get(plan.label)
        entries = self._format.hits(hits)
        if request.explain and entries:
            loop = asyncio.get_running_loop()
            work = partial(add_explanations, entries, hits, outcome.posterior)
            await loop.run_in_executor(self._pool, work)
        cap = describe_cap(
            plan.mass,
            cap_kind(plan.options.kind, self.kappa_pos),
            kappa_pos=self.kappa_pos,
            typical_kappa=self._typical_kappa,
            conformal=self._calibration if plan.options.guarantee else None,
        )
        return responses.SearchAnswer(
            query=query,
            cap=responses.CapAnswer(**cap),
            threshold=hits.threshold.item(),
            count=outcome.count,
            count_exact=outcome.exact,
            truncated=outcome.truncated,
            abstain=hits.asks_back,
            class_entropy=class_entropy(labels, hits.log_positivity) if labels else None,
            classes=None if labels is None else [
                responses.Class(**one) for one in class_counts(outcome.labels or labels)
            ],
            hits=entries,
        )  # fmt: skip

    async def match(self, request: requests.MatchRequest) -> responses.MatchAnswer:
        """The items that match a query, with their probabilities; needs a calibrator."""
        if self._matching is None:
            message = (
                "this service was started without --calibrator, which match probabilities need."
            )
            raise ApiError("invalid_input", message)
        about, posterior, item = await self._posterior(request.query)
        if posterior is None:
            posterior = await self.engine.posterior_of(item or "", "query.id")
        found = await self._matching.find(request, posterior, item)
        return responses.MatchAnswer(
            query=self._query(about, posterior),
            threshold=found.threshold,
            p_value=found.p_value,
            abstained=found.abstained,
            reason=found.reason,
            note=found.note,
            count=len(found),
            matches=match_entries(found, self._format),
        )

    async def map(self, request: requests.MapRequest) -> responses.MapAnswer:
        """The items around a query, on a map on which the cap is a circle."""
        predictive = cap_kind(request.kind, self.kappa_pos) == "predictive"
        law = {"kappa_pos": require_kappa_pos(self.kappa_pos)} if predictive else {}
        columns = tuple(self.listing.columns)
        plan = SearchPlan(1.0, MAX_COUNT, _EVERYTHING, count=False, columns=columns)
        query, outcome = await self._search(plan, request.query)
        hits, own = outcome.hits, outcome.posterior
        work = partial(map_caps, kappa_other=self._typical_kappa, **law)
        kappa = own.kappa.reshape(1).double().numpy()
        loop, masses = asyncio.get_running_loop(), (request.mass, *MASSES)
        cosines = await loop.run_in_executor(self._pool, work, kappa, masses, self.dim)
        threshold, *caps = cosines[0].tolist()
        angle = math.acos(max(-1.0, min(threshold, *caps)))
        places = spread_places(hits.cosine.numpy(), angle, request.limit).tolist()
        points: list[responses.Point] = []
        if places:
            names = [hits.ids[place] for place in places]
            stored, _ = await self.engine.call(lambda index: index.fetch(names))
            xyz = azimuthal_map(own.mu.numpy(), stored.mu.numpy(), request.dims).tolist()
            for hit, point in zip(self._format.hits(pick_hits(hits, places)), xyz, strict=True):
                fields = dict(hit) | dict(zip("xyz", point, strict=False))
                points.append(responses.Point(**fields, inside=hit.cosine >= threshold))
        return responses.MapAnswer(
            points=points,
            cap=responses.Circle(radius=math.acos(max(-1.0, min(1.0, threshold)))),
            caps=cap_entries(caps),
            reach=map_reach(hits.cosine.numpy(), math.acos(max(-1.0, min(1.0, caps[-1])))),
            query=query,
        )

    async def upsert(self, request: requests.UpsertRequest) -> responses.UpsertAnswer:
        """Store items, and replace those whose id exists: all or none."""
        posteriors = await self._posteriors(request)
        replaced = await self.engine.call(
            lambda index: index.upsert(posteriors, request.ids, request.payload)
        )
        return responses.UpsertAnswer(stored=len(request.ids), replaced=replaced)

    async def delete(self, id: ItemId) -> responses.DeleteAnswer:
        """Delete an item."""
        if not await self.engine.call(lambda index: index.delete([id])):
            raise item_not_found(id)
        return responses.DeleteAnswer(deleted=1)

    async def calibration(self) -> responses.CalibrationAnswer:
        """The share of held-out partners in caps of each mass, before and after the conformal calibration."""
        return responses.CalibrationAnswer.model_validate(coverage_curve(self._calibration))

    async def rejection(self) -> responses.RejectionAnswer:
        """How often the nearest other item has the same label, as the least certain items are rejected."""
        column, table = self._label_column, self.listing.table
        if column is None or len(table) < 2:
            return responses.RejectionAnswer(available=False, curve=[])
        if self._rejection is None:
            names = table.sample(SAMPLED)
            fetch = partial(CredibleIndex.fetch, ids=names, columns=[column])
            posterior, payload = await self.engine.call(fetch)
            work = partial(kappa_rejection, posterior, payload[column])
            curve = await asyncio.get_running_loop().run_in_executor(self._pool, work)
            self._rejection = responses.RejectionAnswer.model_validate(
                {"available": True, "curve": curve}
            )
        return self._rejection

    async def picture(
        self,
        id: ItemId,
        side: Annotated[
            int, Query(ge=64, le=1024, description="Maximum width and height in pixels.")
        ] = 256,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """A thumbnail of an item's picture."""
        pictures, loop = self._pictures, asyncio.get_running_loop()
        place = None
        if pictures is not None:
            place = await loop.run_in_executor(self._pool, pictures.find, id, side)
        if pictures is None or place is None:
            raise ApiError("not_found", f"item {id[:60]!r} has no picture.")
        path, tag = place
        headers = {"ETag": f'"{tag}"', "Cache-Control": "private, max-age=86400"}
        if known_tag(if_none_match) == tag:
            return Response(status_code=304, headers=headers)
        try:
            jpeg = await loop.run_in_executor(self._pool, pictures.thumbnail, path, tag, side)
        except InvalidInputError as error:
            LOG.warning("%s", error)
            message = f"the picture of {id[:60]!r} cannot be read; see the service's log."
            raise ApiError("not_found", message) from error
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    async def health(self) -> responses.HealthAnswer:
        """Whether the process answers; needs no key."""
        return responses.HealthAnswer(status="ok")

    async def ready(self) -> responses.ReadyAnswer:
        """Whether the engine answers a search and the encoder embeds an input; needs no key."""
        async with self._probing:
            if time.monotonic() - self._ready[0] > _CACHED:
                states: dict[str, str | None] = {"engine": await _state(self._probe_engine())}
                probe = None if self.encoder is None else await _state(self.encoder.probe())
                self._ready = (time.monotonic(), {**states, "encoder": probe})
        states = self._ready[1]
        failed = [
            f"the {name} {state}" for name, state in states.items() if state not in ("ok", None)
        ]
        if failed:
            raise ApiError("unavailable", f"not ready: {', '.join(failed)}.", retry_after=1)
        return responses.ReadyAnswer.model_validate({"status": "ready", **states})

    async def _probe_engine(self) -> None:
        axis = torch.from_numpy(np.eye(1, self.dim, dtype=np.float32)[0])
        await self.engine.search(_PROBE, VonMisesFisher(axis, torch.tensor(1.0)))

    def _query(self, about: str, posterior: VonMisesFisher) -> responses.QueryAnswer:
        kappa = float(posterior.kappa)
        rank = self.listing.table.rank(kappa)
        return responses.QueryAnswer(kappa=kappa, kappa_rank=rank, about=about)

    async def _encode(
        self, kind: str, inputs: list[Any], view: requests.View | None
    ) -> list[Embedding]:
        if self.encoder is None:
            message = "this service was started without --encoder: query by id, or by mu and kappa."
            raise ApiError("invalid_input", message, field=kind)
        view = view or requests.View()
        return await self.encoder.embed(kind, inputs, crop=view.crop, blur=view.blur)

    async def _posteriors(self, request: requests.UpsertRequest) -> VonMisesFisher:
        """The posteriors of the items of a request."""
        items = request.items
        if isinstance(items, requests.Posteriors):
            found = [requests.posterior_of(each, self.dim) for each in items.posteriors]
        else:
            found = [each.posterior for each in await self._encode(*requests.inputs_of(items))]
        if len(found) != len(request.ids):
            message = f"{len(request.ids)} ids need as many items, but got {len(found)}."
            raise ApiError("invalid_input", message, field="ids")
        mu, kappa = (torch.stack([getattr(each, n) for each in found]) for n in ("mu", "kappa"))
        return VonMisesFisher(mu, kappa, validate_args=False)

    async def _search(
        self, plan: SearchPlan, query: Any
    ) -> tuple[responses.QueryAnswer, SearchOutcome]:
        """(The query as it was understood, the outcome of its search)."""
        about, posterior, item = await self._posterior(query)
        outcome = await self.engine.search(plan, posterior, item)
        return self._query(about, outcome.posterior), outcome

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


async def _state(probe: Any) -> str:
    """The state of a worker after a probe."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await probe
    except TimeoutError:
        return f"did not answer within {_PROBE_SECONDS:g} s"
    except ApiError:
        return "failed"
    return "ok"
