"""Starts: a few short runs from different initial weights, of which the best goes on.

On the circle, maps from inputs to latents have local minima of a topological kind: part of the inputs goes round the
wrong way, and no small step turns it. Such a start shows early in the loss on fresh pairs, so a few short runs and a
choice by that loss, which needs no truth, avoid it. In ten dimensions it was never needed.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from aureole.data import PairBatch, Triplets
from aureole.losses import ContrastiveLoss, rank
from aureole.training._fit import fit, step_seed
from aureole.training._objective import objective
from aureole.training._schedule import Phase

_HELD_OUT = 16  # batches by which starts are compared; all see the same ones


def best_start(
    new_encoder: Callable[[int], nn.Module],
    loss: ContrastiveLoss,
    draw_batch: Callable[[int, torch.Generator], PairBatch | Triplets],
    *,
    starts: int,
    phase: Phase,
    seed: int,
    checkpoint: Path | None = None,
) -> tuple[nn.Module, list[float]]:
    """(The encoder with the lowest loss on fresh batches after a short phase, the losses of all starts).

    ``new_encoder(k)`` gives the k-th start. With a checkpoint, starts that are done are not trained again. Cost:
    ``starts`` times the phase.
    """
    found: list[tuple[float, nn.Module]] = []
    for k in range(starts):
        path = None if checkpoint is None else checkpoint.with_suffix(f".{k}.safetensors")
        encoder = fit(
            new_encoder(k), loss, draw_batch, phases=[phase], seed=seed, checkpoint=path
        ).encoder
        device = next(encoder.parameters()).device
        with torch.no_grad():
            values = [
                objective(encoder, loss, draw_batch(step, _generator(seed, step)), device)[0].item()
                for step in range(-_HELD_OUT, 0)
            ]
        found.append((sum(values) / _HELD_OUT, encoder))
    best = min(found, key=lambda pair: pair[0])[1].train()
    best.requires_grad_(True)
    for k in range(starts if checkpoint is not None and rank() == 0 else 0):
        checkpoint.with_suffix(f".{k}.safetensors").unlink(missing_ok=True)  # type: ignore[union-attr]
    return best, [value for value, _ in found]


def _generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step_seed(seed, step))
