"""The page: sections of tables and figures as one self-contained HTML file. The one file that imports jinja2."""

from collections.abc import Sequence
from dataclasses import dataclass

from aureole.errors import MissingPackageError
from aureole.reports.runs import Run
from aureole.reports.tables import Table

__all__ = ["Gallery", "Item", "Picture", "Report", "Section", "render"]


@dataclass(frozen=True)
class Picture:
    """An SVG of ours (put into the page as it is), its caption, and what it shows for who cannot see it."""

    svg: str
    caption: str
    label: str


@dataclass(frozen=True)
class Item:
    """An item of a gallery: its text, what is to say of it, and its picture as a data URI, if it has one."""

    text: str
    note: str
    picture: str = ""


@dataclass(frozen=True)
class Gallery:
    """Items under a title, first to last."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Section:
    """A part of the page: an anchor, a title, a text, tables, pictures, the runs behind them, and galleries.

    An empty line in the text begins a paragraph.
    """

    anchor: str
    title: str
    text: str
    tables: tuple[Table, ...]
    figures: tuple[Picture, ...]
    runs: tuple[Run, ...] = ()
    galleries: tuple[Gallery, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a page says: a title, what it is about, sentences on the main results, and the sections."""

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
    """The page as HTML: styles and figures inline, no scripts, nothing loaded; all text is escaped.

    ``about`` and the list of main ``results`` stand above the contents, ``footer`` below all sections.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError("pages need jinja2: pip install 'aureole[reports]'.") from error
    environment = Environment(
        loader=PackageLoader("aureole.reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(
        title=title,
        sections=sections,
        about=about,
        results=results,
        footer=footer,
        footer_title=footer_title,
    )
