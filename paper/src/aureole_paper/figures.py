"""Figures: SVG from runs, each None where the runs it needs are not there."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.explorer import BLUE, COLOURS, GREEN, GREY, MARKERS, VERMILION, Run, canvas
from aureole_paper.controlled import MASSES
from aureole_paper.paper_values import paper_value
from aureole_paper.records import Groups, Summary, first_with, mean_curve, numbers, summary
from aureole_paper.tables import coverage_summary, numbered

_TURN = np.linspace(-math.pi, math.pi, 721)
_KAPPA = {"kappa_rank": "κ rank correlation", "kappa_mae": "κ MAE"}


def posterior_figure(groups: Groups) -> str | None:
    """The example posteriors of the circle, true and found, as densities that stand on it."""
    run = first_with(groups, "two-dim", "posteriors")
    if run is None:
        return None
    columns = ("true_angle", "true_kappa", "found_angle", "found_kappa")
    values = run.record.metrics["posteriors"]
    # an input can be the nearest to two of the wanted angles: it is drawn once
    examples = list(dict.fromkeys(zip(*(numbers(values[c]) for c in columns), strict=True)))
    circle = np.cos(_TURN), np.sin(_TURN)
    sides = {"generative process": 0, "encoder, rotated onto it": 2}
    outlines = {
        title: [_outline(example[at], example[at + 1]) for example in examples]
        for title, at in sides.items()
    }
    highest = max(float(h.max()) for found in outlines.values() for _, h in found)
    with canvas("posteriors", 2) as drawing:
        for axes, (title, found) in zip(drawing.axes, outlines.items(), strict=True):
            for (angle, height), colour in zip(found, cycle(COLOURS), strict=False):
                radius = 1 + 0.8 * height / highest
                x, y = radius * np.cos(angle), radius * np.sin(angle)
                axes.fill(x, y, facecolor=colour, alpha=0.35, linewidth=0)
                axes.plot(x[radius > 1.005], y[radius > 1.005], color=colour)
            axes.fill(*circle, facecolor="white", edgecolor=GREY)
            axes.set(title=title, aspect="equal", xlim=(-1.85, 1.85), ylim=(-1.85, 1.85))
            axes.set_axis_off()
    return drawing.svg


def scatter_figure(groups: Groups) -> str | None:
    """κ found against κ true for single inputs, ambiguous and clear, with the diagonal."""
    runs = [first_with(groups, name, "scatter") for name in ("ambiguous", "clear")]
    found = [run for run in runs if run is not None]
    if not found:
        return None
    with canvas("scatter", len(found)) as drawing:
        for axes, run in zip(drawing.axes, found, strict=True):
            values = run.record.metrics["scatter"]
            pairs = zip(numbers(values["true"]), numbers(values["found"]), strict=True)
            true, ours = zip(*(pair for pair in pairs if max(pair) < math.inf), strict=True)
            ends = [min(true), max(true)]
            axes.plot(true, ours, ".", color=BLUE, markersize=4, alpha=0.6, label="an input")
            axes.plot(ends, ends, color="black", linewidth=1.4, label="found = true")
            axes.set(title=run.setting, xlabel="κ true", ylabel="κ found")
        drawing.legend()
    return drawing.svg


def samples_figure(groups: Groups) -> str | None:
    """Rank correlation and error of κ against the number of Monte Carlo samples, the closed form as a line."""
    return _against(groups, "mc-samples-", "Monte Carlo samples", closed_form=True)


def encoder_figure(groups: Groups) -> str | None:
    """Rank correlation and error of κ against the dimension of the encoder; the process has ten."""
    return _against(groups, "encoder-dim-", "dimension of the encoder", closed_form=False)


def dimension_figure(groups: Groups) -> str | None:
    """Rank correlation of κ, and nats per pair, against the dimension, for a fixed and a matched range of κ."""
    kinds = {"fixed range": "high-dim-fixed-", "matched information": "high-dim-matched-"}
    found = {label: _points(groups, prefix) for label, prefix in kinds.items()}
    if not any(found.values()):
        return None
    with canvas("dimension", 2) as drawing:
        labels = ("κ rank correlation", "nats per pair")
        for axes, metric, ylabel in zip(
            drawing.axes, ("kappa_rank", "information"), labels, strict=True
        ):
            for (label, points), colour, marker in zip(
                found.items(), COLOURS, MARKERS, strict=False
            ):
                _errorbars(
                    axes, [(x, summary(runs, metric)) for x, runs in points], colour, marker, label
                )
            _ticks(axes, sorted({x for points in found.values() for x, _ in points}))
            axes.set(xlabel="dimension D", ylabel=ylabel)
        _zero_based(drawing.axes[1])
        drawing.legend()
    return drawing.svg


def coverage_figure(groups: Groups) -> str | None:
    """Empirical minus nominal coverage in percentage points, credible and predictive caps."""
    names = ("ambiguous", "clear", "two-dim", "gaussian", "laplace")
    kinds = {
        "latent_coverage": "credible caps (latent)",
        "partner_coverage": "predictive caps (partner)",
    }
    names = [
        n for n in names if any(coverage_summary(groups.get(n, ()), k, MASSES[0]) for k in kinds)
    ]
    if not names:
        return None
    with canvas("coverage", 2, sharey=True) as drawing:
        for axes, (kind, title) in zip(drawing.axes, kinds.items(), strict=True):
            axes.axhspan(-2, 2, color="#eeeeee", zorder=0, label="±2 points")
            axes.axhline(0, color="black", linewidth=1)
            for name, colour, marker in zip(names, COLOURS, MARKERS, strict=False):
                found = [coverage_summary(groups[name], kind, mass) for mass in MASSES]
                points = [
                    (place, Summary(s.mean - 100 * mass, s.error, s.n))
                    for place, (mass, s) in enumerate(zip(MASSES, found, strict=True))
                    if s
                ]
                _errorbars(axes, points, colour, marker, name)
            axes.set_xticks(range(len(MASSES)), [f"{100 * mass:g}" for mass in MASSES])
            axes.set(title=title, xlabel="nominal coverage, %")
        low, high = drawing.axes[0].get_ylim()
        drawing.axes[0].set_ylim(min(low, -3), max(high, 3))
        drawing.axes[0].set_ylabel("empirical - nominal,\npercentage points")
        drawing.legend()
    return drawing.svg


def learning_figure(groups: Groups) -> str | None:
    """Rank correlation and error of κ while the ambiguous setting trains, mean over seeds; the paper's end dashed."""
    curves = {metric: mean_curve(groups.get("ambiguous", ()), metric) for metric in _KAPPA}
    if not all(curves.values()):
        return None
    with canvas("learning", 2) as drawing:
        last = max(x for curve in curves.values() for x, _ in curve)
        for axes, (metric, label) in zip(drawing.axes, _KAPPA.items(), strict=True):
            x, y = zip(*curves[metric], strict=True)
            axes.plot(x, y, "o-", color=BLUE, markersize=5, label="ours, mean over seeds")
            _paper_line(axes, "ambiguous", metric)
            axes.set(xlabel="batch", ylabel=label, xlim=(0, 1.04 * last))
            axes.locator_params(axis="x", nbins=4)
        drawing.axes[0].set_ylim(top=1)
        _zero_based(drawing.axes[1])
        drawing.legend()
    return drawing.svg


