"""Attacks and faults of docs/security.md, each once: status, seconds, and the growth of the service's memory.

``python -m benchmarks.promises [--slow-start 125] [--out results/serve/promises.json]`` writes a record. Each result
has the figure before the protection existed, as it was reported then. ``MB`` is the growth of the peak memory of the
service and its encoder, and ``longest wait`` that of a client that polls /healthz.
"""

import argparse
import base64
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

import aureole as au
from aureole.errors import AureoleError
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex
from benchmarks.object_store import environment
from benchmarks.pictures import bomb
from benchmarks.served import Served, ask, make_encoder, make_gallery, serving

DIM, ROWS = 16, 2_000
BEFORE = {
    "postscript": "gs was started",
    "headers": "/healthz waited 10 s",
    "keys": "70 s and 1.3 GB; the timeout of 30 s did not apply",
    "damaged": "TypeError, KeyError, RecursionError, ArrowInvalid or MemoryError, or accepted",
    "slow bodies": "closed to others for 28 s",
    "address": "written to the local folder ./s3:/bucket",
    "writers": "both appends were stored",
    "sources": "refused",
    "host": "200",
    "pixels": "1.1 GB",
    "killed encoder": "8 of 16 requests waited 30 s",
    "slow start": "killed after 120 s, reported as a death",
    "full disk": "OSError without advice",
    "leftovers": ".part files stayed",
    "stuck encoder": "/healthz returned 200 without a look, and there was no /readyz",
}
_POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 3296\n%%EndComments\nshowpage\n%%EOF\n"
)
_RECORD = Path("paper/results/cifar10h/closed-form/seed-0.json")  # of a report with pictures
_LEAVE_A_PART = """
import os, sys; from pathlib import Path; from aureole._io import atomic_file
with atomic_file(Path(sys.argv[1])) as file: file.write(b"half"); file.flush(); os.kill(os.getpid(), 9)
"""
_SLOW_PYTHON = """
import sys, time
if any("_model_process" in word for word in sys.orig_argv): time.sleep({})
"""
Result = dict[str, Any]


@contextmanager
def waits(served: Served) -> Iterator[list[float]]:
    """How long each request of a client that polls /healthz takes."""
    found: list[float] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            start = time.monotonic()
            ask(served, "GET", "/healthz")
            found.append(time.monotonic() - start)
            time.sleep(0.02)

    client = threading.Thread(target=run)
    client.start()
    try:
        yield found
    finally:
        stop.set()
        client.join()


def attacked(served: Served, attack: Callable[[], int]) -> Result:
    """The status of an attack, its seconds, and what the service and another client notice."""
    served.reset_peak()
    before = served.memory()
    with waits(served) as others:
        start = time.monotonic()
        status = attack()
        seconds = time.monotonic() - start
    grown = max(0, served.peak() - before) / 2**20
    return {"status": status, "seconds": seconds, "MB": grown, "longest wait": max(others)}


def endless_headers(served: Served) -> int:
    """The status for three headers of 22 MB at once; 0 if the connections are closed without one."""

    def send(_: int) -> int:
        with (
            suppress(OSError),
            socket.create_connection((served.host, served.port), 60) as connection,
        ):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(22 * 16):
                connection.sendall(b"a" * 2**16)
            return int(connection.recv(100).split()[1])
        return 0

    with ThreadPoolExecutor(3) as pool:
        return max(pool.map(send, range(3)))


def many_keys() -> bytes:
    """A body with 1.1 million keys."""
    keys = ",".join(f'"k{i}":{i % 10}' for i in range(1_100_000))
    return f'{{"query":{{"id":"item 1"}},{keys}}}'.encode()


def picture(side: int) -> bytes:
    """A body with a picture of side x side pixels in a small file."""
    return json.dumps({"image": base64.b64encode(bomb(side)).decode()}).encode()


def posted(path: str, body: bytes, served: Served) -> int:
    """The status for a body."""
    return ask(served, "POST", path, body)[0]


def slow_bodies(served: Served) -> int:
    """The status of an honest request while 512 others send their bodies slowly."""
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as stack:
        for _ in range(512):
            with suppress(OSError):
                address = (served.host, served.port)
                slow = stack.enter_context(socket.create_connection(address, 10))
                slow.sendall(head)
        return ask(served, "GET", "/v1/about")[0]


def encoder_of(served: Served) -> int:
    """The id of the encoder's process."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in served.processes()}
    return next(pid for pid, command in commands.items() if b"_model_process" in command)


def until_ready(served: Served, limit: float = 120.0) -> float:
    """The seconds until /readyz returns 200."""
    start = time.monotonic()
    while ask(served, "GET", "/readyz")[0] != 200 and time.monotonic() - start < limit:
        time.sleep(0.05)
    return time.monotonic() - start


def killed_encoder(served: Served) -> Result:
    """What 16 requests get when the encoder's process has been killed, and the seconds until /readyz returns 200."""
    body = picture(64)

    def one(_: int) -> tuple[int, float]:
        start = time.monotonic()
        return ask(served, "POST", "/v1/embed", body)[0], time.monotonic() - start

    os.kill(encoder_of(served), signal.SIGKILL)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(16)))
    statuses = Counter(str(status) for status, _ in answers)
    longest = max(seconds for _, seconds in answers)
    return {
        "statuses": dict(statuses),
        "longest": longest,
        "seconds until ready": until_ready(served),
    }


