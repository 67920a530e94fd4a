"""The service without HTTP: a gallery, an encoder and pictures, and what each question about them is answered with."""

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aureole
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation import SAMPLED, kappa_rejection
from aureole.explorer import MASSES as CAP_MASSES
from aureole.retrieval import CredibleIndex, class_entropy, describe_cap
from aureole.scale import Embedder
from aureole.serve import _models as models
from aureole.serve._answers import Teller, add_reasons, tell_caps, tell_classes
from aureole.serve._caps import MASSES, credible_cosines, predictive_cosines
from aureole.serve._encoding import Embedded, Encoder
from aureole.serve._engine import COUNTED, Engine, Plan
from aureole.serve._failures import LOG
from aureole.serve._faults import Fault
from aureole.serve._gallery import Certainty, Order, read_certainty
from aureole.serve._map import azimuthal_map
from aureole.serve._pictures import Pictures
from aureole.serve._questions import Asked, demand_kappa_pos, inputs_of, plan_of, posterior_of
from aureole.serve._surroundings import spread_places

_MASSES = tuple(f"{mass:g}" for mass in MASSES)
Seen = Callable[[str], Callable[[int, float], None]]


class Service:
    """A gallery and, where they are given, the encoder that made it and pictures of its items.

    ``kappa_pos`` is the index's, or else the encoder's. ``close`` ends its threads; the index stays the caller's.
    """

    def __init__(
        self,
        index: CredibleIndex,
        embedder: Embedder | None = None,
        *,
        pictures: Pictures | None = None,
        label_column: str | None = None,
        text_column: str | None = None,
        batch: int = 32,
        room: int = 1024,
        seen: Seen | None = None,
    ) -> None:
        schema, origin = index.schema, index.origin
        for name in (label_column, text_column):
            if name is not None and name not in schema.columns:
                raise InvalidInputError(
                    f"there is no payload column {name!r}; there are {sorted(schema.columns)}."
                )
        if embedder is not None:
            origin.check_same(embedder.weights, "the encoder")
            if embedder.dim != schema.dim:
                raise InvalidInputError(
                    f"the gallery lies in R^{schema.dim}, but the encoder's posteriors in R^{embedder.dim}."
                )
        self.pictures = pictures
        self.label_column, self.text_column = label_column, text_column
        self._teller = Teller(pictures, label_column, text_column)
        made = None if embedder is None else embedder.kappa_pos
        self.kappa_pos = made if origin.kappa_pos is None else origin.kappa_pos
        self.dim, self.columns = schema.dim, dict(schema.columns)
        self.certainty: Certainty = read_certainty(index, label_column)
        self._calibration = index.conformal
        self._typical = schema.typical_kappa
        self._rejection: list[dict[str, float]] | None = None
        sizes = {"largest": batch, "room": room}
        self.engine = Engine(index, **sizes, seen=None if seen is None else seen("engine"))
        self.encoder = (
            None
            if embedder is None
            else Encoder(embedder, **sizes, seen=None if seen is None else seen("encoder"))
        )
        self._side = ThreadPoolExecutor(2, thread_name_prefix="aureole-side")
        self._about = self._describe(index)

    def close(self) -> None:
        """Work off what waits, and end all threads."""
        self.engine.close()
        if self.encoder is not None:
            self.encoder.close()
        self._side.shutdown(wait=False, cancel_futures=True)

    def about(self) -> dict[str, Any]:
        """What is served."""
        return self._about

    async def items(
        self, order: Order, offset: int, limit: int, label: str | None = None
    ) -> dict[str, Any]:
        """A page of items by their certainty."""
        ids, total = self.certainty.page(order, offset, limit, label=label)
        columns = list(self.columns)
        found: list[dict[str, Any]] = []
        if ids:
            found = await self.engine.call(lambda index: self._rows(index, ids, columns))
        return {"items": found, "total": total, "offset": offset}

    async def item(self, name: str) -> dict[str, Any]:
        """An item with its posterior."""

        def work(index: CredibleIndex) -> tuple[VonMisesFisher, dict[str, list[Any]]]:
            try:
                return index.fetch([name], columns=list(self.columns))
            except InvalidInputError as error:
                raise Fault("not_found", f"there is no item {name[:60]!r}.") from error

        posterior, payload = await self.engine.call(work)
        values = {column: entries[0] for column, entries in payload.items()}
        kappa = float(posterior.kappa[0])
        (caps,) = credible_cosines(posterior.kappa, CAP_MASSES, self.dim)
        return {
            **self._teller.tell(name, kappa, values),
            "mu": posterior.mu[0].tolist(),
            "kappa_rank": self.certainty.rank(kappa),
            "caps": tell_caps(caps),
        }

    async def embed(self, request: Any) -> dict[str, Any]:
        """The posteriors of inputs, with their credible cosines."""
        kind, inputs, view = inputs_of(request)
        entries = []
        for embedded in await self._encode(kind, inputs, view):
            kappa = float(embedded.posterior.kappa)
            entries.append(
                {
                    "mu": embedded.posterior.mu.tolist(),
                    "kappa": kappa,
                    "kappa_rank": self.certainty.rank(kappa),
                    "credible_cosine": dict(zip(_MASSES, embedded.cosines, strict=True)),
                }
            )
        return {"posteriors": entries}

    async def search(self, request: models.SearchRequest) -> dict[str, Any]:
        """The members of a query's cap, with their scores and, if asked for, why they are there."""
        plan = plan_of(
            request,
            calibrated=self._calibration is not None,
            kappa_pos=self.kappa_pos,
            label=self.label_column,
            columns=tuple(self.columns),
        )
        asked = await self._ask(request.query)
        found = await self.engine.search(plan, asked.posterior, asked.item)
        hits, labels = found.hits, None
        if self.label_column is not None:
            labels = hits.payload.get(self.label_column)
        entropy = class_entropy(labels, hits.log_positivity) if labels else None
        (threshold,) = hits.threshold.tolist()
        entries = self._teller.tell_hits(hits)
        if request.explain and entries:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._side, add_reasons, entries, hits, found.posterior)
        return {
            "query": self._query(asked, found.posterior),
            "cap": self._cap(plan),
            "threshold": threshold,
            "count": found.count,
            "count_exact": found.exact,
            "truncated": found.truncated,
            "abstain": hits.asks_back,
            "class_entropy": entropy,
            "classes": None if labels is None else tell_classes(found.labels or labels),
            "hits": entries,
        }

    async def map(self, request: models.MapRequest) -> dict[str, Any]:
        """Items around a query, near and far, on an azimuthal map, and its cap as a circle."""
        if request.kind == "predictive":
            demand_kappa_pos(self.kappa_pos)
        asked = await self._ask(request.query)
        plan = Plan(1.0, COUNTED, count=False, columns=tuple(self.columns))
        found = await self.engine.search(plan, asked.posterior, asked.item)
        hits, own = found.hits, found.posterior
        masses = (request.mass, *CAP_MASSES)
        cosine, *caps = await self._cosines(own, masses, request.kind)
        widest = math.acos(max(-1.0, min(cosine, *caps)))
        places = spread_places(hits.cosine.numpy(), widest, request.limit).tolist()
        points: list[dict[str, Any]] = []
        if places:
            names = [hits.ids[place] for place in places]
            stored, _ = await self.engine.call(lambda index: index.fetch(names))
            drawn = azimuthal_map(own.mu.numpy(), stored.mu.numpy(), request.dims).tolist()
            for place, name, point in zip(places, names, drawn, strict=True):
                payload = {column: values[place] for column, values in hits.payload.items()}
                item = self._teller.tell(name, float(hits.kappa[place]), payload)
                del item["payload"]
                near = float(hits.cosine[place])
                points.append(
                    {
                        **item,
                        **dict(zip("xyz", point, strict=False)),
                        "cosine": near,
                        "inside": near >= cosine,
                    }
                )
        radius = math.acos(max(-1.0, min(1.0, cosine)))
        return {
            "points": points,
            "cap": {"radius": radius},
            "caps": tell_caps(caps),
            "query": self._query(asked, own),
        }

    async def _cosines(
        self, posterior: VonMisesFisher, masses: tuple[float, ...], kind: str
    ) -> list[float]:
        """The least cosines of a query's caps; predictive ones are dear, and made beside everything else."""
        if kind == "credible":
            return credible_cosines(posterior.kappa.reshape(1), masses, self.dim)[0]
        kappa_pos = demand_kappa_pos(self.kappa_pos)
        given = (float(posterior.kappa), masses, self._typical, kappa_pos, self.dim)
        return await asyncio.get_running_loop().run_in_executor(
            self._side, predictive_cosines, *given
        )

    def warm_up(self) -> None:
        """Ask for the first page, a search and an embedding, so that the first visitor need not wait for the caches."""

        async def work() -> None:
            page = await self.items("ambiguous", 0, 60)
            for item in page["items"][:1]:
                await self.search(models.SearchRequest(query=models.ById(id=item["id"]), limit=1))
            if self.encoder is not None and self.encoder.embedder.modality == "text":
                await self.encoder.embed("text", ["a"])

        asyncio.run(work())

    def rejection(self) -> dict[str, Any]:
        """The rejection curve, once it is there."""
        return {"available": self._rejection is not None, "curve": self._rejection or []}

    def compute_rejection(self) -> None:
        """Start to compute the rejection curve of a sample, beside everything else."""
        column = self.label_column
        if column is None or len(self.certainty) < 2:
            return
        names = self.certainty.sample(SAMPLED)

        async def work() -> tuple[VonMisesFisher, dict[str, list[Any]]]:
            return await self.engine.call(lambda index: index.fetch(names, columns=[column]))

        def run() -> None:
            try:
                posterior, payload = asyncio.run(work())
                self._rejection = kappa_rejection(posterior, payload[column])
            except Exception as error:
                LOG.error("the rejection curve failed", exc_info=error)

        threading.Thread(target=run, name="aureole-rejection", daemon=True).start()

    async def picture(self, name: str, side: int, known: str | None) -> tuple[str, bytes | None]:
        """(The tag, the JPEG) of an item's picture; no JPEG for who has the one with this tag."""
        pictures = self.pictures
        loop = asyncio.get_running_loop()
        found = None
        if pictures is not None:
            found = await loop.run_in_executor(self._side, pictures.tag, name, side)
        if pictures is None or found is None:
            raise Fault("not_found", f"there is no picture of {name[:60]!r}.")
        path, tag = found
        if known == tag:
            return tag, None
        try:
            content = await loop.run_in_executor(self._side, pictures.thumbnail, path, tag, side)
        except InvalidInputError as error:
            LOG.warning("%s", error)
            raise Fault(
                "not_found", f"the picture of {name[:60]!r} cannot be read; see the service's log."
            ) from error
        return tag, content

    def _describe(self, index: CredibleIndex) -> dict[str, Any]:
        quantiles = self.certainty.quantiles()
        return {
            "rows": len(self.certainty),
            "dim": self.dim,
            "engine": index.engine,
            "modality": None if self.encoder is None else self.encoder.embedder.modality,
            "kappa_pos": self.kappa_pos,
            "columns": self.columns,
            "label_column": self.label_column,
            "text_column": self.text_column,
            "pictures": self.pictures is not None,
            "kappa": {"quantiles": quantiles, "median": quantiles[50][1] if quantiles else None},
            "classes": [{"label": label, "count": n} for label, n in self.certainty.classes],
            "conformal": self._calibration is not None,
            "version": aureole.__version__,
        }

    def _rows(
        self, index: CredibleIndex, ids: list[str], columns: list[str]
    ) -> list[dict[str, Any]]:
        """Items by their ids, without those that were deleted since the service started."""
        try:
            posterior, payload = index.fetch(ids, columns=columns)
        except InvalidInputError:
            if len(ids) == 1:
                return []
            return [item for name in ids for item in self._rows(index, [name], columns)]
        kappa = posterior.kappa.tolist()
        return [
            self._teller.tell(name, kappa[i], {column: payload[column][i] for column in columns})
            for i, name in enumerate(ids)
        ]

    def _query(self, asked: Asked, posterior: VonMisesFisher) -> dict[str, Any]:
        kappa = float(posterior.kappa)
        return {"kappa": kappa, "kappa_rank": self.certainty.rank(kappa), "about": asked.about}

    async def _encode(
        self, kind: str, inputs: list[Any], view: models.View | None
    ) -> list[Embedded]:
        if self.encoder is None:
            raise Fault(
                "invalid_input",
                "this service was started without --encoder: ask by id, or by mu and kappa.",
                field=kind,
            )
        view = view or models.View()
        return await self.encoder.embed(kind, inputs, crop=view.crop, blur=view.blur)

    async def _ask(self, query: Any) -> Asked:
        """The posterior of a query of any kind."""
        if isinstance(query, models.ById):
            return Asked(None, query.id, f"item {query.id[:60]!r}")
        if isinstance(query, models.ByPosterior):
            return Asked(posterior_of(query, self.dim), None, "a posterior")
        kind, inputs, view = inputs_of(query)
        (embedded,) = await self._encode(kind, inputs, view)
        about = f"text {inputs[0][:60]!r}" if kind == "text" else f"a {kind}"
        return Asked(embedded.posterior, None, about)

    def _cap(self, plan: Plan) -> dict[str, Any]:
        """What the cap was computed with."""
        return describe_cap(
            plan.mass,
            plan.kind,
            kappa_pos=self.kappa_pos,
            typical_kappa=self._typical,
            conformal=self._calibration if plan.guarantee else None,
        )
