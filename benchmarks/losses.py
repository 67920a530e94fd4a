"""Cost of the losses: forward and backward compared with InfoNCE on points, bare and with the paper's encoder.

``python -m benchmarks.losses [--repeats N] [--out results/benchmarks/losses.json]``

B = 512 anchors with 512 shared negatives. Peak memory is what one forward and backward pass adds to the process.

``python -m benchmarks.losses --grid 256 1024`` compares instead with ``F.cross_entropy(anchor @ positive.T / T)``,
plain InfoNCE in two lines, at these batch sizes, six dimensions, kappa_pos = 20, D, 2 D and 4 D, and partners at
cosines of 0.1 (as early in training), 0.5 and 0.95. Subnormal numbers are flushed: they slow plain InfoNCE down
fifteen-fold; a column tells the ratio without. It writes results/benchmarks/loss_grid.json.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import aureole as au
from aureole import sphere
from aureole.losses import ContrastiveLoss
from aureole.records import Record, write_record
from aureole_paper.paper_encoders import paper_mlp
from benchmarks.timing import median_seconds

BATCH = 512
KAPPA_POS = 20.0


def contenders() -> dict[str, ContrastiveLoss]:
    return {
        "InfoNCE": au.InfoNCE(temperature=1 / KAPPA_POS),
        "ClosedFormInfoNCE": au.ClosedFormInfoNCE(KAPPA_POS),
        "MCInfoNCE, K = 16": au.MCInfoNCE(KAPPA_POS, 16),
        "MCInfoNCE, K = 512": au.MCInfoNCE(KAPPA_POS, 512),
        "ELK": au.ELK(temperature=1.0),
        "HedgedInstance, K = 16": au.losses.HedgedInstance(a=1.0, b=0.0, n_samples=16),
    }


def bare(loss: ContrastiveLoss, dim: int) -> Callable[[], object]:
    """Forward and backward of the loss alone, on posteriors as in training: partners are close, negatives are not."""
    anchor_mu = sphere.normalize(torch.randn(BATCH, dim))
    positive_mu = sphere.normalize(anchor_mu + 0.5 * sphere.normalize(torch.randn(BATCH, dim)))
    mus = [anchor_mu, positive_mu, sphere.normalize(torch.randn(BATCH, dim))]
    leaves = [x.requires_grad_() for x in mus] + [
        (16 + 16 * torch.rand(BATCH)).requires_grad_() for _ in mus
    ]

    def run() -> None:
        posteriors = [
            au.VonMisesFisher(m, k, validate_args=False)
            for m, k in zip(leaves, leaves[3:], strict=False)
        ]
        torch.autograd.grad(loss(*posteriors), leaves, allow_unused=True)

    return run


def with_encoder(loss: ContrastiveLoss, dim: int) -> Callable[[], object]:
    """The same with the paper's two MLPs, for mu and for kappa, on 3 x 512 inputs, both trained.

    InfoNCE gives kappa no gradient; adding 0 times kappa runs the backward pass of its network anyway.
    """
    mu_net, kappa_net = paper_mlp(dim, dim), paper_mlp(dim, 1)
    parameters = [*mu_net.parameters(), *kappa_net.parameters()]
    x = torch.rand(3 * BATCH, dim)

    def run() -> None:
        mu, kappa = sphere.normalize(mu_net(x)), 1 + torch.exp(3 + kappa_net(x).squeeze(-1))
        parts = zip(mu.split(BATCH), kappa.split(BATCH), strict=True)
        value = loss(*(au.VonMisesFisher(m, k, validate_args=False) for m, k in parts))
        torch.autograd.grad(value + 0 * kappa.sum(), parameters)

    return run


def peak_megabytes(name: str, dim: int) -> float:
    """Memory that one run of a loss adds, measured in a separate process."""
    code = f"from benchmarks.losses import print_peak; print_peak({name!r}, {dim})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_peak(name: str, dim: int) -> None:
    """Print the peak growth of the process in megabytes over one run (Linux: its high-water mark, reset before)."""
    print_growth(bare(contenders()[name], dim))


def print_growth(run: Callable[[], object]) -> None:
    run()  # one-time loading does not count
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    print((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def plain(n: int, dim: int, cosine: float) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """(InfoNCE in two lines, forward and backward; its inputs: anchors, and partners at a cosine)."""
    anchor, other = (sphere.normalize(torch.randn(n, dim)) for _ in range(2))
    other = sphere.normalize(other - (other * anchor).sum(-1, keepdim=True) * anchor)
    leaves = [anchor, cosine * anchor + math.sqrt(1 - cosine**2) * other]
    leaves, target = [x.requires_grad_() for x in leaves], torch.arange(n)

    def run() -> None:
        value = torch.nn.functional.cross_entropy(KAPPA_POS * leaves[0] @ leaves[1].T, target)
        torch.autograd.grad(value, leaves)

    return run, leaves


def rivals(n: int, dim: int, kappa_pos: float, cosine: float) -> dict[str, Callable[[], object]]:
    """What ``--grid`` compares, by name: all other pairs are negatives, kappas are D/2 to 5/2 D."""
    first, leaves = plain(n, dim, cosine)
    kappas = [(dim * (0.5 + 2 * torch.rand(n))).requires_grad_() for _ in leaves]

    def run(loss: ContrastiveLoss) -> None:
        loss.trusted = True  # as in a training loop
        pairs = zip(leaves, kappas, strict=True)
        value = loss(*(au.VonMisesFisher(m, k, validate_args=False) for m, k in pairs))
        torch.autograd.grad(value, [*leaves, *kappas])

    closed = au.ClosedFormInfoNCE(kappa_pos, in_batch="all")
    drawn = au.MCInfoNCE(kappa_pos, 16, in_batch="all")
    return {"plain": first, "closed": partial(run, closed), "drawn": partial(run, drawn)}


def grid_peak(name: str, n: int, dim: int, kappa_pos: float) -> float:
    """Memory in MB that one run of a rival adds, in a separate process."""
    code = f"from benchmarks.losses import *; print_growth(rivals({n}, {dim}, {kappa_pos}, 0.1)[{name!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def grid(sizes: list[int], out: Path) -> None:
    """Measure each setting once and write the record; an interrupted run resumes."""
    progress = out.with_suffix(".progress")
    cells = json.loads(progress.read_text()) if progress.exists() else {}
    dims, factors, cosines = (10, 32, 128, 384, 512, 768), (0, 1, 2, 4), (0.1, 0.5, 0.95)
    for n, cosine, dim, factor in itertools.product(sizes, cosines, dims, factors):
        kappa_pos = float(factor * dim or KAPPA_POS)
        name = f"N = {n}, D = {dim}, kappa_pos = {kappa_pos:g}, partners at {cosine}"
        if name in cells:
            continue
        torch.manual_seed(0)
        runs = rivals(n, dim, kappa_pos, cosine)
        runs["closed"]()  # builds the table
        drawn = runs.pop("drawn")
        torch.set_flush_denormal(True)
        times = median_seconds(runs, 5 if n < 1024 else 3, time.process_time)
        slow = median_seconds({"drawn": drawn}, 1, time.process_time) if n < 4096 else {}
        torch.set_flush_denormal(False)
        kept = median_seconds(runs, 1, time.process_time)
        cells[name] = {
            "plain milliseconds": 1e3 * times["plain"],
            "ClosedFormInfoNCE / plain": times["closed"] / times["plain"],
            "the same, subnormals kept": kept["closed"] / kept["plain"],
        }
        if slow:
            cells[name]["MCInfoNCE, K = 16 / ClosedFormInfoNCE"] = slow["drawn"] / times["closed"]
        print(name, *(f"{v:.2f}" for v in cells[name].values()), flush=True)
        progress.write_text(json.dumps(cells))
    metrics = {f"N = {n}": summary(n, cells) for n in sizes} | cells
    record = Record(
        "benchmark-loss-grid",
        metrics,
        "python -m benchmarks.losses --grid",
        0,
        {"threads": torch.get_num_threads()},
    )
    write_record(record, out)
    progress.unlink()


def summary(n: int, cells: dict[str, dict[str, float]]) -> dict[str, float]:
    """The worst and the median ratio of a batch size, and the memory where the table is largest."""
    ours = [row for name, row in cells.items() if name.startswith(f"N = {n},")]
    ratios = sorted(row["ClosedFormInfoNCE / plain"] for row in ours)
    found = {"worst": ratios[-1], "median": ratios[len(ratios) // 2]}
    drawn = [r["MCInfoNCE, K = 16 / ClosedFormInfoNCE"] for r in ours if len(r) == 4]
    if drawn:
        found["MCInfoNCE, K = 16 / ClosedFormInfoNCE, lowest"] = min(drawn)
    if n > 256:
        extra = grid_peak("closed", n, 32, 64.0) - grid_peak("plain", n, 32, 64.0)
        found["memory over plain / logits"] = extra / (n * n * 4 / 2**20)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/losses.json"))
    parser.add_argument("--grid", type=int, nargs="+", metavar="N")
    arguments = parser.parse_args()
    if arguments.grid:
        grid(arguments.grid, Path("results/benchmarks/loss_grid.json"))
        return
    torch.manual_seed(0)
    metrics: dict[str, dict[str, float]] = {}
    for dim in (10, 128):
        quick = {n: bare(loss, dim) for n, loss in contenders().items() if "512" not in n}
        times = median_seconds(quick, arguments.repeats)
        slow = {n: bare(loss, dim) for n, loss in contenders().items() if "512" in n}
        times |= median_seconds({**slow, "again": quick["ClosedFormInfoNCE"]}, 1)
        times.pop("again")
        floor = times["InfoNCE"]
        row = {"InfoNCE milliseconds": 1e3 * floor}
        row |= {f"{name} / InfoNCE": t / floor for name, t in times.items() if name != "InfoNCE"}
        row["MCInfoNCE, K = 512 / ClosedFormInfoNCE"] = (
            times["MCInfoNCE, K = 512"] / times["ClosedFormInfoNCE"]
        )
        for name in ("InfoNCE", "ClosedFormInfoNCE", "MCInfoNCE, K = 16", "MCInfoNCE, K = 512"):
            row[f"{name} peak MB"] = peak_megabytes(name, dim)
        metrics[f"bare, D = {dim}"] = row
        pair = {n: with_encoder(contenders()[n], dim) for n in ("InfoNCE", "ClosedFormInfoNCE")}
        times = median_seconds(pair, arguments.repeats if dim == 10 else 2)
        metrics[f"with the paper's encoder, D = {dim}"] = {
            "InfoNCE milliseconds": 1e3 * times["InfoNCE"],
            "ClosedFormInfoNCE / InfoNCE": times["ClosedFormInfoNCE"] / times["InfoNCE"],
        }
        for setting, values in metrics.items():
            if f"D = {dim}" in setting:
                print(setting)
                for name, value in values.items():
                    print(f"  {name:44s} {value:10.3f}", flush=True)
    settings = {"batch": BATCH, "kappa_pos": KAPPA_POS, "threads": torch.get_num_threads()}
    record = Record("benchmark-losses", metrics, "python -m benchmarks.losses", 0, settings)
    write_record(record, arguments.out)


if __name__ == "__main__":
    main()
