"""A report as one self-contained HTML file: sections of tables and figures. The only file that imports jinja2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from aureole.errors import MissingPackageError
from aureole.plot import DARK, FAVICON, LIGHT, css
from aureole.records import Record


@dataclass(frozen=True)
class Run:
    """A record, its setting, and where it was read: a path below a folder."""

    setting: str
    path: Path
    record: Record
    folder: Path = Path()


@dataclass(frozen=True)
class Table:
    """A title, a caption, a header and rows of as many strings; ``spans`` heads groups of columns, "" for none.

    ``marked`` are the cells to show in bold, as (row, column).
    """

    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    spans: tuple[tuple[str, int], ...] = ()
    marked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Picture:
    """A trusted SVG (inserted without escaping), its caption, and its description for screen readers."""

    svg: str
    caption: str
    label: str


@dataclass(frozen=True)
class Item:
    """An item of a gallery: its text, a note, and its picture as a data URI, if any."""

    text: str
    note: str
    picture: str = ""


@dataclass(frozen=True)
class Gallery:
    """A titled list of items."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Section:
    """A part of the page: an anchor, a title, a text, tables, pictures, the runs they show, galleries, and code.

    An empty line in the text starts a new paragraph. The code follows the text.
    """

    anchor: str
    title: str
    text: str
    tables: tuple[Table, ...]
    figures: tuple[Picture, ...]
    runs: tuple[Run, ...] = ()
    galleries: tuple[Gallery, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Report:
    """The content of a page: a title, an introduction, sentences on the main results, and the sections."""

    title: str
    about: str
    results: tuple[str, ...]
    sections: tuple[Section, ...]


def render(
    title: str,
    sections: Sequence[Section],
    *,
    about: str,
    results: Sequence[str],
    footer: Sequence[str],
    footer_title: str = "How these records were made",
) -> str:
    """The page as HTML: styles and figures inline, no scripts, no external resources; all text is escaped.

    ``about`` and the list of main ``results`` come first, ``footer`` last.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError("pages need jinja2: pip install 'aureole[explore]'.") from error
    environment = Environment(
        loader=PackageLoader("aureole.explorer", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    parts = {"title": title, "sections": sections, "about": about, "results": results}
    footers = {"footer": footer, "footer_title": footer_title}
    colours = {"light": css(LIGHT), "dark": css(DARK), "favicon": FAVICON}
    return environment.get_template("page.html.jinja").render(**parts, **footers, **colours)


def check_page() -> None:
    """Raise if a package that pages need is not installed."""
    try:
        import_module("jinja2")
        import_module("matplotlib")
    except ImportError as error:
        raise MissingPackageError(
            f"pages need jinja2 and matplotlib ({error}): pip install 'aureole[explore]'."
        ) from error


def format_number(value: float, decimals: int | None = None) -> str:
    """The number in a few characters: decimals by its size unless given, powers of ten beyond 1e4 and below 1e-3.

    Examples
    --------
    >>> [format_number(x) for x in (0.98912, 3.14159, 125.02, 12345.6, 0.00021, 0.0, math.inf)]
    ['0.989', '3.14', '125.0', '1.2e4', '2.1e-4', '0', '∞']
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0 and decimals is None:
        return "0"
    size = abs(value)
    if size >= 1e4 or (size < 1e-3 and decimals is None):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if decimals is None:
        decimals = 3 if size < 1 else 2 if size < 10 else 1
    return f"{value:.{decimals}f}"


def format_share(share: float) -> str:
    """A share in whole percent, such as "60 %"."""
    return f"{100 * share:.0f} %"
