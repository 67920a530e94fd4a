"""Fit: the training loop on Lightning Fabric, in phases, resumable to the same result.

Everything random in step s is drawn from a generator seeded by (seed, s), and the learning rate is a function of s. So
a checkpoint holds the parameters, their average and the optimiser's moments, and a run that was killed and started
again ends where an undisturbed one ends.
"""

import copy
import importlib.util
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError, MissingPackageError
from aureole.losses import ContrastiveLoss, n_ranks, rank
from aureole.models import bfloat16_in_hardware
from aureole.training._checkpoint import load_checkpoint, save_checkpoint
from aureole.training._diagnostics import Diagnosis, diagnose, warn_of_collapse
from aureole.training._objective import Batch, objective, seeded, shared_objective
from aureole.training._ranks import (
    average as average_over_ranks,
    check_alike,
    from_first,
    refuse_batch_norms,
)
from aureole.training._schedule import Phase, locate

Precision = Literal["auto", "32-true", "bf16-mixed"]
Evaluate = Callable[[nn.Module], dict[str, float]]
_MISSING = "training needs Lightning Fabric: pip install 'aureole[train]'."


class DivergenceError(AureoleError):
    """The loss became infinite or NaN."""


@runtime_checkable
class Observer(Protocol):
    """Something that watches a fit, such as a progress bar."""

    def __call__(self, step: int, total: int, phase: Phase, loss: float, state: Diagnosis) -> None:
        """Called a few times a second."""
        ...


@dataclass
class Fit:
    """A fitted encoder, its learning curve (one dict per evaluation) and the seconds spent on training."""

    encoder: nn.Module
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def fit(
    encoder: nn.Module,
    loss: ContrastiveLoss,
    draw_batch: Callable[[int, torch.Generator], Batch],
    *,
    phases: Sequence[Phase],
    seed: int = 0,
    betas: tuple[float, float] = (0.9, 0.99),
    average: float = 0.998,
    clip: float = 1.0,
    precision: Precision = "auto",
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 30.0,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 0,
    select: str | None = None,
    observer: Observer | None = None,
) -> Fit:
    """Train an encoder on batches of pairs, and return it with the running average of its weights.

    Parameters
    ----------
    encoder
        Returns posteriors. With phases other than "joint" it must have ``enter`` and ``parameter_groups`` as
        ``models.IndependentEncoder`` has.
    loss
        Its parameters, if it has any, are trained along.
    draw_batch
        Gives the batch of a step from the step and a generator seeded for it.
    phases
        What to train for how long.
    average
        Decay of the exponential average of the weights, shorter at the start; 0 for none.
    clip
        Largest norm of a gradient.
    precision
        "auto" runs hidden layers in bfloat16 on processors that have it in hardware.
    checkpoint
        A file to resume from if it exists, written every ``checkpoint_seconds`` and after each evaluation.
    evaluate
        Called with a copy of the averaged encoder every ``evaluate_every`` steps and at the end; fills the curve.
    select
        A figure of ``evaluate``: the encoder is returned as it was when that was highest, not as it is at the end.

    Notes
    -----
    Training runs on a GPU of CUDA where there is one. What ``evaluate`` is given and what is returned lie where the
    encoder came from, the CPU as a rule; the encoder and the loss go back there when the fit ends, however it ends.

    On several ranks (``training.ranks.joined``) all must call it alike. They share the work of each batch, and the
    result is that of one process to rounding, whatever their number; a run may go on with another number. The first
    alone evaluates, observes and writes the checkpoint, which must lie where all can read it.
    """
    total = sum(phase.steps for phase in phases)
    run = _Run(encoder, loss, phases, seed=seed, betas=betas, average=average, precision=precision)
    try:
        if checkpoint is not None and checkpoint.exists():
            run.restore(*load_checkpoint(checkpoint), where=checkpoint)
        check_alike(run.step, str(checkpoint))
        first = rank() == 0
        saved = shown = started = time.monotonic()
        spent = run.seconds
        while run.step < total:
            value, posterior, phase = run.advance(draw_batch, clip)
            now = time.monotonic()
            run.seconds = spent + now - started
            if first and observer is not None and (now - shown > 0.2 or run.step == total):
                observer(run.step, total, phase, value, diagnose(posterior))
                shown = now
            due = run.step == total or (evaluate_every and run.step % evaluate_every == 0)
            if due:
                point: dict[str, Any] = {}
                if first:
                    state = diagnose(posterior)
                    warn_of_collapse(state, learns_kappa=run.step == total and phase.part != "mu")
                    scores = {} if evaluate is None else evaluate(run.averaged().to(run.home))
                    point = {"step": run.step, "loss": value, **asdict(state), **scores}
                run.curve.append(from_first(point))
                if select is not None:
                    run.keep_best(select)
            if first and checkpoint is not None and (due or now - saved > checkpoint_seconds):
                save_checkpoint(checkpoint, *run.snapshot())
                saved = now
        fitted = run.averaged() if select is None else run.best_encoder()
        return Fit(fitted.to(run.home), run.curve, run.seconds)
    finally:
        run.leave()


