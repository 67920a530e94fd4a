"""Writers and bulk embedding on an object store: colliding appends, and jobs under SIGKILL.

``python -m benchmarks.object_store [--parts writers s3] [--rounds 200] [--kills 10] [--out FILE]`` writes a record. The
store is moto, an S3 server in a separate process. Part "writers": in each round two processes append a block to one
Lance table (a new one every 25 rounds) at the same moment, and half of the ids of their blocks are the same, so one of
them must be refused. Parts "s3" and "local": ``aureole embed`` reads pictures and a model from the store and writes a
table there, or does so on the local disk, is killed at random moments between its first and its last commit and run
again; the table is compared with that of an undisturbed local run.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex
from tests.scale.embed_faults import (
    Commands,
    differences,
    disturbed,
    draw,
    make_job,
    summary,
    undisturbed,
)
from benchmarks.engines import s3_server, upload

__all__ = ["colliding", "environment", "killed_jobs"]

PARTS = ("writers", "s3", "local")
_BLOCK, _DIM = 10, 8
_CHUNK = 16  # pictures that are committed, or lost, together
_WRITERS = ("a", "b")
_TABLE_ROUNDS = 25


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def colliding(where: str, rounds: int) -> dict[str, int]:
    """Rounds in which two processes append blocks with common ids; counts of outcomes and of what went wrong."""
    index = CredibleIndex.create(where, _posteriors(_BLOCK), [f"base/{i}" for i in range(_BLOCK)])
    command = [sys.executable, "-m", "benchmarks.object_store", "--writer", where]
    found = Counter(rounds=rounds, stored=0, refused=0, failed=0, doubled=0, lost=0, extra=0)
    expected = [f"base/{i}" for i in range(_BLOCK)]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        writers = {
            name: stack.enter_context(
                subprocess.Popen([*command, name], stdin=pipe, stdout=pipe, text=True, bufsize=1)
            )
            for name in _WRITERS
        }
        for writer in writers.values():
            _line(writer)
        for round_ in range(rounds):
            for writer in writers.values():
                assert writer.stdin
                writer.stdin.write(f"{round_}\n")
            for name, writer in writers.items():
                outcome = json.loads(_line(writer))
                found[outcome] += 1
                if outcome == "stored":
                    expected += _ids(round_, name)
        for writer in writers.values():
            assert writer.stdin
            writer.stdin.close()
    ids = [name for batch, _, _ in index.scan() for name in batch]
    index.close()
    found["rows"], found["doubled"] = len(ids), len(ids) - len(set(ids))
    found["lost"], found["extra"] = len({*expected} - {*ids}), len({*ids} - {*expected})
    found["rounds with one winner"] = len({name.split("/")[0] for name in ids} - {"base"})
    return dict(found)


def _on_several_tables(rounds: int) -> dict[str, int]:
    """Rounds of ``colliding`` on tables of 25 rounds each: every append adds a fragment, and each lookup reads all."""
    total: Counter[str] = Counter()
    for start in range(0, rounds, _TABLE_ROUNDS):
        where = f"s3://bucket/gallery-{start}.lance"
        total.update(colliding(where, min(_TABLE_ROUNDS, rounds - start)))
        print(f"{where}: {dict(total)}", flush=True)
    return {"tables": -(-rounds // _TABLE_ROUNDS), **total}


def _line(writer: subprocess.Popen[str]) -> str:
    assert writer.stdout
    line = writer.stdout.readline()
    if not line:
        raise RuntimeError("a writer has ended by itself")
    return line


def _write(where: str, name: str) -> None:
    """Append a block for each number on standard input, and print what became of it."""
    torch.set_num_threads(1)
    index = CredibleIndex.open(where)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            index.append(_posteriors(_BLOCK), _ids(int(line), name))
            outcome = "stored"
        except InvalidInputError as error:
            outcome = "refused" if "is in the gallery already" in str(error) else "failed"
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            outcome = "failed"
        print(json.dumps(outcome), flush=True)


def _ids(round_: int, name: str) -> list[str]:
    """The ids of a block: half of them are those of the other writer."""
    common = [f"{round_}/{i}" for i in range(_BLOCK // 2)]
    return common + [f"{round_}/{name}/{i}" for i in range(_BLOCK - len(common))]


def _posteriors(n: int) -> au.VonMisesFisher:
    return au.VonMisesFisher(sphere.normalize(torch.randn(n, _DIM)), 5.0)


def killed_jobs(
    commands: Commands, place: str, reference: Path, kills: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Kill jobs once each and run them again, each with its own table below ``place``; yield the results so far."""
    rng = random.Random(seed)
    commits = undisturbed(commands, "process", f"{place}/undisturbed.lance")
    whole = {
        "undisturbed table differs": bool(differences(f"{place}/undisturbed.lance", reference)),
        "commits": len(commits),
        "seconds from the first commit to the last": commits[-1][0],
    }
    runs: list[dict[str, Any]] = []
    while sum(run["killed"] for run in runs) < kills and len(runs) < 3 * kills:
        number = len(runs)  # a job that ends before its moment was not killed
        out = f"{place}/killed-{number}.lance"
        run = disturbed(commands, "process", out, draw(commits, rng))
        run["differences"] = differences(out, reference)
        print(f"{place} {number}: {run}", flush=True)
        runs.append(run)
        yield {**summary(runs), **whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10, help="jobs that are killed, on S3")
    parser.add_argument("--local-kills", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/object_store.json"))
    parser.add_argument("--writer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        _write(*options.writer)
        return
    numbers = {
        "rounds": options.rounds, "kills": options.kills, "local-kills": options.local_kills,
        "pictures": options.pictures,
    }  # fmt: skip
    command = f"python -m benchmarks.object_store --parts {' '.join(options.parts)} "
    command += " ".join(f"--{name} {value}" for name, value in numbers.items())
    settings = {**numbers, "block": _BLOCK, "common ids": _BLOCK // 2, "server": "moto"}
    settings["rounds per table"] = _TABLE_ROUNDS
    metrics: dict[str, Any] = {}
    for part, result in _results(options):
        metrics[part] = result
        shown = {name: value for name, value in result.items() if name != "runs"}
        print(f"{part}: {shown}", flush=True)
        record = Record("object-store", metrics, command, options.seed, settings)
        write_record(record, options.out)


def _results(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The results of each part; those of killed jobs after each job."""
    with ExitStack() as stack:
        variables = stack.enter_context(s3_server())
        stack.enter_context(environment(variables))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="store-")))
        if "writers" in options.parts:
            yield "writers", _on_several_tables(options.rounds)
        if not {"s3", "local"} & {*options.parts}:
            return
        source, encoder = make_job(folder, options.pictures)
        local, reference = Commands(source, encoder, _CHUNK), folder / "reference.lance"
        local.finish(local.start(reference))
        if "s3" in options.parts:
            upload(variables, source, "s3://bucket/pictures")
            upload(variables, encoder, "s3://bucket/encoder")
            commands = Commands("s3://bucket/pictures", "s3://bucket/encoder", _CHUNK)
            arguments = (reference, options.kills, options.seed)
            for found in killed_jobs(commands, "s3://bucket/jobs", *arguments):
                yield "s3", found
        if "local" in options.parts:
            arguments = (reference, options.local_kills, options.seed)
            for found in killed_jobs(local, str(folder / "jobs"), *arguments):
                yield "local", found


if __name__ == "__main__":
    main()
