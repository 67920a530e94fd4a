"""Figures of frozen heads: R@1 while captions are rejected, κ by caption, promises kept. None where runs have none."""

from collections.abc import Mapping, Sequence

import numpy as np

from aureole.explorer import BLUE, COLOURS, GREY, MARKERS, Run, canvas
from aureole_paper.caption_tables import PLAIN
from aureole_paper.records import Groups, Summary, numbers, summarise, value_at


def summaries(runs: Sequence[Run], metric: str) -> list[Summary]:
    """The summary over seeds at each place of a list, of the runs whose list is as long as the first's."""
    lists = [numbers(found) for run in runs if isinstance(found := value_at(run, metric), list)]
    lists = [values for values in lists if values and len(values) == len(lists[0])]
    return [summarise(values) for values in zip(*lists, strict=True)]


def rejection_figure(groups: Groups) -> str | None:
    """R@1 of the captions that are kept against the share that κ rejects, and at random."""
    found = summaries(groups.get(PLAIN, ()), "rejection")
    if len(found) < 2:
        return None
    share = 10 * np.arange(len(found))  # a record has one value for every tenth that is rejected
    kept = np.array([100 * s.mean for s in found])
    error = np.array([100 * (s.error or 0.0) for s in found])
    with canvas("frozen-rejection", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        axes.fill_between(share, kept - error, kept + error, color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(share, kept, "o-", color=BLUE, markersize=5, label="lowest κ first")
        axes.axhline(kept[0], color=GREY, linestyle="-.", linewidth=1.2, label="random order")
        axes.set(xlabel="captions rejected, %", ylabel="R@1 of the others, %", xlim=(0, share[-1]))
        drawing.legend()
    return drawing.svg


def caption_figure(groups: Groups) -> str | None:
    """The median κ of the first to the last caption of a photo."""
    found = summaries(groups.get(PLAIN, ()), "kappa_by_caption")
    if not found:
        return None
    places = range(1, len(found) + 1)
    means, errors = [s.mean for s in found], [s.error or 0.0 for s in found]
    with canvas("frozen-captions", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        axes.errorbar(places, means, errors, fmt="o", color=BLUE, markersize=8, capsize=4)
        axes.set(xlabel="number of the caption", ylabel="median κ")
        axes.set_xticks(list(places))
        axes.set_ylim(0, 1.1 * max(mean + error for mean, error in zip(means, errors, strict=True)))
    return drawing.svg


def coverage_figure(coverage: Mapping[str, Mapping[float, Summary]]) -> str | None:
    """Measured minus promised coverage in points, a line per row of the table."""
    masses = sorted({mass for shares in coverage.values() for mass in shares})
    if not masses:
        return None
    styles = [(c, m, line) for line in ("-", "--") for c, m in zip(COLOURS, MARKERS, strict=True)]
    rows = -(-len(coverage) // 2)
    with canvas("frozen-coverage", 1, height=3.2 + 0.25 * rows) as drawing:
        (axes,) = drawing.axes
        axes.axhspan(-2, 2, color="#eeeeee", zorder=0, label="±2 points")
        axes.axhline(0, color="black", linewidth=1)
        for (label, shares), (colour, marker, line) in zip(coverage.items(), styles, strict=False):
            known = [(place, mass) for place, mass in enumerate(masses) if mass in shares]
            axes.errorbar(
                [place for place, _ in known],
                [100 * (shares[mass].mean - mass) for _, mass in known],
                [100 * (shares[mass].error or 0.0) for _, mass in known],
                fmt=marker + line, color=colour, markersize=6, capsize=3, label=label,
            )  # fmt: skip
        axes.set_xticks(range(len(masses)), [f"{100 * mass:g}" for mass in masses])
        axes.set(xlabel="promised, %", ylabel="measured - promised,\npoints")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -3), max(high, 3))
        drawing.legend(columns=2)
    return drawing.svg
