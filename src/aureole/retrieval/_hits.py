"""Hits: from queries to engines' candidates, to the exact members of their caps, to ranked results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import MixtureVMF
from aureole.errors import InvalidInputError
from aureole.retrieval._credible import Posterior
from aureole.retrieval._filters import Condition
from aureole.retrieval._rows import Rows, strings
from aureole.retrieval._scores import (
    exact_cosines,
    log_hit_positivity,
    positive_probability,
    stored_direction,
)
from aureole.retrieval._store import Store, slack

Rank = Literal["cosine", "positivity"]
_CHUNK = 64  # queries handed to an engine at a time


@dataclass(frozen=True)
class Hits:
    """One query's results, best first.

    ``cosine`` is exact (float64, of the stored mu; for a mixture to its nearest component), ``kappa`` the items'.
    ``log_positivity`` is there if kappa_pos was given, and ``probability``, P(positive), if the prior was too.
    ``threshold`` is the least cosine of the cap, one for each component of a mixture. ``asks_back`` says that the cap
    was wider than the query allowed, and that nothing was searched.
    """

    ids: list[str]
    cosine: Float[Tensor, " n"]
    kappa: Float[Tensor, " n"]
    threshold: Float[Tensor, " k"]
    log_positivity: Float[Tensor, " n"] | None = None
    probability: Float[Tensor, " n"] | None = None
    payload: dict[str, list[Any]] = field(default_factory=dict)
    asks_back: bool = False

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Queries:
    """Queries as the engines see them: mu [n, k, D], kappa and log weights [n, k], least cosines [n, k]."""

    mu: np.ndarray
    kappa: Tensor
    log_weights: Tensor
    threshold: Tensor
    bound: np.ndarray
    asks_back: list[bool]

    @classmethod
    def of(cls, posterior: Posterior, threshold: Tensor, widest: float | None) -> "Queries":
        """Queries of batch shape () or (n,) with their thresholds; one whose cap is too wide has no bound to meet."""
        if isinstance(posterior, MixtureVMF):
            mu, kappa, weights = posterior.mu, posterior.kappa, posterior.weights
        else:
            mu, kappa = posterior.mu.unsqueeze(-2), posterior.kappa.unsqueeze(-1)
            threshold, weights = threshold.unsqueeze(-1), torch.ones_like(kappa)
        if not posterior.batch_shape:
            mu, kappa, weights, threshold = (
                x.unsqueeze(0) for x in (mu, kappa, weights, threshold)
            )
        if widest is not None and not 0 <= widest <= math.pi:
            raise InvalidInputError(
                f"widest must be an angle in radians between 0 and pi, but is {widest}."
            )
        angle = torch.acos(threshold.clamp(-1, 1)).amax(-1)
        back = [False] * len(angle) if widest is None else (angle > widest).tolist()
        bound = threshold.detach().cpu().numpy().copy()
        bound[back] = math.inf
        kappa = kappa.detach().cpu().double()
        log_weights = weights.detach().cpu().double().log()
        return cls(stored_direction(mu), kappa, log_weights, threshold.detach().cpu(), bound, back)


def raise_bounds(
    store: Store,
    queries: Queries,
    limit: int,
    conditions: list[Condition],
    columns: tuple[str, ...],
    exact: bool,
) -> dict[int, Rows]:
    """Raise each cap's bound to the limit-th best cosine: no better row can lie below it.

    Returned are the nearest rows of those queries whose whole cap they hold, since the last of them is farther from the
    bound than rounding reaches: they need no second search.
    """
    if queries.mu.shape[1] > 1:
        return {}
    asked = np.flatnonzero(queries.bound[:, 0] <= 1)
    whole: dict[int, Rows] = {}
    found = store.nearest(queries.mu[asked, 0], limit, conditions, columns, exact=exact)
    for query, rows in zip(asked.tolist(), found, strict=True):
        if len(rows) < limit:
            continue
        cosine = exact_cosines(queries.mu[query, 0], rows.mu).min()
        # a row that was left out scores at most as the last one does, both to the slack
        if cosine < queries.bound[query, 0] - 2 * slack(queries.mu.shape[-1]):
            whole[query] = rows
        queries.bound[query, 0] = max(queries.bound[query, 0], cosine)
    return whole


def find_members(
    store: Store,
    queries: Queries,
    conditions: list[Condition],
    columns: tuple[str, ...],
    exact: bool,
    known: dict[int, Rows],
) -> list[tuple[Rows, np.ndarray]]:
    """(Rows without mu, cosines to each component [n, k]) in each query's cap; ``known`` rows hold some whole caps."""
    n, k, _ = queries.mu.shape
    pairs = [(i, j) for i in range(n) for j in range(k) if queries.bound[i, j] <= 1]
    asked = [pair for pair in pairs if pair[0] not in known]
    parts: list[list[tuple[Rows, np.ndarray]]] = [[] for _ in range(n)]
    for i, rows in known.items():
        parts[i].append(_inside(rows, queries, i))
    for start in range(0, len(asked), _CHUNK):
        chunk = asked[start : start + _CHUNK]
        at = tuple(np.array(chunk, dtype=np.int64).T)
        found = store.candidates(
            queries.mu[at], queries.bound[at], conditions, columns, exact=exact
        )
        for (i, _), rows in zip(chunk, found, strict=True):
            parts[i].append(_inside(rows, queries, i))
    return [_merged(part, columns, k) for part in parts]


