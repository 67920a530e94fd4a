"""The cost of match probabilities: MatchFilter compared with the bare search that it filters.

``python -m benchmarks.match_cost [--rows 1000000] [--out results/benchmarks/match_cost.json]`` writes a record.

A gallery in R^64 around random centres in a FAISS IVF index with several numbers of probes, on one core. Each query is
searched bare (the 100 nearest items) and with ``MatchFilter`` on the same search function; each of them is first for
half of the queries, since the second finds the scanned lists in the CPU's cache. Ids are integers, or strings that the
search function looks up. CPU time is what a quiet machine takes; wall time depends on its load, which is recorded too.
"""

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np

import aureole as au
from aureole.match import MatchCalibrator, MatchFilter
from aureole.records import Record, write_record
from benchmarks.engines import clustered

DIM, K, LISTS, LABELLED, THRESHOLD = 64, 100, 1024, 200, 0.5
PROBES = (16, 32, 64)
Search = Callable[[np.ndarray, int], tuple[Any, Any]]


def build(gallery: np.ndarray) -> Any:
    """An IVF index of the gallery."""
    coarse = faiss.IndexFlatIP(DIM)
    index = faiss.IndexIVFFlat(coarse, DIM, LISTS, faiss.METRIC_INNER_PRODUCT)
    index.train(gallery[:: max(1, len(gallery) // 50_000)])
    index.add(gallery)
    return index


def with_names(calibrator: MatchCalibrator, names: list[str]) -> MatchCalibrator:
    """The same calibrator with strings as ids, without a second fit."""
    named = copy.copy(calibrator)
    named.ids_, named._row_of = names, {name: row for row, name in enumerate(names)}
    return named


def alternate(bare: Search, matches: MatchFilter, queries: np.ndarray) -> dict[str, float]:
    """Median milliseconds of both, and the ratio of the medians, in CPU time and in wall time."""
    vectors = matches.calibrator.map_queries(queries)
    contenders = {
        "bare": lambda i: bare(vectors[i], K),
        "with probabilities": lambda i: matches(queries[i]),
    }
    clocks = {"CPU": time.process_time, "wall": time.perf_counter}
    times: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for i in range(len(queries)):
        for name in sorted(contenders, reverse=bool(i % 2)):
            start = [clock() for clock in clocks.values()]
            contenders[name](i)
            end = [clock() for clock in clocks.values()]
            times[name].append([1000 * (b - a) for a, b in zip(start, end, strict=True)])
    found = {}
    for column, clock in enumerate(clocks):
        plain, ours = (median(row[column] for row in times[name]) for name in contenders)
        found |= {f"bare, {clock} ms": plain, f"with probabilities, {clock} ms": ours}
        found[f"ratio, {clock}"] = ours / plain
    return found


def bytes_per_row(calibrator: MatchCalibrator) -> float:
    """Bytes that the calibrator keeps for each item: its hubness, and its id if it is not the row."""
    ids = 0
    if calibrator.ids_ is not None:
        objects = sum(map(sys.getsizeof, calibrator.ids_))
        ids = sys.getsizeof(calibrator.ids_) + sys.getsizeof(calibrator._row_of) + objects
    return (calibrator.hubness_.nbytes + ids) / len(calibrator.hubness_)


def measure(rows: int, count: int) -> dict[str, Any]:
    """Metrics for both kinds of ids."""
    gallery = clustered(rows, DIM, clusters=2000, noise=1.0, seed=1).mu.numpy()
    rng = np.random.default_rng(2)
    right = rng.integers(rows, size=LABELLED + count)
    noise = rng.uniform(0.02, 0.1, (len(right), 1)) * rng.standard_normal((len(right), DIM))
    queries = gallery[right] + noise
    index = build(gallery)
    start = time.process_time()
    calibrator = au.MatchCalibrator().fit(
        queries[:LABELLED], gallery, right[:LABELLED, None].tolist()
    )
    metrics: dict[str, Any] = {"fit, CPU seconds": time.process_time() - start}
    names = [f"item-{row}" for row in range(rows)]

    def by_row(vector: np.ndarray, k: int) -> tuple[Any, Any]:
        cosines, ids = index.search(vector[None], k)
        return cosines[0], ids[0]

    def by_name(vector: np.ndarray, k: int) -> tuple[Any, Any]:
        cosines, ids = by_row(vector, k)
        return cosines, [names[row] for row in ids]

    kinds = {
        "integer ids": (calibrator, by_row),
        "string ids": (with_names(calibrator, names), by_name),
    }
    sample = calibrator.map_queries(queries[LABELLED : LABELLED + 50])
    exact = [np.argpartition(-(gallery @ vector), K)[:K] for vector in sample]
    for probes in PROBES:
        index.nprobe = probes
        found = [by_row(vector, K)[1] for vector in sample]
        shared = [len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]
        part: dict[str, Any] = {"recall of the 100 nearest": sum(shared) / (K * len(sample))}
        for kind, (own, search) in kinds.items():
            matches = MatchFilter(own, search, threshold=THRESHOLD, k=K)
            alternate(search, matches, queries[LABELLED : LABELLED + 20])  # warm-up
            part[kind] = alternate(search, matches, queries[LABELLED:])
        metrics[f"{probes} probes"] = part
        print(f"{probes} probes: {part}", flush=True)
    for kind, (own, _) in kinds.items():
        metrics[f"bytes per row, {kind}"] = bytes_per_row(own)
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/match_cost.json"))
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    metrics = measure(options.rows, options.queries)
    metrics["load average"] = os.getloadavg()[0]
    settings = {"rows": options.rows, "queries": options.queries, "dim": DIM, "k": K}
    settings |= {
        "lists": LISTS,
        "probes": list(PROBES),
        "labelled": LABELLED,
        "threshold": THRESHOLD,
    }
    command = f"python -m benchmarks.match_cost --rows {options.rows} --queries {options.queries}"
    write_record(Record("match-cost", metrics, command, 1, settings), options.out)


if __name__ == "__main__":
    main()
