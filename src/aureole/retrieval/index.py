"""CredibleIndex: a gallery of posteriors where a query's own posterior decides how many results it gets."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.retrieval.conformal import ConformalMass
from aureole.retrieval.credible import Kind, Posterior, cap_cosine
from aureole.retrieval.filters import Condition, check_filter
from aureole.retrieval.rows import Rows, Schema, check_ids, check_rows, schema_of
from aureole.retrieval.scores import (
    exact_cosines,
    log_hit_positivity,
    positive_probability,
    stored_direction,
)
from aureole.retrieval.store import Approximate, Store, create_store, open_store

__all__ = ["CredibleIndex", "Hits", "Recall"]

Rank = Literal["cosine", "positivity"]
_CHUNK = 64  # queries handed to an engine at a time
_NOTE = "conformal"


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


@dataclass(frozen=True)
class Recall:
    """Of the ``members`` of some caps, how many an approximate index ``found``, over so many ``queries``."""

    queries: int
    members: int
    found: int

    @property
    def share(self) -> float:
        """The share found; 1 where there was nothing to find."""
        return self.found / self.members if self.members else 1.0


class CredibleIndex:
    """A gallery of posteriors on LanceDB, FAISS or PostgreSQL, searched by credible caps.

    The address decides the engine: a path that ends in ``.lance`` or ``.faiss``, ``faiss://`` (in memory) or
    ``postgresql://…#table``. In exact mode, the default until ``build`` is called, all engines return the same sets:
    the items with the float64 cosine of the stored float32 mu at or above the threshold.

    Ids are distinct strings of at most 1,024 bytes, stored verbatim; appending one that is there is refused. Payload
    columns hold str, int, float or bool and can be filtered by: ``{"shop": "north", "price": (10, None)}``.

    Examples
    --------
    >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 20.0, 90.0]))
    >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
    >>> sure = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 400.0)
    >>> vague = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 5.0)
    >>> index.search(sure, mass=0.95).ids, index.search(vague, mass=0.95).ids
    ([], ['ant', 'bee'])
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def create(
        cls,
        where: str | os.PathLike[str],
        posteriors: VonMisesFisher,
        ids: Sequence[str],
        payload: Mapping[str, Sequence[Any]] | None = None,
    ) -> "CredibleIndex":
        """A new index with these rows; refused where there is one already."""
        if not isinstance(posteriors, VonMisesFisher):
            raise InvalidInputError(
                f"a gallery holds VonMisesFisher posteriors, but got {type(posteriors).__name__}. Store a mixture as "
                "its components, one row each."
            )
        schema = schema_of(posteriors, payload)
        rows = check_rows(posteriors, ids, payload, schema)
        return cls(create_store(os.fspath(where), schema, rows))

    @classmethod
    def open(cls, where: str | os.PathLike[str]) -> "CredibleIndex":
        """The index at an address."""
        return cls(open_store(os.fspath(where)))

    @property
    def schema(self) -> Schema:
        """The dimension, the payload columns and the typical kappa."""
        return self._store.schema

    def append(
        self,
        posteriors: VonMisesFisher,
        ids: Sequence[str],
        payload: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Add rows, all or none; when it returns they are durable. Ids that are there already are refused."""
        self._store.append(check_rows(posteriors, ids, payload, self.schema))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows, and return how many were there."""
        return self._store.delete(check_ids(ids))

    def count(self) -> int:
        """The number of rows."""
        return self._store.count()

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an approximate index, 'ivf' (lists, probes) or 'hnsw' (links, width). Then look at ``check_recall``."""
        self._store.build(kind, **sizes)

    def close(self) -> None:
        """Release connections and memory."""
        self._store.close()

    def __enter__(self) -> "CredibleIndex":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def conformal(self) -> ConformalMass | None:
        """The calibration that ``search(guarantee="conformal")`` uses; set it to save it with the index."""
        text = self._store.read_note(_NOTE)
        return None if text is None else ConformalMass.from_json(text)

    @conformal.setter
    def conformal(self, calibration: ConformalMass) -> None:
        self._store.write_note(_NOTE, calibration.to_json())

    def search(
        self,
        posterior: Posterior,
        mass: float = 0.95,
        *,
        limit: int | None = None,
        filter: Mapping[str, Any] | None = None,
        kind: Kind = "credible",
        kappa_pos: float | None = None,
        kappa_other: float | None = None,
        prior: float | None = None,
        rank: Rank = "cosine",
        guarantee: Literal["conformal"] | None = None,
        widest: float | None = None,
        columns: Sequence[str] = (),
        exact: bool = False,
    ) -> Any:
        """The hits in each query's cap: one ``Hits`` for one posterior, a list of them for a batch.

        Parameters
        ----------
        posterior
            Queries: a VonMisesFisher or MixtureVMF with batch shape () or (n,).
        mass
            The share of the posterior (credible) or of partners (predictive) that the cap holds.
        limit
            The most results of a query, cut after ranking.
        filter
            Demands on payload columns: a value, a list of values, or a range (low, high).
        kind
            'credible' for the query's latent, 'predictive' for a partner's mu (needs kappa_pos; ``kappa_other`` is by
            default the gallery's typical kappa).
        kappa_pos, prior
            With kappa_pos hits have their expected positivity, and with the prior too their P(positive).
        rank
            'cosine', or 'positivity', which weighs the items' kappa too. Ties are in the order of the ids.
        guarantee
            'conformal': the mass is taken from the calibration saved with the index.
        widest
            An angle in radians: a query whose cap is wider gets no hits, and ``asks_back`` is set.
        columns
            Payload columns to return.
        exact
            Scan all rows even if an approximate index was built.
        """
        if guarantee is not None:
            mass, kappa_pos, kappa_other = self._guaranteed(
                guarantee, kind, mass, kappa_pos, kappa_other
            )
        self._check_search(posterior, limit, rank, kappa_pos, prior, columns)
        conditions = check_filter(filter, self.schema)
        queries = _Queries.of(
            posterior,
            cap_cosine(
                posterior,
                mass,
                kind=kind,
                kappa_pos=kappa_pos,
                kappa_other=self.schema.typical_kappa if kappa_other is None else kappa_other,
            ),
            widest,
        )
        if limit is not None and rank == "cosine":
            self._raise_bounds(queries, limit, conditions, exact)
        found = self._members(queries, conditions, tuple(columns), exact)
        hits = _ranked(found, queries, kappa_pos, prior, rank, limit, self.schema.dim)
        return hits if posterior.batch_shape else hits[0]

    def check_recall(
        self, posterior: Posterior, mass: float = 0.95, *, least: float = 1.0, **search: Any
    ) -> Recall:
        """How many members of these queries' caps the approximate index finds; warns below the share ``least``."""
        alike = {"filter", "kind", "kappa_pos", "kappa_other"}
        if not search.keys() <= alike:
            raise InvalidInputError(
                f"check_recall takes {sorted(alike)}, but got {sorted(search)}."
            )
        if not posterior.batch_shape:
            posterior = posterior.expand(torch.Size([1]))
        members = found = 0
        for row in range(posterior.batch_shape[0]):
            query = _one(posterior, row)
            true = set(self.search(query, mass, exact=True, **search).ids)
            members += len(true)
            found += len(true & set(self.search(query, mass, **search).ids))
        recall = Recall(posterior.batch_shape[0], members, found)
        if recall.share < least:
            warnings.warn(
                f"the approximate index lost {members - found} of {members} members of {recall.queries} caps (recall "
                f"{recall.share:.4f}). Build it with more probes or width, or search with exact=True.",
                AureoleWarning,
                stacklevel=2,
            )
        return recall

    def _guaranteed(
        self,
        guarantee: str,
        kind: Kind,
        mass: float,
        kappa_pos: float | None,
        kappa_other: float | None,
    ) -> tuple[float, float, float]:
        calibration = self.conformal
        if guarantee != "conformal" or kind != "predictive":
            raise InvalidInputError(
                "guarantee='conformal' is about a partner's mu: it goes with kind='predictive', and no other guarantee "
                f"is known; got {guarantee!r} with kind={kind!r}."
            )
        if calibration is None:
            raise InvalidInputError(
                "this index has no calibration: set index.conformal = ConformalMass.fit(posterior, partner, kappa_pos)."
            )
        for name, given, held in (
            ("kappa_pos", kappa_pos, calibration.kappa_pos),
            ("kappa_other", kappa_other, calibration.kappa_other),
        ):
            if given is not None and given != held:
                raise InvalidInputError(
                    f"the calibration was made with {name} = {held:g}, so the guarantee does not hold for {given:g}."
                )
        return calibration.level(mass), calibration.kappa_pos, calibration.kappa_other

    def _check_search(
        self,
        posterior: Posterior,
        limit: int | None,
        rank: str,
        kappa_pos: float | None,
        prior: float | None,
        columns: Sequence[str],
    ) -> None:
        if not isinstance(posterior, (VonMisesFisher, MixtureVMF)):
            raise InvalidInputError(
                f"a query is a VonMisesFisher or a MixtureVMF, but got {type(posterior).__name__}."
            )
        if len(posterior.batch_shape) > 1:
            raise InvalidInputError(
                f"queries have the batch shape () or (n,), but got {tuple(posterior.batch_shape)}."
            )
        if posterior.dim != self.schema.dim:
            raise InvalidInputError(
                f"the gallery lies in R^{self.schema.dim}, but the query lies in R^{posterior.dim}."
            )
        if not bool(torch.isfinite(posterior.mu).all()) or bool((~(posterior.kappa >= 0)).any()):
            raise InvalidInputError("a query has a mu that is not finite or a kappa below 0.")
        if limit is not None and (isinstance(limit, bool) or limit < 1):
            raise InvalidInputError(f"limit must be at least 1, but is {limit!r}.")
        if rank not in ("cosine", "positivity"):
            raise InvalidInputError(f"rank must be 'cosine' or 'positivity', but is {rank!r}.")
        if kappa_pos is None and (rank == "positivity" or prior is not None):
            raise InvalidInputError("the positivity of a hit and P(positive) need kappa_pos.")
        unknown = [name for name in columns if name not in self.schema.columns]
        if unknown:
            raise InvalidInputError(
                f"there is no payload column {unknown[0]!r}; there are {sorted(self.schema.columns)}."
            )

    def _raise_bounds(
        self, queries: "_Queries", limit: int, conditions: list[Condition], exact: bool
    ) -> None:
        """Raise each cap's bound to the limit-th best cosine: no better row can lie below it."""
        if queries.mu.shape[1] > 1:
            return
        asked = np.flatnonzero(queries.bound[:, 0] <= 1)
        found = self._store.nearest(queries.mu[asked, 0], limit, conditions, (), exact=exact)
        for query, rows in zip(asked, found, strict=True):
            cosine = np.sort(exact_cosines(queries.mu[query, 0], rows.mu))[::-1]
            if len(cosine) >= limit:
                queries.bound[query, 0] = max(queries.bound[query, 0], cosine[limit - 1])

    def _members(
        self,
        queries: "_Queries",
        conditions: list[Condition],
        columns: tuple[str, ...],
        exact: bool,
    ) -> list[tuple[Rows, np.ndarray]]:
        """(Rows without mu, cosines to each component [n, k]) in each query's cap."""
        n, k, _ = queries.mu.shape
        asked = [(i, j) for i in range(n) for j in range(k) if queries.bound[i, j] <= 1]
        parts: list[list[tuple[Rows, np.ndarray]]] = [[] for _ in range(n)]
        for start in range(0, len(asked), _CHUNK):
            chunk = asked[start : start + _CHUNK]
            at = tuple(np.array(chunk, dtype=np.int64).T)
            found = self._store.candidates(
                queries.mu[at], queries.bound[at], conditions, columns, exact=exact
            )
            for (i, _), rows in zip(chunk, found, strict=True):
                cosine = np.stack([exact_cosines(mu, rows.mu) for mu in queries.mu[i]], -1)
                inside = np.flatnonzero((cosine >= queries.bound[i]).any(-1))
                parts[i].append((_take(rows, inside), cosine[inside]))
        return [_merged(part, columns, k) for part in parts]


@dataclass
class _Queries:
    """Queries as the engines see them: mu [n, k, D], kappa and log weights [n, k], least cosines [n, k]."""

    mu: np.ndarray
    kappa: Tensor
    log_weights: Tensor
    threshold: Tensor
    bound: np.ndarray
    asks_back: list[bool]

    @classmethod
    def of(cls, posterior: Posterior, threshold: Tensor, widest: float | None) -> "_Queries":
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


def _ranked(
    found: list[tuple[Rows, np.ndarray]],
    queries: _Queries,
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
                ids=[rows.ids[place] for place in order.tolist()],
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


def _order(key: np.ndarray, cosine: np.ndarray, ids: list[str]) -> np.ndarray:
    """Places by falling key, then falling cosine, then id."""
    order = np.lexsort((-cosine, -key))
    tied = (np.diff(key[order]) == 0) & (np.diff(cosine[order]) == 0)
    if tied.any():
        by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        order = by_id[np.lexsort((-cosine[by_id], -key[by_id]))]
    return order


def _take(rows: Rows, places: np.ndarray) -> Rows:
    """Some rows, without their mu, which is large."""
    payload = {name: column[places] for name, column in rows.payload.items()}
    nothing = np.zeros((0, 0), np.float32)
    return Rows([rows.ids[i] for i in places.tolist()], nothing, rows.kappa[places], payload)


def _merged(
    parts: list[tuple[Rows, np.ndarray]], columns: Sequence[str], k: int
) -> tuple[Rows, np.ndarray]:
    """The union of the rows found by a query's components."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = {name: np.zeros(0, object) for name in columns}
        nothing = np.zeros((0, 0), np.float32)
        return Rows([], nothing, np.zeros(0, np.float32), empty), np.zeros((0, k))
    ids = [name for rows, _ in parts for name in rows.ids]
    first = {name: place for place, name in reversed(list(enumerate(ids)))}
    places = np.array(sorted(first.values()), dtype=np.int64)
    payload = {c: np.concatenate([rows.payload[c] for rows, _ in parts]) for c in columns}
    kappa = np.concatenate([rows.kappa for rows, _ in parts])
    whole = Rows(ids, np.zeros((0, 0), np.float32), kappa, payload)
    return _take(whole, places), np.concatenate([cosine for _, cosine in parts])[places]


def _one(posterior: Posterior, row: int) -> Posterior:
    if isinstance(posterior, MixtureVMF):
        parts = (posterior.weights[row], posterior.mu[row], posterior.kappa[row])
        return MixtureVMF(*parts, validate_args=False)
    return VonMisesFisher(posterior.mu[row], posterior.kappa[row], validate_args=False)
