"""A FAISS index in memory as the source of a wrapped index."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.retrieval._faiss_index import unpatched
from aureole.retrieval._schema import NO_MU, Rows, no_rows, object_array
from aureole.retrieval._wrap import Names, grow

_SCAN_ROWS = 2**14


class FaissSource:
    """Flat, IVFFlat and HNSWFlat indexes, which hold the vectors themselves, also inside an IDMap.

    The vectors are read where FAISS keeps them. If the index changes, the next call sees it.
    """

    engine, unit, check_all = "FAISS", True, True

    def __init__(self, index: Any, names: Names) -> None:
        try:
            import faiss as package
        except ImportError as error:
            raise MissingPackageError(
                "FAISS indexes need faiss-cpu: pip install 'aureole[search]'."
            ) from error
        faiss: Any = package
        given = [name for name in ("collection", "vector", "id", "columns") if getattr(names, name)]
        if given:
            raise InvalidInputError(
                f"a FAISS index has no {given[0]}: it holds ids and vectors alone. Give kappa by id."
            )
        self._yours = index  # it owns the memory that the others look at
        self._faiss, self._outer = faiss, faiss.downcast_index(index)
        self._inner: Any = self._outer
        if isinstance(self._outer, faiss.IndexIDMap):
            self._inner = faiss.downcast_index(self._outer.index)
        inner = self._inner
        flat = inner
        if isinstance(inner, faiss.IndexHNSWFlat):
            flat = faiss.downcast_index(inner.storage)
        plain = isinstance(flat, (faiss.IndexFlat, faiss.IndexIVFFlat))
        if not plain or inner.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            raise InvalidInputError(
                f"a {type(inner).__name__} with metric {inner.metric_type} cannot be wrapped: caps need the vectors "
                "themselves and the metric inner product or L2. Use a Flat, IVFFlat or HNSWFlat index."
            )
        self._flat: Any = flat if isinstance(flat, faiss.IndexFlat) else None
        self._l2 = inner.metric_type == faiss.METRIC_L2
        self.dim = int(index.d)
        self._starts = self._labels = self._ids = np.full(1, -1)  # of no index
        self._refresh()

    def count(self) -> int:
        """The number of vectors."""
        return int(self._outer.ntotal)

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The rows with some ids."""
        self._refresh()
        wanted = np.array([i for i in ids if isinstance(i, int) and abs(i) < 2**63], np.int64)
        place = np.searchsorted(self._sorted, wanted)
        known = place < len(self._sorted)
        known[known] = self._sorted[place[known]] == wanted[known]
        return self._rows(self._order[place[known]])

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:
        """All rows in the order of their positions."""
        self._refresh()
        for start in range(0, len(self._ids), _SCAN_ROWS):
            places = np.arange(start, min(start + _SCAN_ROWS, len(self._ids)))
            rows = self._rows(places) if vectors else None
            yield rows or Rows(self._names(places), NO_MU, np.zeros(len(places), np.float32))

    def within(
        self, query: np.ndarray, bound: float, columns: Sequence[str], *, exact: bool
    ) -> Rows:
        """All rows with at least this cosine, by a range search; of a graph, by more and more nearest rows."""
        self._refresh()
        total = self.count()
        if total == 0:
            return no_rows((), self.dim)
        index, parameters = self._inner, None
        if isinstance(index, self._faiss.IndexHNSWFlat):
            if not exact:
                rows = grow(
                    lambda k: self.nearest(query, k, columns, exact=False), bound, total, query
                )
                if rows is not None:
                    return rows
            index = self._flat
        elif self._flat is None:
            probes = index.nlist if exact else index.nprobe
            parameters = self._faiss.SearchParametersIVF(nprobe=probes)
        radius = 2 - 2 * bound if self._l2 else bound
        search = unpatched(index, "range_search")
        _, _, labels = search(_one(query), radius, params=parameters)
        return self._rows(self._places(labels))

    def nearest(self, query: np.ndarray, k: int, columns: Sequence[str], *, exact: bool) -> Rows:
        """The k nearest rows."""
        self._refresh()
        index, parameters = self._inner, None
        if isinstance(index, self._faiss.IndexHNSWFlat):
            if exact:
                index = self._flat
            else:
                width = max(index.hnsw.efSearch, 2 * k)
                parameters = self._faiss.SearchParametersHNSW(efSearch=width)
        elif self._flat is None and exact:
            parameters = self._faiss.SearchParametersIVF(nprobe=index.nlist)
        search = unpatched(index, "search")
        _, (labels,) = search(_one(query), min(k, self.count()), params=parameters)
        return self._rows(self._places(labels[labels >= 0]))

    def approximate(self) -> dict[str, Any] | None:
        """The sizes of an IVF or HNSW index, or None."""
        if isinstance(self._inner, self._faiss.IndexHNSWFlat):
            return {"kind": "hnsw", "width": int(self._inner.hnsw.efSearch)}
        if self._flat is None:
            lists, probes = int(self._inner.nlist), int(self._inner.nprobe)
            return {"kind": "ivf", "lists": lists, "probes": probes}
        return None

    def close(self) -> None:
        """Do nothing: the index is yours."""

    def _refresh(self) -> None:
        """Read the ids, and where the vectors are, if an id was added, removed or moved."""
        labels, starts = self._layout()
        ids = labels
        if self._outer is not self._inner:
            ids = self._faiss.vector_to_array(self._outer.id_map)[labels]
        now, before = (starts, labels, ids), (self._starts, self._labels, self._ids)
        if all(map(np.array_equal, now, before)):
            return
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(twice):
            raise InvalidInputError(
                f"the FAISS index has the id {ids[order[twice[0]]]} twice; ids must be distinct."
            )
        self._starts, self._labels, self._ids = now
        self._order, self._sorted = order, ids[order]
        # of the labels that a search of the inner index returns
        self._by_label = np.argsort(labels, kind="stable")

    def _layout(self) -> tuple[np.ndarray, np.ndarray]:
        """(Labels of the inner index by position, where the lists of an IVF index start and end)."""
        if self._flat is not None:
            return np.arange(self.count()), np.zeros(1, np.int64)
        lists = self._inner.invlists
        sizes = [lists.list_size(number) for number in range(self._inner.nlist)]
        parts = [
            self._view(lists.get_ids(number), size) for number, size in enumerate(sizes) if size
        ]
        labels = np.concatenate([*parts, np.zeros(0, np.int64)])
        return labels, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def _places(self, labels: np.ndarray) -> np.ndarray:
        """The positions of labels that a search has returned."""
        if self._flat is not None:
            return labels
        return self._by_label[np.searchsorted(self._labels, labels, sorter=self._by_label)]

    def _rows(self, places: np.ndarray) -> Rows:
        mu = self._vectors(places)
        return Rows(self._names(places), mu, np.zeros(len(places), np.float32))

    def _names(self, places: np.ndarray) -> np.ndarray:
        return object_array(self._ids[places].tolist())

    def _vectors(self, places: np.ndarray) -> np.ndarray:
        if not len(places):
            return np.zeros((0, self.dim), np.float32)
        if self._flat is not None:
            stored = self._view(self._flat.get_xb(), len(self._ids) * self.dim)
            return stored.reshape(-1, self.dim)[places]
        mu = np.empty((len(places), self.dim), np.float32)
        lists = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(lists).tolist():
            here = np.flatnonzero(lists == number)
            first, last = self._starts[number : number + 2].tolist()
            codes = self._inner.invlists.get_codes(number)
            stored = self._view(codes, (last - first) * 4 * self.dim).view(np.float32)
            mu[here] = stored.reshape(-1, self.dim)[places[here] - first]
        return mu

    def _view(self, pointer: Any, size: int) -> np.ndarray:
        return self._faiss.rev_swig_ptr(pointer, size)


def _one(query: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(query, np.float32)[None]
