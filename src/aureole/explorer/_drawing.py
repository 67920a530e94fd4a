"""Drawings: figures of matplotlib as SVG for a page. The one file that imports matplotlib."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aureole.errors import MissingPackageError

# Okabe and Ito's colours, told apart with every kind of colour blindness
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
)  # fmt: skip
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE)
GREY = "#595959"
MARKERS = ("o", "s", "^", "D", "v")
WIDTH = 6.4  # inches
_STYLE = {
    "font.family": ["DejaVu Sans"],  # matplotlib brings it
    "font.size": 13.5,  # 10 px where the page is 400 px wide
    "axes.titlesize": 13.5,
    "xtick.labelsize": 12.5,
    "ytick.labelsize": 12.5,
    "legend.fontsize": 12.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
}


class Drawing:
    """A matplotlib figure with panels side by side; ``svg`` is there when its ``with`` has ended."""

    svg: str = ""

    def __init__(self, figure: Any, axes: list[Any]) -> None:
        self.figure, self.axes = figure, axes

    def legend(self, columns: int = 3) -> None:
        """One legend for all panels, below them."""
        entries: dict[str, Any] = {}
        for axes in self.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        self.figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=columns,
            columnspacing=1.2,
            handlelength=1.6,
        )


@contextmanager
def canvas(
    name: str, panels: int, *, rows: int = 1, sharey: bool = False, height: float = 3.2
) -> Iterator[Drawing]:
    """A figure of 6.4 inches by ``height``; matplotlib's settings are as before when it ends.

    All figures are as wide, so that their texts have one size on a page.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "figures need matplotlib: pip install 'aureole[reports]'."
        ) from error
    # the salt makes ids the same in every run, and different in every figure of a page
    settings: dict[Any, Any] = {**_STYLE, "svg.hashsalt": f"aureole-{name}"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(rows, panels, sharey=sharey, squeeze=False)
        drawing = Drawing(figure, list(axes.flat))
        yield drawing
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        drawing.svg = _inline(buffer.getvalue())


def _inline(svg: str) -> str:
    """The SVG to put into a page: no prolog, metadata, style or unused ids; as wide as its place."""
    svg = svg[svg.index("<svg") :]
    for pattern in (
        r"<metadata>.*?</metadata>\s*",
        r"<style .*?</style>\s*",
        r"<!--.*?-->\s*",
        r' id="[a-zA-Z][\w.]*_[0-9]{1,4}"',  # others are hashes that the figure refers to
    ):
        svg = re.sub(pattern, "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[0-9.]+pt"', "", svg, count=2)
    return svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif").strip()


def sheet(drawing: Drawing, height: float) -> Any:
    """The axes as a sheet of paper, in inches from its upper left corner."""
    (axes,) = drawing.axes
    axes.set_position((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0), autoscale_on=False)
    axes.set_axis_off()
    return axes


def place(axes: Any, picture: np.ndarray, x: float, y: float, width: float) -> None:
    """Put a picture on the sheet, its upper left corner at (x, y), every pixel a square."""
    height = width * picture.shape[0] / picture.shape[1]
    extent = (x, x + width, y + height, y)
    axes.imshow(picture, extent=extent, aspect="auto", interpolation="none")
