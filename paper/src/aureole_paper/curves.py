"""Curves of CIFAR-10H: Recall@1 while images are rejected, and κ while it is learned. None where runs have neither."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aureole.explorer import BLUE, COLOURS, GREY, SKY, VERMILION, Run, canvas
from aureole_paper.agreement_tables import REJECTION, leading
from aureole_paper.records import Groups, mean_curve, numbers

_STYLES = [(colour, style) for style in ("-", "--") for colour in (*COLOURS, SKY)]


def rejection_figure(groups: Groups) -> str | None:
    """Recall@1 of what is kept against the rejected share: by κ, by softmax, in the best order and at random."""
    row = leading(groups, "rejection")
    runs = groups[row.setting] if row else ()
    kept, softmax = (mean_rejection(runs, by) for by in ("kept", "softmax"))
    if kept is None:
        return None
    share = np.linspace(0, 1, len(kept))
    with canvas("rejection", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        # the best order rejects all that is wrong before anything that is right
        best = np.minimum(1, kept[0] / np.maximum(1 - share, 1e-9))
        axes.plot(share, best, ":", color=GREY, label="best order")
        if softmax is not None:
            axes.plot(
                np.linspace(0, 1, len(softmax)), softmax, "--", color=VERMILION, label="softmax"
            )
        axes.plot(share, kept, color=BLUE, linewidth=2.6, label="κ")
        axes.axhline(kept[0], color=GREY, linestyle="-.", linewidth=1.2, label="random order")
        _label_rejection(axes)
        drawing.legend(columns=4)
    return drawing.svg


def loss_rejection_figure(groups: Groups) -> str | None:
    """Recall@1 of what is kept against the share that is rejected by the κ of each loss."""
    found = [(row.label, mean_rejection(groups.get(row.setting, ()), "kept")) for row in REJECTION]
    shown = [(label, curve) for label, curve in found if curve is not None]
    if len(shown) < 2:
        return None
    with canvas("rejection-losses", 1, height=4.1) as drawing:
        (axes,) = drawing.axes
        for (label, curve), (colour, style) in zip(shown, _STYLES, strict=False):
            axes.plot(np.linspace(0, 1, len(curve)), curve, style, color=colour, label=label)
        _label_rejection(axes)
        drawing.legend(columns=2)
    return drawing.svg


def learning_figure(groups: Groups) -> str | None:
    """The rank correlation of κ with the crop size of validation images while each loss trains."""
    found = [(row.label, mean_curve(groups.get(row.setting, ()), "crop_rank")) for row in REJECTION]
    # a curve of one point is no curve
    shown = [(label, curve) for label, curve in found if len(curve) > 1]
    if not shown:
        return None
    with canvas("learning", 1, height=4.1) as drawing:
        (axes,) = drawing.axes
        for (label, curve), (colour, style) in zip(shown, _STYLES, strict=False):
            x, y = zip(*curve, strict=True)
            axes.plot(x, y, style, marker="o", markersize=4, color=colour, label=label)
        axes.set(xlabel="batch", ylabel="crop rank correlation,\nvalidation images")
        axes.set_xlim(left=0)
        drawing.legend(columns=2)
    return drawing.svg


def mean_rejection(runs: Sequence[Run], by: str) -> np.ndarray | None:
    """Recall@1 at evenly spaced rejected shares from 0 to 1, mean over the folds that have as many points."""
    tables = (run.record.metrics.get("rejection") for run in runs)
    curves = [numbers(table.get(by) or ()) for table in tables if isinstance(table, dict)]
    curves = [curve for curve in curves if len(curve) > 1 and len(curve) == len(curves[0])]
    return np.mean(curves, axis=0) if curves else None


def _label_rejection(axes: Any) -> None:
    axes.set(xlabel="share of images rejected", ylabel="Recall@1 of the others", xlim=(0, 1))
    axes.set_ylim(top=1.004)
