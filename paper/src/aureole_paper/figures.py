"""Figures of the controlled experiment as SVG, None where the runs they need are missing; and helpers to draw."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.explorer._page import Run
from aureole.plot import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    MARKERS,
    RULE,
    SHEET,
    VERMILION,
    canvas,
)
from aureole_paper.controlled import MASSES
from aureole_paper.paper_values import paper_value
from aureole_paper.records import Groups, Summary, first_with, numbers, summary
from aureole_paper.tables import numbered

_TURN = np.linspace(-math.pi, math.pi, 721)
_SHOWN = (0, 2)  # of the three bimodal examples: modes about 60 and 140 degrees apart
_EDGE = np.linspace(-np.pi / 2, np.pi / 2, 61)
_OUTLINE = np.repeat([-np.pi, np.pi], 61), np.concatenate([_EDGE, _EDGE[::-1]])
_LEVELS = np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 1.0])
_KAPPA = {"kappa_rank": "κ rank correlation", "kappa_mae": "κ MAE"}


def posterior_figure(groups: Groups) -> str | None:
    """The example posteriors of the circle, true and learned, as densities around it."""
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
    highest = max(float(h.max()) for curves in outlines.values() for _, h in curves)
    with canvas("posteriors", 2) as drawing:
        for axes, (title, curves) in zip(drawing.axes, outlines.items(), strict=True):
            for (angle, height), colour in zip(curves, cycle(COLOURS), strict=False):
                radius = 1 + 0.8 * height / highest
                x, y = radius * np.cos(angle), radius * np.sin(angle)
                axes.fill(x, y, facecolor=colour, alpha=0.35, linewidth=0)
                axes.plot(x[radius > 1.005], y[radius > 1.005], color=colour)
            axes.fill(*circle, facecolor=SHEET, edgecolor=GREY)
            axes.set(title=title, aspect="equal", xlim=(-1.85, 1.85), ylim=(-1.85, 1.85))
            axes.set_axis_off()
    return drawing.svg


def scatter_figure(groups: Groups) -> str | None:
    """Learned κ against true κ for single inputs, ambiguous and clear, with the diagonal."""
    runs = [first_with(groups, name, "scatter") for name in ("ambiguous", "clear")]
    shown = [run for run in runs if run is not None]
    if not shown:
        return None
    with canvas("scatter", len(shown)) as drawing:
        for axes, run in zip(drawing.axes, shown, strict=True):
            values = run.record.metrics["scatter"]
            pairs = zip(numbers(values["true"]), numbers(values["found"]), strict=True)
            true, ours = zip(*(pair for pair in pairs if max(pair) < math.inf), strict=True)
            ends = [min(true), max(true)]
            axes.plot(true, ours, ".", color=BLUE, markersize=4, alpha=0.6, label="an input")
            axes.plot(ends, ends, color=INK, linewidth=1.4, label="learned = true")
            axes.set(title=run.setting, xlabel="true κ", ylabel="learned κ")
        drawing.legend()
    return drawing.svg


def samples_figure(groups: Groups) -> str | None:
    """Rank correlation and error of κ against the number of Monte Carlo samples, the closed form as a line."""
    points = _points(groups, "mc-samples-")
    if not points:
        return None
    with canvas("mc-samples-", 2) as drawing:
        for axes, (metric, label) in zip(drawing.axes, _KAPPA.items(), strict=True):
            _errorbars(axes, [(x, summary(r, metric)) for x, r in points], BLUE, "o", "MCInfoNCE")
            if line := summary(groups.get("base", ()), metric):
                axes.axhline(line.mean, color=GREEN, label="closed form")
            values = [(x, paper_value(f"mc-samples-{x}", metric)) for x, _ in points]
            theirs = [(x, Summary(v.mean, v.error, 5)) for x, v in values if v]
            _errorbars(axes, theirs, VERMILION, "D", "paper", line="none")
            axes.set_xscale("log", base=2)
            _ticks(axes, [x for x, _ in points])
            axes.set(xlabel="Monte Carlo samples", ylabel=label)
        errors = drawing.axes[1]  # errors of few samples are thousands of times those of many
        errors.set_yscale("log")
        errors.yaxis.set_major_formatter(_plain_power)  # needs no mathematical font
        errors.yaxis.set_minor_formatter(lambda *_: "")
        drawing.legend()
    return drawing.svg


def dimension_figure(groups: Groups) -> str | None:
    """Rank correlation of κ, and nats per pair, against the dimension, for a fixed and a matched range of κ."""
    kinds = {"fixed range": "high-dim-fixed-", "matched information": "high-dim-matched-"}
    labels = {"kappa_rank": "κ rank correlation", "information": "nats per pair"}
    return _by_dimension(groups, "dimension", kinds, labels)


def self_pairs_figure(groups: Groups) -> str | None:
    """Rank correlation and error of κ against the dimension, with and without self-pairs."""
    if not numbered(groups, "self-pairs-"):
        return None
    kinds = {"with self-pairs": "self-pairs-", "without": "high-dim-fixed-"}
    return _by_dimension(groups, "self-pairs", kinds, _KAPPA)


def _by_dimension(
    groups: Groups, name: str, kinds: Mapping[str, str], labels: Mapping[str, str]
) -> str | None:
    """Two metrics against the dimension, one line for each prefix of settings."""
    lines = {label: _points(groups, prefix) for label, prefix in kinds.items()}
    if not any(lines.values()):
        return None
    with canvas(name, 2) as drawing:
        for axes, (metric, ylabel) in zip(drawing.axes, labels.items(), strict=True):
            styles = zip(COLOURS, MARKERS, strict=True)
            for (label, points), (colour, marker) in zip(lines.items(), styles, strict=False):
                shown = [(x, summary(runs, metric)) for x, runs in points]
                _errorbars(axes, shown, colour, marker, label)
            _ticks(axes, sorted({x for points in lines.values() for x, _ in points}))
            axes.set(xlabel="dimension D", ylabel=ylabel)
        drawing.axes[1].set_ylim(bottom=0)
        drawing.legend()
    return drawing.svg


def coverage_figure(groups: Groups) -> str | None:
    """Empirical minus nominal coverage in percentage points, credible and predictive caps."""
    names = ("ambiguous", "clear", "two-dim", "gaussian", "laplace")
    kinds = {
        "latent_coverage": "credible caps (latent)",
        "partner_coverage": "predictive caps (partner)",
    }
    first = f"{MASSES[0]:g}"
    names = [n for n in names if any(summary(groups.get(n, ()), k, first) for k in kinds)]
    if not names:
        return None
    with canvas("coverage", 2, sharey=True) as drawing:
        for axes, (kind, title) in zip(drawing.axes, kinds.items(), strict=True):
            shares = {
                name: {m: s for m in MASSES if (s := summary(groups[name], kind, f"{m:g}"))}
                for name in names
            }
            draw_coverage(axes, shares, MASSES)
            axes.set(title=title, xlabel="nominal coverage, %")
        drawing.axes[0].set_ylabel("empirical - nominal,\npercentage points")
        drawing.legend()
    return drawing.svg


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
    across = np.cos(latitude)
    sides = (across * np.cos(longitude), across * np.sin(longitude), np.sin(latitude))
    points = np.stack(sides, -1)
    x, y = _hammer(longitude, latitude)
    with canvas("modes", 3, rows=len(_SHOWN)) as drawing:
        for index, axes in enumerate(drawing.axes):
            title, parts = list(columns.items())[index % 3]
            density = _density(parts, _SHOWN[index // 3], points)
            axes.contourf(x, y, density / density.max(), _LEVELS, cmap="Blues")
            axes.fill(*_hammer(*_OUTLINE), facecolor="none", edgecolor=GREY, linewidth=1)
            axes.set(aspect="equal")
            axes.set_axis_off()
            if index < 3:
                axes.set_title(title)
    return drawing.svg


def draw_coverage(
    axes: Any, coverage: Mapping[str, Mapping[float, Summary]], masses: Sequence[float]
) -> None:
    """Draw measured minus nominal coverage in points, one line per label; two points around 0 are grey."""
    axes.axhspan(-2, 2, color=RULE, zorder=0, label="±2 points")
    axes.axhline(0, color=INK, linewidth=1)
    styles = [(c, m, line) for line in ("-", "--") for c, m in zip(COLOURS, MARKERS, strict=True)]
    for (label, shares), (colour, marker, line) in zip(coverage.items(), styles, strict=False):
        points = [
            (place, Summary(100 * (s.mean - mass), 100 * (s.error or 0.0), s.n))
            for place, mass in enumerate(masses)
            if (s := shares.get(mass))
        ]
        _errorbars(axes, points, colour, marker, label, line=line)
    axes.set_xticks(range(len(masses)), [f"{100 * mass:g}" for mass in masses])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -3), max(high, 3))


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
    line: str = "-",
) -> None:
    """Draw means with their standard errors; without a line the markers are hollow."""
    shown = [(x, s.mean, s.error or 0.0) for x, s in points if s and math.isfinite(s.mean)]
    if shown:
        x, y, error = zip(*shown, strict=True)
        style = {"markersize": 6, "linestyle": line, "capsize": 3, "label": label}
        face = SHEET if line == "none" else colour
        axes.errorbar(x, y, error, marker=marker, color=colour, markerfacecolor=face, **style)


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


def _plain_power(value: float, _: int) -> str:
    return f"{value:g}" if 1e-3 < value < 1e4 else f"1e{round(math.log10(value))}"


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
