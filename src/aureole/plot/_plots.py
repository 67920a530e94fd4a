"""Plots of posteriors and of their quality, as matplotlib axes in the style of the project."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation import predictive_coverage, rejection_curve
from aureole.evaluation._calibration import CAP_MASSES
from aureole.plot._palette import ACCENT, BAND, BLUE, COLOURS, GREY, INK, RULE
from aureole.plot._style import axes_in_style
from aureole.training._assessment import histogram

_TURN = np.linspace(0, 2 * math.pi, 361)
_CAPS = 12  # circles that stay distinct
_FEWEST = 30  # items: a mean over fewer is not drawn


def caps(
    posterior: VonMisesFisher,
    mass: float = 0.9,
    *,
    labels: Sequence[str] | None = None,
    gallery: Float[Tensor, "n dim"] | None = None,
    ax: Any | None = None,
) -> Any:
    r"""Matplotlib axes with the credible caps :math:`\{z : \mu^Tz \ge t_p\}` of up to 12 posteriors.

    On the sphere in three dimensions the caps are where they are, seen from the mean of all mu; on the far side, lines
    are dotted. In more dimensions each cap is a circle of its own radius in degrees around one centre, and the gallery
    is shown by its angle to the first posterior.

    Parameters
    ----------
    posterior
        Posteriors of shape (n,) or ().
    mass
        The mass of the caps (default 0.9).
    labels
        A name for each posterior (default: its kappa).
    gallery
        Directions to show as dots (default: none).
    ax
        Axes to draw on (default: those of a new figure).

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(3), torch.tensor([10.0, 40.0, 160.0]))
    >>> ax = caps(q, 0.9)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['κ 10, cap of 40°', 'κ 40, cap of 20°', 'κ 160, cap of 10°']
    """
    mu = posterior.mu.detach().double().reshape(-1, posterior.dim)
    kappa = posterior.kappa.detach().double().reshape(-1)
    if not 1 <= len(kappa) <= _CAPS:
        raise InvalidInputError(f"caps draws 1 to {_CAPS} posteriors, but got {len(kappa)}.")
    if labels is not None and len(labels) != len(kappa):
        raise InvalidInputError(f"{len(kappa)} posteriors need as many labels, not {len(labels)}.")
    cosine = posterior.credible_cosine(mass).detach().double().reshape(-1).clamp(-1, 1)
    radius = torch.rad2deg(torch.acos(cosine)).tolist()
    names = labels or [f"κ {k:.4g}" for k in kappa.tolist()]
    titles = [f"{name}, cap of {r:.0f}°" for name, r in zip(names, radius, strict=True)]
    with axes_in_style(ax, height=4.4) as axes:
        if posterior.dim == 3:
            _draw_sphere(axes, mu, cosine, titles, gallery)
        else:
            _draw_rings(axes, mu, radius, titles, gallery)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set(aspect="equal")
        axes.set_axis_off()
    return axes


def _draw_sphere(
    axes: Any, mu: Tensor, cosine: Tensor, titles: Sequence[str], gallery: Tensor | None
) -> None:
    """The unit sphere seen from the mean of mu, and one circle per cap."""
    frame = _frame(mu.mean(0))
    axes.fill(np.cos(_TURN), np.sin(_TURN), facecolor=BAND, edgecolor=GREY, linewidth=1)
    if gallery is not None:
        x, y, depth = (gallery.detach().double() @ frame.T).numpy().T
        for side, alpha in ((depth >= 0, 1.0), (depth < 0, 0.2)):
            axes.scatter(x[side], y[side], s=7, color=GREY, alpha=alpha, linewidths=0, zorder=2)
    for i, (own, height, title) in enumerate(zip(mu, cosine.tolist(), titles, strict=True)):
        turned = _frame(own)
        width = math.sqrt(max(0.0, 1 - height**2))
        circle = np.stack(
            [width * np.cos(_TURN), width * np.sin(_TURN), np.full_like(_TURN, height)]
        )
        x, y, depth = (frame @ turned.T).numpy() @ circle
        style = {"color": COLOURS[i % len(COLOURS)], "zorder": 3}
        front = depth >= 0
        axes.plot(np.where(front, x, np.nan), np.where(front, y, np.nan), label=title, **style)
        axes.plot(np.where(front, np.nan, x), np.where(front, np.nan, y), ":", **style)
        u, v, w = (frame @ own).tolist()
        axes.plot(u, v, "*", markersize=10, alpha=1.0 if w >= 0 else 0.3, **style)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))


def _draw_rings(
    axes: Any, mu: Tensor, radius: list[float], titles: Sequence[str], gallery: Tensor | None
) -> None:
    """Circles with the radii of the caps in degrees around one centre."""
    for i, (r, title) in enumerate(zip(radius, titles, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        axes.fill(r * np.cos(_TURN), r * np.sin(_TURN), facecolor=colour, alpha=0.1, linewidth=0)
        axes.plot(r * np.cos(_TURN), r * np.sin(_TURN), color=colour, label=title)
    rim = 1.15 * max(radius)
    if gallery is not None:
        own = gallery.detach().double() @ mu[0]
        angle = torch.rad2deg(torch.acos(own.clamp(-1, 1))).numpy()
        turn = np.arange(len(angle)) * (math.pi * (3 - math.sqrt(5)))  # golden angle
        near = angle <= rim
        x, y = angle * np.cos(turn), angle * np.sin(turn)
        axes.scatter(x[near], y[near], s=7, color=GREY, linewidths=0, zorder=3)
    axes.plot(0, 0, "*", color=INK, markersize=10)
    axes.set(xlim=(-rim, rim), ylim=(-rim, rim))


def _frame(towards: Tensor) -> Tensor:
    """A rotation of three dimensions whose third row points towards the vector."""
    third = towards / towards.norm().clamp(min=1e-12)
    start = torch.zeros(3, dtype=torch.float64)
    start[int(third.abs().argmin())] = 1.0
    first = torch.linalg.cross(start, third)
    first = first / first.norm()
    return torch.stack([first, torch.linalg.cross(third, first), third])


def coverage(
    query: VonMisesFisher | Mapping[float, float],
    partner: VonMisesFisher | None = None,
    *,
    kappa_pos: float | None = None,
    masses: Sequence[float] = CAP_MASSES,
    ax: Any | None = None,
) -> Any:
    """Matplotlib axes with the measured against the nominal coverage of predictive caps, in percent.

    Below the diagonal caps are too narrow, above it wider than they need to be.

    Parameters
    ----------
    query, partner
        Posteriors of held-out matching pairs, of shape (n,); or one mapping from mass to measured share.
    kappa_pos
        The concentration of pairs, needed with posteriors.
    masses
        The masses of the caps (default 0.5, 0.8, 0.9 and 0.95).
    ax
        Axes to draw on (default: those of a new figure).

    Examples
    --------
    >>> ax = coverage({0.5: 0.48, 0.9: 0.87})
    >>> [(round(float(x)), round(float(y))) for x, y in ax.lines[-1].get_xydata()]
    [(50, 48), (90, 87)]
    """
    if isinstance(query, Mapping):
        shares = dict(query)
    elif partner is None or kappa_pos is None:
        raise InvalidInputError("coverage needs partner and kappa_pos with posteriors.")
    else:
        shares = predictive_coverage(query, partner, kappa_pos=kappa_pos, masses=masses)
    nominal = [100 * mass for mass in shares]
    measured = [100 * share for share in shares.values()]
    low = max(0.0, min(*nominal, *measured) - 8)
    ends = np.array([low, 101.0])
    with axes_in_style(ax, height=3.9) as axes:
        axes.fill_between(ends, ends - 2, ends + 2, color=RULE, linewidth=0, label="±2 points")
        axes.plot(ends, ends, color=INK, linewidth=1, label="measured = nominal")
        axes.plot(nominal, measured, "o-", color=BLUE, markersize=7, label="measured")
        axes.set(xlabel="nominal, %", ylabel="measured, %", xlim=ends, ylim=ends)
        axes.set_xticks(nominal, [f"{mass:g}" for mass in nominal])
        axes.legend()
    return axes


def rejection(
    uncertainty: Float[Tensor, " n"] | VonMisesFisher,
    correct: Bool[Tensor, " n"],
    *,
    label: str = "by κ",
    score: str = "accuracy",
    ax: Any | None = None,
) -> Any:
    """Matplotlib axes with the score of the items that are kept against the share rejected.

    Also drawn are the best order, which uses the answers, and the mean of a random order.
    The curve ends where fewer than 30 items are kept, unless half of the items or more are. Cost: one sort.

    Parameters
    ----------
    uncertainty
        Higher is rejected first; of posteriors, minus their kappa.
    correct
        Whether each item is right.
    label
        The name of the order (default "by κ").
    score
        What the share of correct items is called (default "accuracy").
    ax
        Axes to draw on (default: those of a new figure).

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), torch.tensor([40.0, 30.0, 20.0, 10.0]))
    >>> ax = rejection(q, torch.tensor([True, True, True, False]))
    >>> {line.get_label(): float(line.get_ydata()[0]) for line in ax.lines}
    {'best order': 0.75, 'by κ': 0.75, 'random order': 0.75}
    """
    if isinstance(uncertainty, VonMisesFisher):
        uncertainty = -uncertainty.kappa.detach()
    correct = torch.as_tensor(correct)
    rejected, kept = (values.numpy() for values in rejection_curve(uncertainty, correct))
    _, best = (values.numpy() for values in rejection_curve((~correct).double(), correct))
    shown = np.where(rejected <= max(0.5, 1 - _FEWEST / len(correct)), kept, np.nan)
    return draw_rejection(rejected, shown, best, label=label, score=score, ax=ax)


def draw_rejection(
    rejected: np.ndarray,
    kept: np.ndarray,
    best: np.ndarray,
    *,
    label: str = "by κ",
    score: str = "accuracy",
    items: str = "items",
    ax: Any | None = None,
) -> Any:
    """A rejection curve that is already computed; NaN is not drawn."""
    with axes_in_style(ax, height=3.6) as axes:
        axes.plot(rejected, best, ":", color=GREY, label="best order")
        axes.plot(rejected, kept, color=BLUE, linewidth=2.6, label=label)
        axes.axhline(kept[0], color=GREY, linestyle="-.", linewidth=1.2, label="random order")
        axes.set(xlabel=f"share of {items} rejected", ylabel=f"{score} of the others", xlim=(0, 1))
        axes.set_ylim(max(0.0, float(np.nanmin(kept)) - 0.1), 1.004)
        axes.legend()
    return axes


def kappa_histogram(
    posterior: VonMisesFisher | Float[Tensor, " n"] | np.ndarray,
    *,
    items: str = "rows",
    ax: Any | None = None,
) -> Any:
    """Matplotlib axes with a histogram of kappa and its median; logarithmic if the kappas differ tenfold or more.

    Parameters
    ----------
    posterior
        Posteriors, or their kappas; they must be positive and finite.
    items
        What the items are called (default "rows").
    ax
        Axes to draw on (default: those of a new figure).

    Examples
    --------
    >>> ax = kappa_histogram(torch.tensor([1.0, 10.0, 100.0]))
    >>> ax.get_xscale(), float(sum(bar.get_height() for bar in ax.patches))
    ('log', 3.0)
    """
    values = posterior.kappa if isinstance(posterior, VonMisesFisher) else posterior
    kappa = torch.as_tensor(values).detach().reshape(-1).double().numpy()
    if not len(kappa) or not bool((np.isfinite(kappa) & (kappa > 0)).all()):
        raise InvalidInputError("kappa_histogram needs kappas that are positive and finite.")
    counts, edges = histogram(kappa)
    median = float(np.median(kappa))
    with axes_in_style(ax) as axes:
        style = {"color": ACCENT, "alpha": 0.38, "linewidth": 0.5}
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", **style)
        axes.axvline(median, color=ACCENT, label=f"median {median:.3g}")
        if kappa.max() >= 10 * kappa.min():
            axes.set_xscale("log")
            ticks = _round_values(edges[0], edges[-1])
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        axes.set(xlabel="κ (right: more certain)", ylabel=items)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(axis="x", visible=False)
        axes.legend()
    return axes


def _round_values(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two values, or only powers of ten if these would be too many."""
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    return [step * power for power in powers for step in steps if low <= step * power <= high]