def rank_hits(
    found: list[tuple[Rows, np.ndarray]],
    queries: Queries,
    kappa_pos: float | None,
    prior: float | None,
    rank: Rank,
    limit: int | None,
    dim: int,
) -> list[Hits]:
    """The hits of all queries in order; their positivities in one fused call."""
    sizes = [len(rows) for rows, _ in found]
    log_ratios: list[Tensor | None] = [None] * len(found)
    if kappa_pos is not None and found:
        owner = torch.repeat_interleave(torch.arange(len(found)), torch.tensor(sizes))
        cosine = torch.from_numpy(np.concatenate([c for _, c in found]))
        hit = torch.from_numpy(np.concatenate([rows.kappa for rows, _ in found])).double()
        own = queries.kappa[owner]
        each = log_hit_positivity(
            cosine.reshape(-1), own.reshape(-1), hit.unsqueeze(-1).expand_as(own).reshape(-1), kappa_pos, dim,
        ).reshape(own.shape)  # fmt: skip
        whole = (
            each[:, 0]
            if own.shape[1] == 1
            else torch.logsumexp(each + queries.log_weights[owner], -1)
        )
        log_ratios = list(whole.split(sizes))
    hits = []
    for i, (rows, cosines) in enumerate(found):
        cosine, log_ratio = cosines.max(-1, initial=-1.0), log_ratios[i]
        key = cosine if rank == "cosine" or log_ratio is None else log_ratio.numpy()
        order = _order(key, cosine, rows.ids)[:limit]
        picked = None if log_ratio is None else log_ratio[order]
        hits.append(
            Hits(
                ids=rows.ids[order].tolist(),
                cosine=torch.from_numpy(cosine[order]),
                kappa=torch.from_numpy(rows.kappa[order]),
                threshold=queries.threshold[i],
                log_positivity=picked,
                probability=(
                    None if prior is None or picked is None else positive_probability(picked, prior)
                ),
                payload={name: column[order].tolist() for name, column in rows.payload.items()},
                asks_back=queries.asks_back[i],
            )
        )
    return hits


def _order(key: np.ndarray, cosine: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Places by falling key, then falling cosine, then id."""
    order = np.lexsort((-cosine, -key))
    tied = (np.diff(key[order]) == 0) & (np.diff(cosine[order]) == 0)
    if tied.any():
        by_id = np.array(sorted(range(len(ids)), key=ids.tolist().__getitem__), dtype=np.int64)
        order = by_id[np.lexsort((-cosine[by_id], -key[by_id]))]
    return order


def _inside(rows: Rows, queries: Queries, i: int) -> tuple[Rows, np.ndarray]:
    """Those of the rows that lie in a query's cap, without their mu, and their cosines to its components."""
    cosine = np.stack([exact_cosines(mu, rows.mu) for mu in queries.mu[i]], -1)
    inside = np.flatnonzero((cosine >= queries.bound[i]).any(-1))
    return _take(rows, inside), cosine[inside]


def _take(rows: Rows, places: np.ndarray) -> Rows:
    """Some rows, without their mu, which is large."""
    payload = {name: column[places] for name, column in rows.payload.items()}
    nothing = np.zeros((0, 0), np.float32)
    return Rows(rows.ids[places], nothing, rows.kappa[places], payload)


def _merged(
    parts: list[tuple[Rows, np.ndarray]], columns: Sequence[str], k: int
) -> tuple[Rows, np.ndarray]:
    """The union of the rows found by a query's components."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = {name: np.zeros(0, object) for name in columns}
        nothing = np.zeros((0, 0), np.float32)
        return Rows(strings([]), nothing, np.zeros(0, np.float32), empty), np.zeros((0, k))
    ids = np.concatenate([rows.ids for rows, _ in parts])
    first = {name: place for place, name in reversed(list(enumerate(ids)))}
    places = np.array(sorted(first.values()), dtype=np.int64)
    payload = {c: np.concatenate([rows.payload[c] for rows, _ in parts]) for c in columns}
    kappa = np.concatenate([rows.kappa for rows, _ in parts])
    whole = Rows(ids, np.zeros((0, 0), np.float32), kappa, payload)
    return _take(whole, places), np.concatenate([cosine for _, cosine in parts])[places]


def pick_hits(hits: Hits, places: list[int]) -> Hits:
    """The hits at some places, in that order."""

    def some(values: Any) -> Any:
        return None if values is None else values[places]

    return replace(
        hits,
        ids=[hits.ids[i] for i in places],
        cosine=hits.cosine[places],
        kappa=hits.kappa[places],
        log_positivity=some(hits.log_positivity),
        probability=some(hits.probability),
        payload={name: [values[i] for i in places] for name, values in hits.payload.items()},
    )
