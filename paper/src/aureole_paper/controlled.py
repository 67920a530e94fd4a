"""The controlled experiment (the paper's section 5.1): what an encoder recovers where the posteriors are known."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aureole.data import PairBatch, Triplets
from aureole.distributions import VonMisesFisher
from aureole.evaluation import diagnose, partner_coverage, recovery
from aureole.evaluation._calibration import CAP_MASSES
from aureole.models import IndependentEncoder
from aureole.sphere import align
from aureole.synthetic import ControlledProcess
from aureole.training import FitOptions, Phase, fit
from aureole.training._fit import Fit, Observer
from aureole.training._recipes import keyed
from aureole_paper.latent_coverage import latent_coverage
from aureole_paper.paper_encoders import PaperEncoder
from aureole_paper.settings import Setting, rounded
from aureole_paper.starts import best_start

MASSES = (*CAP_MASSES, 0.99)  # of the caps whose coverage is recorded

# seeds of random draws outside of training, far from the seeds of steps
_EVALUATION, _INITIALISATION = 10_000_019, 20_000_003


def train(
    setting: Setting, seed: int, *, checkpoint: Path, observer: Observer | None = None
) -> tuple[Fit, ControlledProcess]:
    """(The fitted encoder, the process it was trained on)."""
    process = setting.process(seed)
    paper = setting.preset == "paper"
    loss, batches = setting.objective(), _batches(setting, process)
    encoder = _new_encoder(setting, process, seed)
    if setting.starts > 1 and not checkpoint.exists():
        encoder, _ = best_start(
            lambda k: _new_encoder(setting, process, seed + 1000 * k),
            loss,
            batches,
            starts=setting.starts,
            phase=Phase("joint", min(150, max(1, setting.steps // 10)), setting.lr),
            seed=seed,
            checkpoint=checkpoint,
        )
    fitted = fit(
        encoder,
        loss,
        batches,
        phases=setting.schedule(),
        options=FitOptions(
            seed=seed,
            average=0.998 if setting.averaging and not paper else 0.0,
            betas=(0.9, 0.999) if paper else (0.9, 0.99),
            clip=math.inf if paper else 1.0,
            precision="32-true" if paper else "auto",
            evaluate_every=max(1, setting.steps // 10),
        ),
        checkpoint=checkpoint,
        evaluate=lambda model: _brief_scores(model, process),
        observer=observer,
    )
    return fitted, process


def _new_encoder(setting: Setting, process: ControlledProcess, seed: int) -> IndependentEncoder:
    """An encoder initialised on a sample of inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIALISATION + seed)
        encoder = setting.encoder()
        sample = process.inputs(4096)
        if isinstance(encoder, PaperEncoder):
            points = math.isinf(setting.kappa_range[0])  # start from the range of the clear setting
            encoder.match_range(sample, (64.0, 128.0) if points else setting.kappa_range)
        else:
            encoder.initialise(sample)
            _tilt(encoder, setting.tilt)
    return encoder


@torch.no_grad()
def _tilt(encoder: IndependentEncoder, degrees: float) -> None:
    """Let all mu of an initialised encoder lean towards the first axis: its outputs have mean 0 and covariance 1."""
    *_, last = (m for m in encoder.location.modules() if isinstance(m, nn.Linear))
    last.bias[0] += math.tan(math.radians(degrees)) * math.sqrt(last.out_features)


