"""Compressed FAISS indexes: IVFPQ, or IVF with 8-bit scalars for few rows. Codes in memory, vectors on disk.

IVFPQ needs fewer bytes than IVFRaBitQ for the same error of near rows: at D = 128, 32 bytes against 52 (two bits per
dimension).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.retrieval._compression import Compression, code_of
from aureole.retrieval._faiss_files import check_digest
from aureole.retrieval._faiss_index import (
    Approximation,
    VectorIndex,
    limited,
    lists_problem,
    unpatched,
)
from aureole.retrieval._integrity import reading
from aureole.retrieval._mapped_rows import Column
from aureole.retrieval._quantisation import measure_index, nearest_exactly, sample_places
from aureole.retrieval._schema import Rows
from aureole.retrieval._store import default_lists, probes_of, slack

_BLOCK = 2**14  # vectors in memory at a time
_TRAINING = 64  # rows per centroid
_ITERATIONS = 10


class CodeIndex(VectorIndex):
    """Vectors by position, on disk, and an approximate index that holds their codes in memory."""

    def __init__(self, dim: int, mu: Column, compression: Compression) -> None:
        super().__init__(dim)
        self._mapped, self.compression = mu, compression

    @property
    def mu(self) -> Any:
        """All vectors, read from disk when they are indexed."""
        return self._mapped

    def load(self, path: Path, kind: Any, sizes: dict[str, int], digest: str | None = None) -> None:
        """Load an untrusted approximate index. Vectors that were appended after it was built are scanned instead.

        Their distribution may be another one, for which the error of the codes was not measured.
        """
        check_digest(path, digest)
        with reading(str(path), RuntimeError, MemoryError, ValueError), limited(self.faiss, path):
            # the table is for L2 distances
            flag = self.faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
            index = self.faiss.read_index(str(path), flag)
        problem = _codes_problem(self.faiss, index, self.dim, len(self._mapped), self.compression)
        if problem is not None:
            raise DamagedGalleryError(f"{path} is damaged: {problem}.")
        self._use(index, kind, sizes, path.name)

    def problems(self) -> list[str]:
        """Nothing: the index was validated when it was loaded."""
        return []

    def within(
        self, mu: np.ndarray, bound: float, *, exact: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Positions, inner products) of the vectors above a bound less the slack; estimates unless ``exact``."""
        mu = np.ascontiguousarray(mu)
        if exact:
            yield from self._scan(mu, max(bound, -1.0) - slack(self.dim))
            return
        assert self.approximation is not None
        radius = max(bound, -1.0) - self.compression.widening(bound) - slack(self.dim)
        search = unpatched(self.approximation.index, "range_search")
        ends, scores, places = search(mu, radius, params=self.approximation.parameters)
        late = self._scan(mu, max(bound, -1.0) - slack(self.dim), self._indexed)
        for query, (later, exactly) in enumerate(late):
            own = slice(int(ends[query]), int(ends[query + 1]))
            yield np.concatenate([places[own], later]), np.concatenate([scores[own], exactly])

    def nearest(
        self, query: np.ndarray, k: int, allowed: np.ndarray | None, *, exact: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Inner products, positions) of the k nearest allowed vectors of a query [1, D]."""

        def near(query: np.ndarray, k: int) -> Rows:
            return self._rows(self._near(query[None], k, allowed, exact=exact))

        def within(query: np.ndarray, bound: float) -> Rows:
            ((places, _),) = self.within(query[None], bound, exact=False)
            return self._rows(places if allowed is None else places[allowed[places]])

        found = near(query[0], k) if exact else nearest_exactly(query[0], k, near, within)
        return (found.mu @ query[0])[None], found.ids[None]

    def _rows(self, places: np.ndarray) -> Rows:
        """Vectors with their positions as ids."""
        return Rows(places, self._mapped[places], np.zeros(len(places), np.float32))

    def _near(
        self, query: np.ndarray, k: int, allowed: np.ndarray | None, *, exact: bool
    ) -> np.ndarray:
        """The positions of the k allowed vectors with the highest inner products, or estimates of them."""
        ((late, scores),) = self._scan(query, -2.0, 0 if exact else self._indexed)
        if allowed is not None:
            late, scores = late[allowed[late]], scores[allowed[late]]
        if exact:
            return late[np.argsort(-scores, kind="stable")[:k]]
        assert self.approximation is not None
        faiss, index = self.faiss, self.approximation.index
        selector = None
        if allowed is not None:
            indexed = np.packbits(allowed[: self._indexed], bitorder="little")
            selector = faiss.IDSelectorBitmap(indexed)
        probes = probes_of(self.approximation.sizes, index.nlist)
        parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        (estimates,), (places,) = unpatched(index, "search")(query, k, params=parameters)
        places, estimates = places[places >= 0], estimates[places >= 0]
        every, values = np.concatenate([places, late]), np.concatenate([estimates, scores])
        return every[np.argsort(-values, kind="stable")[:k]]

    @property
    def _indexed(self) -> int:
        """The number of vectors whose codes are in the index."""
        assert self.approximation is not None
        return self.approximation.index.ntotal

    def _scan(
        self, mu: np.ndarray, radius: float, first: int = 0
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(Positions, inner products) of the vectors above a radius, block by block from disk."""
        parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in mu]
        for start in range(first, len(self._mapped), _BLOCK):
            products = mu @ self._mapped[start : start + _BLOCK].T
            for part, own in zip(parts, products, strict=True):
                inside = np.flatnonzero(own >= radius)
                part.append((start + inside, own[inside]))
        none = (np.zeros(0, np.int64), np.zeros(0, np.float32))
        return [
            (np.concatenate([p for p, _ in [none, *part]]), np.concatenate([s for _, s in [none, *part]]))
            for part in parts
        ]  # fmt: skip


