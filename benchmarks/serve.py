"""The service under load: throughput compared with the engine and the encoder called in-process, p99, and memory.

``python -m benchmarks.serve [--rows 1000000] [--seconds 60] [--connections 32] [--engine faiss|lance] [--work DIR]
[--out results/serve/load.json]`` writes a record.

A client in a separate process holds the connections on loopback and sends the next request of a connection when
the last response has arrived; its CPU time is reported. Searches are by mu and kappa in a gallery in R^128 indexed by
IVF, with kappas whose caps of mass 0.95 contain from 1 to some hundred items, at most 100 hits; embeddings are of PNG
pictures of 32 pixels by a ResNet-20. The bare rates are of the same queries in this process, one thread, before and
after the load: ``CredibleIndex.search`` in batches of 32, which is everything the service does except HTTP; the
engine's own range search, one query at a time; and the encoder's ``embed`` in batches of 32, without decoding.
"""

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.caps import CredibleIndex, SearchOptions
from aureole.data._image_files import write_picture
from aureole.embed import load_embedder
from aureole.records import Record, write_record
from benchmarks.engines import clustered
from benchmarks.retrieval import bare_faiss, bare_lance
from tests.serve.served import Served, make_encoder, make_gallery, serving

DIM, MASS, LIMIT, BATCH, QUERIES = 128, 0.95, 100, 32, 256
KAPPAS = (280.0, 380.0)


