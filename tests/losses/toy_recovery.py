"""What each loss recovers where the truth is known: tabulated posteriors on the sphere in three dimensions.

``python -m benchmarks.toy_recovery [--inputs 64] [--out paper/results/losses/toy_recovery.json]``

Each input x has its own mu and kappa, free parameters of a table. Pairs follow P(x+|x) proportional to h exactly.
Losses without sampling are minimised by L-BFGS over the full expectation: every anchor, every partner, every input as
the one negative (M = 1, for which InfoNCE is as exact as for any M). Losses that sample get fresh pairs and negatives
from the same distributions in each step of Adam.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import aureole as au
from aureole import sphere
from aureole.losses import ContrastiveLoss
from aureole.records import Record, write_record

DIM = 3
KAPPA_POS = 20.0


def true_posteriors(n: int, generator: torch.Generator) -> au.VonMisesFisher:
    """Posteriors of n inputs, mu spread evenly over the sphere (Fibonacci lattice) and kappa log-uniform in [8, 64]."""
    i = torch.arange(n, dtype=torch.float64)
    z, turn = 1 - 2 * (i + 0.5) / n, i * math.pi * (3 - math.sqrt(5))
    ring = torch.sqrt(1 - z * z)
    mu = torch.stack([ring * torch.cos(turn), ring * torch.sin(turn), z], -1)
    kappa = 8 * 8 ** torch.rand(n, dtype=torch.float64, generator=generator)
    return au.VonMisesFisher(sphere.normalize(mu), kappa)


def pair_probabilities(truth: au.VonMisesFisher) -> Tensor:
    """P(x, x+) for all pairs of inputs, [n, n]."""
    n = len(truth.kappa)
    cosine = (truth.mu @ truth.mu.T).clamp(-1, 1)
    h = sphere.log_positivity(cosine, truth.kappa.unsqueeze(1), truth.kappa, KAPPA_POS, DIM).exp()
    return h / h.sum(-1, keepdim=True) / n


def start_table(truth: au.VonMisesFisher, seed: int) -> tuple[Tensor, Tensor]:
    """Free parameters: the true mu perturbed by half a radian (the optimum may be rotated), and one kappa for all."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(truth.mu.shape, dtype=torch.float64, generator=generator)
    log_kappa = torch.full_like(truth.kappa, math.log(20.0))
    return (truth.mu + 0.5 * noise).requires_grad_(), log_kappa.requires_grad_()


def picker(raw: Tensor, log_kappa: Tensor) -> Callable[[Tensor], au.VonMisesFisher]:
    """The posteriors of inputs by their indices."""
    mu, kappa = sphere.normalize(raw), log_kappa.exp()
    return lambda index: au.VonMisesFisher(mu[index], kappa[index], validate_args=False)


def recover_in_full(
    loss: ContrastiveLoss, truth: au.VonMisesFisher, *, steps: int, seed: int
) -> au.VonMisesFisher:
    """The table that minimises the expectation over all (anchor, partner, negative), by L-BFGS."""
    n = len(truth.kappa)
    grid = torch.arange(n)
    rows, columns, others = (x.flatten() for x in torch.meshgrid(grid, grid, grid, indexing="ij"))
    weight = (pair_probabilities(truth) / n).unsqueeze(-1).expand(n, n, n).flatten()
    seen = weight > 1e-6 / n**2  # partners with a probability below one in a million are ignored
    rows, columns, others, weight = (x[seen] for x in (rows, columns, others, weight))
    raw, log_kappa = start_table(truth, seed)
    optimiser = torch.optim.LBFGS(
        [raw, log_kappa],
        max_iter=steps,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        pick = picker(raw, log_kappa)
        value = (weight * loss(pick(rows), pick(columns), pick(others.unsqueeze(1)))).sum()
        value.backward()
        return value

    optimiser.step(closure)
    return picker(raw.detach(), log_kappa.detach())(grid)


def recover_by_draws(
    loss: ContrastiveLoss, truth: au.VonMisesFisher, *, steps: int, seed: int
) -> au.VonMisesFisher:
    """The table after Adam with a cosine schedule on 512 fresh pairs and 64 fresh negatives per step."""
    n = len(truth.kappa)
    generator = torch.Generator().manual_seed(seed)
    probabilities = pair_probabilities(truth).flatten()
    raw, log_kappa = start_table(truth, seed)
    optimiser = torch.optim.Adam([raw, log_kappa], lr=0.03, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        pick = picker(raw, log_kappa)
        pairs = torch.multinomial(probabilities, 512, replacement=True, generator=generator)
        fresh = torch.randint(n, (64,), generator=generator)
        value = loss(pick(pairs // n), pick(pairs % n), pick(fresh)).mean()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
    return picker(raw.detach(), log_kappa.detach())(torch.arange(n))


def errors(found: au.VonMisesFisher, truth: au.VonMisesFisher) -> dict[str, float]:
    """Mean and worst errors of mu, in degrees after alignment, and of kappa, relative."""
    turned = found.mu @ sphere.align(found.mu, truth.mu).T
    angle = torch.rad2deg(torch.acos((turned * truth.mu).sum(-1).clamp(-1, 1)))
    ratio = (found.kappa / truth.kappa - 1).abs()
    ranks = torch.stack([k.argsort().argsort().double() for k in (found.kappa, truth.kappa)])
    return {
        "mu mean degrees": angle.mean().item(),
        "mu worst degrees": angle.max().item(),
        "kappa mean relative error": ratio.mean().item(),
        "kappa worst relative error": ratio.max().item(),
        "kappa rank correlation": torch.corrcoef(ranks)[0, 1].item(),
    }


def losses() -> dict[str, ContrastiveLoss]:
    """The losses to compare; those that sample use few samples."""
    return {
        "ClosedFormInfoNCE": au.ClosedFormInfoNCE(KAPPA_POS, reduction="none"),
        "InfoNCE": au.InfoNCE(temperature=1 / KAPPA_POS, reduction="none"),
        "ELK": au.ELK(temperature=1.0, reduction="none"),
        "MCInfoNCE, K = 16": au.MCInfoNCE(KAPPA_POS, 16, reduction="none"),
        "MCInfoNCE, K = 1": au.MCInfoNCE(KAPPA_POS, 1, reduction="none"),
        "HedgedInstance": au.losses.HedgedInstance(a=1.0, b=0.0, n_samples=16, reduction="none"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=120, help="iterations of L-BFGS")
    parser.add_argument(
        "--draw-steps", type=int, default=1500, help="steps of Adam, for the losses that sample"
    )
    parser.add_argument("--out", type=Path, default=Path("paper/results/losses/toy_recovery.json"))
    arguments = parser.parse_args()
    seed = 4
    truth = true_posteriors(arguments.inputs, torch.Generator().manual_seed(seed))
    metrics = {}
    for name, loss in losses().items():
        torch.manual_seed(seed)
        draws = isinstance(loss, (au.MCInfoNCE, au.losses.HedgedInstance))
        steps = arguments.draw_steps if draws else arguments.steps
        run = recover_by_draws if draws else recover_in_full
        found = run(loss, truth, steps=steps, seed=seed)
        metrics[name] = {**errors(found, truth), "steps": steps}
        print(name, {k: round(v, 4) for k, v in metrics[name].items()}, flush=True)
        settings = {"inputs": arguments.inputs, "dim": DIM, "kappa_pos": KAPPA_POS}
        record = Record(
            "toy-recovery", metrics, "python -m benchmarks.toy_recovery", seed, settings
        )
        write_record(record, arguments.out)


if __name__ == "__main__":
    main()
