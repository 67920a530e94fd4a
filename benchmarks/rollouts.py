"""Releases under SIGKILL: readers answer from the old or the new version of a gallery, never from a mixture.

``python -m benchmarks.rollouts [--moments 10] [--engines lance faiss shards] [--out FILE]`` writes a record. A process
releases a version and is killed: every other time at a random moment of the whole release, else within milliseconds of
the switch. Meanwhile another process searches without a pause. Every answer must equal that of one version.
"""

import argparse
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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import aureole as au
from aureole import sphere
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex, release

__all__ = ["killed", "releasers"]

ENGINES = ("lance", "faiss", "shards")
_ROWS, _DIM, _QUERIES = 2_000, 8, 8
_SWITCH = 0.02  # seconds after the beginning of the switch, within which it is killed
_MOST = 5  # releases per one that is killed
_PAUSE = 1.0  # seconds in which the reader searches the last version


@contextmanager
def releasers() -> Iterator[subprocess.Popen[str]]:
    """A process that forks one that releases a version for each line of its input, so that Python is started once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.rollouts", "--releasers"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    with process:
        yield process


def killed(
    process: subprocess.Popen[str], folder: Path, engine: str, moments: int, seed: int = 0
) -> dict[str, int]:
    """Kill this many releases; return how many answers came from each version, and from neither (``mixed``).

    Some releases are complete before they can be killed; they are counted, and others are killed instead.
    """
    versions = [_version(folder / f"{number}.{engine}", number) for number in (1, 2)]
    live = folder / "shop.live"
    release(versions[0], live)
    expected = [_answer_at(version) for version in versions]
    assert expected[0] != expected[1]
    rng = random.Random(seed)
    counts = Counter(releases=0, killed=0, switched=0, mixed=0, leftovers=0)
    index = CredibleIndex.open(live)
    seconds, _ = _release(process, versions[1], live, None, switching=False)
    with _reader(live, versions) as finish:
        now = 1
        while counts["killed"] < moments and counts["releases"] < _MOST * moments:
            counts["releases"] += 1
            switching = counts["releases"] % 2 == 0
            wait = rng.uniform(0, _SWITCH) if switching else seconds * rng.random()
            _, complete = _release(process, versions[1 - now], live, wait, switching=switching)
            counts["killed"] += not complete
            answers = [_answer(index), _answer_at(live)]
            counts["mixed"] += sum(answer not in expected for answer in answers)
            counts["mixed"] += answers[0] != answers[1]
            if answers[1] == expected[1 - now]:
                counts["switched"] += 1
                now = 1 - now
        _release(process, versions[1 - now], live, None, switching=False)
        time.sleep(_PAUSE)
        seen = finish()
    index.close()
    parts = [path for path in folder.iterdir() if path.name.endswith(".part")]
    counts["leftovers"] = len(parts)
    counts["mixed"] += seen.pop("mixed")
    return {**counts, **{f"searches_{name}": count for name, count in seen.items()}}


def _release(
    process: subprocess.Popen[str],
    version: str,
    live: Path,
    wait: float | None,
    *,
    switching: bool,
) -> tuple[float, bool]:
    """(Seconds of a release, whether it ended by itself); killed after ``wait`` seconds, from the switch if asked."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps([version, str(live)]) + "\n")
    child, started = int(process.stdout.readline().removeprefix("pid ")), time.monotonic()
    timer = None if wait is None else threading.Timer(wait, _kill, (child,))
    if timer is not None and not switching:
        timer.start()
    complete = False
    while (line := process.stdout.readline()) not in ("end\n", ""):
        complete = complete or line == "released\n"
        if line == "switching\n" and timer is not None and switching:
            timer.start()
    if not line:
        raise RuntimeError("the releasers have ended by themselves")
    if timer is not None:
        timer.cancel()
        timer.join()
    return time.monotonic() - started, complete


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def _reader(live: Path, versions: list[str]) -> Iterator[Any]:
    """A process that searches in a loop; yields a function that ends it and returns its counts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.rollouts", "--reader", str(live), *versions],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout
        process.stdout.readline()  # it has begun
        yield lambda: json.loads(process.communicate("")[0])


def _read(live: str, *versions: str) -> None:
    """Search until stdin closes, then print how many answers came from each version."""
    torch.set_num_threads(1)
    expected = [_answer_at(version) for version in versions]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    counts = Counter(first=0, second=0, mixed=0)
    names = ("first", "second")
    with CredibleIndex.open(live) as index:
        print("begun", flush=True)
        while not ended.is_set():
            answer = _answer(index)
            counts[names[expected.index(answer)] if answer in expected else "mixed"] += 1
    print(json.dumps(counts), flush=True)


def _serve() -> None:
    from aureole.retrieval import _release as module

    torch.set_num_threads(1)
    switch = module._switch

    def announced(*arguments: Any) -> Any:
        os.write(1, b"switching\n")
        return switch(*arguments)

    module._switch = announced
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            release(*json.loads(line))
            os.write(1, b"released\n")
            os._exit(0)
        os.waitpid(child, 0)
        os.write(1, b"end\n")


def _version(where: Path, number: int) -> str:
    rng = torch.Generator().manual_seed(number)
    mu = sphere.normalize(torch.randn(_ROWS, _DIM, generator=rng))
    ids = [f"item {i}" for i in range(_ROWS)]
    posterior = au.VonMisesFisher(mu, torch.linspace(5, 90, _ROWS))
    CredibleIndex.create(where, posterior, ids, {"version": [number] * _ROWS}).close()
    return str(where)


def _answer_at(where: str | Path) -> Any:
    with CredibleIndex.open(where) as index:
        return _answer(index)


def _answer(index: CredibleIndex) -> Any:
    """The hits of a batch of queries, with their cosines and the versions in their payload."""
    query = au.VonMisesFisher(torch.eye(_DIM)[:_QUERIES], torch.full((_QUERIES,), 9.0))
    hits = index.search(query, 0.9, columns=["version"])
    assert isinstance(hits, list)
    return [(each.ids, each.cosine.tolist(), each.payload["version"]) for each in hits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/rollouts.json"))
    parser.add_argument("--releasers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--reader", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.releasers:
        _serve()
        return
    if options.reader:
        _read(*options.reader)
        return
    metrics: dict[str, Any] = {}
    command = f"python -m benchmarks.rollouts --moments {options.moments}"
    command += f" --engines {' '.join(options.engines)}"
    with ExitStack() as stack:
        process = stack.enter_context(releasers())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollouts-")))
        for engine in options.engines:
            (folder / engine).mkdir()
            found = killed(process, folder / engine, engine, options.moments, options.seed)
            print(f"{engine}: {found}", flush=True)
            metrics[engine] = found
    settings = {"rows": _ROWS, "dim": _DIM, "queries": _QUERIES}
    write_record(Record("rollouts", metrics, command, options.seed, settings), options.out)


if __name__ == "__main__":
    main()