def injective_figure(groups: Groups) -> str | None:
    """The median κ while the encoder of an injective process trains, on a log scale."""
    curves = {
        name: mean_curve(groups.get(name, ()), "kappa_median")
        for name in ("injective", "injective-longer", "injective-longest")
    }
    if not any(curves.values()):
        return None
    with canvas("injective", 1) as drawing:
        (axes,) = drawing.axes
        for (name, curve), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
            if curve:
                x, y = zip(*curve, strict=True)
                axes.plot(x, y, marker=marker, color=colour, markersize=5, label=name)
        axes.set_yscale("log")
        _plain_log_ticks(axes.yaxis)
        axes.set(xlabel="batch", ylabel="median κ found")
        axes.set_xlim(left=0)
        drawing.legend()
    return drawing.svg


def _against(groups: Groups, prefix: str, xlabel: str, *, closed_form: bool) -> str | None:
    """κ's rank correlation and error against the number in the settings' names; ``base`` is a line, or D = 10."""
    points = _points(groups, prefix)
    if not points:
        return None
    base = groups.get("base", ())
    papers = {x: f"{prefix}{x}" for x, _ in points}
    if not closed_form and base:
        points = sorted([*points, (10, base)], key=lambda point: point[0])
        papers[10] = "ambiguous"
    with canvas(prefix, 2) as drawing:
        for axes, (metric, label) in zip(drawing.axes, _KAPPA.items(), strict=True):
            ours = [(x, summary(runs, metric)) for x, runs in points]
            _errorbars(axes, ours, BLUE, "o", "MCInfoNCE" if closed_form else "ours")
            if closed_form and (line := summary(base, metric)):
                axes.axhline(line.mean, color=GREEN, label="closed form")
            values = [(x, paper_value(name, metric)) for x, name in papers.items()]
            theirs = [
                (x, Summary(v.mean, v.error, 5)) for x, v in values if v and not v.relation
            ]  # bounds are not points
            _errorbars(axes, theirs, VERMILION, "D", "paper", line=False)
            axes.set_xscale("log", base=2)
            _ticks(axes, [x for x, _ in points])
            axes.set(xlabel=xlabel, ylabel=label)
        if closed_form:  # errors of few samples are thousands of times those of many
            drawing.axes[1].set_yscale("log")
            _plain_log_ticks(drawing.axes[1].yaxis)
        else:
            _zero_based(drawing.axes[1])
        drawing.legend()
    return drawing.svg


