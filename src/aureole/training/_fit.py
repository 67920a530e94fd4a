"""Training with ``fit``: a loop on Lightning Fabric, in phases, which resumes to the same result.

Everything random in step s comes from a generator seeded by (seed, s), and the learning rate is a function of s. So a
checkpoint holds the parameters, their average and the optimiser state, and an interrupted run that is started again
ends with the same weights as an uninterrupted one.
"""

import copy
import importlib.util
import json
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from aureole._io import atomic_file
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import AureoleWarning, DivergenceError, InvalidInputError, MissingPackageError
from aureole.evaluation import diagnose
from aureole.evaluation._diagnosis import Diagnosis
from aureole.losses import ContrastiveLoss, InfoNCE, PositivityLoss
from aureole.losses._negatives import n_ranks, rank
from aureole.models._encoders import Part
from aureole.models._networks import bfloat16_in_hardware
from aureole.training._distributed import (
    Batch,
    average_over_ranks,
    check_same_step,
    from_first,
    objective,
    posterior_and_pairs,
    refuse_batch_norms,
    seeded,
    shared_objective,
)

Precision = Literal["auto", "32-true", "bf16-mixed"]
Evaluate = Callable[[nn.Module], dict[str, float]]
DrawBatch = Callable[[int, torch.Generator], Batch]
_FORMAT = "aureole-checkpoint-1"
_MISSING = "training needs Lightning Fabric: pip install 'aureole[train]'."


@dataclass(frozen=True)
class Phase:
    """A number of steps that train one part of the encoder ("mu", "kappa" or "joint") at a learning rate.

    The shape "one-cycle" warms up over the first 5 % of the steps (at least 50 steps, at most a quarter) and then
    decays to zero along a cosine; "constant" keeps the rate.
    """

    part: Part
    steps: int
    lr: float
    shape: Literal["one-cycle", "constant"] = "one-cycle"

    def rate(self, step: int) -> float:
        """The learning rate of a step, 0 <= step < steps, as a fraction of ``lr``.

        Examples
        --------
        >>> phase = Phase("joint", 1000, 1e-3)
        >>> [round(phase.rate(step), 3) for step in (0, 50, 500, 999)]
        [0.04, 1.0, 0.541, 0.0]
        """
        if self.shape == "constant":
            return 1.0
        warm = max(self.steps // 20, min(50, self.steps // 4))
        if step < warm:
            return 0.04 + 0.96 * (1 - math.cos(math.pi * step / warm)) / 2
        return (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm))) / 2


@dataclass(frozen=True)
class FitOptions:
    """Options of training, evaluation and saving in ``fit``.

    Parameters
    ----------
    seed
        Seed of all randomness.
    betas
        The momentum coefficients of Adam.
    average
        Decay of the exponential moving average of the weights, shorter at the start; 0 for none.
    clip
        Largest gradient norm.
    precision
        "auto" runs hidden layers in bfloat16 on CPUs and GPUs that support it in hardware.
    checkpoint_seconds
        Time between two checkpoints. One is also written after each evaluation.
    evaluate_every
        Steps between two evaluations; 0 evaluates only at the end.
    select
        A metric of ``evaluate``: return the encoder with its highest value instead of the last one.
    patience
        End the training after so many evaluations without a new highest value; 0 for never.
    diagnose
        Whether to diagnose the result on one more batch, and to warn of problems.
    """

    seed: int = 0
    betas: tuple[float, float] = (0.9, 0.99)
    average: float = 0.998
    clip: float = 1.0
    precision: Precision = "auto"
    checkpoint_seconds: float = 30.0
    evaluate_every: int = 0
    select: str | None = None
    patience: int = 0
    diagnose: bool = True


@dataclass
class Fit:
    """A fitted encoder, its learning curve (one dict per evaluation) and the training time in seconds.

    ``diagnosis`` is that of the encoder on one more batch, on the first rank, unless a checkpoint was complete before.
    It has no information and no coverage for mixtures and for losses without kappa_pos.
    """

    encoder: nn.Module
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    diagnosis: Diagnosis | None = None


