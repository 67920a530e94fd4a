"""The best of several initialisations, for problems with local minima."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from aureole.losses import ContrastiveLoss
from aureole.losses._negatives import rank
from aureole.training import FitOptions, Phase, fit
from aureole.training._distributed import objective
from aureole.training._fit import DrawBatch, step_generator

_COMPARED = 16  # batches by which starts are compared; all see the same ones


def best_start(
    new_encoder: Callable[[int], nn.Module],
    loss: ContrastiveLoss,
    draw_batch: DrawBatch,
    *,
    starts: int,
    phase: Phase,
    seed: int,
    checkpoint: Path | None = None,
) -> tuple[nn.Module, list[float]]:
    """Train several initialisations for a short phase; return the best one and the losses of all on fresh batches.

    On the circle (D = 2), maps from inputs to latents have local minima of a topological kind: a part of the inputs is
    mapped the wrong way round, and no small step corrects it. Such a start has a high loss early on, so a few short
    runs avoid it without knowing the truth. In ten dimensions this was never needed.

    ``new_encoder(k)`` returns the k-th initialisation. With a checkpoint, finished starts are not trained again. Cost:
    ``starts`` times the phase.
    """
    trained: list[tuple[float, nn.Module]] = []
    options = FitOptions(seed=seed, diagnose=False)
    for k in range(starts):
        path = None if checkpoint is None else checkpoint.with_suffix(f".{k}.safetensors")
        start = fit(
            new_encoder(k), loss, draw_batch, phases=[phase], options=options, checkpoint=path
        )
        encoder = start.encoder
        device = next(encoder.parameters()).device
        with torch.no_grad():
            values = [
                objective(encoder, loss, draw_batch(step, step_generator(seed, step)), device)[
                    0
                ].item()
                for step in range(-_COMPARED, 0)
            ]
        trained.append((sum(values) / _COMPARED, encoder))
    best = min(trained, key=lambda pair: pair[0])[1].train()
    best.requires_grad_(True)
    if checkpoint is not None and rank() == 0:
        for k in range(starts):
            checkpoint.with_suffix(f".{k}.safetensors").unlink(missing_ok=True)
    return best, [value for value, _ in trained]
