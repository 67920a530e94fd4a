"""Cost of the losses: forward and backward compared with InfoNCE on points, bare and with the paper's encoder.

``python -m benchmarks.losses [--repeats N] [--out results/benchmarks/losses.json]``

B = 512 anchors with 512 shared negatives. Peak memory is what one forward and backward pass adds to the process.

``python -m benchmarks.losses --grid`` compares instead with ``F.cross_entropy(anchor @ positive.T / T)``, plain InfoNCE
in two lines, at three batch sizes and four dimensions, with all other pairs of the batch as negatives: the closed form
with and without the compiled library, our InfoNCE and ELK. With kappa_pos = 20 and, since large kappa needs more terms,
with kappa_pos = 2 D, the default of FrozenHead. It writes results/benchmarks/loss_grid.json and resumes.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

import aureole as au
from aureole import sphere
from aureole.losses import ContrastiveLoss
from aureole.records import Record, write_record
from aureole.sphere import _native
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


def plain(n: int, dim: int) -> tuple[Callable[[], object], dict[str, torch.Tensor]]:
    """(InfoNCE in two lines, forward and backward; its inputs)."""
    anchor = sphere.normalize(torch.randn(n, dim))
    positive = sphere.normalize(anchor + 0.5 * sphere.normalize(torch.randn(n, dim)))
    leaves = {"anchor": anchor.requires_grad_(), "positive": positive.requires_grad_()}
    target = torch.arange(n)

    def run() -> None:
        value = torch.nn.functional.cross_entropy(KAPPA_POS * anchor @ positive.T, target)
        torch.autograd.grad(value, list(leaves.values()))

    return run, leaves


def in_batch(
    loss: ContrastiveLoss, leaves: dict[str, torch.Tensor], kappa: float, *, native: bool = True
) -> Callable[[], object]:
    """Forward and backward of a loss with all other pairs as negatives."""
    own = kappa * (0.8 + 0.8 * torch.rand(2, len(leaves["anchor"])))
    inputs = [*leaves.values(), *(k.clone().requires_grad_() for k in own)]
    library = _native.native_library() if native else None

    def run() -> None:
        with patch.object(_native, "native_library", lambda: library):
            pairs = zip(inputs[:2], inputs[2:], strict=True)
            value = loss(*(au.VonMisesFisher(m, k, validate_args=False) for m, k in pairs))
            torch.autograd.grad(value, inputs, allow_unused=True)

    return run


def rivals(n: int, dim: int, kappa_pos: float) -> dict[str, Callable[[], object]]:
    """What ``--grid`` compares, by name."""
    run, leaves = plain(n, dim)
    closed = au.ClosedFormInfoNCE(kappa_pos, in_batch="all")
    return {
        "plain": run,
        "InfoNCE": in_batch(au.InfoNCE(temperature=1 / KAPPA_POS, in_batch="all"), leaves, 20.0),
        "ELK": in_batch(au.ELK(temperature=1.0, in_batch="all"), leaves, kappa_pos),
        "ClosedFormInfoNCE, compiled": in_batch(closed, leaves, kappa_pos),
        "ClosedFormInfoNCE, torch": in_batch(closed, leaves, kappa_pos, native=False),
    }


def grid_peak(name: str, n: int, dim: int, kappa_pos: float) -> float:
    """Memory in MB that one run of a rival adds, in a separate process."""
    code = (
        f"from benchmarks.losses import *; print_growth(rivals({n}, {dim}, {kappa_pos})[{name!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def grid(repeats: int, out: Path) -> None:
    """Measure all sizes, each setting once, and write the record."""
    progress = out.with_suffix(".progress")
    metrics = json.loads(progress.read_text()) if progress.exists() else {}
    for n, dim, factor in itertools.product((256, 1024, 4096), (10, 32, 128, 512), (0, 2)):
        kappa_pos = float(factor * dim or KAPPA_POS)
        setting = f"N = {n}, D = {dim}, kappa_pos = {kappa_pos:g}"
        if setting in metrics or (n == 4096 and factor and dim > 32):  # minutes each
            continue
        torch.manual_seed(0)
        runs = rivals(n, dim, kappa_pos)
        times = median_seconds(runs, 3 if n == 4096 or factor else repeats)
        row = {"plain milliseconds": 1e3 * times["plain"]}
        row |= {f"{k} / plain": t / times["plain"] for k, t in times.items() if k != "plain"}
        if n == 4096:
            used = {k: grid_peak(k, n, dim, kappa_pos) for k in runs if k not in ("InfoNCE", "ELK")}
            row |= {
                f"{k} / plain, memory": m / used["plain"] for k, m in used.items() if k != "plain"
            }
        metrics[setting] = row
        print(setting, *(f"{k}: {v:.2f}" for k, v in row.items()), sep="\n  ", flush=True)
        progress.write_text(json.dumps(metrics))
    about = {"threads": torch.get_num_threads(), "instructions": _native.native_instructions()}
    record = Record("benchmark-loss-grid", metrics, "python -m benchmarks.losses --grid", 0, about)
    write_record(record, out)
    progress.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/losses.json"))
    parser.add_argument("--grid", action="store_true")
    arguments = parser.parse_args()
    if arguments.grid:
        grid(arguments.repeats, Path("results/benchmarks/loss_grid.json"))
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