def step_seed(seed: int, step: int) -> int:
    """The seed of a step: far apart for neighbouring steps and runs."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


class _Run:
    """The state of a fit: parameters, their average, the optimiser of the current phase, the step, the curve."""

    def __init__(
        self,
        encoder: nn.Module,
        loss: ContrastiveLoss,
        phases: Sequence[Phase],
        *,
        seed: int,
        betas: tuple[float, float],
        average: float,
        precision: Precision,
    ) -> None:
        self.fabric = _fabric(precision)
        if n_ranks() > 1:
            refuse_batch_norms(encoder)
        self.home = next((p.device for p in encoder.parameters()), self.fabric.device)
        self.encoder = encoder.to(self.fabric.device)
        self.loss = loss.to(self.fabric.device)
        self.phases, self.seed, self.betas, self.decay = list(phases), seed, betas, average
        self.mean = {name: p.detach().clone() for name, p in encoder.named_parameters()}
        self.step, self.seconds, self.phase_index = 0, 0.0, -1
        self.curve: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.optimiser: Any = None

    def advance(
        self,
        draw_batch: Callable[[int, torch.Generator], Batch],
        clip: float,
    ) -> tuple[float, VonMisesFisher | MixtureVMF, Phase]:
        """Take one step and return (loss, some posteriors, phase)."""
        index, within = locate(self.phases, self.step)
        if index != self.phase_index:
            self._begin(index)
        phase, device = self.phases[index], self.fabric.device
        for group, lr in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = lr * phase.rate(within)
        batch = draw_batch(
            self.step, torch.Generator().manual_seed(step_seed(self.seed, self.step))
        )
        seed = step_seed(~self.seed, self.step)
        if n_ranks() == 1:
            with seeded(seed, device):
                value, posterior = objective(self.module, self.loss, batch, device)
        else:
            value, posterior = shared_objective(self.module, self.loss, batch, device, seed=seed)
        seen = value.detach().clone()
        if n_ranks() > 1:
            average_over_ranks([seen])  # all see the same, and stop together
        if not bool(torch.isfinite(seen)):
            raise DivergenceError(
                f"the loss is {seen.item()} in step {self.step} (phase {phase.part!r}). Lower the learning rate, or "
                "look at the inputs of this step: draw_batch with the same seed gives them again."
            )
        if not value.requires_grad:
            raise InvalidInputError(
                f"{type(self.loss).__name__} does not depend on what a phase of {phase.part!r} trains."
            )
        self.optimiser.zero_grad()
        self.fabric.backward(value)
        if n_ranks() > 1:  # the encoder's gradients are averaged by DistributedDataParallel
            for parameter in self.loss.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                average_over_ranks([parameter.grad])
        trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, clip)
        self.optimiser.step()
        self.step += 1
        self._average()
        return seen.item(), posterior, phase

    def averaged(self) -> nn.Module:
        """A copy of the encoder with the averaged weights."""
        twin = copy.deepcopy(self.encoder)
        if hasattr(twin, "enter"):
            twin.enter(self.phases[self.phase_index].part)  # type: ignore[operator]
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                parameter.copy_(self.mean[name])
        return twin.requires_grad_(False).eval()

    def leave(self) -> None:
        """Give the encoder and the loss back where they came from."""
        self.encoder.to(self.home)
        self.loss.to(self.home)

    def keep_best(self, name: str) -> None:
        """Remember the averaged encoder if the curve's last point has the highest figure of this name so far."""
        if name not in self.curve[-1]:
            raise InvalidInputError(
                f"cannot select by {name!r}: evaluate gave {', '.join(self.curve[-1])}."
            )
        values = [-math.inf if math.isnan(point[name]) else point[name] for point in self.curve]
        if not self.best or values[-1] > max(values[:-1]):
            self.best = {k: v.clone() for k, v in self.averaged().state_dict().items()}

    def best_encoder(self) -> nn.Module:
        """The encoder that ``keep_best`` remembered."""
        twin = self.averaged()
        twin.load_state_dict(self.best)
        return twin

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(Tensors, state) that ``restore`` needs."""
        tensors = {f"encoder.{k}": v for k, v in self.encoder.state_dict().items()}
        tensors |= {f"loss.{k}": v for k, v in self.loss.state_dict().items()}
        tensors |= {f"mean.{k}": v for k, v in self.mean.items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{k}": torch.as_tensor(v) for k, v in moments.items()}
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "seed": self.seed,
            "phases": [asdict(p) for p in self.phases],
            "curve": self.curve,
        }
        return tensors, state

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any], *, where: Path) -> None:
        """Go on from a snapshot of the same run, read from a file."""
        if state["seed"] != self.seed or state["phases"] != [asdict(p) for p in self.phases]:
            raise InvalidInputError(
                f"the checkpoint {where} belongs to a run with another seed or other phases; delete it to start "
                "afresh."
            )
        names = ("encoder", "loss", "mean", "best", "optimiser")
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        for name, value in tensors.items():
            part, rest = name.split(".", 1)
            parts[part][rest] = value
        try:
            self.encoder.load_state_dict(parts["encoder"])
            self.loss.load_state_dict(parts["loss"])
        except RuntimeError as error:
            raise InvalidInputError(
                f"the checkpoint {where} belongs to another encoder or loss; delete it to start afresh. {error}"
            ) from error
        self.mean = {k: v.to(self.fabric.device) for k, v in parts["mean"].items()}
        self.best = {k: v.to(self.fabric.device) for k, v in parts["best"].items()}
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        if self.step == 0:
            return
        self._begin(locate(self.phases, self.step - 1)[0])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimiser"].items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})

    def _begin(self, index: int) -> None:
        """Start a phase with an optimiser of its own."""
        phase = self.phases[index]
        self.encoder.zero_grad()
        groups: list[dict[str, Any]] = [{"params": list(self.encoder.parameters()), "lr": phase.lr}]
        if hasattr(self.encoder, "enter"):
            self.encoder.enter(phase.part)  # type: ignore[operator]
            groups = list(self.encoder.parameter_groups(phase.lr))  # type: ignore[operator]
        elif phase.part != "joint":
            raise InvalidInputError(
                f"a phase trains {phase.part!r} alone, but {type(self.encoder).__name__} has no method enter(part)."
            )
        # wrapped in each phase anew: what DistributedDataParallel averages is what it trains
        self.module = self.fabric.setup_module(self.encoder)
        learned = list(self.loss.parameters())  # kappa_pos, where it is learnable
        for parameter in learned:  # its steps are relative, as those of a log
            groups.append({"params": [parameter], "lr": 10 * phase.lr * parameter.abs().item()})
        self.rates = [group["lr"] for group in groups]
        self.optimiser = self.fabric.setup_optimizers(
            torch.optim.Adam(groups, betas=self.betas, fused=True)
        )
        self.phase_index = index

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.decay, self.step / (self.step + 19))
        named = dict(self.encoder.named_parameters())
        current: list[Tensor] = [named[name] for name in self.mean]
        get_ema_multi_avg_fn(decay)(list(self.mean.values()), current, 0)


def check_fabric() -> None:
    """Say what to install if Lightning Fabric is missing: at once, and not when every rank has started."""
    try:
        found = importlib.util.find_spec("lightning_fabric")
    except ImportError:
        found = None
    if found is None:
        raise MissingPackageError(_MISSING)


def _fabric(precision: Precision) -> Any:
    """Fabric on one device, or as one of the ranks that have joined."""
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise MissingPackageError(_MISSING) from error

    # it would say which precision is used
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    chosen = bfloat16_in_hardware() if precision == "auto" else precision == "bf16-mixed"
    options: dict[str, Any] = {"devices": 1}
    if n_ranks() > 1:
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
        from lightning_fabric.strategies.ddp import DDPStrategy

        here = int(os.environ.get("LOCAL_WORLD_SIZE", n_ranks()))
        strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment())
        options = {"devices": here, "num_nodes": n_ranks() // here, "strategy": strategy}
    # not "auto": it takes MPS, which has no float64, before CUDA
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    precise = "bf16-mixed" if chosen else "32-true"
    fabric = Fabric(accelerator=accelerator, precision=precise, **options)
    if n_ranks() > 1:
        fabric.launch()
    return fabric