@runtime_checkable
class Observer(Protocol):
    """A callback that follows a fit, such as a progress bar."""

    def __call__(self, step: int, total: int, phase: Phase, loss: float, state: Diagnosis) -> None:
        """Called a few times per second."""
        ...


def fit(
    encoder: nn.Module,
    loss: ContrastiveLoss,
    draw_batch: DrawBatch,
    *,
    phases: Sequence[Phase],
    options: FitOptions | None = None,
    checkpoint: Path | None = None,
    evaluate: Evaluate | None = None,
    observer: Observer | None = None,
) -> Fit:
    """Train an encoder on batches of pairs, and return it with the moving average of its weights.

    Parameters
    ----------
    encoder
        Returns posteriors. For phases other than "joint" it needs the methods ``enter`` and ``parameter_groups``, as
        ``models.IndependentEncoder`` has them.
    loss
        Its parameters, if it has any, are trained too.
    draw_batch
        Returns the batch of a step, given the step and a generator seeded for it.
    phases
        Which part of the encoder to train, for how many steps, at which learning rate.
    options
        Seed, optimiser, precision, and how often to evaluate and save; see ``FitOptions``.
    checkpoint
        A file to resume from if it exists, and to save to.
    evaluate
        Called with a copy of the averaged encoder, every ``options.evaluate_every`` steps and at the end. The metrics
        it returns become part of the learning curve.
    observer
        Called a few times per second with the progress.

    Notes
    -----
    Training uses a CUDA GPU if there is one. The encoder passed to ``evaluate`` and the returned one are on the device
    where the encoder was before, usually the CPU; encoder and loss return there when the fit ends, also by an error.

    On several ranks, all must make the same call. They share the work of each batch, and the result equals that of one
    process up to rounding, for any number of ranks; a run may resume with another number. Only rank 0 evaluates, calls
    the observer and writes the checkpoint, which must be in a folder that all ranks can read.
    """
    options = options or FitOptions()
    total = sum(phase.steps for phase in phases)
    run = _Run(encoder, loss, phases, options)
    try:
        run.loss.trusted = True  # what the encoder returns is not checked again in each step
        if checkpoint is not None and checkpoint.exists():
            run.restore(*load_checkpoint(checkpoint), where=checkpoint)
        check_same_step(run.step, str(checkpoint))
        first = rank() == 0
        saved = shown = started = time.monotonic()
        spent, every, stepped = run.seconds, options.evaluate_every, run.step < total
        while run.step < total and not run.stale():
            value, posterior, phase = run.advance(draw_batch)
            now = time.monotonic()
            run.seconds = spent + now - started
            if first and observer is not None and (now - shown > 0.2 or run.step == total):
                observer(run.step, total, phase, value, diagnose(posterior))
                shown = now
            due = run.step == total or (every and run.step % every == 0)
            if due:
                point: dict[str, Any] = {}
                if first:
                    state = diagnose(posterior)
                    scores = {} if evaluate is None else evaluate(run.averaged().to(run.home))
                    point = {"step": run.step, "loss": value, **state.statistics(), **scores}
                run.curve.append(from_first(point))
                run.keep_best()
            late = now - saved > options.checkpoint_seconds
            if first and checkpoint is not None and (due or late):
                save_checkpoint(checkpoint, *run.snapshot())
                saved = now
        best = run.best_encoder().to(run.home)
        diagnosed = options.diagnose and first and stepped
        diagnosis = final_diagnosis(run, best, draw_batch) if diagnosed else None
        return Fit(best, run.curve, run.seconds, diagnosis)
    finally:
        run.encoder.to(run.home)
        run.loss.to(run.home).trusted = False


@torch.no_grad()
def final_diagnosis(run: "_Run", encoder: nn.Module, draw_batch: DrawBatch) -> Diagnosis:
    """The diagnosis of the fitted encoder on a batch of another seed, with warnings.

    Cost: one batch without gradients, and six losses of at most 1,024 of its items.
    """
    batch = draw_batch(run.step - 1, step_generator(~run.seed, run.step))
    posterior, pairs = posterior_and_pairs(encoder, batch, run.home)
    loss, known = run.loss, isinstance(posterior, VonMisesFisher) and len(posterior) > 2
    if known and len(pairs) and isinstance(loss, PositivityLoss):
        found = diagnose(posterior, pairs, kappa_pos=loss.kappa_pos.item(), warn=False)
    else:
        found = diagnose(posterior)
    trained = run.phases[run.phase_index].part != "mu" and not isinstance(loss, InfoNCE)
    for problem in found.problems:
        if trained or not problem.startswith("kappa"):
            warnings.warn(problem, AureoleWarning, stacklevel=4)  # at the caller of fit
    return found


