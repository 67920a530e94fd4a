"""A head on frozen vectors: seconds to fit 145,000 of 384 dimensions, and the speed of scoring.

python -m benchmarks.frozen [--rows 145000] writes results/benchmarks/frozen.json. The vectors are synthetic: groups of
five around 29,000 centres in 64 of the 384 dimensions, each with its own noise, so strong that pairs are about as hard
as captions. In the same run, scoring is compared with the bare matrix multiplications of the head on the same rows in
the same chunks.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from aureole.evaluation import spearman
from aureole.records import Record, write_record
from aureole.training import FrozenHead

CHUNK = 2048


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
def bare(head: FrozenHead, vectors: np.ndarray) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=145_000)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/frozen.json"))
    arguments = parser.parse_args()
    vectors, groups, noise = vectors_of(arguments.rows)
    head = FrozenHead(32) if arguments.steps is None else FrozenHead(32, steps=arguments.steps)
    started = time.perf_counter()
    head.fit(vectors, groups)
    fitting = time.perf_counter() - started
    print(f"fitted in {fitting:.1f} s", flush=True)
    kappa = head.predict(vectors).kappa
    ratios = []
    for _ in range(5):  # alternately, so that noise of the machine affects both equally
        needed = fastest(lambda: bare(head, vectors), 2)
        ratios.append(needed / fastest(lambda: head.predict(vectors), 2))
    metrics = {
        "rows": len(vectors),
        "features": vectors.shape[1],
        "steps": head.steps,
        "threads": torch.get_num_threads(),
        "fit_seconds": round(fitting, 1),
        "rows_per_second": round(len(vectors) / fastest(lambda: head.predict(vectors))),
        "of_bare_multiplications": round(sorted(ratios)[2], 3),
        "kappa_rank": round(spearman(kappa, torch.from_numpy(-noise)), 3),
    }
    for name, value in metrics.items():
        print(f"{name}: {value}")
    command = f"python -m benchmarks.frozen {' '.join(sys.argv[1:])}".strip()
    write_record(Record("benchmarks/frozen", metrics, command=command, seed=0), arguments.out)


if __name__ == "__main__":
    main()
