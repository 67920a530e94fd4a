"""Figures in the style of the project, as matplotlib axes or as SVG. The only file that imports matplotlib."""

import base64
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data._image_files import open_picture
from aureole.errors import MissingPackageError
from aureole.plot._palette import SEQUENCE, adaptive

MARKERS = ("o", "s", "^", "D", "v")
WIDTH = 6.4  # inches
STYLE = Path(__file__).parent / "aureole.mplstyle"
_FONTS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.style
    except ImportError as error:
        raise MissingPackageError(
            "figures need matplotlib: pip install 'aureole[explore]'."
        ) from error
    return matplotlib


@contextmanager
def axes_in_style(ax: Any | None, height: float = 3.2) -> Iterator[Any]:
    """The given axes, or those of a new pyplot figure of 6.4 inches by ``height``, in the project's style."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(fname=str(STYLE)):
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(WIDTH, height))
        yield ax


def kappa_colours() -> Any:
    """The colormap of kappa, from low (orange) to high (blue); its lightness falls evenly."""
    return _matplotlib().colors.LinearSegmentedColormap.from_list("aureole-kappa", SEQUENCE)


class Drawing:
    """A matplotlib figure with panels side by side; ``svg`` is set when the ``with`` block ends."""

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
    """A figure of 6.4 inches by ``height``; matplotlib's settings are restored at the end.

    All figures have one width, so that their texts have one size on a page. The SVG takes its colours from the page.
    """
    matplotlib = _matplotlib()
    # the salt makes ids the same in every run, and different in every figure of a page
    settings: dict[Any, Any] = {"svg.hashsalt": f"aureole-{name}", "figure.facecolor": "none"}
    with matplotlib.rc_context(settings | {"savefig.facecolor": "none"}, fname=str(STYLE)):
        figure = matplotlib.figure.Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(rows, panels, sharey=sharey, squeeze=False)
        drawing = Drawing(figure, list(axes.flat))
        yield drawing
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        drawing.svg = inline_svg(buffer.getvalue())


def inline_svg(svg: str) -> str:
    """The SVG to insert into a page: no prolog, metadata, style or unused ids; it fills the width."""
    svg = svg[svg.index("<svg") :]
    for pattern in (
        r"<metadata>.*?</metadata>\s*",
        r"<style .*?</style>\s*",
        r"<!--.*?-->\s*",
        r' id="[a-zA-Z][\w.]*_[0-9]{1,4}"',  # others are hashes that the figure refers to
    ):
        svg = re.sub(pattern, "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[0-9.]+pt"', "", svg, count=2)
    svg = re.sub(r"(?<=image/png;base64,)[A-Za-z0-9+/=\s]+", _without_alpha, svg)
    return adaptive(svg.replace("'DejaVu Sans'", _FONTS)).strip()


def _without_alpha(match: re.Match[str]) -> str:
    """A picture that matplotlib embedded; opaque ones need no alpha, and a better compression makes them smaller."""
    buffer = io.BytesIO()
    with open_picture(base64.b64decode(match[0])) as picture:
        opaque = picture.mode == "RGBA" and picture.getchannel("A").getextrema() == (255, 255)
        (picture.convert("RGB") if opaque else picture).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


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
