"""Shards in processes of their own under faults and changes: whether all results are right, and how late they are.

``python -m benchmarks.shard_service [--parts faults updates rebalance] [--rows 20000] [--minutes 5] [--kills 10]
[--out results/serve]`` writes shard_service.json after each part.

- faults: a shard's process is killed while 32 clients search over HTTP. Every result is compared with brute force: a
  complete one with all rows, a partial one with the rows of the shards that it has rows of.
- updates: one client adds, replaces and deletes items while others search. After each acknowledged change it searches
  exactly until the change is visible, and compares a random search with brute force.
- rebalance: ``aureole index rebalance`` is killed at random moments; all rows must be there, once each.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.records import Record, read_record, write_record
from aureole.retrieval import CredibleIndex, cap_cosine, exact_cosines
from benchmarks.served import Served, serving

DIM, SHARDS, MASS, KAPPA, KEY = 32, 4, 0.9, 60.0, "k" * 32
TIMEOUT = 2.0  # seconds that the service waits for a shard


def directions(count: int, seed: int) -> np.ndarray:
    """Unit vectors in loose clusters, so that caps have some tens of members."""
    centres = np.random.default_rng(7).standard_normal((200, DIM))
    rng = np.random.default_rng(seed)
    mu = centres[rng.integers(0, 200, count)] + 0.7 * rng.standard_normal((count, DIM))
    return (mu / np.linalg.norm(mu, axis=1, keepdims=True)).astype(np.float32)


def make_gallery(where: Path, mu: np.ndarray) -> Path:
    """A gallery with shards, without an approximate index."""
    posteriors = au.VonMisesFisher(torch.from_numpy(mu), KAPPA)
    ids = [f"item {i}" for i in range(len(mu))]
    with CredibleIndex.create(where, posteriors, ids):
        return where


def threshold() -> float:
    """The smallest cosine in the caps of all queries, which have the same kappa."""
    query = au.VonMisesFisher(torch.eye(DIM)[0], torch.tensor(KAPPA), validate_args=False)
    return float(cap_cosine(query, MASS, kind="credible"))


def members(query: np.ndarray, rows: dict[str, np.ndarray], bound: float) -> set[str]:
    """The ids of the rows in a query's cap, by brute force."""
    names = list(rows)
    inside = exact_cosines(query, np.stack(list(rows.values()))) >= bound
    return {names[i] for i in np.flatnonzero(inside)}


