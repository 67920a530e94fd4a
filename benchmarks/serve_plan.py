"""What a service with many shards needs: measured on this machine, and simulated for more shards than it can hold.

``python -m benchmarks.serve_plan [--rows 100000] [--repeats 5] [--queries 200] [--out results/scale]`` writes
serve_plan.json.

Measured: a gallery in 1, 2 and 4 shards, each in a process of Ray Serve; four clients in one process search it, each as
soon as its last search has ended. A model that knows nothing of these runs predicts them from two other measurements:
the time that each shard needs for a query when nothing else runs, and the rest of a search by one client.

The model (``simulate``) is a discrete-event simulation. A search takes a share of the front process, which runs one
search at a time; then it asks all shards. A request takes some CPU on its way; a shard has replicas, each of which
answers one request at a time; the time of an answer is drawn from the measured ones, times a factor if it straggles.
All processes of a machine share its cores equally, less what Ray uses while nothing is asked. A search ends when all
shards have answered or after the timeout, and is partial then.
"""

import argparse
import heapq
import json
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial as partial_call
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex, Selection, ShardedStore, cap_cosine
from aureole.scale import ShardProcesses
from benchmarks.compressed_caps import gallery_of
from benchmarks.shard_service import replicas_of

DIM, MASS, CLIENTS = 64, 0.9, 4


@dataclass(frozen=True)
class Cluster:
    """Shards and the machines they run on.

    ``answers`` are seconds of CPU that a shard needs for a query, one list per shard; ``front`` those of the process
    that asks; ``transport`` those of a request on its way. ``cores`` is the number of cores that all share; None gives
    every replica and the front a core of its own. A share ``straggling`` of answers takes ``slower`` times as long.
    ``dead`` is the share of time that a replica is down.
    """

    answers: Sequence[np.ndarray]
    front: np.ndarray
    transport: float = 0.0
    cores: float | None = None
    replicas: int = 1
    fronts: int = 1
    timeout: float = 2.0
    straggling: float = 0.0
    slower: float = 10.0
    dead: float = 0.0


@dataclass
class _Job:
    """A piece of CPU work in progress: what remains of it, and what follows."""

    left: float
    after: Callable[[], None]


@dataclass
class _Machine:
    """Cores that all running jobs share equally; None for a core per job."""

    cores: float | None
    now: float = 0.0
    jobs: list[_Job] = field(default_factory=list)
    timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ticket: Any = field(default_factory=count)

    def run(self, seconds: float, after: Callable[[], None]) -> None:
        self.jobs.append(_Job(seconds, after))

    def at(self, moment: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (moment, next(self._ticket), call))

    def step(self) -> None:
        """Advance to the next event: a job or a timer that ends."""
        rate = 1.0 if self.cores is None else min(1.0, self.cores / max(len(self.jobs), 1))
        ends = min((job.left for job in self.jobs), default=np.inf) / rate
        timer = self.timers[0][0] - self.now if self.timers else np.inf
        passed = max(0.0, min(ends, timer))
        self.now += passed
        for job in self.jobs:
            job.left -= passed * rate
        if timer <= ends:
            heapq.heappop(self.timers)[2]()
            return
        done = [job for job in self.jobs if job.left <= 1e-12]
        self.jobs = [job for job in self.jobs if job.left > 1e-12]
        for job in done:
            job.after()


class _Servers:
    """Processes that take one request at a time from a queue."""

    def __init__(self, machine: _Machine, number: int) -> None:
        self.machine, self.free, self.queue = machine, number, deque[tuple[float, Any]]()

    def ask(self, seconds: float, answer: Callable[[], None]) -> None:
        self.queue.append((seconds, answer))
        self._next()

    def _next(self) -> None:
        if not self.free or not self.queue:
            return
        self.free -= 1
        seconds, answer = self.queue.popleft()

        def done() -> None:
            self.free += 1
            answer()
            self._next()

        self.machine.run(seconds, done)


