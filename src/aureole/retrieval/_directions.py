"""Directions in FAISS: the one file that imports it.

The flat index is exact and holds the directions; an IVF or HNSW index beside it holds them a second time.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.retrieval._store import (
    Approximate,
    check_build,
    default_lists,
    probes_of,
    slack,
    width_of,
)


@dataclass(frozen=True)
class Approximation:
    """An approximate index, the sizes that it was asked for with, and the name of its file."""

    index: Any
    kind: Approximate
    sizes: dict[str, int]
    file: str

    def save(self, folder: Path) -> None:
        """Write the index to its file in a folder, durably."""
        import faiss

        faiss.write_index(self.index, str(folder / self.file))
        with open(folder / self.file, "rb") as handle:
            os.fsync(handle.fileno())


class Directions:
    """Unit vectors by their place, the order in which they were added, and those that are near a query.

    ``faiss`` is the package, ``flat`` the exact index and ``approximation`` the other one, if there is one.
    """

    def __init__(self, dim: int) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingPackageError(
                "galleries in FAISS need faiss-cpu: pip install 'aureole[retrieval]'."
            ) from error
        self.faiss: Any = faiss
        self.dim = dim
        self.flat: Any = faiss.IndexFlatIP(dim)
        self.approximation: Approximation | None = None

    @property
    def mu(self) -> np.ndarray:
        """All of them, a view of the flat index's memory that the next ``add`` ends."""
        n = self.flat.ntotal
        if n == 0:
            return np.zeros((0, self.dim), np.float32)
        return self.faiss.rev_swig_ptr(self.flat.get_xb(), n * self.dim).reshape(n, self.dim)

    def add(self, mu: np.ndarray) -> None:
        """Add directions to both indexes."""
        mu = np.ascontiguousarray(mu)
        self.flat.add(mu)
        if self.approximation is not None:
            self.approximation.index.add(mu)

    def approximated(self, kind: Approximate, sizes: dict[str, int], file: str) -> Approximation:
        """An IVF (``lists``, ``probes``) or HNSW (``links``, ``width``) index of them, not in use yet."""
        check_build(kind, sizes)
        faiss, mu = self.faiss, self.mu
        if kind == "hnsw":
            links = sizes.get("links", 32)
            index = faiss.IndexHNSWFlat(self.dim, links, faiss.METRIC_INNER_PRODUCT)
        else:
            lists = sizes.get("lists", default_lists(len(mu)))
            if len(mu) < lists:
                raise InvalidInputError(
                    f"lists are learned from rows: {lists} need as many, but there are {len(mu)}."
                )
            coarse = faiss.IndexFlatIP(self.dim)
            index = faiss.IndexIVFFlat(coarse, self.dim, lists, faiss.METRIC_INNER_PRODUCT)
            index.cp.min_points_per_centroid = 1
            index.cp.max_points_per_centroid = 64
            index.train(mu)
        index.add(mu)
        return Approximation(index, kind, sizes, file)

    def load(self, path: Path, kind: Approximate, sizes: dict[str, int]) -> None:
        """Use the approximate index of a file, with the directions added that came after it."""
        try:
            index = self.faiss.read_index(str(path))
        except RuntimeError as error:
            raise InvalidInputError(
                f"{path}, the approximate index, cannot be read: {str(error)[-200:]}"
            ) from error
        rest = self.mu[index.ntotal :]
        if len(rest):
            index.add(np.ascontiguousarray(rest))
        self.approximation = Approximation(index, kind, sizes, path.name)

    def within(
        self, mu: np.ndarray, bound: float, *, exact: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Places, inner products) of the directions of each query above one bound, less the slack."""
        mu = np.ascontiguousarray(mu)
        radius = max(bound, -1.0) - slack(self.dim)
        index, parameters, near = self.flat, None, self.approximation
        if near is not None and not exact:
            if near.kind == "hnsw":
                yield from (self._graph_within(query[None], radius, near) for query in mu)
                return
            index = near.index
            probes = probes_of(near.sizes, index.nlist)
            parameters = self.faiss.SearchParametersIVF(nprobe=probes)
        ends, scores, places = index.range_search(mu, radius, params=parameters)
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield places[start:end], scores[start:end]

    def search(
        self, query: np.ndarray, k: int, kept: np.ndarray | None, *, exact: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Inner products, places) of the k nearest of a query [1, D] among those kept; -1 fills places."""
        faiss, near = self.faiss, self.approximation
        selector = None
        if kept is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(kept, bitorder="little"))
        if near is None or exact:
            return self.flat.search(query, k, params=faiss.SearchParameters(sel=selector))
        if near.kind == "ivf":
            probes = probes_of(near.sizes, near.index.nlist)
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        else:
            width = max(width_of(near.sizes), 2 * k)
            parameters = faiss.SearchParametersHNSW(efSearch=width, sel=selector)
        return near.index.search(query, k, params=parameters)

    def _graph_within(
        self, query: np.ndarray, radius: float, near: Approximation
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Places, inner products) from HNSW: a few nearest, else a wide range search, else for crowds a scan."""
        total, width = self.flat.ntotal, width_of(near.sizes)
        if total == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        k = min(max(1, width // 2), total)
        scores, places = self.search(query, k, None, exact=False)
        known = places[0] >= 0
        if known.all() and scores[0, -1] < radius:
            inside = scores[0] >= radius
            return places[0][inside], scores[0][inside]
        parameters = self.faiss.SearchParametersHNSW(efSearch=4 * width)
        _, found, places = near.index.range_search(query, radius, params=parameters)
        if len(places) > 8 * width:  # more than the search has room to look around for
            _, found, places = self.flat.range_search(query, radius)
        return places, found
