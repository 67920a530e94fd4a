"""Damaged galleries: each opens right or raises a typed error, in limited time and memory.

``python -m tests.engines.damaged_galleries [--count 500] [--engines faiss lance postgres] [--seed 0]
[--out results/benchmarks]`` writes a record for each engine, such as ``damaged_faiss.json``.

Each case is a copy of a small valid gallery (300 rows in R^8, exact or with an approximate index, with deleted rows,
provenance and calibration) with one random damage of ``tests.engines.gallery_damage``. A process opens it, searches
it with and without the approximate index, fetches rows, and checks it. The outcomes:

- right: every answer is that of the undamaged gallery;
- typed: an ``AureoleError`` was raised;
- found by check: answers differ, and ``CredibleIndex.check`` reports a problem;
- other values: answers differ, and the check passes, as the damaged values are valid ones;
- wrong: any other exception, a crash of the process, more than 5 seconds, or more than 1 GB of memory.

The process handles many cases, so that imports do not dominate; one that crashes or hangs is replaced.
"""

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

import aureole as au
from aureole.caps import CredibleIndex, SearchOptions
from aureole.errors import AureoleError
from aureole.records import Record, write_record
from benchmarks.engines import postgres_server
from tests.engines.gallery_damage import DIM, KINDS, damage, make_gallery, rows_of

ENGINES = ("faiss", "lance", "postgres")
OUTCOMES = ("right", "typed", "found by check", "other values", "wrong")
SECONDS, MEGABYTES = 5.0, 1000.0
_GUARD = 4 * 2**30  # bytes that a process may allocate before the system refuses


@dataclass(frozen=True)
class Case:
    """The outcome of one damaged gallery, with what was done, the seconds and the peak of memory in MB."""

    number: int
    outcome: str
    damage: str
    detail: str
    seconds: float
    megabytes: float


def answers(index: CredibleIndex) -> list[Any]:
    """What an undamaged gallery answers to a few searches, with and without the approximate index."""
    queries = rows_of(seed=1, n=4)[0]
    told: list[Any] = [index.count()]
    for exact in (True, False):
        for options in (SearchOptions(kind="credible"), SearchOptions(guarantee="conformal")):
            hits = index.search(
                queries, 0.9, columns=["shop", "stock"], exact=exact, options=options
            )
            assert isinstance(hits, list)
            told += [(h.ids, h.cosine.tolist(), h.kappa.tolist(), h.payload) for h in hits]
    everything = au.VonMisesFisher(torch.eye(DIM)[0], 0.0)
    told.append(index.search(everything, 1.0, limit=20, filter={"stock": (10, 250)}).ids)  # type: ignore[union-attr]
    told.append(index.fetch(["row 1", "row 299"], columns=["shop"])[0].kappa.tolist())
    told.append(
        sorted(
            (name, kappa)
            for ids, k, _ in index.scan()
            for name, kappa in zip(ids, k.tolist(), strict=True)
        )
    )
    return told


def judge(where: str, expected: list[Any]) -> tuple[str, str]:
    """(Outcome, detail) of a damaged gallery."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with CredibleIndex.open(where) as index:
                right = answers(index) == expected
                problems = index.check()
    except AureoleError as error:
        return "typed", str(error)
    except Exception as error:
        return "wrong", repr(error)
    if right:
        return "right", ""
    return ("found by check", problems[0]) if problems else ("other values", "")


def peak_megabytes(*, reset: bool = False) -> float:
    """The largest resident memory of this process since the last reset; 0 where the system has no such counter."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        text = Path("/proc/self/status").read_text()
        return float(text.partition("VmHWM:")[2].split()[0]) / 1000
    except (OSError, IndexError):
        return 0.0


