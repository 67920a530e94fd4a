"""Posteriors with two modes (the paper's future work): what a mixture recovers where a single vMF cannot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses import ClosedFormInfoNCE
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.training import FitOptions, Phase, fit
from aureole.training._fit import Fit, Observer
from aureole_paper.mixture_recovery import align_mixtures, divergence, mode_recovery, rotate_mixture
from aureole_paper.paper_encoders import MixtureEncoder
from aureole_paper.posterior_families import BimodalProcess
from aureole_paper.settings import RunSetting, rounded

_EVALUATION, _INITIALISATION = 10_000_019, 20_000_003


@dataclass(frozen=True)
class BimodalSetting(RunSetting):
    """A run on the bimodal process, with posteriors of one or two components."""

    name: str
    components: int
    dim: int = 3
    kappa_range: tuple[float, float] = (16.0, 32.0)
    kappa_pos: float = 20.0
    items: int = 256
    pairs: int = 1000
    steps: int = 1500
    lr: float = 4e-3
    width: int = 256
    preset: str = "fast"


def train(
    setting: BimodalSetting, seed: int, *, checkpoint: Path, observer: Observer | None = None
) -> tuple[Fit, BimodalProcess]:
    """(The fitted encoder, the process it was trained on)."""
    process = BimodalProcess.draw(
        setting.dim, setting.kappa_range, kappa_pos=setting.kappa_pos, seed=seed
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIALISATION + seed)
        encoder = _encoder(setting)
        encoder.initialise(process.inputs(4096))
    fitted = fit(
        encoder,
        ClosedFormInfoNCE(setting.kappa_pos, centring=0.02),
        lambda _, rng: process.batch(setting.items, setting.pairs, generator=rng),
        phases=[
            Phase("mu", round(0.2 * setting.steps), setting.lr),
            Phase("joint", setting.steps - round(0.2 * setting.steps), setting.lr),
        ],
        options=FitOptions(seed=seed, evaluate_every=max(1, setting.steps // 10)),
        checkpoint=checkpoint,
        evaluate=lambda model: {"divergence": evaluate(model, process, n=1000)["divergence"]},
        observer=observer,
    )
    return fitted, process


def _encoder(setting: BimodalSetting) -> IndependentEncoder:
    dim, count = setting.dim, setting.components
    sizes = (dim, 1) if count == 1 else (count * dim, 2 * count)
    networks = (ResidualMLP(dim, n_out, width=setting.width) for n_out in sizes)
    if count == 1:
        return IndependentEncoder(*networks, n_in=dim)
    return MixtureEncoder(*networks, n_in=dim, n_components=count)


@torch.no_grad()
def evaluate(model: nn.Module, process: BimodalProcess, *, n: int = 5000) -> dict[str, Any]:
    """All metrics on n inputs, after a rotation fitted on n others."""
    rng = torch.Generator().manual_seed(_EVALUATION)
    other, x = process.inputs(n, rng), process.inputs(n, rng)
    truth = process.posterior(x)
    rotation = align_mixtures(_as_mixture(model(other)), process.posterior(other))
    learned = rotate_mixture(_as_mixture(model(x)), rotation)
    metrics: dict[str, Any] = {"divergence": divergence(learned, truth, generator=rng)}
    separation = torch.rad2deg(torch.acos((truth.mu[:, 0] * truth.mu[:, 1]).sum(-1).clamp(-1, 1)))
    metrics["separation_degrees"] = separation.mean().item()
    torn = truth.weights.min(-1).values > 0.2
    metrics["torn_share"] = torn.double().mean().item()
    metrics["divergence_torn"] = divergence(_rows(learned, torn), _rows(truth, torn), generator=rng)
    if learned.weights.shape[-1] == 2:
        metrics |= mode_recovery(_rows(learned, torn), _rows(truth, torn))
    if process.dim == 3:
        metrics["examples"] = _examples(learned, truth, separation)
    return metrics


def _rows(posterior: MixtureVMF, rows: torch.Tensor) -> MixtureVMF:
    return MixtureVMF(
        posterior.weights[rows], posterior.mu[rows], posterior.kappa[rows], validate_args=False
    )


def _as_mixture(posterior: VonMisesFisher | MixtureVMF) -> MixtureVMF:
    if isinstance(posterior, MixtureVMF):
        return posterior
    kappa = posterior.kappa.unsqueeze(-1)
    return MixtureVMF(
        torch.ones_like(kappa), posterior.mu.unsqueeze(-2), kappa, validate_args=False
    )


def _examples(learned: MixtureVMF, truth: MixtureVMF, separation: torch.Tensor) -> dict[str, Any]:
    """Three posteriors with evenly weighted modes that are about 60, 90 and 140 degrees apart."""
    lopsided = 100 * (truth.weights[:, 0] - 0.5).abs()
    chosen = [int(((separation - wanted).abs() + lopsided).argmin()) for wanted in (60, 90, 140)]

    def parts(mixture: MixtureVMF) -> dict[str, Any]:
        values = {"mu": mixture.mu, "kappa": mixture.kappa, "weight": mixture.weights}
        return {name: rounded(value[chosen]) for name, value in values.items()}

    return {"true": parts(truth), "found": parts(learned)}
