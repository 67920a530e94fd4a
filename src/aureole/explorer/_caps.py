"""Caps: a real search on the sphere in three dimensions, seen from the side."""

import math
from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.explorer._drawing import BLUE, GREY, VERMILION, canvas
from aureole.retrieval import CredibleIndex, Hits
from aureole.sphere import normalize

_KAPPAS = {"a sure query": 60.0, "a vague query": 8.0}
_TURN = np.linspace(0, 2 * math.pi, 361)


def caps_figure(mass: float = 0.9, *, rows: int = 400, seed: int = 0) -> str:
    """Two queries with one mu and different kappa, their caps of ``mass``, and the members a search returns, as SVG."""
    rng = torch.Generator().manual_seed(seed)
    mu = normalize(torch.randn(rows, 3, generator=rng))
    names = [str(i) for i in range(rows)]
    centre = normalize(torch.tensor([0.3, -0.8, 0.5]))
    with (
        CredibleIndex.create("faiss://", VonMisesFisher(mu, 40.0), names) as index,
        canvas("caps", len(_KAPPAS), height=3.7) as drawing,
    ):
        for axes, (title, kappa) in zip(drawing.axes, _KAPPAS.items(), strict=True):
            hits = index.search(VonMisesFisher(centre, kappa), mass)
            assert isinstance(hits, Hits)
            degrees = math.degrees(math.acos(float(hits.threshold[0])))
            _draw(axes, mu.numpy(), centre.numpy(), hits)
            axes.set_title(f"{title}, κ = {kappa:g}\ncap of {degrees:.0f}°: {len(hits)} items")
        drawing.legend(columns=2)
    return drawing.svg


def _draw(axes: Any, mu: np.ndarray, centre: np.ndarray, hits: Hits) -> None:
    """The sphere from the side that its second axis points away from; what is behind it is pale."""
    axes.fill(np.cos(_TURN), np.sin(_TURN), facecolor="#f6f6f6", edgecolor=GREY, linewidth=1)
    axes.plot(np.cos(_TURN), 0.25 * np.sin(_TURN), color="#d0d0d0", linewidth=0.8)
    inside = np.zeros(len(mu), bool)
    inside[[int(name) for name in hits.ids]] = True
    front = mu[:, 1] < 0
    for chosen, colour, size, label in (
        (~inside, GREY, 7, "outside the cap"),
        (inside, VERMILION, 16, "in the set"),
    ):
        x, z = mu[chosen & front][:, [0, 2]].T
        axes.scatter(x, z, s=size, color=colour, linewidths=0, label=label, zorder=3)
        x, z = mu[chosen & ~front][:, [0, 2]].T
        axes.scatter(x, z, s=size, color=colour, linewidths=0, alpha=0.18, zorder=2)
    rim = _rim(centre, float(hits.threshold[0]))
    for visible, style in ((rim[:, 1] < 0, "-"), (rim[:, 1] >= 0, ":")):
        x, z = np.where(visible[:, None], rim, np.nan)[:, [0, 2]].T
        label = "the cap" if style == "-" else None
        axes.plot(x, z, style, color=BLUE, linewidth=1.8, zorder=4, label=label)
    axes.plot(
        centre[0], centre[2], "*", color=BLUE, markersize=13, zorder=5, label="μ of the query"
    )
    axes.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    axes.set_axis_off()


def _rim(centre: np.ndarray, cosine: float) -> np.ndarray:
    """The circle of all directions with this cosine to the centre."""
    across = np.linalg.svd(centre[None])[2][1:]
    sine = math.sqrt(max(0.0, 1 - cosine**2))
    around = np.cos(_TURN)[:, None] * across[0] + np.sin(_TURN)[:, None] * across[1]
    return cosine * centre + sine * around
