"""Figures of a head's certainty: how kappa is spread, what it is good for, and whether its promises are kept."""

import math
from collections.abc import Mapping

import numpy as np

from aureole.explorer._drawing import BLUE, GREY, SKY, VERMILION, canvas
from aureole.explorer._page import format_number
from aureole.training import Assessment, histogram

_FEWEST = 30  # rows whose mean is drawn


def kappa_figure(kappa: np.ndarray) -> str:
    """A histogram of kappa, the median marked; the axis is logarithmic where kappas differ tenfold."""
    counts, edges = histogram(kappa)
    median = float(np.median(kappa))
    with canvas("kappa", 1) as drawing:
        (axes,) = drawing.axes
        axes.bar(
            edges[:-1], counts, np.diff(edges), align="edge", color=SKY, edgecolor="white", linewidth=0.5
        )  # fmt: skip
        axes.axvline(median, color=VERMILION, label=f"median {format_number(median)}")
        if kappa.max() >= 10 * kappa.min():
            axes.set_xscale("log")
            ticks = _round_values(edges[0], edges[-1])
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        axes.set(xlabel="κ (right: more certain)", ylabel="rows")
        axes.locator_params(axis="y", nbins=5)
        axes.grid(axis="x", visible=False)
        drawing.legend()
    return drawing.svg


def rejection_figure(found: Assessment) -> str:
    """Recall@1 of what is kept against the share rejected: by kappa, in the best order, and at random.

    The curve by kappa ends where fewer than 30 rows are kept, whose Recall@1 would be chance.
    """
    shown = found.rejected <= max(0.5, 1 - _FEWEST / found.asked)
    kept = found.kept[shown]
    with canvas("head-rejection", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        axes.plot(found.rejected, found.best, ":", color=GREY, label="best order")
        axes.plot(found.rejected[shown], kept, color=BLUE, linewidth=2.6, label="by κ")
        axes.axhline(found.recall, color=GREY, linestyle="-.", linewidth=1.2, label="random order")
        axes.set(xlabel="share of rows set aside", ylabel="Recall@1 of the others", xlim=(0, 1))
        axes.set_ylim(max(0.0, min(kept.min(), found.recall) - 0.1), 1.004)
        drawing.legend()
    return drawing.svg


def coverage_figure(coverage: Mapping[float, float]) -> str:
    """How often a cap holds a partner, against how often it promises to; on the diagonal the promise is kept."""
    promised = [100 * mass for mass in coverage]
    measured = [100 * share for share in coverage.values()]
    low = max(0.0, min(*promised, *measured) - 8)
    with canvas("head-coverage", 1, height=3.9) as drawing:
        (axes,) = drawing.axes
        ends = np.array([low, 101.0])
        axes.fill_between(ends, ends - 2, ends + 2, color="#eeeeee", label="±2 points")
        axes.plot(ends, ends, color="black", linewidth=1, label="as promised")
        axes.plot(promised, measured, "o-", color=BLUE, markersize=7, label="measured")
        axes.set(xlabel="promised, %", ylabel="measured, %", xlim=ends, ylim=ends)
        axes.set_xticks(promised, [f"{mass:g}" for mass in promised])
        drawing.legend()
    return drawing.svg


def profile_figure(profile: Mapping[float, float], kappa_pos: float) -> str:
    """The held-out information against kappa_pos on a log scale, the one that was taken marked."""
    values = sorted(profile.items())
    x, y = zip(*values, strict=True)
    with canvas("head-profile", 1) as drawing:
        (axes,) = drawing.axes
        axes.plot(x, y, "o-", color=BLUE, markersize=6, label="held-out information")
        axes.axvline(
            kappa_pos, color=VERMILION, linestyle="--", label=f"taken: {format_number(kappa_pos)}"
        )
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{value:.3g}" for value in x])
        axes.minorticks_off()
        middle, half = (max(y) + min(y)) / 2, max(0.55 * (max(y) - min(y)), 0.25)
        axes.set(xlabel="κ_pos", ylabel="nats", ylim=(middle - half, middle + half))
        drawing.legend()
    return drawing.svg


def _round_values(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two values, or powers of ten alone where these would be too many."""
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    return [step * power for power in powers for step in steps if low <= step * power <= high]
