"""From queries to ranked hits: candidates of the engine, exact members of each cap, order and explanation."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole.caps._caps import (
    Posterior,
    check_angle,
    latent_in_cap,
    log_hit_positivity,
    positive_probability,
)
from aureole.caps._conformal import ConformalMass
from aureole.distributions import MixtureVMF
from aureole.engines._schema import NO_MU, Rows, exact_cosines, no_rows, stored_direction
from aureole.engines._store import Searcher, Selection, slack

Rank = Literal["cosine", "positivity"]
_CHUNK = 64  # queries per call of an engine
_SPARE = 4  # rows beyond the limit: one of them usually ends the search
_ENTRIES = 2**12  # probabilities per block, so that their Bessel functions fit in memory
_SCORES = ("cosine", "kappa", "log_positivity", "probability")  # of Hits, one per item


@dataclass(frozen=True)
class Hits:
    """The results of one query, best first.

    Attributes
    ----------
    ids
        Ids of the items: strings, or what the engine of a wrapped index has.
    cosine
        Exact float64 cosines of the stored mu; for a mixture, to its nearest component.
    kappa
        Concentrations of the items.
    threshold
        Smallest cosine inside the cap, one per component of a mixture; inf means no cap.
    log_positivity
        Log expected positivity, if ``kappa_pos`` was given.
    probability
        P(positive), if ``prior`` was given too.
    payload
        Values of the requested payload columns.
    asks_back
        True if the cap was wider than ``widest``. Nothing was searched then; ask the user for a better query.
    """

    ids: list[Any]
    cosine: Float[Tensor, " n"]
    kappa: Float[Tensor, " n"]
    threshold: Float[Tensor, " k"]
    log_positivity: Float[Tensor, " n"] | None = None
    probability: Float[Tensor, " n"] | None = None
    payload: dict[str, list[Any]] = field(default_factory=dict)
    asks_back: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        best = ", ".join(
            f"{name!r}: {cosine:.3f}"
            for name, cosine in zip(self.ids[:3], self.cosine[:3].tolist(), strict=True)
        )
        more = ", ..." if len(self) > 3 else ""
        caps = [round(t, 3) for t in self.threshold.tolist()]
        return f"Hits({len(self)} items, threshold={caps}, cosine={{{best}{more}}})"


@dataclass(frozen=True)
class Explanation:
    """Why hits are in a query's cap: their angles to the query's mu and the cap's own angle, in degrees.

    ``latent_in_cap`` is the probability that the latent of each hit lies in the cap, as its mu does: low for vague
    items. None if it was not requested, and for a mixture, whose caps may overlap.
    """

    degrees: Float[Tensor, " n"]
    cap_degrees: Float[Tensor, " k"]
    latent_in_cap: Float[Tensor, " n"] | None


def explain_hits(hits: Hits, posterior: Posterior, *, latent: bool = True) -> Explanation:
    """Explain the hits of one query (batch shape ()).

    The probabilities cost 384 Bessel functions per hit; ``latent=False`` omits them.

    Examples
    --------
    >>> from aureole.distributions import VonMisesFisher
    >>> from aureole.caps import CredibleIndex
    >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 2.0, 90.0]))
    >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
    >>> query = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 5.0)
    >>> why = explain_hits(index.search(query, mass=0.95), query)
    >>> why.degrees, why.cap_degrees
    (tensor([36.8699, 53.1301], dtype=torch.float64), tensor([66.3577], dtype=torch.float64))
    >>> why.latent_in_cap
    tensor([0.9998, 0.5087], dtype=torch.float64)
    """
    cap = torch.where(hits.threshold > 1, torch.nan, hits.threshold)  # inf means no cap
    probability = None
    if latent and len(cap) == 1 and not math.isnan(float(cap[0])):
        blocks = zip(hits.cosine.split(_ENTRIES), hits.kappa.split(_ENTRIES), strict=True)
        with torch.no_grad():
            parts = [latent_in_cap(c, k, cap[0], posterior.dim) for c, k in blocks]
        probability = torch.cat(parts) if parts else hits.cosine.clone()
    angles = [torch.rad2deg(torch.acos(x.clamp(-1, 1))) for x in (hits.cosine, cap)]
    return Explanation(angles[0], angles[1], probability)


def times_more_likely(log_ratio: float) -> str:
    """A likelihood ratio in words, to two digits, from its logarithm.

    Examples
    --------
    >>> times_more_likely(2.8), times_more_likely(-1.2), times_more_likely(9.7), times_more_likely(1000.0)
    ('16x more likely', '3.3x less likely', '16,000x more likely', 'over 1,000,000x more likely')
    """
    size = abs(log_ratio)
    ratio = f"{float(f'{math.exp(size):.2g}'):,.{1 if size < 2.29 else 0}f}" if size < 13.8 else ""
    return f"{ratio or 'over 1,000,000'}x {'more' if log_ratio >= 0 else 'less'} likely"


def describe_cap(
    mass: float,
    kind: str,
    *,
    kappa_pos: float | None,
    typical_kappa: float,
    conformal: ConformalMass | None = None,
) -> dict[str, Any]:
    """What a cap was computed with: its level (the mass after calibration), pairs and concentrations.

    With a conformal calibration the level and the concentrations are those of the calibration.

    Examples
    --------
    >>> describe_cap(0.9, "predictive", kappa_pos=20.0, typical_kappa=50.0)
    {'kind': 'predictive', 'mass': 0.9, 'level': 0.9, 'pairs': None, 'kappa_pos': 20.0, 'kappa_other': 50.0}
    """
    cap: dict[str, Any] = {"kind": kind, "mass": mass, "level": mass, "pairs": None}
    if conformal is not None:
        cap["level"], cap["pairs"] = conformal.level(mass, quiet=True), len(conformal.scores)
        return cap | {"kappa_pos": conformal.kappa_pos, "kappa_other": conformal.kappa_other}
    other = typical_kappa if kind == "predictive" else None
    return cap | {"kappa_pos": kappa_pos, "kappa_other": other}


def pick_hits(hits: Hits, places: list[int]) -> Hits:
    """The hits at some positions, in that order."""
    scores = {name: getattr(hits, name) for name in _SCORES}
    picked: dict[str, Any] = {name: x[places] for name, x in scores.items() if x is not None}
    payload = {name: [values[i] for i in places] for name, values in hits.payload.items()}
    return replace(hits, ids=[hits.ids[i] for i in places], payload=payload, **picked)


@dataclass
class Queries:
    """Queries in the form engines need: mu [n, k, D] and smallest cosines [n, k].

    ``bound`` is the threshold that is searched with: inf where the cap is too wide, higher where a limit allows it.
    """

    posterior: Posterior
    mu: np.ndarray
    threshold: Tensor
    bound: np.ndarray
    asks_back: list[bool]

    @classmethod
    def of(cls, posterior: Posterior, threshold: Tensor, widest: float | None) -> "Queries":
        """Queries of batch shape () or (n,) with their thresholds."""
        n, k = _count(posterior)
        mu = stored_direction(posterior.mu).reshape(n, k, posterior.dim)
        threshold = threshold.detach().cpu().reshape(n, k)
        asks_back, bound = [False] * n, threshold.numpy().copy()
        if widest is not None:
            check_angle(widest)
            asks_back = (torch.acos(threshold.clamp(-1, 1)).amax(-1) > widest).tolist()
            bound[asks_back] = math.inf
        return cls(posterior, mu, threshold, bound, asks_back)

    def components(self) -> tuple[Tensor, Tensor]:
        """(Kappa, log weights) of the components [n, k]."""
        shape, kappa = _count(self.posterior), self.posterior.kappa
        posterior = self.posterior
        one = torch.ones_like(kappa)
        weights = posterior.weights if isinstance(posterior, MixtureVMF) else one
        kappa, weights = (x.detach().cpu().double().reshape(shape) for x in (kappa, weights))
        return kappa, weights.log()


def _count(posterior: Posterior) -> tuple[int, int]:
    """(Queries, components of each) of a posterior of batch shape () or (n,)."""
    n = posterior.batch_shape[0] if posterior.batch_shape else 1
    return n, posterior.kappa.shape[-1] if isinstance(posterior, MixtureVMF) else 1


@dataclass(frozen=True)
class Members:
    """The rows in a query's cap, without mu, and their cosines to each component [n, k]."""

    rows: Rows
    cosines: np.ndarray


