"""Credible sets from approximate indexes: recall, time compared with the engine's own search, and size.

``python -m benchmarks.retrieval [--rows 1000000] [--engines faiss-ivf faiss-hnsw lance-ivf]
[--out results/benchmarks/retrieval.json]`` writes a record. ``--single`` measures one query per call instead, in a
gallery of 300,000 rows, and writes ``retrieval_single.json``.

A gallery in R^128 around random centres, and queries from the same clusters whose kappa is such that their credible cap
of mass 0.95 contains 1, 10, 100 or 1,000 items, by a scan. Time is per query, in batches of queries that alternate with
the bare engine in one run: a range search at the same threshold (FAISS, Lance) or, if the engine has none, the same
number of nearest neighbours (PostgreSQL), with the same settings. With ``--single`` every search alternates with the
bare one, and each of them is first in half of the rounds, since the second finds the scanned lists in the CPU's cache.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.caps import CredibleIndex, cap_cosine
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.records import Record, write_record
from benchmarks.engines import clustered
from benchmarks.timing import median_seconds

DIM, MASS, SIZES = 128, 0.95, (1, 10, 100, 1000)
Bare = Callable[[CredibleIndex, au.VonMisesFisher, list[int]], Callable[[], Any]]
ENGINES = ("faiss-ivf", "faiss-hnsw", "lance-ivf")


def queries_of_size(
    gallery: np.ndarray, mu: torch.Tensor, sizes: tuple[int, ...]
) -> dict[int, au.VonMisesFisher]:
    """For each size, the queries with the kappa whose cap ends between the size-th item and the next."""
    least: dict[int, list[float]] = {size: [] for size in sizes}
    for query in stored_direction(mu):
        near = np.argpartition(-(gallery @ query), max(sizes) + 1)[: max(sizes) + 2]
        cosine = np.sort(exact_cosines(query, gallery[near]))[::-1]
        for size in sizes:
            least[size].append(float(cosine[size - 1] + cosine[size]) / 2)
    return {size: au.VonMisesFisher(mu, kappa_of(torch.tensor(t))) for size, t in least.items()}


def kappa_of(threshold: torch.Tensor) -> torch.Tensor:
    """The kappa whose credible cap of MASS ends at a cosine, by bisection in log kappa."""
    low, high = torch.zeros(len(threshold)).double(), torch.full((len(threshold),), 20.0).double()
    axis = torch.eye(DIM)[0].expand(len(threshold), DIM)
    for _ in range(50):
        middle = (low + high) / 2
        wide = cap_cosine(au.VonMisesFisher(axis, middle.exp().float()), MASS) < threshold
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return ((low + high) / 2).exp().float()


def truth(gallery: np.ndarray, queries: au.VonMisesFisher) -> list[set[str]]:
    """The ids in each query's cap, by a scan."""
    found = []
    for query, t in zip(
        stored_direction(queries.mu), cap_cosine(queries, MASS).tolist(), strict=True
    ):
        near = np.flatnonzero(gallery @ query >= t - 1e-5)
        inside = near[exact_cosines(query, gallery[near]) >= t]
        found.append({f"item {i}" for i in inside.tolist()})
    return found


