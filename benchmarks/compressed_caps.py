"""Compressed indexes: memory and disk per row, recall of caps by size, and CPU against the bare engine.

``python -m benchmarks.compressed_caps [--rows 50000] [--dim 64] [--queries 25] [--engines lance faiss]
[--out results/benchmarks]`` writes compressed_caps.json.

The gallery is a mixture of 300 clusters of very different density with duplicates. Queries are near rows; the kappa of
each is chosen so that its credible cap (mass 0.9) has exactly 1, 10, 100 or 1,000 members by brute force. "Bare" is the
engine's own range search of the same lists with the same radius, and the inner products of its candidates with vectors
read from disk; it runs in turn with the search of the gallery, and CPU times are those of the process.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex, cap_cosine

MASS, SIZES = 0.9, (1, 10, 100, 1000)
Bare = Callable[[np.ndarray, float], int]


def gallery_of(rows: int, dim: int) -> np.ndarray:
    """Unit vectors in clusters whose spread varies by a factor of ten; one row in fifty has a duplicate."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((300, dim)) / dim**0.5
    spread = np.exp(rng.uniform(np.log(0.2), np.log(2), 300))
    cluster = rng.integers(0, 300, rows)
    mu = centres[cluster] + spread[cluster, None] * rng.standard_normal((rows, dim)) / dim**0.5
    mu[-rows // 50 :] = mu[: rows // 50]
    return (mu / np.linalg.norm(mu, axis=1, keepdims=True)).astype(np.float32)


def queries_of(mu: np.ndarray, count: int, size: int) -> tuple[au.VonMisesFisher, list[set[int]]]:
    """(Queries near rows whose caps have ``size`` members, the members of each)."""
    rng = np.random.default_rng(size)
    near = mu[rng.integers(0, len(mu), 2 * count)]
    near = near + 0.2 * rng.standard_normal(near.shape) / mu.shape[1] ** 0.5
    direction = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    cosines = direction.astype(np.float64) @ mu.astype(np.float64).T
    best = -np.sort(-cosines, axis=1)[:, : size + 1]
    clear = np.flatnonzero(best[:, size - 1] - best[:, size] > 1e-6)[:count]  # no tie at the edge
    threshold = torch.from_numpy(best[clear, size - 1 : size + 1].mean(-1))
    unit = torch.from_numpy(direction[clear])
    low, high = torch.full_like(threshold, -5.0), torch.full_like(threshold, 25.0)
    for _ in range(60):  # log kappa, by bisection
        middle = (low + high) / 2
        query = au.VonMisesFisher(unit.double(), middle.exp(), validate_args=False)
        cap = cap_cosine(query, MASS, kind="credible")
        low, high = torch.where(cap < threshold, middle, low), torch.where(cap < threshold, high, middle)  # fmt: skip
    inside = cosines[clear] >= threshold.numpy()[:, None]
    members = [set(np.flatnonzero(row).tolist()) for row in inside]
    return au.VonMisesFisher(unit, high.exp().float(), validate_args=False), members


def bare_faiss(index: CredibleIndex) -> Bare:
    """Range search of the codes, then inner products with vectors from the memory map."""
    store: Any = index._store
    approximation, vectors = store._vectors.approximation, store._mapped.mu

    def search(query: np.ndarray, radius: float) -> int:
        found = approximation.index.range_search(
            query[None], radius, params=approximation.parameters
        )
        places = np.sort(found[2])
        (vectors[places] @ query >= radius).sum()
        return len(places)

    return search


def bare_lance(index: CredibleIndex) -> Bare:
    """A scanner with a range of distances that returns the vectors of the candidates."""
    store: Any = index._store
    about = index.approximate
    assert about is not None

    def search(query: np.ndarray, radius: float) -> int:
        table = store._table.scanner(
            columns=["id", "mu", "kappa"],
            nearest={"column": "mu", "q": query, "k": store._table.count_rows(), "metric": "dot",
                     "nprobes": about["probes"], "distance_range": (None, 1 - radius)},
            disable_scoring_autoprojection=True,
        ).to_table()  # fmt: skip
        if table.num_rows:
            flat = table["mu"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            (flat.reshape(-1, len(query)) @ query >= radius).sum()
        return table.num_rows

    return search


BARE: dict[str, Callable[[CredibleIndex], Bare]] = {"lance": bare_lance, "faiss": bare_faiss}


def memory_of(index: CredibleIndex) -> float:
    """Bytes per row that a search keeps in memory: FAISS codes, positions and flags; the index file of Lance."""
    store: Any = index._store
    if index.engine == "FAISS":
        faiss_index = store._vectors.approximation.index
        return faiss_index.code_size + 8 + store._alive.itemsize
    return size_of(Path(store.where) / "_indices") / index.count()


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def caps_of(index: CredibleIndex, bare: Bare, mu: np.ndarray, count: int) -> dict[str, Any]:
    """Recall, candidates and CPU per query for caps of each size."""
    store: Any = index._store
    compression = getattr(store, "_compression", None) or store._index_note()["compression"]
    metrics: dict[str, Any] = {}
    for size in SIZES:
        queries, members = queries_of(mu, count, size)
        found = total = candidates = wrong = 0
        own = other = 0.0
        for row, expected in enumerate(members):
            query = au.VonMisesFisher(queries.mu[row], queries.kappa[row], validate_args=False)
            bound = float(cap_cosine(query, MASS, kind="credible"))
            radius = bound - compression.widening(bound)
            index.search(query, MASS)  # fills the caches, which both use
            bare(query.mu.numpy(), radius)
            start = time.process_time()
            hits = index.search(query, MASS)
            middle = time.process_time()
            proposed = bare(query.mu.numpy(), radius)
            end = time.process_time()
            own, other = own + middle - start, other + end - middle
            got = {int(name) for name in hits.ids}  # type: ignore[union-attr]
            wrong += len(got - expected)
            found, total, candidates = (
                found + len(got & expected),
                total + len(expected),
                candidates + proposed,
            )
        metrics[str(size)] = {
            "queries": len(members), "members": total, "recall": found / max(total, 1), "wrong": wrong,
            "candidates": candidates / max(len(members), 1), "cpu_ms": 1000 * own / max(len(members), 1),
            "bare_cpu_ms": 1000 * other / max(len(members), 1), "cpu_ratio": own / max(other, 1e-9),
        }  # fmt: skip
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--queries", type=int, default=25)
    parser.add_argument("--engines", nargs="+", choices=sorted(BARE), default=["lance", "faiss"])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    mu = gallery_of(options.rows, options.dim)
    posteriors = au.VonMisesFisher(torch.from_numpy(mu), 50.0)
    ids, metrics = [str(i) for i in range(len(mu))], {}
    for engine in options.engines:
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder) / f"gallery.{engine}"
            with CredibleIndex.create(where, posteriors, ids) as index:
                start = time.monotonic()
                index.build("ivf", compressed=True)
                built = time.monotonic() - start
                facts = {"approximate": index.approximate, "build_seconds": built}
                facts |= {
                    "memory_bytes_per_row": memory_of(index),
                    "disk_bytes_per_row": size_of(where) / len(mu),
                }
                caps = caps_of(index, BARE[engine](index), mu, options.queries)
                metrics[engine] = facts | {"caps": caps}
        print(engine, metrics[engine], file=sys.stderr)
    settings = {"rows": options.rows, "dim": options.dim, "queries": options.queries, "mass": MASS}
    command = f"python -m benchmarks.compressed_caps --rows {options.rows} --dim {options.dim}"
    command += f" --queries {options.queries} --engines {' '.join(options.engines)}"
    record = Record("compressed_caps", metrics, command, 0, settings)
    write_record(record, options.out / "compressed_caps.json")


if __name__ == "__main__":
    main()
