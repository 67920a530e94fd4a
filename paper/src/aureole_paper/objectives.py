"""Objectives: the losses of the experiments by name."""

from typing import Literal

from aureole.losses import (
    ELK,
    ClosedFormInfoNCE,
    ContrastiveLoss,
    HedgedInstance,
    InfoNCE,
    MCInfoNCE,
)

LossName = Literal["closed-form", "mcinfonce", "elk", "hib", "infonce"]


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

    The paper's inverse temperature is kappa_pos for InfoNCE and for ELK, unless another one was found better.
    """
    scale = kappa_pos if temperature is None else temperature
    if name == "closed-form":
        return ClosedFormInfoNCE(kappa_pos, centring=centring, learn_kappa_pos=learn_kappa_pos)
    if name == "mcinfonce":
        return MCInfoNCE(kappa_pos, n_samples, learn_kappa_pos=learn_kappa_pos)
    if name == "elk":
        return ELK(temperature=1 / scale, learn_temperature=learn_kappa_pos)
    if name == "hib":
        return HedgedInstance(a=hib[0], b=hib[1], n_samples=n_samples)
    return InfoNCE(temperature=1 / scale, learn_temperature=learn_kappa_pos)