def build_codes(vectors: VectorIndex, sizes: dict[str, int]) -> tuple[Approximation, Compression]:
    """A compressed index of vectors in memory, with its measured error and number of probes."""
    faiss, mu, dim = vectors.faiss, vectors.mu, vectors.dim
    lists = sizes.get("lists", default_lists(len(mu)))
    if len(mu) < lists:
        raise InvalidInputError(
            f"FAISS learns lists from rows: {lists} lists need {lists} rows, but there are {len(mu)}."
        )
    code, size = code_of(dim, len(mu))
    coarse, metric = faiss.IndexFlatIP(dim), faiss.METRIC_INNER_PRODUCT
    if code == "pq":
        index = faiss.IndexIVFPQ(coarse, dim, lists, size, 8, metric)
        index.pq.cp.max_points_per_centroid, index.pq.cp.niter = _TRAINING, _ITERATIONS
        index.pq.cp.min_points_per_centroid = 1
    else:
        scalar = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexIVFScalarQuantizer(coarse, dim, lists, scalar, metric, True)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, _TRAINING
    index.train(mu)
    index.add(mu)

    def estimate(
        query: np.ndarray, places: np.ndarray, probes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        selector = faiss.IDSelectorBatch(places)
        parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        _, scores, found = unpatched(index, "range_search")(query[None], -4.0, params=parameters)
        order = np.argsort(places, kind="stable")
        return order[np.searchsorted(places[order], found)], scores.astype(np.float64)

    sample = sample_places(len(mu), dim)
    rows = Rows(sample, np.ascontiguousarray(mu[sample]), np.zeros(len(sample), np.float32))
    errors, sizes = measure_index(rows, len(mu), estimate, lists, sizes)
    file = vectors.new_file()
    return Approximation(index, "ivf", sizes, file), Compression(code, size, errors)


def _codes_problem(
    faiss: Any, index: Any, dim: int, rows: int, compression: Compression
) -> str | None:
    """What would make searches of a loaded index fail or return other rows, or None."""
    is_pq = compression.code == "pq"
    expected = faiss.IndexIVFPQ if is_pq else faiss.IndexIVFScalarQuantizer
    if compression.code not in ("pq", "scalar") or type(index) is not expected:
        return f"it holds an index of the kind {type(index).__name__}, not codes of the kind {compression.code}"
    coarse = faiss.downcast_index(index.quantizer)
    if not isinstance(coarse, faiss.IndexFlat):
        return f"it has a {type(coarse).__name__} inside"
    for part in (index, coarse):
        if part.d != dim or part.metric_type != faiss.METRIC_INNER_PRODUCT:
            return f"it has {part.d} dimensions and the metric {part.metric_type}, not {dim} and inner product"
    if not 0 <= index.ntotal <= rows:
        return f"it has {index.ntotal:,} rows, but the gallery {rows:,}"
    if not index.by_residual or index.code_size != compression.bytes:
        return "its codes have another size than its note says"
    problem = (
        _pq_problem(faiss, index, compression) if is_pq else _scalar_problem(faiss, index, dim)
    )
    return problem or lists_problem(faiss, index, coarse, index.code_size)


def _pq_problem(faiss: Any, index: Any, compression: Compression) -> str | None:
    pq = index.pq
    index.use_precomputed_table = index.polysemous_ht = 0
    same = (pq.d, pq.M, pq.nbits) == (index.d, compression.bytes, 8)
    same = same and (pq.dsub, pq.ksub, pq.code_size) == (pq.d // pq.M, 256, pq.M)
    if not same or pq.d % pq.M or pq.centroids.size() != 256 * pq.d:
        return "its product quantiser has another size than its note says"
    centroids = faiss.vector_to_array(pq.centroids)
    return None if np.isfinite(centroids).all() else "a centroid is not finite"


def _scalar_problem(faiss: Any, index: Any, dim: int) -> str | None:
    quantiser = index.sq
    ranges = faiss.vector_to_array(quantiser.trained)
    same = (quantiser.d, quantiser.qtype) == (dim, faiss.ScalarQuantizer.QT_8bit)
    if not same or quantiser.code_size != dim or len(ranges) != 2 * dim:
        return "its scalar quantiser has another size than its note says"
    return None if np.isfinite(ranges).all() else "a range of its scalars is not finite"
