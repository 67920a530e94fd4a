"""A compressed gallery in shards at 20 million rows: build, memory, recall of caps, and CPU against the bare engine.

``python -m benchmarks.sharded_caps [--rows 20000000] [--dim 64] [--shards 4] [--lists 2048] [--queries 125]
[--workers 2] [--work FOLDER] [--out results/benchmarks]`` writes sharded_caps.json after every stage, and resumes:
vectors, gallery, index and exact answers in the work folder are used if they exist. Each stage has its own process.

The data and the queries are those of ``benchmarks.large_mixture``. "Bare" is a search of the same Lance tables, in as
many threads, with the same lists, probes and radius, that reads id, mu and kappa of the candidates and computes their
inner products. It runs in turn with the search of the gallery; CPU times are those of the process. The first queries
warm the caches of both. Memory is the resident memory of the process: before the gallery is opened, and after all
searches.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole.errors import AureoleError
from aureole.records import Record, read_record, write_record
from aureole.retrieval import CredibleIndex, Schema, cap_cosine
from aureole.retrieval._schema import Rows, object_array
from aureole.retrieval._shards import ShardedStore
from aureole.scale import build_index
from benchmarks.compressed_caps import size_of
from benchmarks.large_mixture import BLOCK, KAPPA, MASS, ExactCaps, Mixture, exact_caps

TRIES = 5  # to start Ray on a busy machine
REPEATS = 2  # of each query, own and bare in turn
SPARE = 1.3  # directions per query: some caps have a tie at their edge
Bare = Callable[[np.ndarray, list[float]], int]


@dataclass(frozen=True)
class Settings:
    """What is measured, and where its files are."""

    rows: int
    dim: int
    shards: int
    lists: int
    queries: int
    workers: int
    work: Path

    @property
    def gallery(self) -> Path:
        """The address of the gallery."""
        return self.work / "gallery.shards"

    def vectors(self) -> np.ndarray:
        """All rows, from disk."""
        return Mixture(self.rows, self.dim).vectors(self.work / "vectors.npy")


def generate(settings: Settings) -> dict[str, Any]:
    """Write the vectors."""
    start = time.monotonic()
    settings.vectors()
    return {"seconds": time.monotonic() - start}


def fill(settings: Settings) -> dict[str, Any]:
    """Write the gallery, block by block."""
    start, mu = time.monotonic(), settings.vectors()

    def blocks() -> Iterator[Rows]:
        for first in range(0, len(mu), BLOCK):
            block = np.array(mu[first : first + BLOCK])
            ids = object_array([str(row) for row in range(first, first + len(block))])
            yield Rows(ids, block, np.full(len(block), KAPPA, np.float32), {})

    schema = Schema(settings.dim, {}, KAPPA)
    ShardedStore.fill(str(settings.gallery), schema, blocks(), shards=settings.shards).close()
    return {"seconds": time.monotonic() - start, "peak_bytes": status("VmHWM")}


def index(settings: Settings) -> dict[str, Any]:
    """Build the compressed index: one Ray task per shard, or one shard after the other with one worker."""
    options: dict[str, Any] = {"compressed": True, "lists": settings.lists}
    start = time.monotonic()
    if settings.workers == 1:
        with CredibleIndex.open(settings.gallery) as opened:
            opened.build("ivf", **options)
    for tries in range(1, TRIES + 1) if settings.workers > 1 else ():
        start = time.monotonic()
        try:
            build_index(str(settings.gallery), workers=settings.workers, **options)
            break
        except AureoleError as error:
            if tries == TRIES or "did not start" not in str(error):
                raise
    seconds = time.monotonic() - start
    with CredibleIndex.open(settings.gallery) as opened:
        store: Any = opened._store
        probes = [shard.approximate()["probes"] for shard in store._stores]
        about = {"seconds": seconds, "approximate": opened.approximate, "probes": probes}
    return about | sizes_of(settings)


def sizes_of(settings: Settings) -> dict[str, Any]:
    """Bytes per row: of the codes with their row numbers, in memory once all lists were visited, and on disk."""
    found = list(settings.gallery.glob("*.lance/_indices/*"))
    codes = sum(size_of(folder) for folder in found if (folder / "auxiliary.idx").exists())
    return {
        "codes_bytes_per_row": codes / settings.rows,
        "disk_bytes_per_row": size_of(settings.gallery) / settings.rows,
    }


def brute_force(settings: Settings) -> dict[str, Any]:
    """Save the exact members of caps of each size."""
    start, mu = time.monotonic(), settings.vectors()
    count = int(4 * settings.queries * SPARE) + 4
    directions = Mixture(settings.rows, settings.dim).directions(count, mu)
    arrays = {}
    for cap in exact_caps(mu, directions, settings.queries):
        arrays |= {f"mu.{cap.size}": cap.mu, f"kappa.{cap.size}": cap.kappa}
        arrays[f"members.{cap.size}"] = cap.members
    np.savez(settings.work / "caps.npz", **arrays)
    return {"seconds": time.monotonic() - start}


def load_caps(settings: Settings) -> list[ExactCaps]:
    """The caps that ``brute_force`` saved."""
    with np.load(settings.work / "caps.npz") as file:
        sizes = sorted(int(name.partition(".")[2]) for name in file if name.startswith("mu."))
        parts = ("mu", "kappa", "members")
        return [ExactCaps(size, *(file[f"{part}.{size}"] for part in parts)) for size in sizes]


def bare_search(store: Any) -> Bare:
    """A function that searches the tables of all shards, each within its own radius, and counts the candidates."""
    threads = ThreadPoolExecutor(len(store._stores))
    about = [shard._index_note() for shard in store._stores]
    sizes = [shard.count() for shard in store._stores]

    def one(number: int, query: np.ndarray, radius: float) -> int:
        table = store._stores[number]._table.scanner(
            columns=["id", "mu", "kappa"],
            nearest={"column": "mu", "q": query, "k": sizes[number], "metric": "dot",
                     "nprobes": about[number]["sizes"]["probes"], "distance_range": (None, 1 - radius)},
            disable_scoring_autoprojection=True,
        ).to_table()  # fmt: skip
        if table.num_rows:
            flat = table["mu"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            (flat.reshape(-1, len(query)) @ query >= radius).sum()
        return table.num_rows

    def search(query: np.ndarray, radii: list[float]) -> int:
        numbers = range(len(sizes))
        return sum(threads.map(one, numbers, [query] * len(sizes), radii))

    return search


def search(settings: Settings) -> dict[str, Any]:
    """Recall of caps, CPU against the bare engine, latency and memory of one process."""
    before = status("VmRSS")
    with CredibleIndex.open(settings.gallery) as opened:
        store: Any = opened._store
        codes = [shard._index_note()["compression"] for shard in store._stores]
        bare, caps = bare_search(store), load_caps(settings)
        for cap in caps:  # warm the caches
            for row in range(len(cap.kappa)):
                opened.search(cap.query(row), MASS)
        metrics: dict[str, Any] = {"after_one_pass_bytes": status("VmRSS") - before}
        by_size = {str(cap.size): caps_of(opened, bare, cap, codes) for cap in caps}
        walls = [wall for facts in by_size.values() for wall in facts.pop("walls")]
        own, other = (
            sum(facts["queries"] * facts[name] for facts in by_size.values())
            for name in ("cpu_ms", "bare_cpu_ms")
        )
        metrics |= {
            "caps": by_size,
            "cpu_ratio": own / max(other, 1e-9),
            "latency_ms": {str(q): float(np.percentile(walls, q)) for q in (50, 95, 99)},
            "queries_per_second": 1000 * len(walls) / sum(walls),
            "resident_before_bytes": before,
            "resident_bytes_per_row": (status("VmRSS") - before) / settings.rows,
        }
        return metrics


def caps_of(opened: CredibleIndex, bare: Bare, cap: ExactCaps, codes: list[Any]) -> dict[str, Any]:
    """Recall, candidates and CPU per query for caps of one size."""
    found = candidates = wrong = proposed = 0
    own = other = 0.0
    walls: list[float] = []
    count = len(cap.kappa)
    for row in range(count):
        query = cap.query(row)
        direction, bound = cap.mu[row], float(cap_cosine(query, MASS, kind="credible"))
        radii = [bound - code.widening(bound) for code in codes]
        bare(direction, radii)
        for _ in range(REPEATS):
            wall, start = time.perf_counter(), time.process_time()
            hits = opened.search(query, MASS)
            middle = time.process_time()
            walls.append(1000 * (time.perf_counter() - wall))
            proposed = bare(direction, radii)
            own, other = own + middle - start, other + time.process_time() - middle
        got, expected = {int(name) for name in hits.ids}, set(cap.members[row].tolist())  # type: ignore[union-attr]
        found, wrong = found + len(got & expected), wrong + len(got - expected)
        candidates += proposed
    runs = max(count * REPEATS, 1)
    return {
        "queries": count, "members": count * cap.size, "recall": found / max(count * cap.size, 1), "wrong": wrong,
        "candidates": candidates / max(count, 1), "cpu_ms": 1000 * own / runs, "bare_cpu_ms": 1000 * other / runs,
        "cpu_ratio": own / max(other, 1e-9), "walls": walls,
    }  # fmt: skip


def status(name: str) -> int:
    """Bytes of memory of this process, such as VmRSS, from the operating system."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return 0


