"""Searches of FAISS indexes: Flat, IVFFlat and HNSWFlat, of galleries and of users. Only this module imports faiss."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aureole.engines._store import Approximate, default_lists, probes_of, slack, width_of
from aureole.errors import InvalidInputError, MissingPackageError

_SPREAD, _GROUP = 0.02, 64  # up to 64 queries whose bounds are this close share a call
_TRAINING = 64  # vectors per list that an IVF index learns from


def faiss_package() -> Any:
    """The package, imported when it is used."""
    try:
        import faiss
    except ImportError as error:
        raise MissingPackageError(
            "FAISS indexes need faiss-cpu: pip install 'aureole[search]'."
        ) from error
    return faiss


class FaissSearch:
    """Range and nearest-neighbour searches of one index, by the labels that the index returns.

    ``flat`` holds the same vectors, for exact searches. Without it, an IVF index scans all of its lists instead.
    ``sizes`` are the probes of an IVF index, or the width of a graph (default: what the index is set to).
    """

    def __init__(self, index: Any, flat: Any = None, sizes: dict[str, int] | None = None) -> None:
        self.faiss = faiss_package()
        self.index, self.flat = index, flat
        if isinstance(index, self.faiss.IndexFlat):
            self.flat = index
        self.is_graph = isinstance(index, self.faiss.IndexHNSWFlat)
        if self.is_graph and flat is None:
            self.flat = self.faiss.downcast_index(index.storage)
        self._l2 = index.metric_type == self.faiss.METRIC_L2
        self._sizes = sizes

    def within(
        self, mu: np.ndarray, bounds: np.ndarray, *, exact: bool
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(Query, labels of the vectors whose inner product is at least its bound less the slack), in any order.

        Queries whose bounds are close share a call.
        """
        error = slack(mu.shape[1])
        bounds = np.maximum(bounds, -1.0) - error
        if self.index.ntotal == 0:
            yield from ((query, np.zeros(0, np.int64)) for query in range(len(mu)))
            return
        if self.is_graph and not exact:
            for query, bound in enumerate(bounds.tolist()):
                yield query, self._graph_within(mu[query], bound)
            return
        index, parameters = self._chosen(exact)
        search = unpatched(index, "range_search")
        for group in _groups(bounds):
            lowest = float(bounds[group[0]])
            radius = 2 - 2 * lowest if self._l2 else lowest
            ends, scores, labels = search(
                np.ascontiguousarray(mu[group]), radius, params=parameters
            )
            products = 1 - scores / 2 if self._l2 else scores
            for place, query in enumerate(group.tolist()):
                own = slice(int(ends[place]), int(ends[place + 1]))
                inside = products[own] >= bounds[query] - (error if self._l2 else 0)
                yield query, labels[own][inside]

    def nearest(
        self, query: np.ndarray, k: int, *, exact: bool, allowed: np.ndarray | None = None
    ) -> np.ndarray:
        """The labels of the k nearest vectors, among those of the mask ``allowed``."""
        return self._nearest(query, k, exact=exact, allowed=allowed)[0]

    def _nearest(
        self, query: np.ndarray, k: int, *, exact: bool, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Labels, inner products) of the k nearest vectors."""
        selector = None
        if allowed is not None:
            selector = self.faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        index, parameters = self._chosen(exact, selector, k)
        search = unpatched(index, "search")
        (scores,), (labels,) = search(np.ascontiguousarray(query)[None], k, params=parameters)
        found = labels >= 0  # -1 fills the rest
        return labels[found], (1 - scores / 2 if self._l2 else scores)[found]

    def _chosen(self, exact: bool, selector: Any = None, k: int = 1) -> tuple[Any, Any]:
        """(Index, search parameters)."""
        faiss, index = self.faiss, self.index
        if self.flat is not None and (exact or self.flat is index):
            return self.flat, faiss.SearchParameters(sel=selector)
        if self.is_graph:
            width = index.hnsw.efSearch if self._sizes is None else width_of(self._sizes)
            return index, faiss.SearchParametersHNSW(efSearch=max(width, 2 * k), sel=selector)
        probes = index.nprobe if self._sizes is None else probes_of(self._sizes, index.nlist)
        nprobe = index.nlist if exact else probes
        return index, faiss.SearchParametersIVF(nprobe=nprobe, sel=selector)

    def _graph_within(self, query: np.ndarray, bound: float) -> np.ndarray:
        """A graph finds nearest vectors: ask for more of them until one is outside, and scan for large caps."""
        k, total = 64, self.index.ntotal
        while k < total // 4:
            labels, products = self._nearest(query, k, exact=False)
            if len(labels) < k or products[-1] < bound:
                return labels[products >= bound]
            k *= 4
        ((_, labels),) = self.within(query[None], np.array([bound]), exact=True)
        return labels


def build_ivf(mu: np.ndarray, lists: int | None) -> Any:
    """An IVF index of vectors."""
    faiss = faiss_package()
    lists = default_lists(len(mu)) if lists is None else lists
    if len(mu) < lists:
        raise InvalidInputError(
            f"FAISS learns lists from rows: {lists} lists need {lists} rows, but there are {len(mu)}."
        )
    dim = mu.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, _TRAINING
    index.train(mu)
    index.add(mu)
    return index


def build_hnsw(mu: np.ndarray, links: int) -> Any:
    """An HNSW graph of vectors."""
    faiss = faiss_package()
    index = faiss.IndexHNSWFlat(mu.shape[1], links, faiss.METRIC_INNER_PRODUCT)
    index.add(mu)
    return index


def index_arrays(index: Any, kind: Approximate) -> dict[str, np.ndarray]:
    """An approximate index as arrays, without its vectors; NumPy can check them, which FAISS's own format needs."""
    faiss = faiss_package()
    if kind == "hnsw":
        graph = index.hnsw
        arrays = {
            name: faiss.vector_to_array(getattr(graph, name)) for name in ("levels", "offsets")
        }
        arrays["neighbours"] = faiss.vector_to_array(graph.neighbors)
        arrays["entry"] = np.array([graph.entry_point], np.int64)
        return arrays
    lists = np.empty(index.ntotal, np.int64)
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        if size:
            lists[faiss.rev_swig_ptr(index.invlists.get_ids(number), size)] = number
    centroids = faiss.downcast_index(index.quantizer).reconstruct_n(0, index.nlist)
    return {"centroids": centroids, "lists": lists}


