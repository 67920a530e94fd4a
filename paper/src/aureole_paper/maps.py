"""Maps: posteriors with two modes on the whole sphere, as contours of their density."""

from typing import Any

import numpy as np
import torch

from aureole.distributions import MixtureVMF
from aureole.explorer import canvas
from aureole_paper.records import Groups, first_with

_SHOWN = (0, 2)  # of the three examples: modes about 60 and 140 degrees apart
_EDGE = np.linspace(-np.pi / 2, np.pi / 2, 61)
_OUTLINE = np.repeat([-np.pi, np.pi], 61), np.concatenate([_EDGE, _EDGE[::-1]])
_LEVELS = np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 1.0])


def modes_figure(groups: Groups) -> str | None:
    """Two torn posteriors as maps of the sphere: the truth, a mixture of two vMFs, and a single vMF."""
    runs = [first_with(groups, f"bimodal-{kind}-3", "examples") for kind in ("mixture", "single")]
    if None in runs:
        return None
    mixture, single = (run.record.metrics["examples"] for run in runs if run is not None)
    columns = {
        "truth": mixture["true"],
        "mixture of two": mixture["found"],
        "single vMF": single["found"],
    }
    longitude, latitude = np.meshgrid(np.linspace(-np.pi, np.pi, 121), np.linspace(-1.57, 1.57, 61))
    points = np.stack(
        [
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ],
        -1,
    )
    x, y = _hammer(longitude, latitude)
    with canvas("modes", 3, rows=len(_SHOWN)) as drawing:
        for index, axes in enumerate(drawing.axes):
            title, parts = list(columns.items())[index % 3]
            density = _density(parts, _SHOWN[index // 3], points)
            axes.contourf(x, y, density / density.max(), _LEVELS, cmap="Blues")
            axes.fill(*_hammer(*_OUTLINE), facecolor="none", edgecolor="#595959", linewidth=1)
            axes.set(aspect="equal")
            axes.set_axis_off()
            if index < 3:
                axes.set_title(title)
    return drawing.svg


def _hammer(longitude: np.ndarray, latitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hammer's map of the sphere: equal areas, in closed form."""
    depth = np.sqrt(1 + np.cos(latitude) * np.cos(longitude / 2))
    return 2 * np.cos(latitude) * np.sin(longitude / 2) / depth, np.sin(latitude) / depth


def _density(parts: dict[str, Any], example: int, points: np.ndarray) -> np.ndarray:
    """The density of one example on a grid of points."""
    weight, mu, kappa = (
        torch.tensor(parts[name][example], dtype=torch.float64)
        for name in ("weight", "mu", "kappa")
    )
    mu = torch.nn.functional.normalize(mu, dim=-1)  # records keep five digits
    return MixtureVMF(weight, mu, kappa).log_prob(torch.from_numpy(points)).exp().numpy()