def raise_bounds(
    store: Searcher, queries: Queries, limit: int, selection: Selection
) -> dict[int, Rows]:
    """Raise each cap's bound to the limit-th best cosine: rows below it cannot be among the results.

    Returns the nearest rows of those queries whose results they contain, since the last of them is further outside the
    bound than rounding errors reach. These queries need no second search.
    """
    if queries.mu.shape[1] > 1:
        return {}
    searched = np.flatnonzero(queries.bound[:, 0] <= 1)
    error = 2 * slack(queries.mu.shape[-1])
    complete: dict[int, Rows] = {}
    nearest = store.nearest(queries.mu[searched, 0], limit + _SPARE, selection)
    for query, rows in zip(searched.tolist(), nearest, strict=True):
        if len(rows) < limit:
            continue
        cosine = np.sort(exact_cosines(queries.mu[query, 0], rows.mu))
        bound = queries.bound[query, 0] = max(queries.bound[query, 0], cosine[-limit])
        # the score of a row that was left out is at most that of the last one, both within the slack
        if cosine[0] < bound - error:
            complete[query] = rows
    return complete


def find_members(
    store: Searcher, queries: Queries, selection: Selection, complete: dict[int, Rows]
) -> list[Members]:
    """The members of each query's cap; ``complete`` holds rows that contain the entire caps of some queries."""
    n, k, _ = queries.mu.shape
    owner, component = np.nonzero(queries.bound <= 1)
    if complete:
        searched = ~np.isin(owner, list(complete))
        owner, component = owner[searched], component[searched]
    parts: list[list[Members]] = [[] for _ in range(n)]
    for i, rows in complete.items():
        parts[i].append(_inside(rows, queries, i))
    for start in range(0, len(owner), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        at = owner[chunk], component[chunk]
        candidates = store.candidates(queries.mu[at], queries.bound[at], selection)
        for i, rows in zip(at[0].tolist(), candidates, strict=True):
            parts[i].append(_inside(rows, queries, i))
    return [_union(part, selection, k) for part in parts]


def log_positivities(members: list[Members], queries: Queries, kappa_pos: float) -> list[Tensor]:
    """Log expected positivities of the members of all queries, in one fused call."""
    sizes = [len(cap.rows) for cap in members]
    owner = torch.repeat_interleave(torch.arange(len(members)), torch.tensor(sizes))
    cosine = torch.from_numpy(np.concatenate([cap.cosines for cap in members]))
    kappa_hit = torch.from_numpy(np.concatenate([cap.rows.kappa for cap in members])).double()
    own_kappa, log_weights = queries.components()
    kappa = own_kappa[owner]
    kappa_hit = kappa_hit.unsqueeze(-1).expand_as(kappa)
    c, own, hit = (x.reshape(-1) for x in (cosine, kappa, kappa_hit))
    each = log_hit_positivity(c, own, hit, kappa_pos, queries.mu.shape[-1]).reshape(kappa.shape)
    if kappa.shape[1] == 1:
        return list(each[:, 0].split(sizes))
    return list(torch.logsumexp(each + log_weights[owner], -1).split(sizes))


def rank_hits(
    members: list[Members],
    queries: Queries,
    kappa_pos: float | None,
    *,
    prior: float | None,
    rank: Rank,
    limit: int | None,
) -> list[Hits]:
    """The ranked hits of all queries."""
    log_ratios: list[Tensor | None] = [None] * len(members)
    if kappa_pos is not None and members:
        log_ratios = [*log_positivities(members, queries, kappa_pos)]
    hits = []
    for i, (cap, log_ratio) in enumerate(zip(members, log_ratios, strict=True)):
        rows, cosine = cap.rows, cap.cosines[:, 0]
        if cap.cosines.shape[1] > 1:
            cosine = cap.cosines.max(-1, initial=-1.0)
        key = cosine if rank == "cosine" or log_ratio is None else log_ratio.numpy()
        order = _order(key, cosine, rows.ids)[:limit]
        if len(order) == len(rows) == 1:  # nothing to reorder
            order = slice(None)
        picked = None if log_ratio is None else log_ratio[order]
        probability = None
        if prior is not None and picked is not None:
            probability = positive_probability(picked, prior)
        hits.append(
            Hits(
                ids=rows.ids[order].tolist(),
                cosine=torch.from_numpy(cosine[order]),
                kappa=torch.from_numpy(rows.kappa[order]),
                threshold=queries.threshold[i],
                log_positivity=picked,
                probability=probability,
                payload={name: column[order].tolist() for name, column in rows.payload.items()},
                asks_back=queries.asks_back[i],
            )
        )
    return hits


def _order(key: np.ndarray, cosine: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Positions by descending key, then descending cosine, then id."""
    if len(ids) < 2:
        return np.arange(len(ids))
    order = np.lexsort((-cosine, -key))
    tied = (np.diff(key[order]) == 0) & (np.diff(cosine[order]) == 0)
    if tied.any():  # sort the ids of each run of ties
        starts = np.flatnonzero(np.diff(tied.astype(np.int8), prepend=0) == 1)
        ends = np.flatnonzero(np.diff(tied.astype(np.int8), append=0) == -1) + 2
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            run = order[start:end].tolist()
            names = {place: (isinstance(ids[place], str), ids[place]) for place in run}
            order[start:end] = sorted(run, key=names.__getitem__)  # Qdrant mixes types
    return order


def _inside(rows: Rows, queries: Queries, i: int) -> Members:
    """Those of the rows that lie in a query's cap."""
    columns = [exact_cosines(mu, rows.mu) for mu in queries.mu[i]]
    cosine = np.stack(columns, -1) if len(columns) > 1 else columns[0][:, None]
    inside = np.flatnonzero((cosine >= queries.bound[i]).any(-1))
    return Members(_without_mu(rows, inside), cosine[inside])


def _without_mu(rows: Rows, places: np.ndarray) -> Rows:
    payload = {name: column[places] for name, column in rows.payload.items()}
    return Rows(rows.ids[places], NO_MU, rows.kappa[places], payload)


def _union(parts: list[Members], selection: Selection, k: int) -> Members:
    """The union of the members of a query's caps, one per component."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Members(no_rows(selection.columns), np.zeros((0, k)))
    rows = [part.rows for part in parts]
    ids = np.concatenate([part.ids for part in rows])
    first = {name: place for place, name in reversed(list(enumerate(ids)))}
    places = np.array(sorted(first.values()), dtype=np.int64)
    payload = {c: np.concatenate([part.payload[c] for part in rows]) for c in selection.columns}
    kappa = np.concatenate([part.kappa for part in rows])
    cosines = np.concatenate([part.cosines for part in parts])
    return Members(_without_mu(Rows(ids, NO_MU, kappa, payload), places), cosines[places])