def save_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state to one file, atomically."""
    from safetensors.torch import save_file

    # metrics of the curve may be NaN, which Python writes to JSON and ``load_checkpoint`` reads back
    header = {"format": _FORMAT, "state": json.dumps(state)}
    plain = {k: v.detach().contiguous() for k, v in tensors.items()}
    with atomic_file(path) as file:
        save_file(plain, file.name, metadata=header)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state in a checkpoint file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as handle:
            header = handle.metadata() or {}
            if header.get("format") != _FORMAT:
                raise InvalidInputError(
                    f"{path} is not a checkpoint of this version ({header.get('format')!r} instead of {_FORMAT!r}). "
                    "Delete it to start again."
                )
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
            return tensors, json.loads(header["state"])
    except (SafetensorError, json.JSONDecodeError, KeyError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as a checkpoint: {error}. Delete it to start again."
        ) from error


def step_seed(seed: int, step: int) -> int:
    """The seed of a step, mixed so that neighbouring steps and runs get unrelated seeds."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


def step_generator(seed: int, step: int) -> torch.Generator:
    """Return the random generator of a step."""
    return torch.Generator().manual_seed(step_seed(seed, step))


def locate(phases: Sequence[Phase], step: int) -> tuple[int, int]:
    """The index of the phase and the step within it, for a step counted from the start.

    Examples
    --------
    >>> locate([Phase("mu", 35, 1e-3), Phase("joint", 65, 1e-3)], 40)
    (1, 5)
    """
    for index, phase in enumerate(phases):
        if step < phase.steps:
            return index, step
        step -= phase.steps
    raise InvalidInputError(f"step {step} is beyond the end of the last phase.")


