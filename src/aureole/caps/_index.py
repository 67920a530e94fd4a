"""CredibleIndex: a gallery of posteriors in which the uncertainty of a query decides how many results it gets."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float

from aureole.caps._caps import Posterior, cap_cosine, cap_kind
from aureole.caps._conformal import ConformalMass
from aureole.caps._hits import Hits, Queries, find_members, raise_bounds, rank_hits
from aureole.caps._recall import Recall, recall_of
from aureole.caps._search_options import (
    SearchOptions,
    checked_query,
    one_query,
)
from aureole.data._addresses import full_address
from aureole.distributions import VonMisesFisher
from aureole.engines._addresses import engine_of, wrapped_store
from aureole.engines._filters import check_filter
from aureole.engines._integrity import LARGEST_NOTE, find_problems
from aureole.engines._schema import Origin, Rows, Schema, check_ids, check_rows, schema_of
from aureole.engines._store import Approximate, Names, Searcher, Selection
from aureole.engines._wrap import WrappedStore
from aureole.errors import AureoleWarning, DamagedGalleryError, InvalidInputError

_F = TypeVar("_F", bound=Callable[..., Any])
_CONFORMAL, _ORIGIN = "conformal", "origin"  # names of notes


def _serialised(method: _F) -> _F:
    """Hold the lock of the index during a method: engines are not thread-safe."""

    @wraps(method)
    def locked(self: "CredibleIndex", *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast("_F", locked)


class CredibleIndex:
    """A gallery of posteriors on LanceDB, FAISS or PostgreSQL, searched by credible caps.

    The address selects the engine: a path that ends in ``.lance`` or ``.faiss``, ``faiss://`` (in memory),
    or ``postgresql://…#table``. :meth:`wrap` searches an index that you have already. In exact mode, the default until
    ``build`` is called, all engines return the same hits: the items whose stored float32 mu has a float64 cosine at or
    above the threshold. Threads may share an index;
    their calls are serialised.

    Ids are distinct strings of at most 1,024 bytes, stored verbatim. Payload columns hold str, int, float or bool, and
    searches can filter by them: ``{"shop": "north", "price": (10, None)}``.

    Examples
    --------
    >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 20.0, 90.0]))
    >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
    >>> confident = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 400.0)
    >>> vague = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 5.0)
    >>> index.search(confident, mass=0.95).ids, index.search(vague, mass=0.95).ids
    ([], ['ant', 'bee'])
    """

    def __init__(self, store: Searcher) -> None:
        self._store, self._lock = store, RLock()

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
        """Create an index with these rows; raise if one exists at the address.

        Predictive caps use ``typical_kappa`` for the partner (default: the median of these rows). Pass the median of
        the entire gallery if you append more rows later.
        """
        if not isinstance(posteriors, VonMisesFisher):
            raise InvalidInputError(
                f"a gallery holds VonMisesFisher posteriors, but got {type(posteriors).__name__}. Store a mixture as "
                "its components, one row each."
            )
        schema = schema_of(posteriors, payload, typical_kappa)
        rows = check_rows(posteriors, ids, payload, schema)
        where = full_address(where)
        return cls(engine_of(where).create(where, schema, rows))

    @classmethod
    def open(cls, where: str | os.PathLike[str]) -> "CredibleIndex":
        """Open the index at an address."""
        where = full_address(where)
        return cls(engine_of(where).open(where))

    @classmethod
    def wrap(
        cls,
        source: Any,
        collection: str | tuple[str, str] | None = None,
        *,
        vector: str | None = None,
        id: str | None = None,
        kappa: Any = None,
        columns: Sequence[str] = (),
        kappa_pos: float | None = None,
    ) -> "CredibleIndex":
        """A read-only index around vectors that you have already; none are copied.

        The directions of queries must lie in the space of these vectors. Their kappa is enough: with ``kappa_pos``,
        searches use predictive caps. The vectors must have length 1 (within 0.001) unless the engine compares cosines:
        all vectors of a FAISS index are checked, of other engines the first 1,000 and those that a search returns.

        Searches are exact if the engine is: they use an approximate index that it has, unless ``exact=True``. Filters
        are applied to the members of the cap. ``conformal`` and ``origin`` are kept in memory. Ids are what the engine
        has, such as integers.

        Parameters
        ----------
        source
            A ``faiss.Index`` (Flat, IVFFlat or HNSWFlat, also in an IDMap), a LanceDB table, a ``LanceDataset`` or a
            path that ends in ``.lance``, a ``QdrantClient``, a ``MilvusClient``, or an address
            ``postgresql://user@host/database#table``.
        collection
            Name of the collection (Qdrant, Milvus) or table (PostgreSQL; a tuple has the schema first).
        vector
            Column, field or name of the vectors (default: the only one).
        id
            Column of distinct ids (default: the primary key; in Lance, ``id``).
        kappa
            Concentrations of the items: a column, one number for all, a mapping by id, or an array whose i-th
            entry belongs to the id i. By default the items are points, kappa = inf.
        columns
            Columns of str, int, float or bool that searches can return and filter by.
        kappa_pos
            How close the latents of two partners are, for predictive caps and positivity.

        Examples
        --------
        >>> import faiss
        >>> mine = faiss.IndexFlatIP(3)
        >>> mine.add(torch.eye(3).numpy())
        >>> index = CredibleIndex.wrap(mine, kappa_pos=20.0)
        >>> query = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 5.0)
        >>> index.search(query, mass=0.9).ids
        [0, 1]
        """
        names = Names(collection, vector, id, tuple(columns))
        index = cls(wrapped_store(source, names, kappa))
        index.origin = Origin(kappa_pos)
        return index

    def __repr__(self) -> str:
        columns = list(self.schema.columns)
        return f"CredibleIndex({self.engine}, dim={self.schema.dim}, columns={columns})"

    @property
    def schema(self) -> Schema:
        """The dimension, the payload columns and the typical kappa."""
        return self._store.schema

    @_serialised
    def append(
        self,
        posteriors: VonMisesFisher,
        ids: Sequence[str],
        payload: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Add all rows, or none if an id exists already.

        The rows are durable when it returns. Cost: Lance and PostgreSQL write the new rows only. FAISS writes a new
        snapshot of the entire gallery, so append in few, large batches there.
        """
        self._writer().append(check_rows(posteriors, ids, payload, self.schema))

    @_serialised
    def upsert(
        self,
        posteriors: VonMisesFisher,
        ids: Sequence[str],
        payload: Mapping[str, Sequence[Any]] | None = None,
    ) -> int:
        """Add rows, and replace those whose id exists: all or none. Return how many were replaced.

        The rows are durable when it returns, and other processes find them in their next search. Cost: as for
        ``append``. An approximate index finds new rows at once; rebuild it when many rows have changed.

        Examples
        --------
        >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 20.0, 90.0]))
        >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
        >>> index.upsert(VonMisesFisher(torch.eye(3)[:2], 30.0), ["cat", "dog"])
        1
        >>> index.count()
        4
        """
        return self._writer().upsert(check_rows(posteriors, ids, payload, self.schema))

    @_serialised
    def fetch(
        self, ids: Sequence[Any], *, columns: Sequence[str] = ()
    ) -> tuple[VonMisesFisher, dict[str, list[Any]]]:
        """(The stored posteriors of some ids, in their order, and their payload); raise if an id does not exist."""
        names = list(ids) if isinstance(self._store, WrappedStore) else check_ids(ids)
        self._check_columns(columns)
        rows = self._store.fetch(names, columns)
        place = {name: i for i, name in enumerate(rows.ids.tolist())}
        missing = next((name for name in names if name not in place), None)
        if missing is not None:
            raise InvalidInputError(f"id {repr(missing)[:60]} does not exist in the gallery.")
        order = [place[name] for name in names]
        mu, kappa = torch.from_numpy(rows.mu[order]), torch.from_numpy(rows.kappa[order])
        payload = {name: column[order].tolist() for name, column in rows.payload.items()}
        return VonMisesFisher(mu, kappa, validate_args=False), payload

    def scan(
        self, *, columns: Sequence[str] = ()
    ) -> Iterator[tuple[list[Any], Float[np.ndarray, " n"], dict[str, list[Any]]]]:
        """(Ids, kappa, payload) of all rows, in batches, in any order.

        Cost: one pass over these columns; mu is not read.
        """
        for rows in self._blocks(columns):
            payload = {name: column.tolist() for name, column in rows.payload.items()}
            yield rows.ids.tolist(), rows.kappa, payload

    def posteriors(
        self, *, columns: Sequence[str] = ()
    ) -> Iterator[tuple[list[Any], VonMisesFisher, dict[str, list[Any]]]]:
        """(Ids, stored posteriors, payload) of all rows, in batches, in any order.

        Cost: one pass over mu, kappa and these columns.

        Examples
        --------
        >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 20.0, 90.0]))
        >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
        >>> [(ids, posterior.kappa.tolist()) for ids, posterior, _ in index.posteriors()]
        [(['ant', 'bee', 'cat'], [50.0, 20.0, 90.0])]
        """
        for rows in self._blocks(columns, vectors=True):
            payload = {name: column.tolist() for name, column in rows.payload.items()}
            mu, kappa = (
                torch.from_numpy(np.require(values, requirements="W"))
                for values in (rows.mu, rows.kappa)
            )
            yield rows.ids.tolist(), VonMisesFisher(mu, kappa, validate_args=False), payload

    @_serialised
    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows, and return how many existed."""
        return self._writer().delete(check_ids(ids))

    @_serialised
    def count(self) -> int:
        """The number of rows."""
        return self._store.count()

    @_serialised
    def version(self) -> str:
        """A text that changes when rows are added, replaced or removed, by any process; cheap to ask for."""
        return self._store.version()

    @_serialised
    def check(self, *, observer: Callable[[int], None] | None = None) -> list[str]:
        """What is wrong with the stored gallery, one sentence per problem; an empty list if everything is valid.

        Opening a gallery validates its notes, columns and index; this also reads every row: ids are distinct, mu has
        length 1, kappa is at least 0, payload values have their types, and the approximate index has the right metric
        and size. Cost: one pass over all rows, and 8 bytes of memory per row. Not for wrapped indexes.

        Parameters
        ----------
        observer
            Called with the number of rows checked so far.

        Examples
        --------
        >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 20.0, 90.0]))
        >>> CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"]).check()
        []
        """
        store = self._writer()
        problems = []
        for note in ("origin", "conformal"):
            try:
                getattr(self, note)
            except DamagedGalleryError as error:
                problems.append(str(error))
        return [*problems, *find_problems(store, observer)]

    @_serialised
    def build(self, kind: Approximate, **sizes: int) -> None:
        """Build an approximate index, 'ivf' (sizes: lists, probes) or 'hnsw' (links, width); see ``check_recall``."""
        self._writer().build(kind, **sizes)

    @property
    def where(self) -> str:
        """The address, without a password."""
        return self._store.where

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self._store.engine

    @property
    @_serialised
    def approximate(self) -> dict[str, Any] | None:
        """The kind and sizes of the approximate index; None if every search is exact."""
        return self._store.approximate()

    @_serialised
    def close(self) -> None:
        """Release connections and memory."""
        self._store.close()

    def __enter__(self) -> "CredibleIndex":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    @_serialised
    def conformal(self) -> ConformalMass | None:
        """The calibration that ``SearchOptions(guarantee="conformal")`` uses; set it to save it with the index."""
        text = self._store.read_note(_CONFORMAL)
        with self._naming_gallery():
            return None if text is None else ConformalMass.from_json(text)

    @conformal.setter
    @_serialised
    def conformal(self, calibration: ConformalMass) -> None:
        text = calibration.to_json()
        if len(text) > LARGEST_NOTE // 4:
            raise InvalidInputError(
                f"a calibration on {len(calibration.scores):,} pairs is too large to be saved. Use fewer pairs."
            )
        self._store.write_note(_CONFORMAL, text)

    @property
    @_serialised
    def origin(self) -> Origin:
        """The model that produced the posteriors, if known; set it to save it with the index."""
        text = self._store.read_note(_ORIGIN)
        with self._naming_gallery():
            return Origin() if text is None else Origin.from_json(text)

    @origin.setter
    @_serialised
    def origin(self, origin: Origin) -> None:
        self._store.write_note(_ORIGIN, origin.to_json())

    @_serialised
    def search(
        self,
        posterior: Posterior,
        mass: float = 0.95,
        *,
        limit: int | None = None,
        filter: Mapping[str, Any] | None = None,
        columns: Sequence[str] = (),
        exact: bool = False,
        options: SearchOptions | None = None,
    ) -> Hits | list[Hits]:
        """The items in each query's cap: one ``Hits`` for one posterior, a list of them for a batch.

        Parameters
        ----------
        posterior
            Queries: a VonMisesFisher or MixtureVMF with batch shape () or (n,).
        mass
            The probability that the cap holds the query's latent (credible) or a partner (predictive).
        limit
            Largest number of results per query, applied after ranking (default: no limit).
        filter
            Conditions on payload columns: a value, a list of values, or a range (low, high).
        columns
            Payload columns to return.
        exact
            Scan all rows even if an approximate index exists.
        options
            How caps are built and hits are scored (default: predictive caps if the ``origin`` of the index has a
            ``kappa_pos``, else credible ones; ranked by cosine).
        """
        options = SearchOptions() if options is None else options
        schema = self.schema
        selection = Selection(check_filter(filter, schema), tuple(columns), exact)
        posterior = checked_query(posterior, schema.dim)
        if limit is not None and (isinstance(limit, bool) or limit < 1):
            raise InvalidInputError(f"limit must be at least 1, but is {limit!r}.")
        if columns:
            self._check_columns(columns)
        mass, options = self._calibrated(mass, options)
        kind, kappa_pos, kappa_other = options.kind, options.kappa_pos, options.kappa_other
        assert kind is not None
        if kappa_other is None:
            kappa_other = schema.typical_kappa
        threshold = cap_cosine(
            posterior, mass, kind=kind, kappa_pos=kappa_pos, kappa_other=kappa_other
        )
        queries = Queries.of(posterior, threshold, options.widest)
        complete = {}
        if limit is not None and options.rank == "cosine":
            complete = raise_bounds(self._store, queries, limit, selection)
        members = find_members(self._store, queries, selection, complete)
        hits = rank_hits(
            members, queries, kappa_pos, prior=options.prior, rank=options.rank, limit=limit
        )
        return hits if posterior.batch_shape else hits[0]

    @_serialised
    def check_recall(
        self,
        posterior: Posterior,
        mass: float = 0.95,
        *,
        least: float = 1.0,
        filter: Mapping[str, Any] | None = None,
        options: SearchOptions | None = None,
    ) -> Recall:
        """Measure how many members of these queries' caps the approximate index finds; warn below ``least``.

        ``Recall.by_size`` has the same for small and large caps.
        """
        if not posterior.batch_shape:
            posterior = posterior.expand(torch.Size([1]))
        caps: list[tuple[int, int]] = []
        for row in range(posterior.batch_shape[0]):
            query = one_query(posterior, row)
            exact, approximate = (
                self.search(query, mass, filter=filter, options=options, exact=exact)
                for exact in (True, False)
            )
            assert isinstance(exact, Hits)
            assert isinstance(approximate, Hits)
            caps.append((len(exact), len(set(exact.ids) & set(approximate.ids))))
        recall = recall_of(caps)
        if recall.share < least:
            missed = recall.members - recall.found
            warnings.warn(
                f"the approximate index missed {missed} of {recall.members} members of {recall.queries} caps (recall "
                f"{recall.share:.4f}). Build it with more probes or width, or search with exact=True.",
                AureoleWarning,
                stacklevel=2,
            )
        return recall

    def _calibrated(self, mass: float, options: SearchOptions) -> tuple[float, SearchOptions]:
        """(Mass, options) with kind and kappa_pos, after applying the calibration if a guarantee was requested."""
        if options.guarantee is None:
            kappa_pos = options.kappa_pos
            if kappa_pos is None and options.kind != "credible":
                kappa_pos = self.origin.kappa_pos
            kind = cap_kind(options.kind, kappa_pos)
            return mass, replace(options, kind=kind, kappa_pos=kappa_pos)
        calibration = self.conformal
        if calibration is None:
            raise InvalidInputError(
                "this index has no calibration: set index.conformal = ConformalMass.fit(posterior, partner, kappa_pos)."
            )
        for name in ("kappa_pos", "kappa_other"):
            given, calibrated = getattr(options, name), getattr(calibration, name)
            if given is not None and given != calibrated:
                raise InvalidInputError(
                    f"the calibration was made with {name} = {calibrated:g}, so the guarantee does not hold for "
                    f"{given:g}. Omit {name}, or calibrate again."
                )
        kappas = {"kappa_pos": calibration.kappa_pos, "kappa_other": calibration.kappa_other}
        return calibration.level(mass), replace(options, kind="predictive", **kappas)

    def _blocks(self, columns: Sequence[str], *, vectors: bool = False) -> Iterator[Rows]:
        """The rows in batches; the lock is free between two of them."""
        with self._lock:
            self._check_columns(columns)
            blocks = self._store.scan(columns, vectors=vectors)
        while True:
            with self._lock:
                rows = next(blocks, None)
            if rows is None:
                return
            yield rows

    def _writer(self) -> Any:
        """The ``Store``; raises for a wrapped index."""
        if isinstance(self._store, WrappedStore):
            raise InvalidInputError(
                f"a wrapped index is read-only: use {self.engine} itself to change, build or check it."
            )
        return self._store

    @contextmanager
    def _naming_gallery(self) -> Iterator[None]:
        """Add the address to errors about a note."""
        try:
            yield
        except DamagedGalleryError as error:
            raise DamagedGalleryError(f"{self._store.where} is damaged: {error}") from error

    def _check_columns(self, columns: Sequence[str]) -> None:
        if len(set(columns)) != len(columns):
            raise InvalidInputError(
                f"columns must be distinct, but {list(columns)} has one more than once."
            )
        unknown = [name for name in columns if name not in self.schema.columns]
        if unknown:
            raise InvalidInputError(
                f"there is no payload column {unknown[0]!r}. Columns: {sorted(self.schema.columns)}."
            )
