"""The engine's turn: searches that ask alike are one call of the index, and all calls are made by one thread."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, Hits, SearchOptions, pick_hits
from aureole.serve._batching import Batcher
from aureole.serve._failures import shielded
from aureole.serve._faults import Fault

COUNTED = 10_000  # members of a cap that are counted, and at most ranked by positivity


@dataclass(frozen=True)
class Plan:
    """How to search; queries with equal plans share a call.

    ``label`` is the column whose values are told of all members that are counted; ``asked`` stands for the filter in
    comparisons.
    """

    mass: float
    limit: int
    kind: Literal["credible", "predictive"] = "credible"
    rank: Literal["cosine", "positivity"] = "cosine"
    guarantee: Literal["conformal"] | None = None
    prior: float | None = None
    widest: float | None = None
    exact: bool = False
    count: bool = True
    kappa_pos: float | None = None
    columns: tuple[str, ...] = ()
    label: str | None = None
    asked: str = ""
    filter: dict[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Found:
    """A query's posterior, its hits cut to the limit, and how many members the cap has; exact below ``COUNTED``.

    ``labels`` are those of all members that were counted; None where the hits are all.
    """

    posterior: VonMisesFisher
    hits: Hits
    count: int
    exact: bool
    truncated: bool
    labels: list[Any] | None = None


@dataclass(frozen=True)
class _Search:
    """A query by its posterior, or by the id of an item, which is left out."""

    plan: Plan
    posterior: VonMisesFisher | None
    item: str | None = None


class Engine:
    """An index behind a queue. An index is no place for two threads: this one's calls wait for one another."""

    def __init__(
        self,
        index: CredibleIndex,
        *,
        largest: int = 32,
        room: int = 1024,
        seen: Callable[[int, float], None] | None = None,
    ) -> None:
        self.index = index
        self._batcher: Batcher[Any, Any] = Batcher(
            self._work, name="engine", largest=largest, room=room, seen=seen
        )

    async def search(
        self, plan: Plan, posterior: VonMisesFisher | None, item: str | None = None
    ) -> Found:
        """The members of a query's cap."""
        with shielded("engine"):
            return await self._batcher.submit(_Search(plan, posterior, item))

    async def call(self, work: Callable[[CredibleIndex], Any]) -> Any:
        """What a function of the index gives."""
        with shielded("engine"):
            return await self._batcher.submit(work)

    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._batcher)

    def close(self) -> None:
        """Work off what waits, and stop."""
        self._batcher.close()

    def _work(self, jobs: list[Any]) -> Sequence[Any]:
        results: list[Any] = [None] * len(jobs)
        groups: dict[Plan, list[int]] = {}
        for place, job in enumerate(jobs):
            if isinstance(job, _Search):
                groups.setdefault(job.plan, []).append(place)
            else:
                try:
                    results[place] = job(self.index)
                except Exception as error:
                    results[place] = error
        for plan, places in groups.items():
            for place, found in zip(
                places, self._group([jobs[p] for p in places], plan), strict=True
            ):
                results[place] = found
        return results

    def _group(self, jobs: list[_Search], plan: Plan) -> list[Any]:
        """The results of searches with one plan; if they fail together, each on its own."""
        try:
            posteriors = self._posteriors(jobs)
            known = [place for place, found in enumerate(posteriors) if found is not None]
            results: list[Any] = [
                Fault("not_found", f"there is no item {(job.item or '')[:60]!r}.", field="query.id")
                for job in jobs
            ]
            if known:
                batch = [(jobs[place], posteriors[place]) for place in known]
                for place, found in zip(known, self._search(batch, plan), strict=True):
                    results[place] = found
            return results
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [self._group([job], plan)[0] for job in jobs]

    def _posteriors(self, jobs: list[_Search]) -> list[VonMisesFisher | None]:
        """The posterior of each query; None where its item is not there."""
        names = list(dict.fromkeys(job.item for job in jobs if job.item is not None))
        stored: dict[str, VonMisesFisher] = {}
        if names:
            try:
                found, _ = self.index.fetch(names)
            except InvalidInputError:
                if len(jobs) > 1:
                    raise  # one by one, then
                return [None]
            for place, name in enumerate(names):
                stored[name] = VonMisesFisher(
                    found.mu[place], found.kappa[place], validate_args=False
                )
        return [job.posterior if job.item is None else stored[job.item] for job in jobs]

    def _search(self, batch: list[tuple[_Search, Any]], plan: Plan) -> list[Found]:
        posterior = VonMisesFisher(
            torch.stack([own.mu.float() for _, own in batch]),
            torch.stack([own.kappa.float() for _, own in batch]),
            validate_args=False,
        )
        ranked = plan.rank == "positivity"
        most = (
            COUNTED + 2 if ranked else plan.limit + 2
        )  # itself, and one that shows there are more
        options = SearchOptions(
            kind=plan.kind,
            kappa_pos=None if plan.guarantee else plan.kappa_pos,
            prior=plan.prior,
            guarantee=plan.guarantee,
            widest=None if plan.widest is None else math.radians(plan.widest),
        )
        found = self.index.search(
            posterior,
            plan.mass,
            limit=most,
            filter=plan.filter,
            columns=plan.columns,
            exact=plan.exact,
            options=options,
        )
        assert isinstance(found, list)
        results = []
        for (job, own), hits in zip(batch, found, strict=True):
            hits = _without(hits, job.item)
            if ranked and hits.log_positivity is not None:
                order = np.argsort(-hits.log_positivity.numpy(), kind="stable")
                hits = pick_hits(hits, order.tolist())
            cut = pick_hits(hits, list(range(plan.limit))) if len(hits) > plan.limit else hits
            labels = None
            if ranked and plan.label is not None:  # all are here, before the limit
                labels = hits.payload[plan.label][:COUNTED]
            results.append(Found(own, cut, len(hits), True, len(hits) > plan.limit, labels))
        return self._counted(batch, results, plan, options)

    def _counted(
        self,
        batch: list[tuple[_Search, Any]],
        results: list[Found],
        plan: Plan,
        options: SearchOptions,
    ) -> list[Found]:
        """The results with the number of members where a limit cut them."""
        for place, found in enumerate(results):
            if not found.truncated:
                continue
            count = found.count
            if plan.count and plan.rank == "cosine":
                # without scores and most columns: only to be counted
                kappa_pos = options.kappa_pos if plan.kind == "predictive" else None
                members = self.index.search(
                    found.posterior,
                    plan.mass,
                    limit=COUNTED + 2,
                    filter=plan.filter,
                    columns=[] if plan.label is None else [plan.label],
                    exact=plan.exact,
                    options=replace(options, prior=None, kappa_pos=kappa_pos),
                )
                assert isinstance(members, Hits)
                members = _without(members, batch[place][0].item)
                count = len(members)
                if plan.label is not None:
                    found = replace(found, labels=members.payload[plan.label][:COUNTED])
            counted = plan.count or plan.rank == "positivity"
            results[place] = replace(
                found, count=min(count, COUNTED), exact=counted and count <= COUNTED
            )
        return results


def _without(hits: Hits, item: str | None) -> Hits:
    if item is None or item not in hits.ids:
        return hits
    return pick_hits(hits, [place for place, name in enumerate(hits.ids) if name != item])
