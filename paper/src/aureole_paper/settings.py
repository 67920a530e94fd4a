"""Settings of the experiments: a run is a setting and a seed. Here: the controlled experiment, and losses by name."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.losses import (
    ELK,
    ClosedFormInfoNCE,
    ContrastiveLoss,
    HedgedInstance,
    InfoNCE,
    MCInfoNCE,
)
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.synthetic._processes import VMF, Family, Kind, Rule
from aureole.training import Phase
from aureole_paper.names import LossName
from aureole_paper.paper_encoders import (
    PaperEncoder,
    SharedEncoder,
    paper_mlp,
    paper_phases,
    three_phases,
    two_phases,
)
from aureole_paper.posterior_families import Dirac, Gaussian, Laplace

SettingT = TypeVar("SettingT", bound="RunSetting")
_FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (VMF, Gaussian, Laplace, Dirac)
}


class RunSetting:
    """What all settings can do; each is a frozen dataclass with a ``name``."""

    steps: int

    def shortened(self: SettingT, max_batches: int | None) -> SettingT:
        """The setting with at most that many steps; its phases shrink along."""
        if max_batches is None or max_batches >= self.steps:
            return self
        return replace(self, steps=max_batches)  # type: ignore[type-var]

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON has them: tuples as lists, infinity as "inf"."""
        return _plain(asdict(self))  # type: ignore[call-overload]


@dataclass(frozen=True)
class Setting(RunSetting):
    """Everything that decides a run, except the seed. Defaults are the fast preset of the ambiguous setting.

    ``items`` and ``pairs`` size the batches: inputs, and positive pairs among them on average. With ``negatives`` other
    than None batches hold ``items`` separate pairs instead and that many fresh negatives each (0: in-batch), as
    in the paper. With a ``self_weight`` batches hold self-pairs too, two draws of the same input. ``phases`` is
    "joint", "two" (mu, kappa), "three" (mu, kappa, joint) or "paper". ``averaging`` returns the moving average of the
    weights, unless the preset is "paper". With several ``starts`` only the best of as many short runs is continued.
    With a ``tilt`` all mu of the initial encoder lean by that angle, in degrees, towards one direction.
    """

    name: str
    dim: int = 10
    encoder_dim: int | None = None
    kappa_range: tuple[float, float] = (16.0, 32.0)
    kappa_pos: float = 20.0
    family: str = "vmf"
    generator: Kind = "paper"
    shared_truth: bool = False
    rule: Rule = "exact"
    reference: int = 0
    loss: LossName = "closed-form"
    n_samples: int = 16
    hib: tuple[float, float] = (1.0, 0.0)
    temperature: float | None = None
    learn_kappa_pos: bool = False
    centring: float = 0.02
    architecture: Literal["residual", "shared", "paper", "paper-shared"] = "residual"
    width: int = 256
    kappa_start: float = 10.0
    hold_kappa: bool = False
    items: int = 512
    pairs: int = 1500
    negatives: int | None = None
    self_weight: float = 0.0
    steps: int = 1200
    lr: float = 4e-3
    phases: Literal["joint", "two", "three", "paper"] = "joint"
    starts: int = 1
    averaging: bool = True
    tilt: float = 0.0
    preset: Literal["fast", "paper"] = "fast"

    def __post_init__(self) -> None:
        if self.family not in _FAMILIES:
            raise InvalidInputError(
                f"family must be one of {sorted(_FAMILIES)}, not {self.family!r}."
            )
        if self.items < 1 or self.steps < 0:
            raise InvalidInputError("items must be positive, and steps not negative.")
        if not 0 <= self.tilt < 90:
            raise InvalidInputError(
                f"tilt must be from 0 to less than 90 degrees, not {self.tilt:g}."
            )
        if self.self_weight and self.negatives is not None:
            raise InvalidInputError(
                "self_weight needs pairs among items: set negatives to None, or self_weight to 0."
            )

    def process(self, seed: int) -> ControlledProcess:
        """The process of a seed."""
        generator = draw_generator(
            self.dim, self.kappa_range, kind=self.generator, shared=self.shared_truth, seed=seed
        )
        return ControlledProcess(
            generator, _FAMILIES[self.family](), self.kappa_pos, self.rule, self.reference
        )

    def objective(self) -> ContrastiveLoss:
        """The loss."""
        return objective(
            self.loss,
            self.kappa_pos,
            n_samples=self.n_samples,
            hib=self.hib,
            temperature=self.temperature,
            centring=self.centring,
            learn_kappa_pos=self.learn_kappa_pos,
        )

    def encoder(self) -> IndependentEncoder:
        """A new encoder, its weights from torch's global generator."""
        n_in, latent = self.dim, self.encoder_dim or self.dim
        if self.architecture == "residual":
            networks = (ResidualMLP(n_in, n_out, width=self.width) for n_out in (latent, 1))
            return IndependentEncoder(
                *networks, n_in=n_in, kappa=self.kappa_start, hold_kappa=self.hold_kappa
            )
        if self.architecture == "shared":
            backbone = ResidualMLP(n_in, latent, width=self.width)
            return SharedEncoder(backbone, ResidualMLP(latent, 1, width=self.width), n_in=n_in)
        if self.architecture == "paper":
            return PaperEncoder(paper_mlp(n_in, latent), paper_mlp(n_in, 1), n_in=n_in)
        backbone = paper_mlp(n_in, latent)
        return SharedEncoder(backbone, paper_mlp(latent, 1, n_hidden=2), n_in=n_in)

    def schedule(self) -> list[Phase]:
        """The phases of training."""
        if self.phases == "joint":
            return [Phase("joint", self.steps, self.lr)]
        shapes = {"two": two_phases, "three": three_phases, "paper": paper_phases}
        return shapes[self.phases](self.steps, self.lr)