def queries_of(rows: int) -> au.VonMisesFisher:
    """Queries from the gallery's clusters, from confident to vague ones."""
    found = clustered(QUERIES, DIM, clusters=max(8, rows // 500), noise=0.6, seed=7)
    order = torch.randperm(QUERIES, generator=torch.Generator().manual_seed(0))
    return au.VonMisesFisher(found.mu, torch.linspace(*KAPPAS, QUERIES)[order])


def search_bodies(queries: au.VonMisesFisher) -> list[bytes]:
    return [
        json.dumps({"query": {"mu": mu, "kappa": kappa}, "mass": MASS, "limit": LIMIT, "count": False}).encode()
        for mu, kappa in zip(queries.mu.double().tolist(), queries.kappa.tolist(), strict=True)
    ]  # fmt: skip


def embed_bodies(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """(Requests, picture files) of random noise."""
    rng = torch.Generator().manual_seed(0)
    files = []
    for i in range(QUERIES):
        path = folder / f"{i}.png"
        write_picture(torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=rng), path)
        files.append(path.read_bytes())
    bodies = [json.dumps({"image": base64.b64encode(file).decode()}).encode() for file in files]
    return bodies, files


def load(
    host: str, port: int, path: str, bodies: list[bytes], connections: int, seconds: float, out: Any
) -> None:
    """Send requests for some seconds on several connections, over raw sockets; measurements go into the pipe."""

    async def ask(number: int, times: list[float], statuses: dict[int, int], end: float) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        place = number
        while time.perf_counter() < end:
            body = bodies[place % len(bodies)]
            place += connections
            start = time.perf_counter()
            writer.write(
                b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (path.encode(), len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            at = lower.index(b"content-length:") + 15
            await reader.readexactly(int(lower[at : lower.index(b"\r", at)]))
            times.append(time.perf_counter() - start)
            status = int(head[9:12])
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()

    async def run() -> dict[str, Any]:
        times: list[float] = []
        statuses: dict[int, int] = {}
        start = time.perf_counter()
        end = start + seconds
        await asyncio.gather(*(ask(i, times, statuses, end) for i in range(connections)))
        return {"times": times, "statuses": statuses, "seconds": time.perf_counter() - start}

    before = resource.getrusage(resource.RUSAGE_SELF)
    found = asyncio.run(run())
    after = resource.getrusage(resource.RUSAGE_SELF)
    found["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    out.send(found)


def measure(
    served: Served, path: str, bodies: list[bytes], connections: int, seconds: float
) -> dict[str, Any]:
    """Measurements under a load of some seconds, after a short warm-up."""
    context = multiprocessing.get_context("spawn")

    def loaded(span: float) -> dict[str, Any]:
        near, far = context.Pipe()
        where = (served.host, served.port, path, bodies, connections, span, far)
        process = context.Process(target=load, args=where)
        process.start()
        found = near.recv()
        process.join()
        return found

    loaded(min(3.0, seconds))
    memory, cpu = served.memory(), served.seconds()
    found = loaded(seconds)
    times = np.array(found["times"]) * 1e3
    return {
        "requests": len(times),
        "requests a second": len(times) / found["seconds"],
        "requests a CPU second of the server": len(times) / (served.seconds() - cpu),
        "statuses": {str(status): n for status, n in found["statuses"].items()},
        "ms p50": float(np.percentile(times, 50)),
        "ms p99": float(np.percentile(times, 99)),
        "client CPU a second": found["cpu"] / found["seconds"],
        "server CPU a second": (served.seconds() - cpu) / found["seconds"],
        "MB before": memory / 2**20,
        "MB after": served.memory() / 2**20,
    }


def rate(work: Any, items: int, seconds: float) -> dict[str, float]:
    """Items per second, and per second of CPU time, of a call that processes several."""
    work()
    start, cpu, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        work()
        done += items
    return {
        "a second": done / (time.perf_counter() - start),
        "a CPU second": done / (time.process_time() - cpu),
    }


def bare_rates(
    gallery: Path, encoder: Path, queries: au.VonMisesFisher, files: list[bytes], seconds: float
) -> dict[str, Any]:
    """Queries and pictures per second in this process."""
    with CredibleIndex.open(gallery) as index:
        options: dict[str, Any] = {"limit": LIMIT, "columns": ["label"]}
        options["options"] = SearchOptions(kappa_pos=index.origin.kappa_pos)
        batches = [
            au.VonMisesFisher(queries.mu[i : i + BATCH], queries.kappa[i : i + BATCH])
            for i in range(0, QUERIES, BATCH)
        ]
        searched = index.search(queries, MASS)
        assert isinstance(searched, list)
        counts = [len(hits) for hits in searched]
        bare = (bare_faiss if index.engine == "FAISS" else bare_lance)(index, queries, counts)
        found: dict[str, Any] = {
            "index, in batches": rate(
                lambda: [index.search(b, MASS, **options) for b in batches], QUERIES, seconds
            ),
            "engine alone": rate(bare, QUERIES, seconds),
            "median members": float(np.median(counts)),
        }
    embedder = load_embedder(encoder)
    prepared = [embedder.prepare(file) for file in files[:BATCH]]
    found["encoder, in batches"] = rate(lambda: embedder.embed(prepared), BATCH, seconds)
    return found


def ratio(
    loaded: dict[str, Any], before: dict[str, Any], after: dict[str, Any], name: str
) -> dict[str, float]:
    """The service's rate as a share of the bare one, by wall time and by CPU time."""
    asked = {
        "a second": loaded["requests a second"],
        "a CPU second": loaded["requests a CPU second of the server"],
    }
    return {k: v / ((before[name][k] + after[name][k]) / 2) for k, v in asked.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--engine", choices=["faiss", "lance"], default="faiss")
    parser.add_argument("--work", type=Path, help="folder in which the gallery is kept and reused")
    parser.add_argument("--out", type=Path, default=Path("results/serve/load.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = asked.work or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        encoder = make_encoder(folder / "encoder", DIM)
        lists = max(16, round(asked.rows**0.5))
        where = folder / f"load-{asked.rows}.{asked.engine}"
        gallery = make_gallery(where, encoder, asked.rows, DIM, lists=lists, probes=max(4, lists // 10))  # fmt: skip
        queries = queries_of(asked.rows)
        bodies, files = embed_bodies(Path(name))
        short = min(10.0, asked.seconds)
        before = bare_rates(gallery, encoder, queries, files, short)
        results: dict[str, Any] = {}
        with serving(gallery, encoder, log=Path(name) / "log") as served:
            for kind, sent in (("search", search_bodies(queries)), ("embed", bodies)):
                path = f"/v1/{kind}"
                results[kind] = measure(served, path, sent, asked.connections, asked.seconds)
                print(kind, json.dumps(results[kind]), flush=True)
            os.kill(served.process.pid, signal.SIGTERM)
            served.process.wait(10)
        after = bare_rates(gallery, encoder, queries, files, short)
        log = (Path(name) / "log").read_text()
    metrics = {
        **results,
        "bare, before": before,
        "bare, after": after,
        "ratios": {
            "search to the index": ratio(results["search"], before, after, "index, in batches"),
            "search to the engine alone": ratio(results["search"], before, after, "engine alone"),
            "embed to the encoder": ratio(results["embed"], before, after, "encoder, in batches"),
        },
        "errors in the log": log.count("ERROR"),
    }
    given = f"--rows {asked.rows} --seconds {asked.seconds:g} --connections {asked.connections}"
    command = f"python -m benchmarks.serve {given} --engine {asked.engine}"
    write_record(Record("serve-load", metrics, command=command, seed=0), asked.out)
    print(json.dumps({k: v for k, v in metrics.items() if "ratio" in k or "bare" in k}, indent=1))


if __name__ == "__main__":
    main()