STAGES: dict[str, tuple[Callable[[Settings], dict[str, Any]], Callable[[Settings], Path]]] = {
    "generate": (generate, lambda settings: settings.work / "vectors.npy"),
    "fill": (fill, lambda settings: settings.gallery / "manifest.json"),
    "index": (index, lambda settings: settings.work / "indexed"),
    "brute_force": (brute_force, lambda settings: settings.work / "caps.npz"),
    "search": (search, lambda settings: settings.work / "searched"),
}


def measure(
    settings: Settings, out: Path, command: str, *, run: Callable[..., dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Run all stages that are not complete, each in a new process, and write the record after each."""
    run = run or in_process
    settings.work.mkdir(parents=True, exist_ok=True)
    path = out / "sharded_caps.json"
    plain = {name: value for name, value in vars(settings).items() if name != "work"}
    metrics = {}
    if path.exists() and read_record(path).settings == plain:
        metrics = read_record(path).metrics
    for name, (stage, product) in STAGES.items():
        if name in metrics and product(settings).exists():
            continue
        metrics[name] = run(stage, settings)
        product(settings).touch()
        print(name, metrics[name], file=sys.stderr, flush=True)
        write_record(Record("sharded_caps", metrics, command, 0, plain), path)
    return metrics


def in_process(stage: Callable[[Settings], dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """The result of a stage in a new process, whose memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_single_threaded, stage, settings).result()


def _single_threaded(stage: Callable[[Settings], dict[str, Any]], settings: Settings) -> Any:
    torch.set_num_threads(1)
    return stage(settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--lists", type=int, default=2048, help="of each shard")
    parser.add_argument("--queries", type=int, default=125, help="for each size of caps")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("sharded_caps"))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = vars(parser.parse_args())
    out = options.pop("out")
    settings = Settings(**options)
    names = ("rows", "dim", "shards", "lists", "queries", "workers")
    chosen = " ".join(f"--{name} {options[name]}" for name in names)
    measure(settings, out, f"python -m benchmarks.sharded_caps {chosen}")


if __name__ == "__main__":
    main()
