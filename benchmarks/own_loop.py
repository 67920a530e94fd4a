"""Does kappa rank noise in a training loop of your own? Ranks by design, head and negatives, five seeds each.

python -m benchmarks.own_loop writes results/benchmarks/own_loop.json; ``--part limits`` adds what limits the hardest
design, and ``--part libraries`` the same test inside pytorch-metric-learning and sentence-transformers, where
these are installed.

The loop is what you would write first: an encoder Linear-ReLU-Linear, a head, a loss without negatives, Adam at 3e-3,
128 pairs, 400 steps. A pair is two views of one thing, each with its own level of noise:

- added: twelve normal features plus normal noise, whose level is one more feature.
- missing: of 24 features, each 1 or -1, a share is 0. The level is the share, which is not a feature.
- missing values: the same with normal features, where what is left shows the level less clearly.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import aureole as au
from aureole.evaluation import spearman
from aureole.records import Record, read_record, write_record

DIM, KAPPA_POS, PAIRS, STEPS, RATE = 16, 20.0, 128, 400, 3e-3
SEEDS = (101, 102, 103, 104, 105)
View = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
HEADS = {"PosteriorHead": au.PosteriorHead, "KappaFromNorm": au.models.KappaFromNorm}


def things(design: str, n: int, rng: torch.Generator) -> Tensor:
    """The features of n things."""
    normal = torch.randn(n, 12 if design == "added" else 24, generator=rng)
    return normal.sign() if design == "missing" else normal


def view(design: str, seen: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(Input, level of noise) of one view of each thing."""
    level = torch.rand(len(seen), 1, generator=rng)
    if design == "added":
        level = 0.1 + 1.9 * level
        noise = torch.randn(seen.shape, generator=rng)
        return torch.cat([seen + level * noise, level], -1), level[:, 0]
    count = (0.9 * level * seen.shape[1]).round()
    order = torch.rand(seen.shape, generator=rng).argsort(1).argsort(1)
    return torch.where(order < count, 0.0, seen), count[:, 0]


def encoder(design: str, head: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    n_in = 13 if design == "added" else 24
    layers = nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 32)
    return nn.Sequential(*layers, HEADS[head](32, DIM))


def own_loop(
    design: str, head: str, in_batch: str, seed: int, *, steps: int | None = None
) -> nn.Module:
    """The encoder after training, in ``eval`` mode."""
    model, rng = encoder(design, head, seed), torch.Generator().manual_seed(seed)
    loss = au.ClosedFormInfoNCE(KAPPA_POS, in_batch=in_batch)  # pyright: ignore[reportArgumentType]
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(STEPS if steps is None else steps):
        seen = things(design, PAIRS, rng)
        (anchor, _), (positive, _) = view(design, seen, rng), view(design, seen, rng)
        optimiser.zero_grad()
        loss(model(anchor), model(positive)).backward()
        optimiser.step()
    return model.eval()


@torch.no_grad()
def kappa_rank(model: Callable[[Tensor], au.VonMisesFisher], design: str) -> float:
    """The rank correlation of kappa with the level of noise, on 2,000 new things: -1 is best."""
    rng = torch.Generator().manual_seed(0)
    inputs, level = view(design, things(design, 2000, rng), rng)
    return spearman(model(inputs).kappa, level)


def visible_rank(design: str) -> float:
    """The rank of the sum of squares of an input with the level of noise."""
    rng = torch.Generator().manual_seed(0)
    inputs, level = view(design, things(design, 2000, rng), rng)
    return spearman(inputs.square().sum(1), level)


def ranks(design: str, head: str, in_batch: str, steps: int = STEPS) -> dict[str, object]:
    started = time.perf_counter()
    trained = (own_loop(design, head, in_batch, seed, steps=steps) for seed in SEEDS)
    values = [round(kappa_rank(model, design), 3) for model in trained]
    seconds = (time.perf_counter() - started) / len(SEEDS)
    print(f"{design}, {head}, {in_batch}: {values} ({seconds:.1f} s)", flush=True)
    return {"ranks": values, "highest": max(values), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("designs", "limits", "libraries"), default="designs")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/own_loop.json"))
    arguments = parser.parse_args()
    metrics = read_record(arguments.out).metrics if arguments.out.exists() else {}
    if arguments.part == "libraries":
        from tests.training.library_loops import library_ranks

        metrics["libraries"] = metrics.get("libraries", {}) | library_ranks(SEEDS)
    elif arguments.part == "limits":
        hard = "missing values"
        metrics["limits"] = {
            "rank of the sum of squares": round(visible_rank(hard), 3),
            "four times the steps": ranks(hard, "PosteriorHead", "both", 4 * STEPS),
        }
    else:
        metrics |= {
            design: {
                head: {mode: ranks(design, head, mode) for mode in ("next", "all", "both")}
                for head in HEADS
            }
            for design in ("added", "missing", "missing values")
        }
    command = f"python -m benchmarks.own_loop {' '.join(sys.argv[1:])}".strip()
    settings = {"dim": DIM, "kappa_pos": KAPPA_POS, "pairs": PAIRS, "steps": STEPS, "lr": RATE}
    record = Record(
        "benchmarks/own_loop", metrics, command, settings=settings | {"seeds": list(SEEDS)}
    )
    write_record(record, arguments.out)


if __name__ == "__main__":
    main()
