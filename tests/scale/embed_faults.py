"""Bulk embedding under SIGKILL: every id once and the same posteriors, whichever process is killed, at any moment.

``python -m tests.scale.embed_faults [--moments 20] [--kinds process worker driver both] [--out FILE]`` writes a
record. A folder of pictures, one in a hundred of them corrupt, is embedded by the real command; at random
moments a process is killed: the only one, one of two Ray workers, the driver, or driver and worker together. A killed
command is run again immediately, while processes it had started may still be running. The table is then compared with
that of an undisturbed run. All moments are between the first and the last commit: a process is killed some time after
the table has a random number of rows, and both are drawn from the commits of an undisturbed run of the same kind.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.models import CifarResNet
from aureole.records import Record, write_record
from aureole.retrieval import open_table
from aureole.embed import errors_address
from tests.made_pictures import make_corrupt, make_pictures

__all__ = [
    "Commands",
    "Moment",
    "differences",
    "disturbed",
    "draw",
    "make_job",
    "summary",
    "undisturbed",
]

KINDS = ("process", "worker", "driver", "both")
OPTIONS = {kind: () if kind == "process" else ("--workers", "2") for kind in KINDS}
_MARK = "AUREOLE_FAULT_RUN"
_LOOK = 0.05  # seconds between looks at the table


def make_job(folder: Path, pictures: int, *, depth: int = 20) -> tuple[Path, Path]:
    """(Folder of pictures, folder of an encoder): one picture in a hundred is corrupt."""
    source, encoder = folder / "pictures", folder / "encoder"
    make_pictures(source, pictures)
    make_corrupt(source, max(1, pictures // 100))
    torch.manual_seed(0)
    au.PosteriorEncoder(CifarResNet(depth), au.models.KappaFromNorm(64, 16)).save(encoder)
    return source, encoder


class Commands:
    """The real command on one source and encoder, to be run, killed and run again."""

    def __init__(self, source: Path | str, encoder: Path | str, chunk_rows: int = 64) -> None:
        self._options = [
            str(source), "--encoder", str(encoder), "--batch", "32", "--chunk-rows", str(chunk_rows),
            "--commit-seconds", "0.2", "--json",
        ]  # fmt: skip
        self._marks: list[str] = []

    def start(self, out: Path | str, *options: str) -> subprocess.Popen[str]:
        """Start the command in a separate process."""
        self._marks.append(token_hex(8))
        environment = {**os.environ, _MARK: self._marks[-1], "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "aureole", "embed", *self._options, "--out", str(out), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], timeout: float = 300) -> dict[str, Any] | None:
        """The output of the command if it succeeds; None if it was killed."""
        output, errors = process.communicate(timeout=timeout)
        if process.returncode == -signal.SIGKILL:
            return None
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {errors[-2000:]}")
        return json.loads(output)

    def workers(self) -> list[int]:
        """The Ray processes that work for the last command."""
        found = []
        for pid in self._marked(self._marks[-1:]):
            with suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes()
                if title.startswith(b"ray::Map"):  # not an agent of Ray
                    found.append(pid)
        return found

    def wait_gone(self, seconds: float = 60) -> bool:
        """Whether all processes of all commands end in time, including those of killed drivers."""
        end = time.monotonic() + seconds
        while self._marked(self._marks) and time.monotonic() < end:
            time.sleep(0.2)
        return not self._marked(self._marks)

    def _marked(self, marks: list[str]) -> list[int]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = (place / "environ").read_bytes()
                if any(f"{_MARK}={mark}".encode() in environment for mark in marks):
                    found.append(int(place.name))
        return found


def rows_of(table: Path | str) -> int:
    """The number of committed rows, 0 if the table does not exist yet."""
    try:
        return open_table(str(table)).count_rows()
    except (ValueError, OSError):
        return 0


def differences(table: Path | str, reference: Path | str) -> list[str]:
    """The differences of a table and its errors from those of an undisturbed run; empty if there are none."""
    said = []
    for one, other in ((str(table), str(reference)),
                       (errors_address(str(table)), errors_address(str(reference)))):  # fmt: skip
        found, wanted = (open_table(where).to_table().sort_by("id") for where in (one, other))
        ids, true = found["id"].to_pylist(), wanted["id"].to_pylist()
        if ids != true:
            lost, extra = len(set(true) - set(ids)), len(ids) - len(set(ids))
            said.append(f"{one}: {lost} ids lost, {extra} twice, {len(ids)} of {len(true)}")
            continue
        for name in found.column_names:
            mine, theirs = found[name].combine_chunks(), wanted[name].combine_chunks()
            if name in ("mu", "kappa"):
                mine, theirs = (
                    (a.flatten() if name == "mu" else a).to_numpy() for a in (mine, theirs)
                )
                far = np.abs(mine - theirs) > 2e-6 * np.maximum(1, np.abs(theirs))
                if far.any():
                    said.append(f"{one}: {name} differs by {np.abs(mine - theirs).max():.3g}")
            elif not mine.equals(theirs):
                said.append(f"{one}: the column {name} differs")
    return said


@dataclass(frozen=True)
class Moment:
    """When to kill: this many seconds after the table has this many rows."""

    rows: int
    pause: float = 0.0


def undisturbed(commands: Commands, kind: str, out: Path | str) -> list[tuple[float, int]]:
    """The commits of a run of which no process is killed: (seconds since the first one, rows in the table)."""
    process = commands.start(out, *OPTIONS[kind])
    seen: list[tuple[float, int]] = []
    while process.poll() is None:
        rows, now = rows_of(out), time.monotonic()
        if rows > (seen[-1][1] if seen else 0):
            seen.append((now, rows))
        time.sleep(_LOOK)
    commands.finish(process)
    return [(moment - seen[0][0], rows) for moment, rows in seen]


def draw(commits: list[tuple[float, int]], rng: random.Random) -> Moment:
    """A moment between the first and the last commit: a commit but the last, and a part of the time to the next one."""
    number = rng.randrange(len(commits) - 1)
    (before, rows), (after, _) = commits[number : number + 2]
    return Moment(rows, rng.random() * (after - before))


def disturbed(commands: Commands, kind: str, out: Path | str, moment: Moment) -> dict[str, Any]:
    """A run that is killed at a moment, and the next run until it finishes."""
    begin = time.monotonic()
    process = commands.start(out, *OPTIONS[kind])
    while process.poll() is None and rows_of(out) < moment.rows:
        time.sleep(_LOOK)
    time.sleep(moment.pause)
    workers = commands.workers() if kind in ("worker", "both") else []
    killed = 0
    if workers:
        with suppress(ProcessLookupError):
            os.kill(random.Random(moment.pause).choice(workers), signal.SIGKILL)
            killed += 1
    if kind != "worker" and process.poll() is None:
        process.kill()
        process.wait()
        killed += 1
    before = rows_of(out)
    report, runs = commands.finish(process), 1
    if report is None:
        report, runs = commands.finish(commands.start(out, *OPTIONS[kind])), 2
    assert report is not None  # this run is not killed
    return {
        "killed": killed, "rows before": before, "runs": runs, "rows": report["rows"],
        "errors": report["errors"], "made again": report["new_rows"] if runs == 2 else None,
        "moment": [moment.rows, moment.pause], "seconds": time.monotonic() - begin,
    }  # fmt: skip


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of runs of ``disturbed``; in the middle means that some rows were stored, but not all."""
    return {
        "moments": len(runs),
        "killed": sum(run["killed"] for run in runs),
        "in the middle": sum(bool(run["killed"]) and 0 < run["rows before"] < run["rows"] for run in runs),
        "tables that differ": sum(bool(run["differences"]) for run in runs),
        "runs": runs,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/scale/faults.json"))
    options = parser.parse_args()
    metrics: dict[str, Any] = {}
    settings = {"pictures": options.pictures, "corrupt": max(1, options.pictures // 100)}
    command = f"python -m tests.scale.embed_faults --moments {options.moments}"
    command += f" --kinds {' '.join(options.kinds)} --pictures {options.pictures}"
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        folder = Path(place)
        source, encoder = make_job(folder, options.pictures)
        commands = Commands(source, encoder)
        whole = commands.finish(commands.start(folder / "reference.lance"))
        assert whole is not None
        print(f"undisturbed: {whole}", flush=True)
        for kind in options.kinds:
            rng = random.Random(f"{options.seed} {kind}")
            runs: list[dict[str, Any]] = []
            commits = undisturbed(commands, kind, folder / f"{kind}.lance")
            print(f"{kind}: {len(commits)} commits in {commits[-1][0]:.1f} s", flush=True)
            for number in range(options.moments):
                out = folder / f"{kind}-{number}.lance"
                run = disturbed(commands, kind, out, draw(commits, rng))
                run["differences"] = differences(out, folder / "reference.lance")
                print(f"{kind} {number}: {run}", flush=True)
                runs.append(run)
                metrics[kind] = summary(runs)
                record = Record("embed-faults", metrics, command, options.seed, settings)
                write_record(record, options.out)
            metrics[kind]["all gone within 90 s"] = commands.wait_gone(90)
            write_record(
                Record("embed-faults", metrics, command, options.seed, settings), options.out
            )


if __name__ == "__main__":
    main()