def _points(groups: Groups, prefix: str) -> list[tuple[int, Sequence[Run]]]:
    return [(x, groups[name]) for x, name in numbered(groups, prefix) if name in groups]


def _outline(mode: float, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """(Angles once around the circle, beginning opposite the mode; the posterior's densities there)."""
    angle = torch.from_numpy(mode + _TURN)
    mu = torch.tensor([math.cos(mode), math.sin(mode)], dtype=torch.float64)
    density = VonMisesFisher(mu, kappa).log_prob(torch.stack([angle.cos(), angle.sin()], -1)).exp()
    return angle.numpy(), density.numpy()


def _errorbars(
    axes: Any,
    points: Sequence[tuple[int, Summary | None]],
    colour: str,
    marker: str,
    label: str,
    *,
    line: bool = True,
) -> None:
    """Draw means with their standard errors, where there are two or more seeds."""
    shown = [(x, s) for x, s in points if s is not None and math.isfinite(s.mean)]
    if not shown:
        return
    axes.errorbar(
        [x for x, _ in shown],
        [s.mean for _, s in shown],
        [s.error or 0.0 for _, s in shown],
        marker=marker,
        markersize=6,
        linestyle="-" if line else "none",
        color=colour,
        markerfacecolor=colour if line else "white",
        capsize=3,
        label=label,
    )


def _paper_line(axes: Any, setting: str, metric: str) -> None:
    value = paper_value(setting, metric)
    if value is not None:
        axes.axhline(value.mean, color=VERMILION, linestyle="--", label="paper, end of training")


def _zero_based(axes: Any) -> None:
    axes.set_ylim(bottom=0)


def _ticks(axes: Any, values: Sequence[int]) -> None:
    """Label the values themselves, the last first, and leave out those whose labels would touch."""
    low, high = axes.transData.transform([(x, 0.5) for x in (values[0], values[-1])])[:, 0]
    shown: list[tuple[int, float]] = []
    for value in reversed(values):
        place = (axes.transData.transform((value, 0.5))[0] - low) / max(high - low, 1.0)
        if not shown or shown[-1][1] - place > 0.03 * len(f"{value}{shown[-1][0]}"):
            shown.append((value, place))
    axes.set_xticks([value for value, _ in shown], [str(value) for value, _ in shown])
    axes.minorticks_off()


def _plain_log_ticks(axis: Any) -> None:
    """Label powers of ten as 1e3, which needs no mathematical font."""
    axis.set_major_formatter(
        lambda value, _: f"{value:g}" if 1e-3 < value < 1e4 else f"1e{round(math.log10(value))}"
    )
    axis.set_minor_formatter(lambda *_: "")