def _batches(
    setting: Setting, process: ControlledProcess
) -> Callable[[int, torch.Generator], PairBatch | Triplets]:
    def among(_: int, rng: torch.Generator) -> PairBatch:
        return process.batch(
            setting.items, setting.pairs, self_weight=setting.self_weight, generator=rng
        )

    def separate(step: int, rng: torch.Generator) -> Triplets:
        anchor, positive = process.pairs(setting.items, rng)
        count = setting.negatives or 0
        # the paper found in-batch negatives better while mu is learned
        if count == 0 or (setting.phases == "paper" and step < setting.steps // 2):
            return Triplets(anchor, positive)
        fresh = process.inputs(setting.items * count, rng)
        return Triplets(anchor, positive, fresh.view(setting.items, count, -1))

    return among if setting.negatives is None else separate


@torch.no_grad()
def _brief_scores(model: nn.Module, process: ControlledProcess) -> dict[str, float]:
    x = process.inputs(2000, torch.Generator().manual_seed(_EVALUATION + 1))
    scores = recovery(model(x), *process.generator(x), max_items=1000)
    return {
        name: scores[name]
        for name in ("mu_rank", "mu_mae", "kappa_rank", "kappa_mae")
        if name in scores
    }


@torch.no_grad()
def evaluate(model: nn.Module, process: ControlledProcess) -> dict[str, Any]:
    """All metrics of a fitted encoder on 10,000 fresh inputs."""
    rng = torch.Generator().manual_seed(_EVALUATION)
    x = process.inputs(10_000, rng)
    mu, kappa = process.generator(x)
    posterior: VonMisesFisher = model(x)
    spread = process.family.spread(mu, kappa)
    metrics: dict[str, Any] = recovery(
        posterior, mu, kappa, spread=spread if bool((spread > 0).all()) else None
    )
    state = diagnose(posterior)
    moment = torch.linalg.eigvalsh(mu.T @ mu / len(mu))[0].item() * process.dim
    metrics |= {
        "mean_length": state.mean_length,
        "smallest_eigenvalue": state.smallest_eigenvalue,
        "true_smallest_eigenvalue": moment,
        "information": process.information(4096, rng),
    }
    order = torch.randperm(len(x), generator=rng)[:400]
    metrics["scatter"] = {"true": rounded(kappa[order]), "found": rounded(posterior.kappa[order])}
    if posterior.dim == process.dim:
        rotation = align(posterior.mu[:5000], mu[:5000])
        latents = process.latents(x[5000:], 20, generator=rng)
        held_out = VonMisesFisher(posterior.mu[5000:], posterior.kappa[5000:], validate_args=False)
        metrics["latent_coverage"] = keyed(
            latent_coverage(held_out, latents, rotation=rotation, masses=MASSES)
        )
        metrics["partner_coverage"] = keyed(_partner_coverage(model, process, rng))
        if process.dim == 2:
            metrics["posteriors"] = _examples(posterior, mu, kappa, rotation)
    return metrics


def _partner_coverage(
    model: nn.Module, process: ControlledProcess, rng: torch.Generator
) -> dict[float, float]:
    """Coverage of predictive caps: partners drawn from a gallery of 4,096 inputs by the true process."""
    query, gallery = process.inputs(2000, rng), process.inputs(4096, rng)
    rate = process.intensity(query, gallery, generator=rng)
    partner = torch.multinomial(rate, 1, generator=rng).squeeze(1)
    return partner_coverage(
        model(query), model(gallery), partner, kappa_pos=process.kappa_pos, masses=MASSES
    )


def _examples(
    posterior: VonMisesFisher, mu: Tensor, kappa: Tensor, rotation: Tensor
) -> dict[str, Any]:
    """Five posteriors of the circle, true and learned: those nearest to five even angles."""
    angle = torch.atan2(mu[:, 1], mu[:, 0])
    wanted = torch.linspace(-math.pi, math.pi, 6)[:-1] + math.pi / 5
    gap = torch.remainder(angle.unsqueeze(1) - wanted + math.pi, 2 * math.pi) - math.pi
    chosen = gap.abs().argmin(0).unique()  # a process may leave part of the circle out
    turned = posterior.mu[chosen] @ rotation.T
    return {
        "true_angle": rounded(angle[chosen]),
        "true_kappa": rounded(kappa[chosen]),
        "found_angle": rounded(torch.atan2(turned[:, 1], turned[:, 0])),
        "found_kappa": rounded(posterior.kappa[chosen]),
    }
