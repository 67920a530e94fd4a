"""Match probabilities in the service: a calibrator behind the engine's queue answers ``POST /v1/match``."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import (
    CredibleIndex,
    GalleryMatcher,
    GalleryMatches,
    Hits,
    MatchCalibrator,
    MatchOptions,
    SearchOptions,
    UnknownItemError,
    without_item,
)
from aureole.serve._batching import Engine, SearchPlan, item_not_found
from aureole.serve._errors import ApiError, map_failures
from aureole.serve._request_models import MatchRequest, filter_of
from aureole.serve._response_models import ItemFormatter

_EVERYTHING = SearchOptions(kind="credible")  # with mass 1, the cap is the sphere


class Matching:
    """Finds the likely matches of queries. Searches share the engine's queue; thresholds are computed in ``pool``.

    Raises if the calibrator does not belong to the gallery, or has no entry for one of its items.
    """

    def __init__(
        self, calibrator: MatchCalibrator, index: CredibleIndex, engine: Engine, pool: Executor
    ) -> None:
        self._matcher = GalleryMatcher(calibrator, index)
        for ids, _, _ in index.scan():
            self._matcher.check_known(ids)
        self._engine, self._pool = engine, pool
        self._columns = tuple(index.schema.columns)

    def about(self) -> dict[str, Any]:
        """The default threshold and limit, and the number of held-out queries."""
        return self._matcher.about()

    async def posterior_of(self, item: str) -> VonMisesFisher:
        """The posterior of an item of the gallery."""

        def work(index: CredibleIndex) -> VonMisesFisher:
            try:
                return index.fetch([item])[0][0]
            except InvalidInputError as error:
                raise item_not_found(item, "query.id") from error

        return await self._engine.call(work)

    async def find(
        self, request: MatchRequest, posterior: VonMisesFisher, item: str | None = None
    ) -> GalleryMatches:
        """The matches of a posterior; ``item`` is excluded from them."""
        matcher, filter = self._matcher, filter_of(request.filter)
        with _map_match_failures():
            options = MatchOptions(
                request.threshold, request.precision, request.recall, request.limit, request.abstain
            )
            direction = matcher.direction(posterior)
            count = matcher.candidates(options) + 1
            hits = await self._nearest(direction, count, filter=filter, exact=request.exact)
            level = None
            if filter is not None:
                near = await self._nearest(
                    direction, matcher.calibrator.neighbours + 1, exact=request.exact
                )
                level = matcher.level(without_item(near, item))
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._pool, lambda: matcher.select(hits, options, level=level, item=item)
            )

    async def _nearest(
        self,
        direction: VonMisesFisher,
        limit: int,
        *,
        filter: dict[str, Any] | None = None,
        exact: bool = False,
    ) -> Hits:
        plan = SearchPlan(
            1.0,
            limit,
            _EVERYTHING,
            filter=filter,
            exact=exact,
            count=False,
            columns=self._columns,
        )
        return (await self._engine.search(plan, direction)).hits


def match_entries(found: GalleryMatches, items: ItemFormatter) -> list[dict[str, Any]]:
    """The matches as JSON, with their probabilities and cosines."""
    hits = found.hits
    kappa, cosine = hits.kappa.tolist(), hits.cosine.tolist()
    return [
        items.item(name, kappa[i], {c: values[i] for c, values in hits.payload.items()})
        | {"probability": float(found.probabilities[i]), "cosine": cosine[i]}
        for i, name in enumerate(hits.ids)
    ]


@contextmanager
def _map_match_failures() -> Iterator[None]:
    """Map items without an entry in the calibrator, added while the service ran, to a 409; others as usual."""
    with map_failures("calibrator"):
        try:
            yield
        except UnknownItemError as error:
            raise ApiError("conflict", str(error)) from error