def ivf_from_arrays(mu: np.ndarray, arrays: dict[str, np.ndarray]) -> Any:
    """The IVF index of untrusted arrays; raises ValueError if they are invalid."""
    faiss, dim = faiss_package(), mu.shape[1]
    centroids, lists = arrays["centroids"], arrays["lists"]
    shaped = centroids.ndim == 2 and centroids.shape[1] == dim and len(centroids)
    if not shaped or centroids.dtype != np.float32 or not np.isfinite(centroids).all():
        raise ValueError("its centroids are invalid")
    if lists.shape != (len(mu),) or lists.dtype != np.int64:
        raise ValueError("its lists have another size than the gallery")
    if len(lists) and not 0 <= lists.min() <= lists.max() < len(centroids):
        raise ValueError("its lists do not exist")
    coarse = faiss.IndexFlatIP(dim)
    coarse.add(np.ascontiguousarray(centroids))
    index = faiss.IndexIVFFlat(coarse, dim, len(centroids), faiss.METRIC_INNER_PRODUCT)
    places, mu, lists = np.arange(len(mu)), np.ascontiguousarray(mu), np.ascontiguousarray(lists)
    index.add_core(len(mu), *map(faiss.swig_ptr, (mu, places, lists)))
    return index


def hnsw_from_arrays(mu: np.ndarray, links: int, arrays: dict[str, np.ndarray]) -> Any:
    """The HNSW graph of untrusted arrays; raises ValueError if they are invalid."""
    faiss = faiss_package()
    index = faiss.IndexHNSWFlat(mu.shape[1], links, faiss.METRIC_INNER_PRODUCT)
    graph = index.hnsw
    _check_graph(arrays, faiss.vector_to_array(graph.cum_nneighbor_per_level), len(mu))
    faiss.downcast_index(index.storage).add(np.ascontiguousarray(mu))
    index.ntotal = len(mu)
    for name, vector in (
        ("levels", graph.levels),
        ("offsets", graph.offsets),
        ("neighbours", graph.neighbors),
    ):
        faiss.copy_array_to_vector(np.ascontiguousarray(arrays[name]), vector)
    graph.entry_point = int(arrays["entry"][0])
    graph.max_level = int(arrays["levels"].max(initial=0)) - 1
    return index


def _check_graph(arrays: dict[str, np.ndarray], slots: np.ndarray, n: int) -> None:
    """Raise ValueError unless every position and level that a search follows exists.

    FAISS trusts its graphs: a position outside of the index would make a search read foreign memory.
    """
    levels, offsets, neighbours = (arrays[name] for name in ("levels", "offsets", "neighbours"))
    entry, slots = arrays["entry"], slots.astype(np.int64)
    types = [levels.dtype, offsets.dtype, neighbours.dtype, entry.dtype]
    if types != [np.int32, np.uint64, np.int32, np.int64]:
        raise ValueError("its graph has other types")
    if (levels.shape, offsets.shape, neighbours.ndim, entry.shape) != ((n,), (n + 1,), 1, (1,)):
        raise ValueError("its graph has another size than the gallery")
    if n == 0:
        return
    if not 1 <= levels.min() <= levels.max() < len(slots):
        raise ValueError("its graph has invalid levels")
    ends = np.concatenate([[0], np.cumsum(slots[levels])]).astype(np.uint64)
    if not np.array_equal(ends, offsets) or ends[-1] != len(neighbours):
        raise ValueError("its graph has invalid offsets")
    if len(neighbours) and not -1 <= neighbours.min() <= neighbours.max() < n:
        raise ValueError("its graph links rows that do not exist")
    if not 0 <= entry[0] < n or levels[entry[0]] != levels.max():
        raise ValueError("its graph has an invalid entry point")
    for level in range(1, levels.max()):  # an upper link must lead to a row that has this level
        rows = np.flatnonzero(levels > level)
        width = np.arange(slots[level], slots[level + 1])
        linked = neighbours[offsets[rows].astype(np.int64)[:, None] + width]
        if (levels[linked[linked >= 0]] <= level).any():
            raise ValueError("its graph links rows across levels")


def unpatched(index: Any, method: str) -> Callable[..., Any]:
    """``search`` or ``range_search`` of an index, with search parameters and NumPy arrays.

    ``faiss.contrib.torch_utils`` replaces them by methods that take no parameters, and keeps the originals.
    """
    return getattr(index, f"{method}_numpy", getattr(index, method))


def _groups(bounds: np.ndarray) -> Iterator[np.ndarray]:
    """Queries in groups whose bounds are close, each with its lowest bound first."""
    order = np.argsort(bounds, kind="stable")
    start = 0
    while start < len(order):
        near = np.searchsorted(bounds[order], bounds[order[start]] + _SPREAD, side="right")
        end = min(int(near), start + _GROUP)
        yield order[start:end]
        start = end