def stuck_encoder(served: Served) -> Result:
    """What /readyz returns while the encoder's process is stopped, and /healthz, which asks for no restart."""
    until_ready(served)
    time.sleep(1.5)  # longer than results are cached
    encoder = encoder_of(served)
    os.kill(encoder, signal.SIGSTOP)
    start = time.monotonic()
    ready, seconds = ask(served, "GET", "/readyz")[0], time.monotonic() - start
    healthy = ask(served, "GET", "/healthz")[0]
    os.kill(encoder, signal.SIGCONT)
    return {"readyz": ready, "healthz": healthy, "seconds": seconds}


def postscript(folder: Path) -> Result:
    """What ``aureole report`` does with PostScript that is named like the picture of a record."""
    records, called, programs = (
        folder / "records" / "closed-form",
        folder / "called",
        folder / "bin",
    )
    records.mkdir(parents=True)
    programs.mkdir()
    shutil.copy(_RECORD, records)
    (records / "seed-0.png").write_bytes(_POSTSCRIPT)
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {called}\n")
    (programs / "gs").chmod(0o755)
    command = [sys.executable, "-m", "aureole", "report", str(records.parent), "--out", "page.html"]
    with environment({"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    refused = "cannot be read as an image" in done.stderr
    return {"programs started": int(called.exists()), "status": done.returncode, "named": refused}


def s3_address(folder: Path) -> Result:
    """The error for a FAISS gallery on S3, and the number of files that it leaves."""
    (folder / "empty").mkdir()
    with chdir(folder / "empty"):
        error = error_of(
            lambda: CredibleIndex.create("s3://bucket/g.faiss", posteriors(5), names(5))
        )
        return {"error": error, "files": len(os.listdir())}


def full_disk(folder: Path) -> Result:
    """The error of an append that does not fit on the disk, and the rows that the gallery has afterwards."""
    where = folder / "full.faiss"
    index = CredibleIndex.create(where, posteriors(10), names(10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        error = error_of(lambda: index.append(posteriors(2000), names(2000, 10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with CredibleIndex.open(where) as fresh:
        return {"error": error, "rows before": 10, "rows after": fresh.count()}


def leftovers(folder: Path) -> Result:
    """The temporary files after a writer was killed, and after the next write."""
    place = folder / "disk"
    place.mkdir()
    counts = []
    subprocess.run([sys.executable, "-c", _LEAVE_A_PART, place / "page.html"], check=False)
    counts.append(len(list(place.glob(".*.part"))))
    write_record(Record("demo", {}, command="demo"), place / "page.html")
    counts.append(len(list(place.glob(".*.part"))))
    return {"after the kill": counts[0], "after the next write": counts[1]}


def slow_start(gallery: Path, encoder: Path, folder: Path, seconds: float) -> Result:
    """The seconds until a service is ready whose encoder's process needs so long to start."""
    (folder / "slow").mkdir()
    (folder / "slow" / "sitecustomize.py").write_text(_SLOW_PYTHON.format(seconds))
    path = os.pathsep.join(filter(None, [str(folder / "slow"), os.environ.get("PYTHONPATH")]))
    start = time.monotonic()
    with (
        environment({"PYTHONPATH": path}),
        serving(gallery, encoder, log=folder / "slow.log") as served,
    ):
        until_ready(served)
        return {"start": seconds, "seconds until ready": time.monotonic() - start}


def error_of(work: Callable[[], Any]) -> str:
    """The name of the typed error that some work raises."""
    try:
        work()
    except AureoleError as error:
        return type(error).__name__
    return "none"


def posteriors(n: int) -> au.VonMisesFisher:
    """Posteriors with the same direction."""
    return au.VonMisesFisher(torch.eye(DIM)[:1].repeat(n, 1), 5.0)


def names(n: int, first: int = 0) -> list[str]:
    """The ids of rows."""
    return [f"row {i}" for i in range(first, first + n)]


def measure(folder: Path, slow: float) -> Iterator[tuple[str, Result]]:
    """The result of each attack and fault."""
    encoder = make_encoder(folder / "encoder", DIM, depth=8)
    gallery = make_gallery(folder / "gallery.faiss", encoder, ROWS, DIM)
    yield "postscript", postscript(folder)
    yield "address", s3_address(folder)
    yield "full disk", full_disk(folder)
    yield "leftovers", leftovers(folder)
    attacks = {
        "headers": endless_headers,
        "keys": partial(posted, "/v1/search", many_keys()),
        "slow bodies": slow_bodies,
        "pixels": partial(posted, "/v1/embed", picture(9_400)),
    }
    with serving(gallery, encoder, log=folder / "log") as served:
        for name, attack in attacks.items():
            yield name, attacked(served, partial(attack, served))
        yield (
            "host",
            {"status": ask(served, "GET", "/v1/about", headers={"Host": "evil.example"})[0]},
        )
        yield "killed encoder", killed_encoder(served)
        yield "stuck encoder", stuck_encoder(served)
    yield "slow start", slow_start(gallery, encoder, folder, slow)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--slow-start", type=float, default=125.0)
    parser.add_argument("--out", type=Path, default=Path("results/serve/promises.json"))
    options = parser.parse_args()
    settings = {"rows": ROWS, "dim": DIM, "load average": round(os.getloadavg()[0], 1)}
    metrics: dict[str, Result] = {name: {"before": text} for name, text in BEFORE.items()}
    with tempfile.TemporaryDirectory(prefix="promises-") as folder:
        for name, result in measure(Path(folder), options.slow_start):
            print(f"{name}: {result}", flush=True)
            metrics[name] |= result
    command = f"python -m benchmarks.promises --slow-start {options.slow_start:g}"
    write_record(Record("promises", metrics, command, settings=settings), options.out)


if __name__ == "__main__":
    main()
