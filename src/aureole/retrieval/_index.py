"""CredibleIndex: a gallery of posteriors where a query's own posterior decides how many results it gets."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.retrieval._conformal import ConformalMass
from aureole.retrieval._credible import Kind, Posterior, cap_cosine
from aureole.retrieval._filters import check_filter
from aureole.retrieval._hits import Queries, Rank, find_members, raise_bounds, rank_hits
from aureole.retrieval._origin import Origin
from aureole.retrieval._rows import Schema, check_ids, check_rows, schema_of
from aureole.retrieval._store import Approximate, Store, create_store, open_store

_NOTE, _ORIGIN = "conformal", "origin"


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
        *,
        typical_kappa: float | None = None,
    ) -> "CredibleIndex":
        """A new index with these rows; refused where there is one already.

        ``typical_kappa``, by default the median of these rows, stands for a partner's in predictive caps. Give that of
        the whole where these rows are the first of many.
        """
        if not isinstance(posteriors, VonMisesFisher):
            raise InvalidInputError(
                f"a gallery holds VonMisesFisher posteriors, but got {type(posteriors).__name__}. Store a mixture as "
                "its components, one row each."
            )
        schema = schema_of(posteriors, payload, typical_kappa)
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

    def fetch(
        self, ids: Sequence[str], *, columns: Sequence[str] = ()
    ) -> tuple[VonMisesFisher, dict[str, list[Any]]]:
        """(The stored posteriors of some ids in their order, their payload); an error names an id that is not there."""
        names = check_ids(ids)
        self._check_columns(columns)
        rows = self._store.fetch(names, columns)
        place = {name: i for i, name in enumerate(rows.ids.tolist())}
        missing = next((name for name in names if name not in place), None)
        if missing is not None:
            raise InvalidInputError(f"there is no id {missing[:60]!r} in the gallery.")
        order = [place[name] for name in names]
        found = VonMisesFisher(
            torch.from_numpy(rows.mu[order]),
            torch.from_numpy(rows.kappa[order]),
            validate_args=False,
        )
        return found, {name: column[order].tolist() for name, column in rows.payload.items()}

    def scan(
        self, *, columns: Sequence[str] = ()
    ) -> Iterator[tuple[list[str], Float[np.ndarray, " n"], dict[str, list[Any]]]]:
        """(Ids, kappa, payload) of all rows, in batches and in an order of the engine's own.

        Cost: one pass over these columns alone; mu, which is large, is not read.
        """
        self._check_columns(columns)
        for rows in self._store.scan(columns):
            payload = {name: column.tolist() for name, column in rows.payload.items()}
            yield rows.ids.tolist(), rows.kappa, payload

    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows, and return how many were there."""
        return self._store.delete(check_ids(ids))

    def count(self) -> int:
        """The number of rows."""
        return self._store.count()

    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an approximate index, 'ivf' (lists, probes) or 'hnsw' (links, width). Then look at ``check_recall``."""
        self._store.build(kind, **sizes)

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self._store.engine

    @property
    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index; None where every search is exact."""
        return self._store.approximate()

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

    @property
    def origin(self) -> Origin:
        """What made the posteriors, as far as it is known; set it to save it with the index."""
        text = self._store.read_note(_ORIGIN)
        return Origin() if text is None else Origin.from_json(text)

    @origin.setter
    def origin(self, origin: Origin) -> None:
        self._store.write_note(_ORIGIN, origin.to_json())

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
        queries = Queries.of(
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
        known = {}
        if limit is not None and rank == "cosine":
            known = raise_bounds(self._store, queries, limit, conditions, tuple(columns), exact)
        found = find_members(self._store, queries, conditions, tuple(columns), exact, known)
        hits = rank_hits(found, queries, kappa_pos, prior, rank, limit, self.schema.dim)
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
        self._check_columns(columns)

    def _check_columns(self, columns: Sequence[str]) -> None:
        unknown = [name for name in columns if name not in self.schema.columns]
        if unknown:
            raise InvalidInputError(
                f"there is no payload column {unknown[0]!r}; there are {sorted(self.schema.columns)}."
            )


def _one(posterior: Posterior, row: int) -> Posterior:
    if isinstance(posterior, MixtureVMF):
        parts = (posterior.weights[row], posterior.mu[row], posterior.kappa[row])
        return MixtureVMF(*parts, validate_args=False)
    return VonMisesFisher(posterior.mu[row], posterior.kappa[row], validate_args=False)
