"""Writers under SIGKILL: nothing acknowledged is lost, nothing is doubled, and no change is half done.

A process changes a gallery by appends, upserts, deletes or builds of an approximate index until it is killed at some
moment; then the gallery is opened and compared with what the process had acknowledged.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

import aureole as au
from aureole import sphere
from aureole.caps import CredibleIndex

__all__ = ["OPERATIONS", "killed", "writers"]

OPERATIONS = ("append", "upsert", "delete", "build")
_BLOCK, _BASE, _DIM, _LISTS = 50, 500, 8, 2
_LONGEST = 0.15  # seconds from the first acknowledgement to the kill


@contextmanager
def writers() -> Iterator[subprocess.Popen[str]]:
    """A process that forks a writer for each line of its input, so that Python is started once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.killed_writers"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    with process:
        yield process


def killed(
    process: subprocess.Popen[str], where: str, operation: str, moments: int, seed: int = 0
) -> dict[str, int]:
    """Kill a writer of a new gallery this many times; return counts of what went wrong, and of acknowledged changes."""
    assert process.stdin
    assert process.stdout
    index = CredibleIndex.create(where, _posteriors(_BASE, 1.0, -1), _names("base", _BASE))
    rng = random.Random(seed)
    found = Counter(moments=moments, acknowledged=0, lost=0, doubled=0, torn=0)
    history: dict[int, list[int]] = {}
    for round_ in range(moments):
        process.stdin.write(json.dumps([where, operation, round_]) + "\n")
        child = int(process.stdout.readline().removeprefix("pid "))
        lines = [process.stdout.readline()]
        timer = threading.Timer(rng.uniform(0, _LONGEST), _kill, (child,))
        timer.start()
        while lines[-1] not in ("end\n", ""):
            lines.append(process.stdout.readline())
        timer.join()
        if not lines.pop():
            raise RuntimeError("the writers have ended by themselves")
        history[round_] = [int(line) for line in lines]
        found["acknowledged"] += len(lines)
        with CredibleIndex.open(where) as fresh:
            for reader in (index, fresh):
                for name, count in _faults(reader, operation, history).items():
                    found[name] = max(found[name], count)
    index.close()
    return dict(found)


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _faults(index: CredibleIndex, operation: str, history: dict[int, list[int]]) -> dict[str, int]:
    """What is wrong with a gallery after writers have been killed; all zero if nothing is."""
    rows = [row for ids, kappa, _ in index.scan() for row in zip(ids, kappa.tolist(), strict=True)]
    kappas: dict[str, list[float]] = {}
    for name, kappa in rows:
        kappas.setdefault(name.rpartition("/")[0], []).append(kappa)
    base = kappas.pop("base", [])
    lost = _BASE - len(base)
    torn = sum(len(block) != _BLOCK or len(set(block)) != 1 for block in kappas.values())
    if operation == "append":  # at most one block per round was stored without an acknowledgement
        torn += max(0, len(kappas) - sum(map(len, history.values())) - len(history))
    for round_, acknowledged in history.items():
        if operation == "append":
            lost += sum(f"{round_}/{number}" not in kappas for number in acknowledged)
        elif operation == "delete":
            lost += sum(f"{round_}/{number}" in kappas for number in acknowledged)
        elif operation == "upsert":
            lost += min(kappas.get(f"{round_}/0", [0.0])) < max(acknowledged)
    query = au.VonMisesFisher(torch.eye(_DIM)[:4], 3.0)
    searches = (index.search(query, 0.9, exact=exact) for exact in (True, False))
    missed = sum(set(a.ids) != set(b.ids) for a, b in zip(*searches, strict=True))
    doubled = len(rows) - len({name for name, _ in rows})
    return {"lost": lost + missed, "doubled": doubled, "torn": torn}


def _write(where: str, operation: str, round_: int) -> None:
    """Change a gallery until killed, and print the number of each change that has been acknowledged."""
    index = CredibleIndex.open(where)
    if operation == "upsert":
        index.append(_posteriors(_BLOCK, 1.0, round_), _names(f"{round_}/0", _BLOCK))
    for number in range(2, 10_000):
        block = _names(f"{round_}/{number}", _BLOCK)
        if operation in ("append", "delete"):
            index.append(_posteriors(_BLOCK, 1.0, number), block)
        if operation == "delete":
            index.delete(block)
        elif operation == "upsert":
            changed = _posteriors(_BLOCK, float(number), number)
            index.upsert(changed, _names(f"{round_}/0", _BLOCK))
        elif operation == "build":
            index.build("ivf", lists=_LISTS, probes=_LISTS)
        os.write(1, f"{number}\n".encode())


def _serve() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            _write(*json.loads(line))
        os.waitpid(child, 0)
        os.write(1, b"end\n")


def _posteriors(n: int, kappa: float, seed: int) -> au.VonMisesFisher:
    rng = torch.Generator().manual_seed(seed % 2**31)
    return au.VonMisesFisher(sphere.normalize(torch.randn(n, _DIM, generator=rng)), kappa)


def _names(block: str, count: int) -> list[str]:
    return [f"{block}/{number}" for number in range(count)]


if __name__ == "__main__":
    _serve()
