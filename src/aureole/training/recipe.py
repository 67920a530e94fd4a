"""What recipes of training share: the loss that a config names, what is prepared once, and figures of a fit."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aureole.losses import ClosedFormInfoNCE, ContrastiveLoss, InfoNCE, MCInfoNCE
from aureole.training.config import Config
from aureole.training.fit import Fit
from aureole.training.ranks import from_first, n_ranks, rank

__all__ = ["figures", "keyed", "make_loss", "prepared"]


def make_loss(config: Config) -> ContrastiveLoss:
    """The loss that a config names."""
    kappa_pos = config["loss.kappa_pos"]
    if config["loss.name"] == "mcinfonce":
        return MCInfoNCE(kappa_pos, config["loss.n_samples"])
    if config["loss.name"] == "infonce":
        return InfoNCE(kappa_pos)
    return ClosedFormInfoNCE(kappa_pos, centring=config["loss.centring"])


def prepared(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array in a file, mapped; made by the first rank alone, if it is not there."""
    if rank() == 0 and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        values = make()
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            np.save(file, values, allow_pickle=False)
        Path(name).replace(path)
    from_first(None)  # the others wait
    return np.load(path, mmap_mode="c", allow_pickle=False)


def figures(fitted: Fit) -> dict[str, Any]:
    """What a record says of any fit."""
    last = fitted.curve[-1]
    kept = ("loss", "kappa_low", "kappa_median", "kappa_high")
    return {
        **{name: last[name] for name in kept},
        "ranks": n_ranks(),
        "seconds_training": round(fitted.seconds, 1),
        "curve": fitted.curve,
    }


def keyed(coverage: dict[float, float]) -> dict[str, float]:
    """Coverage by mass, as JSON has it."""
    return {f"{mass:g}": share for mass, share in coverage.items()}
