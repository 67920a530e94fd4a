"""Cost of the losses: forward and backward compared with InfoNCE on points, bare and with the paper's encoder.

``python -m benchmarks.losses [--repeats N] [--out results/benchmarks/losses.json]``

B = 512 anchors with 512 shared negatives. Peak memory is what one forward and backward pass adds to the process.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import aureole as au
from aureole import sphere
from aureole.losses import ContrastiveLoss
from aureole.models import paper_mlp
from aureole.records import Record, write_record
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
        "HedgedInstance, K = 16": au.HedgedInstance(a=1.0, b=0.0, n_samples=16),
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
    run = bare(contenders()[name], dim)
    run()  # one-time loading does not count
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    print((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/losses.json"))
    arguments = parser.parse_args()
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
