"""A large synthetic gallery on disk, and the exact members of caps in it by brute force, block by block.

The rows are a mixture of up to 2,000 clusters whose spread varies by a factor of ten; one row in fifty is an exact
duplicate of another. Every block of rows has its own seed, so the data does not depend on how it is written.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import aureole as au
from aureole.retrieval import cap_cosine
from aureole.retrieval._caps import exact_cosines, stored_direction
from aureole.retrieval._store import slack

MASS, SIZES = 0.9, (1, 10, 100, 1000)
BLOCK = 50_000
KAPPA = 50.0
_CLUSTERS, _ROWS_PER_CLUSTER = 2000, 500
_SPREAD = (
    0.1,
    1.0,
)  # smallest and largest; 1: as far from the centre as the centre from the origin
_JITTER = 0.1
_KEPT = 4096


@dataclass(frozen=True)
class Mixture:
    """The clusters of a gallery with a number of rows."""

    rows: int
    dim: int

    def draw(self, count: int, *seed: int) -> np.ndarray:
        """Unit vectors at random, float32; the same for the same seed."""
        rng = np.random.default_rng(0)
        clusters = max(20, min(_CLUSTERS, self.rows // _ROWS_PER_CLUSTER))
        centres = rng.standard_normal((clusters, self.dim), dtype=np.float32) / self.dim**0.5
        low, high = np.log(_SPREAD)
        spread = np.exp(rng.uniform(low, high, clusters)).astype(np.float32) / self.dim**0.5
        rng = np.random.default_rng([1, *seed])
        cluster = rng.integers(0, clusters, count)
        noise = rng.standard_normal((count, self.dim), dtype=np.float32)
        return _unit(centres[cluster] + spread[cluster, None] * noise)

    def vectors(self, path: Path) -> np.ndarray:
        """All rows as a memory map, which is written first unless it exists."""
        if not path.exists():
            part = path.with_suffix(".part")
            shape = (self.rows, self.dim)
            mapped = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=shape)
            for start in range(0, self.rows, BLOCK):
                end = min(start + BLOCK, self.rows)
                mapped[start:end] = self.draw(end - start, start)
            copies = self.rows // 50
            mapped[self.rows - copies :] = mapped[:copies]
            mapped.flush()
            del mapped
            part.rename(path)
        return np.load(path, mmap_mode="r")

    def directions(self, count: int, mu: np.ndarray) -> np.ndarray:
        """Directions of queries: one half from the mixture, the others near rows of the gallery."""
        rng = np.random.default_rng(2)
        near = mu[np.sort(rng.integers(0, self.rows, count // 2))]
        near = near + _JITTER * rng.standard_normal(near.shape) / self.dim**0.5
        both = np.concatenate([self.draw(count - len(near), self.rows), _unit(near)])
        return stored_direction(torch.from_numpy(both[rng.permutation(count)]))


@dataclass(frozen=True)
class ExactCaps:
    """Queries whose caps of mass 0.9 have exactly ``size`` members, and the members, as row numbers."""

    size: int
    mu: np.ndarray
    kappa: np.ndarray
    members: np.ndarray

    def query(self, row: int) -> au.VonMisesFisher:
        """One of the queries."""
        mu, kappa = torch.from_numpy(self.mu[row]), torch.tensor(self.kappa[row])
        return au.VonMisesFisher(mu, kappa, validate_args=False)


def exact_caps(mu: np.ndarray, directions: np.ndarray, count: int) -> list[ExactCaps]:
    """For each size, at most ``count`` queries and the members of their caps; each direction has one size."""
    sizes = [size for size in SIZES if size < len(mu)]
    places, cosines = nearest_rows(mu, directions, sizes[-1] + 1)
    caps = []
    for number, size in enumerate(sizes):
        own = np.arange(number, len(directions), len(sizes))
        edge = cosines[own, size - 1 : size + 1]
        own = own[edge[:, 0] - edge[:, 1] > 1e-6]  # no tie at the edge
        threshold = cosines[own, size - 1 : size + 1].mean(-1)
        kappa = kappas_of(directions[own], threshold)
        queries = au.VonMisesFisher(torch.from_numpy(directions[own]), torch.from_numpy(kappa))
        cap = cap_cosine(queries, MASS, kind="credible").numpy()
        right = (cosines[own, size - 1] >= cap) & (cosines[own, size] < cap)
        own, kappa = own[right][:count], kappa[right][:count]
        caps.append(ExactCaps(size, directions[own], kappa, places[own, :size]))
    return caps


def nearest_rows(mu: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(Row numbers, float64 cosines) [n, k] of the nearest rows: float32 products preselect, float64 decides."""
    places = [np.zeros(0, np.int64) for _ in queries]
    products = [np.zeros(0, np.float32) for _ in queries]
    margin = 2 * slack(mu.shape[1])
    least = np.full(len(queries), -2.0)
    for start in range(0, len(mu), BLOCK):
        block = queries @ np.asarray(mu[start : start + BLOCK]).T
        for i, row in enumerate(block):
            inside = np.flatnonzero(row >= least[i])
            places[i] = np.concatenate([places[i], start + inside])
            products[i] = np.concatenate([products[i], row[inside]])
            if len(products[i]) > _KEPT:
                least[i] = -np.partition(-products[i], k - 1)[k - 1] - margin
                kept = products[i] >= least[i]
                places[i], products[i] = places[i][kept], products[i][kept]
    best, cosines = [], []
    for query, own in zip(queries, places, strict=True):
        exact = exact_cosines(query, np.asarray(mu[own]))
        order = np.argsort(-exact, kind="stable")[:k]
        best.append(own[order])
        cosines.append(exact[order])
    return np.stack(best), np.stack(cosines)


def kappas_of(directions: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """The kappa with which the credible cap (mass 0.9) of each direction ends at a cosine, float32, by bisection."""
    unit, wanted = torch.from_numpy(directions), torch.from_numpy(threshold)
    low, high = torch.full_like(wanted, -5.0), torch.full_like(wanted, 25.0)
    for _ in range(60):  # of log kappa
        middle = (low + high) / 2
        query = au.VonMisesFisher(unit.double(), middle.exp(), validate_args=False)
        wide = cap_cosine(query, MASS, kind="credible") < wanted
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return high.exp().float().numpy()


def _unit(mu: np.ndarray) -> np.ndarray:
    return (mu / np.linalg.norm(mu, axis=1, keepdims=True)).astype(np.float32)
