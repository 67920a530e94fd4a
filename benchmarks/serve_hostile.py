"""Hostile input to a service in a separate process: how it responds, and whether it stays up.

``python -m benchmarks.serve_hostile [--requests 10000] [--out results/serve/hostile.json]`` writes a record.

schemathesis generates valid and invalid requests from the API's own schema; then come decompression bombs,
bodies of a gigabyte, vectors of NaN, and ids that are paths or markup. Every response must be documented in the schema
and not be an internal error; with a key set, every address except /healthz and /readyz must return 401 without it.
Last, with ``--siege N``, N attacks at 50 per second against a service with a key and one without, while 32 honest
clients use it (``benchmarks/hostile_load.py``).
"""

import argparse
import base64
import json
import os
import signal
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from aureole.records import Record, write_record
from benchmarks.fuzzing import fuzz, prepared_requests
from benchmarks.hostile_load import attack_costs, siege
from benchmarks.pictures import bomb
from benchmarks.served import Served, ask, make_encoder, make_gallery, serving

DIM, ROWS = 16, 2_000
GIGABYTE = 2**30


def megabytes(count: int) -> Any:
    """A body of the given number of megabytes in chunks."""
    part = b"[" * 2**20
    for _ in range(count):
        yield part


def attacks() -> dict[str, tuple[str, str, Any, set[int]]]:
    """Name: (method, path, body, the statuses it may return; 0 is a closed connection)."""
    bombs = {side: base64.b64encode(bomb(side)).decode() for side in (12_000, 30_000)}
    bad_vector = {"mu": [float("nan")] + [0.0] * (DIM - 1), "kappa": 1.0}
    infinite = {"mu": [1.0] + [0.0] * (DIM - 1), "kappa": float("inf")}
    found: dict[str, tuple[str, str, Any, set[int]]] = {
        f"bomb of {side} pixels": ("POST", "/v1/embed", json.dumps({"image": coded}), {422})
        for side, coded in bombs.items()
    }
    found |= {
        "a gigabyte in chunks": ("POST", "/v1/embed", megabytes(1024), {0, 413}),
        "NaN": ("POST", "/v1/search", json.dumps({"query": bad_vector}), {422}),
        "infinity": ("POST", "/v1/search", json.dumps({"query": infinite}), {422}),
        "100,000 brackets": ("POST", "/v1/search", "[" * 100_000, {422}),
        "10 MB of digits": ("POST", "/v1/search", '{"mass": ' + "9" * 10_000_000 + "}", {422}),
    }
    ids = [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%3Cscript%3Ealert(1)%3C/script%3E",
        "%00",
        "%ff",
    ]
    for name in ids:
        for room in ("/v1/items/", "/v1/pictures/", "/assets/", "/"):
            found[f"GET {room}{name}"] = ("GET", f"{room}{name}", None, {404, 422})
    tag = {"ids": ["x"], "kind": "tag", "value": "<script>alert(1)</script>"}
    found |= {
        "tag of an unknown item": ("POST", "/v1/tags", json.dumps(tag), {422}),
        "tag of a million items": (
            "POST",
            "/v1/tags",
            json.dumps(tag | {"ids": [str(i) for i in range(1_000_000)]}),
            {422},
        ),
        "tag that is SQL": (
            "GET",
            "/v1/tags/ids?kind=x'%3B%20DROP%20TABLE%20entries%3B--",
            None,
            {422},
        ),
        "undo of nothing": ("DELETE", "/v1/tags/changes/999999999", None, {422}),
    }
    for name in ("../../etc/passwd", "<script>alert(1)</script>"):
        body = json.dumps({"query": {"id": name}})
        found[f"search {name}"] = ("POST", "/v1/search", body, {404})
    return found


def attack(served: Served, faults: list[str]) -> Counter[int]:
    """The statuses of all attacks; unexpected ones are added to the faults."""
    statuses: Counter[int] = Counter()
    for name, (method, path, body, wanted) in attacks().items():
        headers = {}
        status, answer = ask(served, method, path, body, headers)
        statuses[status] += 1
        if status not in wanted:
            faults.append(f"{name}: {status} {answer[:200]!r}")
        if b"<" in answer or b"root:" in answer:
            faults.append(f"{name}: reflected {answer[:200]!r}")
        if status and "error" not in json.loads(answer):
            faults.append(f"{name}: no typed body")
    # a declared length is refused before anything is sent
    start = time.perf_counter()
    status, answer = ask(served, "POST", "/v1/embed", None, {"Content-Length": str(GIGABYTE)})
    if status != 413 or time.perf_counter() - start > 5:
        faults.append(f"a gigabyte declared: {status} {answer[:200]!r}")
    statuses[status] += 1
    return statuses


