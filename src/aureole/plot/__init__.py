"""Plots of posteriors and of their quality as matplotlib axes, and the colours of the project.

All functions take ``ax=`` and return the axes. The style alone: ``plt.style.use("aureole.plot.aureole")``.
"""

from aureole.plot._palette import (
    ACCENT,
    BAND,
    BLUE,
    CATEGORIES,
    COLOURS,
    DARK,
    FAVICON,
    GLYPH,
    GREEN,
    GREY,
    INK,
    LIGHT,
    PURPLE,
    RULE,
    SHEET,
    VERMILION,
    VIOLET,
    adaptive,
    as_file,
    css,
)
from aureole.plot._plots import caps, coverage, draw_rejection, kappa_histogram, rejection
from aureole.plot._style import (
    MARKERS,
    STYLE,
    WIDTH,
    Drawing,
    canvas,
    inline_svg,
    kappa_colours,
    place,
    sheet,
)

__all__ = ["caps", "coverage", "kappa_colours", "kappa_histogram", "rejection"]