def paper_setting(setting: Setting) -> Setting:
    """The same experiment as the paper ran it: its networks, process, loss, optimiser and length (a GPU's work)."""
    return replace(
        setting,
        preset="paper",
        rule="paper",
        generator="paper",
        reference=0,
        loss="mcinfonce" if setting.loss == "closed-form" else setting.loss,
        n_samples=512 if setting.dim <= 16 else 256,
        architecture="paper-shared" if setting.architecture == "shared" else "paper",
        items=512 if setting.dim <= 16 else 256,
        negatives=32,
        self_weight=0.0,
        steps=8192 if setting.dim == 2 else 100_000,
        lr=1e-4,
        phases="paper",
        starts=1,
        centring=0.0,
    )


def objective(
    name: LossName,
    kappa_pos: float,
    *,
    n_samples: int = 16,
    hib: tuple[float, float] = (1.0, 0.0),
    temperature: float | None = None,
    centring: float = 0.0,
    learn_kappa_pos: bool = False,
) -> ContrastiveLoss:
    """The loss of a name.

    The inverse temperature of InfoNCE and ELK is the paper's, kappa_pos, unless ``temperature`` gives another one.
    """
    scale = kappa_pos if temperature is None else temperature
    # the paper's M = 0: where no negatives are drawn, the partner of the next anchor
    options: dict[str, Any] = {"in_batch": "next"}
    if name == "hib":
        return HedgedInstance(a=hib[0], b=hib[1], n_samples=n_samples, **options)
    if name in ("closed-form", "mcinfonce"):
        options |= {"learn_kappa_pos": learn_kappa_pos}
        if name == "mcinfonce":
            return MCInfoNCE(kappa_pos, n_samples, **options)
        return ClosedFormInfoNCE(kappa_pos, centring=centring, **options)
    options |= {"temperature": 1 / scale, "learn_temperature": learn_kappa_pos}
    return ELK(**options) if name == "elk" else InfoNCE(**options)


def _plain(value: Any, digits: int | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner, digits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, digits) for inner in value]
    if value == math.inf:
        return "inf"
    return value if digits is None else float(f"{value:.{digits}g}")


def rounded(values: Tensor) -> Any:
    """The values as (nested) lists of numbers with five digits, as records store them; infinity is "inf"."""
    return _plain(values.tolist(), digits=5)