def simulate(
    cluster: Cluster,
    searches: int,
    *,
    clients: int | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Throughput, latencies and the share of partial results of some searches.

    Either ``clients`` search one after the other, or searches arrive at random at a ``rate`` per second.
    """
    rng = np.random.default_rng(seed)
    machine = _Machine(cluster.cores)
    front = _Servers(machine, cluster.fronts)
    shards = [_Servers(machine, cluster.replicas) for _ in cluster.answers]
    latencies: list[float] = []
    partial = started = 0

    def search() -> None:
        nonlocal started
        if started >= searches:
            return
        started += 1
        began = machine.now
        state = {"left": len(shards), "over": False}

        def end(is_partial: bool) -> None:
            nonlocal partial
            if state["over"]:
                return
            state["over"] = True
            partial += is_partial
            latencies.append(machine.now - began)
            if rate is None:
                search()

        def answered() -> None:
            state["left"] -= 1
            if not state["left"]:
                end(False)

        def scatter() -> None:
            machine.at(machine.now + cluster.timeout, lambda: end(True))
            for shard, seconds in zip(shards, cluster.answers, strict=True):
                if rng.random() < cluster.dead**cluster.replicas:
                    continue  # no replica is up: no answer
                slow = cluster.slower if rng.random() < cluster.straggling else 1.0
                ask = partial_call(shard.ask, slow * float(rng.choice(seconds)), answered)
                machine.run(cluster.transport, ask) if cluster.transport else ask()

        front.ask(float(rng.choice(cluster.front)), scatter)

    if rate is None:
        for _ in range(clients or 1):
            search()
    else:
        for moment in np.cumsum(rng.exponential(1 / rate, searches)).tolist():
            machine.at(moment, search)
    while len(latencies) < searches:
        machine.step()
    kept = np.array(latencies[len(latencies) // 10 :])  # without the start
    return {
        "per second": len(latencies) / machine.now,
        "ms mean": 1000 * float(kept.mean()),
        "ms p50": 1000 * float(np.quantile(kept, 0.5)),
        "ms p99": 1000 * float(np.quantile(kept, 0.99)),
        "partial": partial / searches,
    }


class _Shared:
    """A pool whose processes several clients use."""

    def __init__(self, searchers: Any) -> None:
        self._searchers = searchers

    def open(self, addresses: list[str]) -> Any:  # noqa: ARG002
        return self._searchers

    def close(self) -> None:
        pass


def queries_of(mu: np.ndarray, number: int) -> au.VonMisesFisher:
    """Queries near rows."""
    rng = np.random.default_rng(1)
    near = mu[rng.integers(0, len(mu), number)]
    near = near + 0.2 * rng.standard_normal(near.shape) / DIM**0.5
    unit = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    return au.VonMisesFisher(
        torch.from_numpy(unit), torch.full((number,), 400.0), validate_args=False
    )


def _some(queries: au.VonMisesFisher, rows: slice) -> au.VonMisesFisher:
    return au.VonMisesFisher(queries.mu[rows], queries.kappa[rows], validate_args=False)


def one(queries: au.VonMisesFisher, row: int) -> au.VonMisesFisher:
    """A query of a batch."""
    return au.VonMisesFisher(queries.mu[row], queries.kappa[row], validate_args=False)


def closed_loop(
    where: str, searchers: Any, queries: au.VonMisesFisher, clients: int
) -> tuple[float, np.ndarray]:
    """(Searches per second, seconds of each) of clients that share the processes of the shards."""
    taken, seconds, lock = iter(range(queries.batch_shape[0])), list[float](), threading.Lock()
    indexes = [CredibleIndex(ShardedStore.open(where, _Shared(searchers))) for _ in range(clients)]

    def run(index: CredibleIndex) -> None:
        while True:
            with lock:
                row = next(taken, None)
            if row is None:
                return
            start = time.perf_counter()
            hits: Any = index.search(one(queries, row), MASS)
            seconds.append(time.perf_counter() - start)
            assert not hits.missing_shards

    threads = [threading.Thread(target=run, args=(index,)) for index in indexes]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(seconds) / (time.perf_counter() - start), np.array(seconds)


def alone(searchers: Any, queries: au.VonMisesFisher) -> tuple[list[np.ndarray], float]:
    """(Seconds that each shard works on queries when nothing else runs, seconds of a request on its way)."""
    mu = queries.mu.numpy()
    bounds = cap_cosine(queries, MASS, kind="credible").numpy()
    found, ways = [], []
    for number, shard in enumerate(searchers):
        seconds, (replica,) = [], replicas_of(number)
        spent = cpu_of([replica])
        for row in range(len(mu)):
            start = time.perf_counter()
            list(shard.candidates(mu[row : row + 1], bounds[row : row + 1], Selection()))
            seconds.append(time.perf_counter() - start)
        works = (cpu_of([replica]) - spent) / len(mu)
        waited = np.array(seconds)
        found.append(waited * min(1.0, works / waited.mean()))
        ways.append(max(0.0, float(waited.mean()) - works))
    return found, float(np.mean(ways))


def idle_cores(seconds: float = 5.0) -> float:
    """The cores that this process and all that it has started use while nothing is asked."""
    family, start = descendants(), time.perf_counter()
    spent = cpu_of(family)
    time.sleep(seconds)
    return (cpu_of(family) - spent) / (time.perf_counter() - start)


def descendants() -> list[int]:
    """The process itself and all that it has started, directly or not."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return sorted(family)


def cpu_of(pids: Sequence[int]) -> float:
    """Seconds of CPU of some processes."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            part = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(part[11]) + int(part[12])
    return total / os.sysconf("SC_CLK_TCK")


def measured(
    table: CredibleIndex, shards: int, queries: au.VonMisesFisher, repeats: int, folder: Path
) -> dict[str, Any]:
    """One number of shards: repeats of the closed loop, and what the model predicts."""
    where = str(folder / f"{shards}.shards")
    with table.copy(where, shards=shards) as copied:
        copied.build("ivf", compressed=True)
    pool = ShardProcesses(replicas=1, timeout=30.0, address=None)
    try:
        addresses = [str(Path(where) / name) for name in CredibleIndex.open(where).shards or {}]
        searchers = pool.open(addresses)
        closed_loop(where, searchers, queries, CLIENTS)  # fills the caches
        idle = idle_cores()
        rounds, few = [], _some(queries, slice(None, None, 4))
        for _ in range(repeats):  # in turn, since the machine is not always equally fast
            lone, by_one = alone(searchers, few), closed_loop(where, searchers, few, 1)
            rounds.append((lone, by_one, closed_loop(where, searchers, queries, CLIENTS)))
    finally:
        pool.close()
    answers = [
        np.concatenate(parts) for parts in zip(*(found for (found, _), _, _ in rounds), strict=True)
    ]
    way = float(np.mean([way for (_, way), _, _ in rounds]))
    single = np.concatenate([seconds for _, (_, seconds), _ in rounds])
    rates = np.array([rate for _, _, (rate, _) in rounds])
    p99 = np.array([1000 * float(np.quantile(seconds, 0.99)) for _, _, (_, seconds) in rounds])
    return {
        "answers": answers, "single": single, "ms on the way": 1000 * way, "idle cores": idle,
        "per second": rates.tolist(), "ms p99": p99.tolist(),
        "ms of a shard alone": 1000 * float(np.mean([each.mean() for each in answers])),
        "ms of one client": 1000 * float(single.mean()),
    }  # fmt: skip


def predicted(facts: dict[str, Any], cores: int, repeats: int) -> dict[str, Any]:
    """What the model expects of the closed loop, from the answers of single shards and of one client."""
    cluster = fitted(facts, cores)
    runs = [simulate(cluster, 300, clients=CLIENTS, seed=seed) for seed in range(repeats)]
    return {name: float(np.mean([run[name] for run in runs])) for name in ("per second", "ms p99")}


def fitted(facts: dict[str, Any], cores: int) -> Cluster:
    """The model of a measured service; the front's share is such that a single client takes as long as it did."""
    answers, mean = facts["answers"], float(facts["single"].mean())
    rest = {"transport": facts["ms on the way"] / 1000, "cores": cores - facts["idle cores"]}
    low, high = 0.0, mean
    for _ in range(12):
        middle = (low + high) / 2
        cluster = Cluster(answers, np.array([middle]), timeout=30.0, **rest)
        found = 1 / simulate(cluster, 200, clients=1)["per second"]
        low, high = (middle, high) if found < mean else (low, middle)
    return Cluster(answers, np.array([(low + high) / 2]), timeout=30.0, **rest)


def fan_out(answers: np.ndarray, front: np.ndarray) -> list[dict[str, Any]]:
    """Simulated services of up to 64 shards, each replica on a core of its own."""
    rows = []
    for shards in (1, 4, 16, 64):
        for straggling, dead, replicas in (
            (0.0, 0.0, 1),
            (0.01, 0.0, 1),
            (0.01, 0.001, 1),
            (0.01, 0.001, 2),
        ):
            capacity = replicas / answers.mean()
            cluster = Cluster(
                [answers] * shards, front, replicas=replicas, fronts=64, timeout=2.0, straggling=straggling, dead=dead
            )  # fmt: skip
            found = simulate(cluster, 2000, rate=0.5 * capacity)
            rows.append(
                {"shards": shards, "straggling": straggling, "dead": dead, "replicas": replicas}
                | found
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    mu = gallery_of(options.rows, DIM)
    queries = queries_of(mu, options.queries)
    posteriors = au.VonMisesFisher(torch.from_numpy(mu), 50.0)
    metrics: dict[str, Any] = {"by shards": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = [str(i) for i in range(len(mu))]
        with CredibleIndex.create(folder / "table.lance", posteriors, ids) as table:
            for shards in (1, 2, 4):
                facts = measured(table, shards, queries, options.repeats, folder)
                expected = predicted(facts, options.cores, options.repeats)
                if shards == 1:
                    model = fitted(facts, options.cores)
                    metrics["fan-out"] = fan_out(facts["answers"][0], model.front)
                shown = {key: facts[key] for key in facts if key not in ("answers", "single")}
                metrics["by shards"][str(shards)] = shown | {"predicted": expected}
                print(shards, json.dumps(metrics["by shards"][str(shards)]), file=sys.stderr)
    settings = {
        "rows": options.rows,
        "dim": DIM,
        "queries": options.queries,
        "cores": options.cores,
    }
    command = f"python -m benchmarks.serve_plan --rows {options.rows} --repeats {options.repeats}"
    command += f" --queries {options.queries}"
    path = options.out / "serve_plan.json"
    write_record(Record("serve_plan", metrics, command, 0, settings), path)


if __name__ == "__main__":
    main()