def without_key(gallery: Path, encoder: Path, folder: Path) -> dict[str, int]:
    """The statuses of all routes of a service with a key, for requests without it."""
    key = folder / "key"
    key.write_text("a-key-for-this-benchmark")
    log = folder / "key.log"
    with serving(gallery, encoder, "--api-key-file", str(key), log=log) as served:
        right = {"Authorization": f"Bearer {key.read_text()}"}
        _, text = ask(served, "GET", "/openapi.json", headers=right)
        found = {}
        for path, methods in json.loads(text)["paths"].items():
            for method in methods:
                name = f"{method.upper()} {path}"
                found[name] = ask(served, method.upper(), path.replace("{id}", "x"))[0]
        for path in ("/", "/assets/x.js", "/openapi.json", "/nothing"):
            found[f"GET {path}"] = ask(served, "GET", path)[0]
    return found


def besiege(gallery: Path, encoder: Path, folder: Path, requests: int) -> dict[str, Any]:
    """What each attack costs, and the metrics of ``siege`` against a service with a key and one without."""
    key = folder / "siege-key"
    key.write_text("a-key-for-this-benchmark")
    with serving(gallery, encoder, log=folder / "schema.log") as served:
        generated = prepared_requests(served.url, 100)
        found: dict[str, Any] = {"costs": attack_costs(served)}
    for name, options in {"with a key": ("--api-key-file", str(key)), "without a key": ()}.items():
        log = folder / f"siege {name}.log"
        with serving(gallery, encoder, *options, log=log) as served:
            found[name] = siege(
                served, requests, key=key.read_text() if options else None, generated=generated
            )
            print(name, json.dumps(found[name]), flush=True)
        found[name]["tracebacks in the log"] = log.read_text().count("Traceback")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--siege", type=int, default=0, help="attacks under load, for each service")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/serve/hostile.json"))
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = make_encoder(folder / "encoder", DIM, depth=8)
        gallery = make_gallery(folder / "gallery.faiss", encoder, ROWS, DIM)
        log = folder / "log"
        with serving(gallery, encoder, log=log) as served:
            before = served.memory()
            start = time.perf_counter()
            statuses: Counter[int] = Counter()
            faults: list[str] = []
            seed = asked.seed
            while (left := asked.requests - sum(statuses.values())) > 0:
                tally = fuzz(served.url, max(5, left // 16), seed=seed, most=left)
                statuses += tally.statuses
                faults += tally.faults
                seed += 1
                print(f"{sum(statuses.values()):,} requests, {len(faults)} faults", flush=True)
            seconds = time.perf_counter() - start
            fuzzed = served.memory()
            attacked = attack(served, faults)
            alive = ask(served, "GET", "/healthz")[0] == 200
            after = served.memory()
            os.kill(served.process.pid, signal.SIGTERM)
            told = time.perf_counter()
            ended = served.process.wait(60)
            told = time.perf_counter() - told
        said = log.read_text()
        keyless = without_key(gallery, encoder, folder)
        sieges = besiege(gallery, encoder, folder, asked.siege) if asked.siege else None
    metrics = {
        "requests": sum(statuses.values()),
        "statuses": {str(status): n for status, n in sorted(statuses.items())},
        "attacks": sum(attacked.values()),
        "statuses of attacks": {str(status): n for status, n in sorted(attacked.items())},
        "faults": faults[:50],
        "number of faults": len(faults),
        "alive": alive,
        "exit code": ended,
        "seconds to the end": round(told, 2),
        "tracebacks in the log": said.count("Traceback"),
        "MB before": round(before / 2**20, 1),
        "MB after the requests": round(fuzzed / 2**20, 1),
        "MB after the attacks": round(after / 2**20, 1),
        "seconds": round(seconds, 1),
        "without the key": keyless,
        "load average before and after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "niceness": os.nice(0),
    }
    if sieges is not None:
        metrics["siege"] = sieges
    command = f"python -m benchmarks.serve_hostile --requests {asked.requests} --seed {asked.seed}"
    command += f" --siege {asked.siege}" if asked.siege else ""
    path = write_record(
        Record("serve-hostile", metrics, command=command, seed=asked.seed), asked.out
    )
    print(json.dumps(metrics, indent=1))
    print(path)


if __name__ == "__main__":
    main()
