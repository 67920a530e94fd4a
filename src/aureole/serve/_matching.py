"""Match probabilities in the service: a calibrator behind the engine's queue answers ``POST /v1/match``."""

import asyncio
from concurrent.futures import Executor

from aureole.caps import CredibleIndex, Hits, SearchOptions
from aureole.distributions import VonMisesFisher
from aureole.match import GalleryMatcher, MatchCalibrator, MatchOptions
from aureole.match._gallery import GalleryMatches, UnknownItemError, without_item
from aureole.serve._batching import Engine, SearchPlan
from aureole.serve._errors import ApiError, map_failures
from aureole.serve._request_models import MatchRequest, filter_of
from aureole.serve._response_models import CalibratorAnswer, ItemFormatter, Match

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
            self._matcher.rows_of(ids)
        self._engine, self._pool = engine, pool
        self._columns = tuple(index.schema.columns)

    def about(self) -> CalibratorAnswer:
        """The default threshold and limit, and the number of held-out queries."""
        return CalibratorAnswer.model_validate(self._matcher.about())

    async def find(
        self, request: MatchRequest, posterior: VonMisesFisher, item: str | None = None
    ) -> GalleryMatches:
        """The matches of a posterior; ``item`` is excluded from them."""
        matcher = self._matcher
        with map_failures("calibrator"):
            options = MatchOptions(
                request.threshold, request.precision, request.recall, request.limit, request.abstain
            )
            direction = matcher.direction(posterior)
            hits = await self._nearest(direction, matcher.candidates(options) + 1, request)
            level = None
            if request.filter:  # the level of a query is that of the whole gallery
                plain = request.model_copy(update={"filter": None})
                near = await self._nearest(direction, matcher.calibrator.neighbours + 1, plain)
                level = matcher.level(without_item(near, item))
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(
                    self._pool, lambda: matcher.select(hits, options, level=level, item=item)
                )
            except UnknownItemError as error:  # added while the service ran
                raise ApiError("conflict", str(error)) from error

    async def _nearest(self, direction: VonMisesFisher, limit: int, request: MatchRequest) -> Hits:
        plan = SearchPlan(
            1.0,
            limit,
            _EVERYTHING,
            filter=filter_of(request.filter),
            exact=request.exact,
            count=False,
            columns=self._columns,
        )
        return (await self._engine.search(plan, direction)).hits


def match_entries(found: GalleryMatches, items: ItemFormatter) -> list[Match]:
    """The matches with their probabilities and cosines."""
    hits = found.hits
    rows = items.rows(hits.ids, hits.kappa, hits.payload)
    scores = zip(rows, found.probabilities.tolist(), hits.cosine.tolist(), strict=True)
    return [Match(**row, probability=chance, cosine=cosine) for row, chance, cosine in scores]