def work(engine: str, folder: str, address: str | None, seed: int, pipe: Any) -> None:
    """Serve cases until the pipe ends: damage a copy, report that it begins, judge it, report the outcome."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (_GUARD, _GUARD))
    torch.set_num_threads(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # panics of Rust code print a traceback there
    place, expected = Path(folder) / str(os.getpid()), {}
    for number, kind in enumerate(KINDS):
        base = (
            f"{address}#base_{os.getpid()}_{number}"
            if address
            else str(place / f"base{number}.{engine}")
        )
        make_gallery(base, kind)
        with CredibleIndex.open(base) as index:
            expected[number] = answers(index)
    pipe.send("ready")
    while (case := pipe.recv()) is not None:
        rng = Random(f"{engine} {seed} {case}")
        number = rng.randrange(len(KINDS))
        if address:
            where = f"{address}#case_{os.getpid()}_{case}"
            make_gallery(where, KINDS[number])
        else:
            where = str(place / f"case.{engine}")
            shutil.rmtree(where, ignore_errors=True)
            copy = shutil.copy if engine == "faiss" else shutil.copytree
            copy(place / f"base{number}.{engine}", where)
        done = damage(engine, where, rng)
        peak_megabytes(reset=True)
        pipe.send(done)
        started = time.monotonic()
        outcome, detail = judge(where, expected[number])
        pipe.send((outcome, detail, time.monotonic() - started, peak_megabytes()))


class Worker:
    """A process that judges cases; replaced after a crash or a timeout."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")  # imports once, also after a crash
        context.set_forkserver_preload(["tests.engines.damaged_galleries"])
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=work, args=(*self._arguments, other), daemon=True)
        self._process.start()
        other.close()
        self._pipe.recv()  # ready

    def judge(self, number: int) -> Case:
        """The outcome of a case."""
        done = "unknown"
        try:
            self._pipe.send(number)
            done = self._pipe.recv()
            if not self._pipe.poll(SECONDS + 1):
                raise TimeoutError(f"no answer after {SECONDS:g} s")
            outcome, detail, seconds, megabytes = self._pipe.recv()
        except (EOFError, OSError, TimeoutError) as error:
            self._process.kill()
            self._process.join()
            detail = f"{error!r}, exit code {self._process.exitcode}"
            self._start()
            return Case(number, "wrong", done, detail, SECONDS, 0.0)
        if seconds > SECONDS or megabytes > MEGABYTES:
            outcome, detail = "wrong", f"{seconds:.1f} s, {megabytes:.0f} MB"
        return Case(number, outcome, done, detail, seconds, megabytes)

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join(10)


def run(engine: str, count: int, *, seed: int = 0, address: str | None = None) -> list[Case]:
    """The outcomes of some damaged galleries of an engine."""
    with tempfile.TemporaryDirectory(prefix="damaged", ignore_cleanup_errors=True) as folder:
        worker = Worker(engine, folder, address, seed)
        cases = [worker.judge(number) for number in range(count)]
        worker.close()
    return cases


def summary(cases: list[Case]) -> dict[str, Any]:
    """The metrics of an engine's cases."""
    outcomes = Counter(case.outcome for case in cases)
    kinds = sorted({case.damage for case in cases})
    return {
        "galleries": len(cases),
        **{outcome: outcomes[outcome] for outcome in OUTCOMES},
        "slowest seconds": max(case.seconds for case in cases),
        "largest MB": max(case.megabytes for case in cases),
        "by damage": {
            kind: dict(Counter(case.outcome for case in cases if case.damage == kind))
            for kind in kinds
        },
    }


def main() -> None:
    """Judge damaged galleries of all engines, print the outcomes, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print every case")
    given = parser.parse_args()
    for engine in given.engines:
        started = time.monotonic()
        with postgres_server() if engine == "postgres" else nullcontext() as server:
            address = None if server is None else server.get_uri()
            cases = run(engine, given.count, seed=given.seed, address=address)
        metrics = summary(cases) | {"seconds": time.monotonic() - started}
        print(engine, {name: value for name, value in metrics.items() if name != "by damage"})
        for case in cases:
            if given.verbose or case.outcome in ("wrong", "other values"):
                print(f"  {case.number} {case.outcome}: {case.damage}: {case.detail[:300]}")
        if given.out is not None:
            command = f"python -m tests.engines.damaged_galleries --count {given.count} --engines {engine}"
            command += f" --seed {given.seed}"
            settings = {"count": given.count, "seconds": SECONDS, "megabytes": MEGABYTES}
            record = Record(f"damaged galleries, {engine}", metrics, command, given.seed, settings)
            write_record(record, given.out / f"damaged_{engine}.json")


if __name__ == "__main__":
    main()
