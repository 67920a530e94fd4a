"""The service of one gallery: it describes, embeds, searches, matches and writes. Its public coroutines are routes."""

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

import aureole
from aureole.caps import CredibleIndex, SearchOptions, class_entropy, explain_hits
from aureole.caps._caps import cap_kind
from aureole.caps._conformal import coverage_curve
from aureole.caps._hits import Hits, pick_hits, times_more_likely
from aureole.distributions import VonMisesFisher
from aureole.embed._embedder import Embedder
from aureole.errors import InvalidInputError
from aureole.evaluation._rejection import SAMPLED, kappa_rejection
from aureole.explorer._neighbourhood_map import (
    MASSES,
    MAX_COUNT,
    azimuthal_map,
    class_counts,
    map_caps,
    map_reach,
    match_prior,
    spread_places,
)
from aureole.explorer._questions import Questions
from aureole.match import GalleryMatcher, MatchCalibrator, MatchOptions
from aureole.match._gallery import UnknownItemError
from aureole.serve import _models as models
from aureole.serve._batching import (
    BatchOptions,
    Encoder,
    Engine,
    SearchPlan,
    fetch_posteriors,
)
from aureole.serve._errors import ApiError, item_not_found, map_failures
from aureole.serve._listing import ItemId, Items, Listing, cap_entries
from aureole.serve._questions import QuestionAnswers
from aureole.serve._workers import ModelProcess

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
        self.writable, self._options, self._engine_name = options.writable, options, index.engine
        self._items = Items(options.pictures, options.label_column, options.text_column)
        self.dim, self.kappa_pos = index.schema.dim, index.origin.kappa_pos
        if self.kappa_pos is None and embedder is not None:
            self.kappa_pos = embedder.kappa_pos
        self._calibration, self._typical_kappa = index.conformal, index.schema.typical_kappa
        self.matcher = None if calibrator is None else GalleryMatcher(calibrator, index)
        if self.matcher is not None:
            for ids, _, _ in index.scan():
                self.matcher.rows_of(ids)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="aureole-pool")
        self.engine = Engine(index, options.batches)
        self.encoder = None
        try:
            if embedder is not None:
                self.encoder = Encoder(embedder, options.batches)
            self.listing = Listing(self.engine, self._pool, self._items)
            self.questions = QuestionAnswers(self.listing, questions)
        except BaseException:
            self.close()
            raise
        self._rejection: dict[str, Any] | None = None
        self._ready = -math.inf
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
        """Answer a search and embed an input."""
        axis = torch.from_numpy(np.eye(1, self.dim, dtype=np.float32)[0])
        await self.engine.search(_PROBE, VonMisesFisher(axis, torch.tensor(1.0)))
        if self.encoder is not None:
            await self.encoder.probe()

    async def about(self) -> dict[str, Any]:
        """The gallery's size, columns and quantiles of kappa, and the encoder's modality."""
        table = self.listing.table
        quantiles = table.quantiles()
        return {
            "rows": len(table),
            "dim": self.dim,
            "engine": self._engine_name,
            "modality": None if self.encoder is None else self.encoder.embedder.modality,
            "kappa_pos": self.kappa_pos,
            "label_column": self._items.label_column,
            "text_column": self._items.text_column,
            "pictures": self._options.pictures is not None,
            "kappa": {"quantiles": quantiles, "median": quantiles[50][1] if quantiles else None},
            "classes": [{"label": label, "count": n} for label, n in table.classes],
            "conformal": self._calibration is not None,
            "calibrator": None if self.matcher is None else self.matcher.about(),
            "prior": match_prior(table.labels(), len(table)),
            "version": aureole.__version__,
        }

    async def embed(self, request: models.EmbedRequest) -> models.EmbedAnswer:
        """The posteriors of texts, pictures or vectors."""
        found = []
        for posterior in await self._encode(request):
            about = self._query(posterior).model_dump()
            found.append(models.PosteriorAnswer(mu=posterior.mu.tolist(), **about))
        return models.EmbedAnswer(posteriors=found)

    async def search(self, request: models.SearchRequest) -> models.SearchAnswer:
        """The items inside a query's cap, with their scores."""
        plan = self._plan(request)
        own, members = await self._search(plan, request.query)
        count, limit, order = len(members), request.limit, range(len(members))
        if request.rank == "positivity" and members.log_positivity is not None:
            order = np.argsort(-members.log_positivity.numpy(), kind="stable").tolist()
        hits = pick_hits(members, list(order[:limit]))
        entries = self._hits(hits)
        if request.explain and entries:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, _add_explanations, entries, hits, own)
        entropy = classes = None
        if column := self._items.label_column:
            classes = class_counts(members.payload[column][:MAX_COUNT])
            entropy = class_entropy(hits.payload[column], hits.log_positivity) if entries else None
        return models.SearchAnswer(
            query=self._query(own),
            threshold=hits.threshold.item(),
            count=min(count, MAX_COUNT),
            count_exact=count <= limit or (plan.most >= MAX_COUNT and count <= MAX_COUNT),
            truncated=count > limit,
            class_entropy=entropy,
            classes=classes,  # pyright: ignore[reportArgumentType]
            hits=entries,
        )

    async def match(self, request: models.MatchRequest) -> models.MatchAnswer:
        """The items that match a query, with their probabilities; needs a calibrator."""
        matcher = self.matcher
        if matcher is None:
            message = (
                "this service was started without --calibrator, which match probabilities need."
            )
            raise ApiError("invalid_input", message)
        query, columns = await self._posterior(request.query), tuple(self.listing.columns)
        names = ("threshold", "precision", "recall", "limit", "abstain")
        with map_failures("calibrator"):
            options = MatchOptions(**{name: getattr(request, name) for name in names})

        def work(index: CredibleIndex) -> Any:
            if isinstance(query, str):
                fetch_posteriors(index, [query], "query.id")
            try:
                return matcher.match(
                    query, options, filter=_filter(request.filter), columns=columns
                )
            except UnknownItemError as error:  # added while the service ran
                raise ApiError("conflict", str(error)) from error

        found = await self.engine.call(work)
        rows = self._items.rows(found.hits.ids, found.hits.kappa, found.hits.payload)
        scores = zip(rows, found.probabilities.tolist(), found.hits.cosine.tolist(), strict=True)
        return models.MatchAnswer(
            threshold=found.threshold,
            p_value=found.p_value,
            abstained=found.abstained,
            reason=found.reason,
            note=found.note,
            matches=[
                models.Match(**row, probability=p, cosine=cosine) for row, p, cosine in scores
            ],
        )

    async def map(self, request: models.MapRequest) -> dict[str, Any]:
        """The items around a query, on a map on which the cap is a circle."""
        predictive = cap_kind(request.kind, self.kappa_pos) == "predictive"
        law = {"kappa_pos": self._known_kappa_pos()} if predictive else {}
        columns = tuple(self.listing.columns)
        plan = SearchPlan(1.0, MAX_COUNT, _EVERYTHING, count=False, columns=columns)
        own, hits = await self._search(plan, request.query)
        work = partial(map_caps, kappa_other=self._typical_kappa, **law)
        kappa = own.kappa.reshape(1).double().numpy()
        loop, masses = asyncio.get_running_loop(), (request.mass, *MASSES)
        cosines = await loop.run_in_executor(self._pool, work, kappa, masses, self.dim)
        threshold, *caps = cosines[0].tolist()
        angle = math.acos(max(-1.0, min(threshold, *caps)))
        places = spread_places(hits.cosine.numpy(), angle, request.limit).tolist()
        points: list[dict[str, Any]] = []
        if places:
            names = [hits.ids[place] for place in places]
            stored, _ = await self.engine.call(lambda index: index.fetch(names))
            xy = azimuthal_map(own.mu.numpy(), stored.mu.numpy()).tolist()
            for hit, (x, y) in zip(self._hits(pick_hits(hits, places)), xy, strict=True):
                points.append({**dict(hit), "x": x, "y": y, "inside": hit.cosine >= threshold})
        return {
            "points": points,
            "cap": {"radius": math.acos(max(-1.0, min(1.0, threshold)))},
            "caps": cap_entries(caps),
            "reach": map_reach(hits.cosine.numpy(), math.acos(max(-1.0, min(1.0, caps[-1])))),
        }

    async def upsert(self, request: models.UpsertRequest) -> dict[str, int]:
        """Store items, and replace those whose id exists: all or none."""
        posteriors = await self._posteriors(request)
        replaced = await self.engine.call(
            lambda index: index.upsert(posteriors, request.ids, request.payload)
        )
        return {"stored": len(request.ids), "replaced": replaced}

    async def delete(self, id: ItemId) -> dict[str, int]:
        """Delete an item."""
        if not await self.engine.call(lambda index: index.delete([id])):
            raise item_not_found(id)
        return {"deleted": 1}

    async def calibration(self) -> dict[str, Any]:
        """The share of held-out partners in caps of each mass, before and after the conformal calibration."""
        return coverage_curve(self._calibration)

    async def rejection(self) -> dict[str, Any]:
        """How often the nearest other item has the same label, as the least certain items are rejected."""
        column, table = self._items.label_column, self.listing.table
        if column is None or len(table) < 2:
            return {"available": False, "curve": []}
        if self._rejection is None:
            names = table.sample(SAMPLED)
            fetch = partial(CredibleIndex.fetch, ids=names, columns=[column])
            posterior, payload = await self.engine.call(fetch)
            work = partial(kappa_rejection, posterior, payload[column])
            curve = await asyncio.get_running_loop().run_in_executor(self._pool, work)
            self._rejection = {"available": True, "curve": curve}
        return self._rejection

    async def health(self) -> dict[str, str]:
        """Answer if the process works; needs no key."""
        return {"status": "ok"}

    async def ready(self) -> dict[str, str]:
        """Answer if the engine answers a search and the encoder embeds an input; needs no key."""
        async with self._probing:
            if time.monotonic() - self._ready > _CACHED:
                try:
                    async with asyncio.timeout(_PROBE_SECONDS):
                        await self.warm_up()
                except TimeoutError as error:
                    message = f"not ready: no answer within {_PROBE_SECONDS:g} s."
                    raise ApiError("unavailable", message, retry_after=1) from error
                self._ready = time.monotonic()
        return {"status": "ok"}

    def _query(self, posterior: VonMisesFisher) -> models.QueryAnswer:
        kappa = float(posterior.kappa)
        return models.QueryAnswer(kappa=kappa, kappa_rank=self.listing.table.rank(kappa))

    def _hits(self, hits: Hits) -> list[models.Hit]:
        """The hits of a search, with their scores."""
        empty = [None] * len(hits)
        positivity = empty if hits.log_positivity is None else hits.log_positivity.tolist()
        positive = empty if hits.probability is None else hits.probability.tolist()
        rows = self._items.rows(hits.ids, hits.kappa, hits.payload)
        scores = zip(rows, hits.cosine.tolist(), positivity, positive, strict=True)
        return [
            models.Hit(**row, cosine=cosine, positivity=log_ratio, positive=probability)
            for row, cosine, log_ratio, probability in scores
        ]

    def _plan(self, request: models.SearchRequest) -> SearchPlan:
        """The plan of a search; raises if the gallery does not support it."""
        guarantee = None if request.guarantee == "model" else request.guarantee
        kind = cap_kind(request.kind, self.kappa_pos, guarantee)
        if kind == "predictive" and not guarantee:
            self._known_kappa_pos()
        with map_failures("engine"):
            options = SearchOptions(
                kind=kind,
                kappa_pos=None if guarantee else self.kappa_pos,
                prior=request.prior,
                rank=request.rank,
                guarantee=guarantee,
            )
        filter, columns = _filter(request.filter), tuple(self.listing.columns)
        return SearchPlan(request.mass, request.limit, options, filter, request.count, columns)

    def _known_kappa_pos(self) -> float:
        if self.kappa_pos is None:
            message = (
                "predictive caps need kappa_pos, but neither the gallery nor the encoder has it."
            )
            raise ApiError("invalid_input", message)
        return self.kappa_pos

    async def _encode(self, inputs: Any) -> list[VonMisesFisher]:
        """The posteriors of the one field of a request: an input, or a list of them."""
        ((name, value),) = ((name, value) for name, value in inputs if value is not None)
        kind, values = (name[:-1], value) if name.endswith("s") else (name, [value])
        if self.encoder is None:
            message = "this service was started without --encoder: query by id, or by mu and kappa."
            raise ApiError("invalid_input", message, field=kind)
        return await self.encoder.embed(kind, values)

    async def _posteriors(self, request: models.UpsertRequest) -> VonMisesFisher:
        """The posteriors of the items of a request."""
        if given := request.items.posteriors:
            found = [self._given(each.mu, each.kappa) for each in given]
        else:
            found = await self._encode(request.items)
        if len(found) != len(request.ids):
            message = f"{len(request.ids)} ids need as many items, but got {len(found)}."
            raise ApiError("invalid_input", message, field="ids")
        mu, kappa = (torch.stack([getattr(each, n) for each in found]) for n in ("mu", "kappa"))
        return VonMisesFisher(mu, kappa, validate_args=False)

    async def _search(self, plan: SearchPlan, query: models.Query) -> tuple[VonMisesFisher, Hits]:
        return await self.engine.search(plan, await self._posterior(query))

    async def _posterior(self, query: models.Query) -> VonMisesFisher | str:
        """The posterior of a query of any type, or the id of an item of the gallery."""
        if query.id is not None:
            return query.id
        if query.mu is not None:
            return self._given(query.mu, query.kappa)
        (posterior,) = await self._encode(query)
        return posterior

    def _given(self, vector: list[float], concentration: float | None) -> VonMisesFisher:
        """The posterior given by mu and kappa; mu must be a unit vector of the gallery's dimension."""
        mu = np.array(vector)  # numpy reads a list ten times as fast as torch
        norm, message = float(np.linalg.norm(mu)), None
        if len(mu) != self.dim:
            message = (
                f"mu must have {self.dim} entries, the dimension of the gallery, but has {len(mu)}."
            )
        elif not abs(norm - 1) <= 0.01:
            message = f"mu must have norm 1, but has norm {norm:.4g}."
        if message is not None:
            raise ApiError("invalid_input", message, field="query.mu")
        kappa = torch.from_numpy(np.array(concentration, np.float32))
        direction = torch.from_numpy((mu / norm).astype(np.float32))
        return VonMisesFisher(direction, kappa, validate_args=False)


def _filter(conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """The conditions of a request as the index takes them; None without any."""
    return {
        name: (condition.low, condition.high) if isinstance(condition, models.Range) else condition
        for name, condition in sorted((conditions or {}).items())
    } or None


def _add_explanations(entries: list[models.Hit], hits: Hits, posterior: VonMisesFisher) -> None:
    """Add to each hit one sentence that explains why it is in the set."""
    why = explain_hits(hits, posterior)
    latent = [None] * len(hits) if why.latent_in_cap is None else why.latent_in_cap.tolist()
    (cap,) = why.cap_degrees.tolist()
    for entry, degrees, inside in zip(entries, why.degrees.tolist(), latent, strict=True):
        text = f"{degrees:.1f}° from the query, inside its cap of {cap:.1f}°"
        if inside is not None:
            own = f"its own latent (κ {entry.kappa:.4g})"
            text += f"; {own} lies in the cap with probability {inside:.2f}"
        if entry.positivity is not None:
            text += f"; {times_more_likely(entry.positivity)} to match than a random item"
        if entry.positive is not None:
            text += f", P(positive) {entry.positive:.3g}"
        entry.explanation = f"{text}."
