"""Exact and approximate FAISS indexes of a gallery's vectors. The only module of the engine that imports faiss.

A file with an approximate index is untrusted. FAISS itself trusts what it reads: a position outside of the index would
make a search read foreign memory, so everything that a search follows is validated after loading.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from aureole.errors import DamagedGalleryError, InvalidInputError, MissingPackageError
from aureole.retrieval._faiss_files import check_digest, durable_file
from aureole.retrieval._integrity import reading
from aureole.retrieval._store import (
    Approximate,
    check_build,
    default_lists,
    probes_of,
    slack,
    width_of,
)

_LIMITS = Lock()


@dataclass(frozen=True)
class Approximation:
    """An approximate index, the sizes that were requested, the name of its file, and how a range search uses it."""

    index: Any
    kind: Approximate
    sizes: dict[str, int]
    file: str
    parameters: Any = None


class VectorIndex:
    """Unit vectors by position, in the order in which they were added.

    ``flat`` is exact and holds the vectors; ``approximation`` (IVF or HNSW), if it was built, holds them again.
    """

    def __init__(self, dim: int) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingPackageError(
                "galleries in FAISS need faiss-cpu: pip install 'aureole[search]'."
            ) from error
        self.faiss: Any = faiss
        self.dim = dim
        self.flat: Any = faiss.IndexFlatIP(dim)
        self.approximation: Approximation | None = None
        self._view: np.ndarray | None = None

    @property
    def mu(self) -> np.ndarray:
        """All vectors: a view of the memory of ``flat``, valid until the next ``add``."""
        view = self._view
        if view is None:
            n = self.flat.ntotal
            view = np.zeros(0, np.float32)
            if n:
                view = self.faiss.rev_swig_ptr(self.flat.get_xb(), n * self.dim)
            self._view = view = view.reshape(n, self.dim)
        return view

    def add(self, mu: np.ndarray) -> None:
        """Add vectors to both indexes."""
        mu = np.ascontiguousarray(mu)
        self._view = None
        self.flat.add(mu)
        if self.approximation is not None:
            self.approximation.index.add(mu)

    def build(self, kind: Approximate, sizes: dict[str, int]) -> None:
        """Build an IVF or HNSW index of the vectors."""
        check_build(kind, sizes)
        faiss, mu = self.faiss, self.mu
        if kind == "hnsw":
            links = sizes.get("links", 32)
            index = faiss.IndexHNSWFlat(self.dim, links, faiss.METRIC_INNER_PRODUCT)
        else:
            lists = sizes.get("lists", default_lists(len(mu)))
            if len(mu) < lists:
                raise InvalidInputError(
                    f"FAISS learns lists from rows: {lists} lists need {lists} rows, but there are {len(mu)}."
                )
            coarse = faiss.IndexFlatIP(self.dim)
            index = faiss.IndexIVFFlat(coarse, self.dim, lists, faiss.METRIC_INNER_PRODUCT)
            index.cp.min_points_per_centroid = 1
            index.cp.max_points_per_centroid = 64
            index.train(mu)
        index.add(mu)
        self._use(index, kind, sizes, self.new_file())

    @staticmethod
    def new_file() -> str:
        """A name for the file of an approximate index."""
        return f"index-{secrets.token_hex(8)}.faiss"

    def write(self, path: Path) -> str:
        """Write the approximate index to a file, and return the file's SHA-256."""
        assert self.approximation is not None
        digest = hashlib.sha256()
        with durable_file(path) as file:

            def write(content: bytes) -> None:
                digest.update(content)
                file.write(content)

            writer = self.faiss.PyCallbackIOWriter(write)
            self.faiss.write_index(self.approximation.index, writer)
        return digest.hexdigest()

    def load(
        self, path: Path, kind: Approximate, sizes: dict[str, int], digest: str | None = None
    ) -> None:
        """Load an untrusted approximate index, and add the vectors that were appended after it was built."""
        check_digest(path, digest)
        with reading(str(path), RuntimeError, MemoryError, ValueError), limited(self.faiss, path):
            index = self.faiss.read_index(str(path))
        problem = self._loaded_problem(index, kind)
        if problem is not None:
            raise DamagedGalleryError(f"{path} is damaged: {problem}.")
        rest = self.mu[index.ntotal :]
        if len(rest):
            index.add(np.ascontiguousarray(rest))
        self._use(index, kind, sizes, path.name)

    def problems(self) -> list[str]:
        """What is wrong with the approximate index: whether it holds other vectors than the exact one."""
        approximation = self.approximation
        if approximation is None:
            return []
        index, n = approximation.index, self.flat.ntotal
        if index.ntotal != n:
            return [f"the approximate index has {index.ntotal:,} rows, but the gallery {n:,}."]
        if approximation.kind == "hnsw":
            storage = self.faiss.downcast_index(index.storage)
            stored = self.faiss.rev_swig_ptr(storage.get_xb(), n * self.dim) if n else np.zeros(0)
            same = np.array_equal(stored.reshape(n, self.dim), self.mu)
        else:
            same = all(np.array_equal(mu, self.mu[ids]) for ids, mu in self._lists(index))
        text = "the approximate index holds other vectors than the gallery. Build it again."
        return [] if same else [text]

    def _loaded_problem(self, index: Any, kind: Approximate) -> str | None:
        """What would make searches of a loaded index fail or return other rows, or None."""
        faiss = self.faiss
        expected = faiss.IndexIVFFlat if kind == "ivf" else faiss.IndexHNSWFlat
        if type(index) is not expected:
            return f"it holds an index of the kind {type(index).__name__}, not {expected.__name__}"
        inner = faiss.downcast_index(index.quantizer if kind == "ivf" else index.storage)
        if not isinstance(inner, faiss.IndexFlat):
            return f"it has a {type(inner).__name__} inside"
        for part in (index, inner):
            if part.d != self.dim or part.metric_type != faiss.METRIC_INNER_PRODUCT:
                return f"it has {part.d} dimensions and the metric {part.metric_type}, not {self.dim} and inner product"
        if not 0 <= index.ntotal <= self.flat.ntotal:
            return f"it has {index.ntotal:,} rows, but the gallery {self.flat.ntotal:,}"
        if kind == "ivf":
            return lists_problem(faiss, index, inner, 4 * self.dim)
        return _graph_problem(faiss, index, inner)

    def _lists(self, index: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Positions, vectors) of the rows in each list, as views."""
        lists, view = index.invlists, self.faiss.rev_swig_ptr
        for number in range(index.nlist):
            size = lists.list_size(number)
            if size:
                ids = view(lists.get_ids(number), size)
                codes = view(lists.get_codes(number), size * lists.code_size)
                yield ids, codes.view(np.float32).reshape(size, self.dim)

    def _use(self, index: Any, kind: Approximate, sizes: dict[str, int], file: str) -> None:
        parameters = None
        if kind == "ivf":
            parameters = self.faiss.SearchParametersIVF(nprobe=probes_of(sizes, index.nlist))
        self.approximation = Approximation(index, kind, sizes, file, parameters)

    def within(
        self, mu: np.ndarray, bound: float, *, exact: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Positions, inner products) of the vectors above a bound less the slack, for each query."""
        mu = np.ascontiguousarray(mu)
        radius = max(bound, -1.0) - slack(self.dim)
        index, parameters, approximation = self.flat, None, self.approximation
        if approximation is not None and not exact:
            if approximation.kind == "hnsw":
                yield from (self._graph_within(query[None], radius, approximation) for query in mu)
                return
            index = approximation.index
            parameters = approximation.parameters
        search = unpatched(index, "range_search")
        ends, scores, places = search(mu, radius, params=parameters)
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield places[start:end], scores[start:end]

    def nearest(
        self, query: np.ndarray, k: int, allowed: np.ndarray | None, *, exact: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Inner products, positions) of the k nearest allowed vectors of a query [1, D]; -1 fills positions."""
        faiss, approximation = self.faiss, self.approximation
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        if approximation is None or exact:
            parameters = faiss.SearchParameters(sel=selector)
            return unpatched(self.flat, "search")(query, k, params=parameters)
        index, sizes = approximation.index, approximation.sizes
        if approximation.kind == "ivf":
            probes = probes_of(sizes, index.nlist)
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        else:
            width = max(width_of(sizes), 2 * k)
            parameters = faiss.SearchParametersHNSW(efSearch=width, sel=selector)
        return unpatched(index, "search")(query, k, params=parameters)

    def _graph_within(
        self, query: np.ndarray, radius: float, graph: Approximation
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Positions, inner products) from HNSW: a few nearest, else a range search, else, for large caps, a scan."""
        total, width = self.flat.ntotal, width_of(graph.sizes)
        if total == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        k = min(max(1, width // 2), total)
        (scores,), (places,) = self.nearest(query, k, None, exact=False)
        if (places >= 0).all() and scores[-1] < radius:
            inside = scores >= radius
            return places[inside], scores[inside]
        parameters = self.faiss.SearchParametersHNSW(efSearch=4 * width)
        search = unpatched(graph.index, "range_search")
        _, scores, places = search(query, radius, params=parameters)
        if len(places) > 8 * width:  # more than the search can keep track of
            _, scores, places = self.flat.range_search(query, radius)
        return places, scores


@contextmanager
def limited(faiss: Any, path: Path) -> Iterator[None]:
    """Let FAISS allocate no more for a vector of a file than the file has bytes, where this version can."""
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    try:
        size = max(1, path.stat().st_size)
    except OSError as error:
        raise DamagedGalleryError(f"{path} cannot be read: {error.strerror}.") from error
    with _LIMITS:  # the limits are those of the process
        before = faiss.get_deserialization_vector_byte_limit()
        loops = faiss.get_deserialization_loop_limit()
        faiss.set_deserialization_vector_byte_limit(size)
        faiss.set_deserialization_loop_limit(size)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before)
            faiss.set_deserialization_loop_limit(loops)


def lists_problem(faiss: Any, index: Any, coarse: Any, code_size: int) -> str | None:
    """What is wrong with the lists of an IVF index: each position must occur once, with ``code_size`` bytes."""
    lists = faiss.downcast_InvertedLists(index.invlists)
    whole = type(lists) is faiss.ArrayInvertedLists and index.is_trained
    if not whole or not 1 <= index.nlist == lists.nlist == coarse.ntotal:
        return "its lists are incomplete"
    sizes = [lists.list_size(number) for number in range(index.nlist)]
    if lists.code_size != code_size or sum(sizes) != index.ntotal:
        return "its lists have another size than the index"
    seen = np.zeros(index.ntotal, bool)
    for number, size in enumerate(sizes):
        if size:
            ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
            if ids.min() < 0 or ids.max() >= len(seen):
                return "its lists contain rows that do not exist"
            seen[ids] = True
    return None if seen.all() else "its lists do not contain every row once"


def _graph_problem(faiss: Any, index: Any, storage: Any) -> str | None:
    """What is wrong with an HNSW graph: every position and level that a search follows must exist."""
    graph, n = index.hnsw, index.ntotal
    arrays = (graph.levels, graph.offsets, graph.neighbors, graph.cum_nneighbor_per_level)
    levels, offsets, neighbours, slots = (faiss.vector_to_array(array) for array in arrays)
    if storage.ntotal != n or len(levels) != n or len(offsets) != n + 1:
        return "its graph has another size than the index"
    slots = slots.astype(np.int64)
    rises = len(slots) > 0 and slots[0] == 0 and (np.diff(slots) >= 0).all()
    if not rises or (n and not 1 <= levels.min() <= levels.max() < len(slots)):
        return "its graph has invalid levels"
    ends = np.concatenate([[0], np.cumsum(slots[levels])])
    if not np.array_equal(ends, offsets.astype(np.int64)) or ends[-1] != len(neighbours):
        return "its graph has invalid offsets"
    if n == 0:
        return None
    if len(neighbours) and not -1 <= neighbours.min() <= neighbours.max() < n:
        return "its graph links rows that do not exist"
    top = levels.max() - 1
    valid = graph.max_level == top and 0 <= graph.entry_point < n
    if not valid or levels[graph.entry_point] != levels.max():
        return "its graph has an invalid entry point"
    for level in range(
        1, top + 1
    ):  # a link of an upper level must lead to a row that has this level
        rows = np.flatnonzero(levels > level)
        width = np.arange(slots[level], slots[level + 1])
        linked = neighbours[offsets[rows].astype(np.int64)[:, None] + width]
        if (levels[linked[linked >= 0]] <= level).any():
            return "its graph links rows across levels"
    return None


def unpatched(index: Any, method: str) -> Callable[..., Any]:
    """``search`` or ``range_search`` of an index, with search parameters and NumPy arrays.

    ``faiss.contrib.torch_utils`` replaces them by methods that take no parameters, and keeps the originals.
    """
    return getattr(index, f"{method}_numpy", getattr(index, method))
