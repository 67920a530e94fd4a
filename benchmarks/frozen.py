"""A head on frozen vectors: CPU seconds to fit 5,000 and 145,000 of 384 dimensions, and the speed of scoring.

python -m benchmarks.frozen writes results/benchmarks/frozen.json. The vectors are synthetic: groups of five around
centres in 64 of the 384 dimensions, each with its own noise, so strong that pairs are about as hard as captions.
Information and coverage are those of 5,000 further vectors. In the same run, scoring is compared with the bare matrix
multiplications of the head on the same rows in the same chunks. With --old FOLDER, the same figures for the source of
another version in that folder.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import aureole as au
from aureole.evaluation import spearman
from aureole.records import Record, write_record

CHUNK = 2048
FURTHER = 5000


def vectors_of(rows: int, features: int = 384) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Synthetic (vectors, groups, noise) that a head can be fitted on."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(rows // 5), 5)
    centres = rng.standard_normal((rows // 5, 64), dtype=np.float32)
    noise = rng.uniform(0.7, 2.0, (len(groups), 1)).astype(np.float32)
    found = centres[groups] + noise * rng.standard_normal((len(groups), 64), dtype=np.float32)
    found[:, :1] = noise  # like an encoder whose vectors show how clear an input is
    turn = np.linalg.qr(rng.standard_normal((features, 64)))[0].astype(np.float32)
    return found @ turn.T, groups, noise[:, 0]


def fastest(function, repeats: int = 5) -> float:
    """The minimum seconds of several calls."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


@torch.no_grad()
def bare(head: au.FrozenHead, vectors: np.ndarray) -> None:
    """Only the matrix multiplications of the head."""
    matrices = [p for p in head.encoder_.parameters() if p.dim() == 2]
    wide = [p.T for p in matrices if p.shape[1] == vectors.shape[1]]
    inner = [p.T for p in matrices if p.shape[1] != vectors.shape[1]]
    for start in range(0, len(vectors), CHUNK):
        rows = torch.from_numpy(vectors[start : start + CHUNK])
        outputs = [rows @ weight for weight in wide]
        hidden = max(outputs, key=lambda x: x.shape[1])
        for weight in inner:
            _ = hidden @ weight


def fitted(rows: int, compiled: bool) -> dict[str, float]:
    """What a head with default settings costs and gives."""
    if not compiled:
        from aureole.sphere import _native

        _native.native_library = lambda: None
    vectors, groups, noise = vectors_of(rows + FURTHER)
    started, spent = time.perf_counter(), time.process_time()
    head = au.FrozenHead().fit(vectors[:rows], groups[:rows])
    spent, took = time.process_time() - spent, time.perf_counter() - started
    others, labels = vectors[rows:], groups[rows:]
    kappa = head.predict(others).kappa
    metrics = {
        "CPU seconds": spent,
        "seconds": took,
        "information (nats)": head.score(others, labels),
        **{f"coverage of {mass:.0%}": x for mass, x in head.coverage(others, labels).items()},
        "rank of kappa with noise": float(spearman(kappa, torch.from_numpy(noise[rows:]))),
    }
    if rows > 100_000:
        everything = vectors[:rows]
        ratios = []
        for _ in range(5):  # alternately, so that noise of the machine affects both equally
            needed = fastest(lambda: bare(head, everything), 2)
            ratios.append(needed / fastest(lambda: head.predict(everything), 2))
        metrics["rows scored per second"] = rows / fastest(lambda: head.predict(everything))
        metrics["speed against bare multiplications"] = sorted(ratios)[2]
    return {name: float(f"{value:.4g}") for name, value in metrics.items()}


def in_own_process(rows: int, compiled: bool, source: Path | None) -> dict[str, float]:
    code = f"import json, benchmarks.frozen as b; print(json.dumps(b.fitted({rows}, {compiled})))"
    path = {} if source is None else {"PYTHONPATH": f"{source}:."}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **path}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/frozen.json"))
    arguments = parser.parse_args()
    runs: list[tuple[str, int, bool, Path | None]] = [
        ("5,000 rows, compiled library", 5000, True, None),
        ("5,000 rows, torch", 5000, False, None),
        ("145,000 rows, compiled library", 145_000, True, None),
    ]
    if arguments.old:
        runs.append(("5,000 rows, version 0.1", 5000, True, arguments.old))
    metrics = {}
    for name, rows, compiled, source in runs:
        metrics[name] = in_own_process(rows, compiled, source)
        print(name, metrics[name], flush=True)
    command = "python -m benchmarks.frozen" + (" --old SOURCE" if arguments.old else "")
    settings = {"threads": torch.get_num_threads(), "features": 384}
    write_record(Record("benchmarks/frozen", metrics, command, 0, settings), arguments.out)


if __name__ == "__main__":
    main()
