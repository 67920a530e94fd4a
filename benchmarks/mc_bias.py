"""Sources of MCInfoNCE's bias: the number of samples K, and the number of negatives M.

``python -m benchmarks.mc_bias [--out paper/results]`` writes mc_bias.json.

As K grows the loss falls to its own limit -log E[fraction], an expectation over the whole fraction with a shared z.
That limit differs from the closed form at finite M. Both are measured on pairs of the exact process with uniform mu and
one true kappa = 24 (D = 10, kappa_pos = 20), and so is the kappa that each loss prefers when mu is right and one kappa
is fitted to all inputs, on a grid that ends at 143.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

import aureole as au
from aureole import sphere
from aureole.losses import Negatives, closed_form_infonce, log_fraction
from aureole.records import Record, write_record

DIM, KAPPA_POS, KAPPA = 10, 20.0, 24.0


def pairs(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mean directions of n pairs of the exact process: c has density (1 - c^2)^((D-3)/2) S h(c)."""
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)[1:-1]
    kappa = torch.tensor(KAPPA, dtype=torch.float64)
    log_density = sphere.log_positivity(grid, kappa, kappa, KAPPA_POS, DIM) + (
        DIM - 3
    ) / 2 * torch.log1p(-(grid**2))
    weight = torch.softmax(log_density, 0)
    c = grid[torch.multinomial(weight, n, replacement=True, generator=generator)].float()
    anchor = directions(n, generator)
    normals = torch.randn(n, DIM - 1, generator=generator)
    return anchor, sphere.normalize(sphere.wrap(normals, torch.acos(c), anchor))


def directions(n: int, generator: torch.Generator) -> Tensor:
    """Uniform mean directions."""
    return sphere.normalize(torch.randn(n, DIM, generator=generator))


class Problem:
    """Pairs, negatives and the uniform numbers behind their samples, the same for every kappa."""

    def __init__(self, n: int, m: int, k: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.anchor, self.positive = pairs(n, generator)
        self.negative = directions(m, generator)
        self.cubes = [torch.rand(k, size, DIM, generator=generator) for size in (n, n, m)]

    def posteriors(self, kappa: float) -> list[au.VonMisesFisher]:
        """Anchors, partners and negatives with one kappa for all."""
        return [au.VonMisesFisher(mu, kappa) for mu in (self.anchor, self.positive, self.negative)]

    def log_fractions(self, kappa: float) -> Tensor:
        """Log of the fraction per sample and pair, [K, n]."""
        posteriors = self.posteriors(kappa)
        draws = [q.transport(cube) for q, cube in zip(posteriors, self.cubes, strict=True)]
        negatives = Negatives(posteriors[2])
        parts = zip(*(d.split(16) for d in draws), strict=True)
        return torch.cat(
            [log_fraction(*p, kappa_pos=KAPPA_POS, negatives=negatives) for p in parts]
        )

    def closed_form(self, kappa: float) -> Tensor:
        """The closed form's loss per pair."""
        anchor, positive, negative = self.posteriors(kappa)
        return closed_form_infonce(anchor, positive, Negatives(negative), kappa_pos=KAPPA_POS)


def grouped_loss(log_fractions: Tensor, k: int) -> Tensor:
    """The loss with k samples, averaged over the disjoint groups of k among all samples: [pairs]."""
    groups = log_fractions.unflatten(0, (-1, k))
    return -(torch.logsumexp(groups, 1) - math.log(k)).mean(0)


def bias_in_k() -> dict[str, float]:
    """Mean loss with K samples minus its limit, which is estimated from 65,536 samples."""
    fractions = torch.cat([Problem(24, 32, 8192, seed=1).log_fractions(KAPPA)] + [
        _more_draws(1, 24, 32, 8192, seed) for seed in range(2, 9)
    ])  # fmt: skip
    limit = grouped_loss(fractions, fractions.shape[0])
    return {
        str(k): (grouped_loss(fractions, k) - limit).mean().item()
        for k in (1, 4, 16, 64, 256, 1024)
    }


def _more_draws(problem_seed: int, n: int, m: int, k: int, seed: int) -> Tensor:
    """More samples for the same pairs and negatives."""
    problem = Problem(n, m, 1, problem_seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    problem.cubes = [torch.rand(k, size, DIM, generator=generator) for size in (n, n, m)]
    return problem.log_fractions(KAPPA)


def gap_in_m() -> dict[str, dict[str, float]]:
    """The limit minus the closed form: mean over pairs, and spread over pairs (what a constant cannot absorb)."""
    found = {}
    for m in (1, 4, 16, 64, 256, 1024):
        problem = Problem(64, m, 4096, seed=2)
        gap = grouped_loss(problem.log_fractions(KAPPA), 4096) - problem.closed_form(KAPPA)
        found[str(m)] = {"mean": gap.mean().item(), "spread": gap.std().item()}
    return found


def preferred_kappa(losses: dict[float, float]) -> float:
    """Minimum of a parabola in log kappa through the three best points of a grid, or the end of the grid."""
    grid = sorted(losses)
    best = min(range(len(grid)), key=lambda i: losses[grid[i]])
    if best in (0, len(grid) - 1):
        return grid[best]
    x = [math.log(grid[i]) for i in (best - 1, best, best + 1)]
    y = [losses[grid[i]] for i in (best - 1, best, best + 1)]
    slope, bend = (y[2] - y[0]) / 2, y[2] - 2 * y[1] + y[0]
    return math.exp(x[1] - (x[1] - x[0]) * slope / bend)


def kappa_preferred() -> dict[str, dict[str, float]]:
    """The kappa that minimises each loss, mean and standard error over five sets of pairs (truth: 24)."""
    grid = [KAPPA * 1.25**i for i in range(-5, 9)]
    found: dict[str, list[float]] = {}
    for seed in range(5):
        for m, draws in ((256, (1, 16, 512)), (1, (512,)), (16, (512,))):
            problem = Problem(256, m, 512, seed=10 + seed)
            losses: dict[str, dict[float, float]] = {}
            for kappa in grid:
                fractions = problem.log_fractions(kappa)
                for k in draws:
                    losses.setdefault(f"MCInfoNCE, K = {k}, M = {m}", {})[kappa] = (
                        grouped_loss(fractions, k).mean().item()
                    )
                losses.setdefault(f"closed form, M = {m}", {})[kappa] = (
                    problem.closed_form(kappa).mean().item()
                )
            for name, values in losses.items():
                found.setdefault(name, []).append(preferred_kappa(values))
    return {
        name: {
            "mean": float(torch.tensor(v).mean()),
            "standard error": float(torch.tensor(v).std()) / math.sqrt(len(v)),
        }
        for name, v in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("paper/results"))
    arguments = parser.parse_args()
    with torch.no_grad():
        metrics = {"bias in K": bias_in_k(), "gap in M": gap_in_m()}
        print(metrics, flush=True)
        metrics["preferred kappa"] = kappa_preferred()
    for name, value in metrics["preferred kappa"].items():
        print(name, value)
    settings = {"dim": DIM, "kappa_pos": KAPPA_POS, "kappa": KAPPA}
    record = Record("mc-bias", metrics, "python -m benchmarks.mc_bias", 0, settings)
    write_record(record, arguments.out / "mc_bias.json")


if __name__ == "__main__":
    main()