def bare_faiss(
    index: CredibleIndex, queries: au.VonMisesFisher, counts: list[int]
) -> Callable[[], Any]:
    """FAISS alone: one range search per query, each at its own radius; HNSW four times as wide for large caps."""
    store: Any = index._store
    faiss, near = store._vectors.faiss, store._vectors.approximation
    engine, sizes = near.index, near.sizes
    mu = stored_direction(queries.mu)
    radii = cap_cosine(queries, MASS).tolist()
    parameters = faiss.SearchParametersIVF(nprobe=sizes["probes"]) if near.kind == "ivf" else None

    def ranges() -> None:
        for row, radius in enumerate(radii):
            engine.range_search(mu[row : row + 1], radius, params=parameters)

    def graph_ranges() -> None:
        for row, radius in enumerate(radii):
            width = sizes["width"] * (1 if counts[row] < sizes["width"] // 2 else 4)
            parameters = faiss.SearchParametersHNSW(efSearch=width)
            engine.range_search(mu[row : row + 1], radius, params=parameters)

    return ranges if near.kind == "ivf" else graph_ranges


def bare_lance(index: CredibleIndex, queries: au.VonMisesFisher, _: list[int]) -> Callable[[], Any]:
    """Lance alone: a range search that returns ids and vectors."""
    store: Any = index._store
    mu = stored_direction(queries.mu)
    radii = cap_cosine(queries, MASS).tolist()
    total, tuned = store.count(), store._index_options(exact=False)

    def ranges() -> None:
        for query, radius in zip(mu, radii, strict=True):
            near = {
                "column": "mu",
                "q": query,
                "k": total,
                "metric": "dot",
                "distance_range": (None, 1 - radius),
            }
            store._table.scanner(
                columns=["id", "mu", "kappa", "_distance"], nearest=near | tuned
            ).to_table()  # fmt: skip

    return ranges


def single_searches(
    index: CredibleIndex,
    queries: au.VonMisesFisher,
    counts: list[int],
    bare: Bare,
    repeats: int,
) -> dict[str, float]:
    """Medians of alternating single searches: milliseconds, and the ratio to the bare engine, by wall and CPU time.

    CPU time, of all threads of the process, also holds on a machine that is busy with something else.
    """
    parts = range(len(counts))
    ours = [au.VonMisesFisher(queries.mu[i], queries.kappa[i]) for i in parts]
    batches = [au.VonMisesFisher(queries.mu[i : i + 1], queries.kappa[i : i + 1]) for i in parts]
    alone = [bare(index, batches[i], counts[i : i + 1]) for i in parts]
    clocks = {"": time.perf_counter, "CPU ": time.process_time}
    times: dict[tuple[str, str], list[list[float]]] = {}  # by clock and contender, then by round
    for round_ in range(repeats + 1):
        for i in parts:
            order = ("ours", "bare") if (round_ + i) % 2 else ("bare", "ours")
            for name in order:
                starts = {clock: read() for clock, read in clocks.items()}
                if name == "ours":
                    index.search(ours[i], MASS)
                else:
                    alone[i]()
                for clock, read in clocks.items():
                    rounds = times.setdefault((clock, name), [[] for _ in range(repeats + 1)])
                    rounds[round_].append(1000 * (read() - starts[clock]))
    found: dict[str, float] = {}
    for clock in clocks:
        own, other = (times[clock, name][1:] for name in ("ours", "bare"))  # after a warm-up
        by_round = [median(o) / median(b) for o, b in zip(own, other, strict=True)]
        found[f"{clock}ms a query"] = median(chain(*own))
        found[f"bare {clock}ms a query"] = median(chain(*other))
        found[f"{clock}ratio"] = median(chain(*own)) / median(chain(*other))
        found[f"lowest {clock}ratio of a round"] = min(by_round)
        found[f"highest {clock}ratio of a round"] = max(by_round)
    return found


def cap_milliseconds() -> dict[str, float]:
    """Median milliseconds of a cap whose mass is new, so that a table is computed, and of later caps."""
    query = au.VonMisesFisher(torch.eye(DIM)[0], 300.0)
    times: dict[str, list[float]] = {"first": [], "later": []}
    for mass in np.linspace(0.9, 0.94, 9).tolist():
        for name in ("first", *["later"] * 9):
            start = time.perf_counter()
            cap_cosine(query, mass)
            times[name].append(1000 * (time.perf_counter() - start))
    return {f"{name} cap of a mass, ms": median(values) for name, values in times.items()}


def size_of(folder: Path) -> int:
    """Total bytes of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(
    engine: str,
    where: str,
    gallery: au.VonMisesFisher,
    by_size: dict[int, au.VonMisesFisher],
    expected: dict[int, list[set[str]]],
    sizes: dict[str, int],
    repeats: int,
    *,
    single: bool,
) -> dict[str, Any]:
    """Build time, and for each size of cap the recall, milliseconds per query and their ratio to the bare engine's."""
    name, kind = engine.split("-")
    rows = len(gallery.kappa)
    begin = time.perf_counter()
    index = CredibleIndex.create(where, gallery, [f"item {i}" for i in range(rows)])
    loaded = time.perf_counter()
    index.build(kind, **sizes)  # pyright: ignore[reportArgumentType]
    found: dict[str, Any] = {
        "load seconds": loaded - begin,
        "build seconds": time.perf_counter() - loaded,
        **sizes,
    }
    print(f"{engine}: {found}", flush=True)
    bare: Bare = {"faiss": bare_faiss, "lance": bare_lance}[name]
    for size, queries in by_size.items():
        hits = index.search(queries, MASS)
        assert isinstance(hits, list)
        members = sum(len(true) for true in expected[size])
        got = sum(len(true & set(h.ids)) for true, h in zip(expected[size], hits, strict=True))
        extra = sum(len(set(h.ids) - true) for true, h in zip(expected[size], hits, strict=True))
        counts = [len(h) for h in hits]
        if single:
            times = single_searches(index, queries, counts, bare, repeats)
        else:
            contenders = {
                "ours": lambda q=queries: index.search(q, MASS),
                "bare": bare(index, queries, counts),
            }
            seconds = median_seconds(contenders, repeats)
            times = {
                "ms a query": 1000 * seconds["ours"] / len(counts),
                "ratio": seconds["ours"] / seconds["bare"],
            }
        found[f"{size} members"] = {"recall": got / members, "extra": extra, **times}
        print(f"{engine}, caps of {size}: {found[f'{size} members']}", flush=True)
    found["bytes a row"] = size_of(Path(where)) / rows
    index.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, help="default: 1,000,000; 300,000 with --single")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--repeats", type=int, help="default: 5; 20 with --single")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="items in a cap")
    parser.add_argument("--single", action="store_true", help="one query per call")
    parser.add_argument("--width", type=int, default=256, help="search width of HNSW")
    parser.add_argument("--out", type=Path, help="default: in results/benchmarks")
    options = parser.parse_args()
    name = "retrieval_single" if options.single else "retrieval"
    rows = options.rows or (300_000 if options.single else 1_000_000)
    repeats = options.repeats or (20 if options.single else 5)
    out = options.out or Path(f"results/benchmarks/{name}.json")
    clusters = max(4, rows // 1000)
    gallery = clustered(rows, DIM, clusters=clusters, noise=0.7, seed=1)
    mu = clustered(options.queries, DIM, clusters=clusters, noise=0.7, seed=2).mu
    stored = stored_direction(gallery.mu)
    by_size = queries_of_size(stored, mu, tuple(s for s in options.sizes if s < rows // 4))
    expected = {size: truth(stored, queries) for size, queries in by_size.items()}
    del stored
    lists = max(4, round(rows**0.5))
    sizes = {
        "ivf": {"lists": lists, "probes": max(1, lists // 10)},
        "hnsw": {"links": 24, "width": options.width},
    }
    metrics: dict[str, Any] = {"caps": cap_milliseconds()} if options.single else {}
    for engine in options.engines:
        store, kind = engine.split("-")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            where = str(folder / f"gallery.{store}")
            metrics[engine] = measure(
                engine,
                where,
                gallery,
                by_size,
                expected,
                sizes[kind],
                repeats,
                single=options.single,
            )
            shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "rows": rows, "queries": options.queries, "dim": DIM, "mass": MASS, "clusters": clusters,
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }  # fmt: skip
    if options.single:  # wall times are only comparable if no other process was running
        settings["load average"] = round(os.getloadavg()[1], 1)
    command = f"python -m benchmarks.retrieval --rows {rows} --queries {options.queries}"
    command += f" --engines {' '.join(options.engines)} --width {options.width}"
    if options.single:
        command += f" --single --repeats {repeats} --sizes {' '.join(map(str, options.sizes))}"
    write_record(Record(name, metrics, command, 1, settings), out)


if __name__ == "__main__":
    main()