class _Run:
    """The state of a fit: parameters, their average, the optimiser of the current phase, the step, the curve."""

    def __init__(
        self,
        encoder: nn.Module,
        loss: ContrastiveLoss,
        phases: Sequence[Phase],
        options: FitOptions,
    ) -> None:
        self.fabric = _fabric(options.precision)
        if n_ranks() > 1:
            refuse_batch_norms(encoder)
        self.home = next((p.device for p in encoder.parameters()), self.fabric.device)
        self.encoder = encoder.to(self.fabric.device)
        self.loss = loss.to(self.fabric.device)
        self.phases, self.options, self.seed = list(phases), options, options.seed
        self.mean = {name: p.detach().clone() for name, p in encoder.named_parameters()}
        self.step, self.seconds, self.phase_index = 0, 0.0, -1
        self.curve: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.optimiser: Any = None

    def advance(self, draw_batch: DrawBatch) -> tuple[float, VonMisesFisher | MixtureVMF, Phase]:
        """Take one step and return (loss, posteriors of the batch, phase)."""
        index, within = locate(self.phases, self.step)
        if index != self.phase_index:
            self._begin(index)
        phase, device = self.phases[index], self.fabric.device
        for group, lr in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = lr * phase.rate(within)
        batch = draw_batch(self.step, step_generator(self.seed, self.step))
        seed = step_seed(~self.seed, self.step)
        if n_ranks() == 1:
            with seeded(seed, device):
                value, posterior = objective(self.module, self.loss, batch, device)
        else:
            value, posterior = shared_objective(self.module, self.loss, batch, device, seed=seed)
        seen = value.detach().clone()
        if n_ranks() > 1:
            average_over_ranks(seen)  # so that all ranks stop together
        if not bool(torch.isfinite(seen)):
            raise DivergenceError(
                f"the loss is {seen.item()} in step {self.step} (phase {phase.part!r}). Lower the learning rate, or "
                "inspect the inputs of this step: draw_batch with the same seed returns them again."
            )
        if not value.requires_grad:
            raise InvalidInputError(
                f"{type(self.loss).__name__} does not depend on the parameters that a phase of {phase.part!r} trains."
            )
        self.optimiser.zero_grad()
        self.fabric.backward(value)
        if n_ranks() > 1:  # the encoder's gradients are averaged by DistributedDataParallel
            for parameter in self.loss.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                average_over_ranks(parameter.grad)
        trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, self.options.clip)
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

    def keep_best(self) -> None:
        """Store the averaged encoder if the last point of the curve has the highest selected metric so far."""
        name = self.options.select
        if name is None:
            return
        if name not in self.curve[-1]:
            raise InvalidInputError(
                f"cannot select by {name!r}: evaluate returned {', '.join(self.curve[-1])}."
            )
        values = self._values(name)
        if not self.best or values[-1] > max(values[:-1]):
            self.best = {k: v.clone() for k, v in self.averaged().state_dict().items()}

    def stale(self) -> bool:
        """Whether the best point of the curve is so many evaluations old that the training is to end."""
        name = self.options.select
        if not self.options.patience or name is None or not self.curve:
            return False
        values = self._values(name)
        return len(values) - 1 - values.index(max(values)) >= self.options.patience

    def _values(self, name: str) -> list[float]:
        """A metric at each point of the curve; NaN is the worst."""
        return [-math.inf if math.isnan(point[name]) else point[name] for point in self.curve]

    def best_encoder(self) -> nn.Module:
        """The averaged encoder: the one that ``keep_best`` stored, or the last one without selection."""
        twin = self.averaged()
        if self.options.select is not None:
            twin.load_state_dict(self.best)
        return twin

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the state that ``restore`` needs."""
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
        """Resume from a snapshot of the same run."""
        if state["seed"] != self.seed or state["phases"] != [asdict(p) for p in self.phases]:
            raise InvalidInputError(
                f"the checkpoint {where} belongs to a run with another seed or other phases. Delete it to start "
                "again."
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
                f"the checkpoint {where} belongs to another encoder or loss. Delete it to start again. {error}"
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
        """Start a phase with a new optimiser."""
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
        # wrapped again in each phase, so that DistributedDataParallel averages what the phase trains
        self.module = self.fabric.setup_module(self.encoder)
        for parameter in self.loss.parameters():  # kappa_pos: relative steps, as for a logarithm
            groups.append({"params": [parameter], "lr": 10 * phase.lr * parameter.abs().item()})
        self.rates = [group["lr"] for group in groups]
        self.optimiser = self.fabric.setup_optimizers(
            torch.optim.Adam(groups, betas=self.options.betas, fused=True)
        )
        self.phase_index = index

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.options.average, self.step / (self.step + 19))
        named = dict(self.encoder.named_parameters())
        current: list[Tensor] = [named[name] for name in self.mean]
        get_ema_multi_avg_fn(decay)(list(self.mean.values()), current, 0)


def check_fabric() -> None:
    """Raise an error if Lightning Fabric is missing, before any rank is started."""
    try:
        spec = importlib.util.find_spec("lightning_fabric")
    except ImportError:
        spec = None
    if spec is None:
        raise MissingPackageError(_MISSING)


def _fabric(precision: Precision) -> Any:
    """Fabric on one device, or as one rank of the process group."""
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise MissingPackageError(_MISSING) from error

    # Fabric logs the precision at INFO level
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    bfloat16 = bfloat16_in_hardware() if precision == "auto" else precision == "bf16-mixed"
    options: dict[str, Any] = {"devices": 1}
    if n_ranks() > 1:
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
        from lightning_fabric.strategies.ddp import DDPStrategy

        here = int(os.environ.get("LOCAL_WORLD_SIZE", n_ranks()))
        strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment())
        options = {"devices": here, "num_nodes": n_ranks() // here, "strategy": strategy}
    # not "auto": it prefers MPS, which has no float64, to CUDA
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    mode = "bf16-mixed" if bfloat16 else "32-true"
    fabric = Fabric(accelerator=accelerator, precision=mode, **options)
    if n_ranks() > 1:
        fabric.launch()
    return fabric
