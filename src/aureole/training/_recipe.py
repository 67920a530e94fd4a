"""What recipes of training share: the loss that a config names, what is prepared once, and figures of a fit."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_file
from aureole.losses import ClosedFormInfoNCE, ContrastiveLoss, InfoNCE, MCInfoNCE, n_ranks, rank
from aureole.training._config import Config
from aureole.training._fit import Fit
from aureole.training._ranks import from_first


def make_loss(config: Config) -> ContrastiveLoss:
    """The loss that a config names."""
    kappa_pos = config["loss.kappa_pos"]
    if config["loss.name"] == "mcinfonce":
        return MCInfoNCE(kappa_pos, config["loss.n_samples"])
    if config["loss.name"] == "infonce":
        return InfoNCE(temperature=1 / kappa_pos)
    return ClosedFormInfoNCE(kappa_pos, centring=config["loss.centring"])


def prepared(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array in a file, mapped; made by the first rank alone, if it is not there."""
    if rank() == 0 and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)  # ``make`` may leave something there too
        values = make()
        with atomic_file(path) as file:
            np.save(file, values, allow_pickle=False)
    from_first(None)  # the others wait
    return np.load(path, mmap_mode="c", allow_pickle=False)


def figures(fitted: Fit) -> dict[str, Any]:
    """What a record says of any fit; figures that are no number are None there, as JSON has none.

    Examples
    --------
    >>> from torch import nn
    >>> names = ("loss", "kappa_low", "kappa_median", "kappa_high", "information")
    >>> figures(Fit(nn.Identity(), [dict.fromkeys(names, 0.5) | {"information": math.nan}]))["curve"]
    [{'loss': 0.5, 'kappa_low': 0.5, 'kappa_median': 0.5, 'kappa_high': 0.5, 'information': None}]
    """
    last = fitted.curve[-1]
    kept = ("loss", "kappa_low", "kappa_median", "kappa_high")
    return {
        **{name: _told(last[name]) for name in kept},
        "ranks": n_ranks(),
        "seconds_training": round(fitted.seconds, 1),
        "curve": [{name: _told(value) for name, value in p.items()} for p in fitted.curve],
    }


def _told(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def keyed(coverage: dict[float, float]) -> dict[str, float]:
    """Coverage by mass, as JSON has it."""
    return {f"{mass:g}": share for mass, share in coverage.items()}
