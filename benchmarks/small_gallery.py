"""A gallery of 100,000 rows in one table, with this version and an earlier one: latency, memory, time of the command.

``python -m benchmarks.small_gallery --before CHECKOUT [--repeats 5] [--out results/benchmarks]`` writes
small_gallery.json. CHECKOUT is a working copy of the earlier version. Both open the same table; they run in turn, in
processes of their own, so that the machine's mood affects both. Ratios are medians over the repeats.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import aureole as au
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex
from benchmarks.engines import clustered

DIM = 64
PROGRAM = """
import json, sys, time, torch, aureole as au
from aureole.retrieval import CredibleIndex
torch.set_num_threads(1)
where, queries = sys.argv[1], torch.load(sys.argv[2], weights_only=True)
found, seconds = [], []
with CredibleIndex.open(where) as index:
    for row in range(len(queries["mu"])):
        query = au.VonMisesFisher(queries["mu"][row], queries["kappa"][row])
        start = time.perf_counter()
        hits = index.search(query, 0.9, limit=20)
        seconds.append(time.perf_counter() - start)
        found.append(hits.ids)
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({"ms": 1000 * sorted(seconds)[len(seconds) // 2], "mb": int(status["VmHWM"].split()[0]) / 1024,
    "ray": "ray" in sys.modules, "found": found}))
"""


def run(source: Path, command: list[str]) -> tuple[str, float]:
    """(Output, seconds of CPU) of a command with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    before = os.times()
    done = subprocess.run(
        [sys.executable, *command], env=environment, check=True, capture_output=True, text=True
    )
    after = os.times()
    spent = after.children_user + after.children_system
    return done.stdout, spent - before.children_user - before.children_system


def measure(source: Path, where: Path, queries: Path) -> dict[str, Any]:
    """Latency, memory and hits of searches in Python, and the CPU time of one on the command line."""
    text, _ = run(source, ["-c", PROGRAM, str(where), str(queries)])
    command = ["-m", "aureole", "search", str(where), "--id", "item 7", "--json"]
    answer, seconds = run(source, command)
    found = [hit["id"] for hit in json.loads(answer)["hits"]]
    return json.loads(text) | {"command": seconds, "by id": found}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    now = Path(__file__).parents[1]
    commit = subprocess.run(
        ["git", "-C", str(options.before), "rev-parse", "--short=12", "HEAD"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    rows = clustered(options.rows, DIM, clusters=200, noise=0.6, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        where, queries = Path(folder) / "gallery.lance", Path(folder) / "queries.pt"
        with CredibleIndex.create(where, rows, [f"item {i}" for i in range(options.rows)]):
            pass
        near = au.VonMisesFisher(rows.mu[:200], torch.full((200,), 300.0))
        torch.save({"mu": near.mu, "kappa": near.kappa}, queries)
        measure(now, where, queries)  # fills the caches of the file system
        runs = []
        for repeat in range(options.repeats):
            order = (options.before, now) if repeat % 2 else (now, options.before)
            both = {source == now: measure(source, where, queries) for source in order}
            assert both[True]["found"] == both[False]["found"]
            assert both[True]["by id"] == both[False]["by id"]
            runs.append((both[False], both[True]))
    metrics: dict[str, Any] = {"before": commit, "ray imported": any(r["ray"] for _, r in runs)}
    for name in ("ms", "mb", "command"):
        ratios = [after[name] / before[name] for before, after in runs]
        metrics[name] = {
            "before": statistics.median(before[name] for before, _ in runs),
            "now": statistics.median(after[name] for _, after in runs),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    print(json.dumps(metrics))
    settings = {"rows": options.rows, "dim": DIM, "repeats": options.repeats}
    command = f"python -m benchmarks.small_gallery --before CHECKOUT --repeats {options.repeats}"
    write_record(
        Record("small_gallery", metrics, command, 0, settings), options.out / "small_gallery.json"
    )


if __name__ == "__main__":
    main()