def post(served: Served, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    """(Status, JSON) of a request with the key."""
    connection = http.client.HTTPConnection(served.host, served.port, timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def search(served: Served, query: np.ndarray) -> tuple[int, Any]:
    """(Status, JSON) of an exact search for all members of a query's cap."""
    asked = {"mu": query.astype(float).tolist(), "kappa": KAPPA}
    body = {"query": asked, "mass": MASS, "kind": "credible", "exact": True, "limit": 1000}
    return post(served, "/v1/search", body)


def replicas_of(shard: int) -> list[int]:
    """The processes of a shard's replicas."""
    name = f"ServeReplica:aureole-shard-{shard}-".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if name in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@contextmanager
def start_service(gallery: Path, *options: str, log: Path) -> Iterator[Served]:
    """The service with a process per shard; at the end it stops them and Ray."""
    os.environ["AUREOLE_API_KEY"] = KEY
    with_shards = ("--replicas", "1", "--shard-timeout", str(TIMEOUT))
    with serving(gallery, None, *with_shards, *options, log=log, label=None) as served:
        yield served
        served.process.terminate()
        served.process.wait(timeout=60)


class Searchers:
    """Clients that search until they are stopped; ``results`` are (start, seconds, status, query, JSON)."""

    def __init__(self, served: Served, clients: int, pause: float, seed: int = 0) -> None:
        self.results: list[tuple[float, float, int, np.ndarray, Any]] = []
        self._stop = threading.Event()
        queries = directions(64, seed=99)

        def run(number: int) -> None:
            rng = random.Random(1000 * seed + number)
            while not self._stop.is_set():
                query = queries[rng.randrange(len(queries))]
                start = time.monotonic()
                status, answer = search(served, query)
                self.results.append((start, time.monotonic() - start, status, query, answer))
                time.sleep(pause)

        self._threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the last searches."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def faults(rows: int, folder: Path) -> dict[str, Any]:
    """A shard's process is killed under 32 clients."""
    mu = directions(rows, seed=0)
    gallery, bound = make_gallery(folder / "faults.shards", mu), threshold()
    stored = {f"item {i}": each for i, each in enumerate(mu)}
    shard_of: dict[str, int] = {}
    for number in range(SHARDS):
        with CredibleIndex.open(gallery / f"1-{number}.lance") as shard:
            shard_of |= {name: number for names, _, _ in shard.scan() for name in names}
    with start_service(gallery, log=folder / "faults.log") as served:
        clients = Searchers(served, 32, pause=0.5)
        time.sleep(10)
        (victim,) = replicas_of(1)
        os.kill(victim, signal.SIGKILL)
        killed, complete = time.monotonic(), False
        while not complete and time.monotonic() < killed + 120:
            time.sleep(1.0)
            late = [r for r in clients.results if r[0] > max(killed + 3, time.monotonic() - 5)]
            complete = len(late) > 32 and all(r[2] == 200 and not r[4]["partial"] for r in late)
        clients.stop()
    incomplete = [r[0] for r in clients.results if r[2] != 200 or r[4]["partial"]]
    kinds, wrong = Counter[str](), 0
    expected = {q[3].tobytes(): members(q[3], stored, bound) for q in clients.results}
    for _, _, status, query, answer in clients.results:
        if status != 200:
            kinds[f"status {status}"] += 1
            continue
        found = {hit["id"] for hit in answer["hits"]}
        all_members = expected[query.tobytes()]
        kinds["partial" if answer["partial"] else "complete"] += 1
        present = {shard_of[name] for name in found}
        alive = {name for name in all_members if shard_of[name] in present}
        wrong += found != (alive if answer["partial"] else all_members)
    before = [r[1] for r in clients.results if r[0] <= killed]
    after = [r[1] for r in clients.results if r[0] > killed]
    return {
        "rows": rows, "clients": 32, "timeout": TIMEOUT, **kinds, "wrong": wrong,
        "seconds until complete again": max(incomplete, default=killed) - killed, "longest seconds before": max(before),
        "longest seconds after": max(after),
    }  # fmt: skip


def updates(rows: int, folder: Path, minutes: float) -> dict[str, Any]:
    """Changes while others search."""
    mu = directions(rows, seed=0)
    gallery, bound, rng = make_gallery(folder / "updates.shards", mu), threshold(), random.Random(0)
    stored = {f"item {i}": each for i, each in enumerate(mu)}
    fresh = iter(directions(1_000_000 // DIM, seed=5))
    checks = directions(64, seed=98)
    counts, delays, wrong, number = Counter[str](), list[float](), 0, rows
    with start_service(gallery, "--writable", log=folder / "updates.log") as served:
        clients, end = Searchers(served, 8, pause=0.2, seed=1), time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            kind = rng.choice(["add", "replace", "delete"])
            if kind == "delete":
                name = rng.choice(list(stored))
                direction, gone = stored.pop(name), True
                status, _ = post(served, f"/v1/items/{name.replace(' ', '%20')}", None, "DELETE")
            else:
                name = f"item {number}" if kind == "add" else rng.choice(list(stored))
                number += kind == "add"
                direction, gone = next(fresh), False
                stored[name] = direction
                posterior = {"mu": direction.astype(float).tolist(), "kappa": KAPPA}
                body = {"ids": [name], "items": {"posteriors": [posterior]}}
                status, _ = post(served, "/v1/items", body)
            acknowledged = time.monotonic()
            counts[kind if status == 200 else f"{kind}: status {status}"] += 1
            while True:
                status, answer = search(served, direction)
                found = {hit["id"] for hit in answer["hits"]} if status == 200 else set()
                if status == 200 and (name in found) != gone:
                    break
                if time.monotonic() > acknowledged + 30:
                    wrong += 1
                    break
            delays.append(time.monotonic() - acknowledged)
            query = checks[rng.randrange(64)]
            status, answer = search(served, query)
            if status == 200 and not answer["partial"]:
                wrong += {hit["id"] for hit in answer["hits"]} != members(query, stored, bound)
                counts["checked"] += 1
        clients.stop()
    statuses = Counter(str(result[2]) for result in clients.results)
    seconds = sorted(result[1] for result in clients.results)
    return {
        "rows": rows, "minutes": minutes, **counts, "wrong": wrong, "seconds until visible, longest": max(delays),
        "seconds until visible, median": float(np.median(delays)), "searches meanwhile": dict(statuses),
        "seconds of searches, p99": seconds[int(0.99 * len(seconds))],
    }  # fmt: skip


def rebalance(rows: int, folder: Path, kills: int) -> dict[str, Any]:
    """The command is killed at random moments of its work."""
    gallery = make_gallery(folder / "rebalance.shards", directions(rows, seed=0))
    expected, rng = {f"item {i}" for i in range(rows)}, random.Random(0)

    def run(shards: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "aureole", "index", "rebalance", str(gallery)]
        command += ["--shards", str(shards)]
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=nowhere, stderr=nowhere)

    start = time.monotonic()
    assert run(3).wait() == 0
    whole, lost, doubled, unfinished = time.monotonic() - start, 0, 0, 0
    for kill in range(kills):
        shards = 2 + kill % 5
        process = run(shards)
        # the command needs most of its time to start
        time.sleep(whole * rng.uniform(0.3, 1.0))
        process.kill()
        process.wait()
        with CredibleIndex.open(gallery) as index:
            names = Counter(name for part, _, _ in index.scan() for name in part)
            unfinished += len(index.shards or {}) != shards
            assert index.check() == []
        lost += len(expected - names.keys())
        doubled += sum(count - 1 for count in names.values())
    return {
        "rows": rows, "kills": kills, "kills before the switch": unfinished, "lost": lost, "doubled": doubled,
        "seconds undisturbed": whole,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    names = ("faults", "updates", "rebalance")
    parser.add_argument("--parts", nargs="+", choices=names, default=list(names))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/serve"))
    options = parser.parse_args()
    path = options.out / "shard_service.json"
    metrics = dict(read_record(path).metrics) if path.exists() else {}
    command = (
        f"python -m benchmarks.shard_service --rows {options.rows} --minutes {options.minutes:g}"
    )
    command += f" --kills {options.kills}"
    settings = {"dim": DIM, "shards": SHARDS, "mass": MASS, "kappa": KAPPA}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in options.parts:
            if part == "faults":
                metrics[part] = faults(options.rows, folder)
            elif part == "updates":
                metrics[part] = updates(options.rows, folder, options.minutes)
            else:
                metrics[part] = rebalance(options.rows, folder, options.kills)
            print(part, json.dumps(metrics[part]), flush=True)
            write_record(Record("shard_service", metrics, command, 0, settings), path)


if __name__ == "__main__":
    main()
