"""The report of a head: one page on the quality of its posteriors on a table of vectors."""

import base64
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole._io import atomic_write
from aureole.data._image_files import read_thumbnail
from aureole.errors import InvalidInputError
from aureole.explorer._page import (
    Gallery,
    Item,
    Picture,
    Section,
    Table,
    format_number,
    format_share,
    render,
)
from aureole.plot import canvas, coverage, draw_rejection, kappa_histogram
from aureole.training._assessment import Assessment

_SHOWN = 12  # items of each gallery
_MAX_TEXT = 300  # characters of a text
_SIDE = 192  # pixels of a thumbnail
_NOTHING = 0.01  # nats, below which the page speaks of no information
_FEWEST = 30  # rows: a mean over fewer is not drawn
_WEAK = 0.55  # AUROC of kappa, below which the page says that it hardly helps

_READING = (
    "Every row has a direction μ, which encodes what it is, and a concentration κ, which says how precisely its vector "
    "determines that. High κ: matching rows are close to it. Low κ: they may be far away, so look at more of them, ask "
    "for a better query, or let a person decide.",
    "κ is not a probability, and is relative to κ_pos, the closeness of partners that the head assumes. You can "
    "compare the κ of rows under one head, but not across heads.",
    "Recall@1 is the share of rows whose nearest other row belongs to the same group. If κ is informative, rejecting "
    "the least certain rows raises it for the rest: the blue curve is above the random order. It cannot be above the "
    "best order, which uses the answers.",
    "Coverage: the 90 % cap of a row should contain the direction of a partner nine times out of ten. Above the "
    "diagonal the caps are wider than needed, below it they are too narrow to rely on.",
    "The metrics are only valid if they come from rows that the head was not fitted on.",
)


def write_head_report(
    found: Assessment,
    out: Path,
    *,
    source: str,
    galleries: Sequence[Gallery] = (),
    note: str = "",
) -> Path:
    """Write the page on an assessment atomically, and return its path.

    Parameters
    ----------
    found
        The assessment, from ``assess``.
    out
        The HTML file.
    source
        What was assessed, such as the name of a file.
    galleries
        The least and the most certain rows, from ``text_items`` or ``picture_items`` (default: none).
    note
        A sentence on which rows the metrics are from (default: none).
    """
    return atomic_write(out, head_page(found, source=source, galleries=galleries, note=note))


def head_page(
    found: Assessment, *, source: str, galleries: Sequence[Gallery] = (), note: str = ""
) -> str:
    """The page on an assessment as HTML; ``source`` names what was assessed."""
    reading = Section("reading", "How to read this", "\n\n".join(_READING), (), ())
    sections = [reading, _certainty(found.kappa, galleries), _rejection(found), _coverage(found)]
    about = f"{source}: {len(found.kappa):,} rows in {found.groups:,} groups; posteriors of {found.dim} dimensions."
    return render(
        "How certain are these rows?",
        sections,
        about=f"{about} {note}".strip(),
        results=_results(found),
        footer=[versions()],
        footer_title="How this page was made",
    )


def write_kappa_report(
    kappa: np.ndarray, out: Path, *, source: str, galleries: Sequence[Gallery] = ()
) -> Path:
    """Write a page on the kappa of rows without groups: their distribution, and the most and the least certain."""
    low, median, high = np.quantile(kappa.astype(np.float64), (0.05, 0.5, 0.95))
    page = render(
        "How certain are these rows?",
        [
            Section("reading", "How to read this", "\n\n".join(_READING[:2]), (), ()),
            _certainty(kappa, galleries),
        ],
        about=f"{source}: {len(kappa):,} rows.",
        results=[
            f"90 % of the rows have a κ from {format_number(low)} to {format_number(high)}; the median is "
            f"{format_number(median)}."
        ],
        footer=[versions()],
        footer_title="How this page was made",
    )
    return atomic_write(out, page)


def versions() -> str:
    """The versions of the packages behind a page, as a sentence."""
    import aureole

    python = platform.python_version()
    return f"Written by aureole {aureole.__version__} with torch {torch.__version__} and Python {python}."


def extremes(kappa: np.ndarray, count: int = _SHOWN) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the lowest kappas, lowest first, and of the highest, highest first; no row is in both.

    Examples
    --------
    >>> least, most = extremes(np.array([3.0, 1.0, 2.0, 9.0, 5.0]), 2)
    >>> least.tolist(), most.tolist()
    ([1, 2], [3, 4])
    """
    order = np.argsort(kappa, kind="stable")
    count = min(count, max(1, len(order) // 2))
    return order[:count], order[len(order) - count :][::-1]


def text_items(kappa: np.ndarray, texts: Mapping[int, Any]) -> tuple[Gallery, ...]:
    """Galleries of the least and the most certain texts; ``texts`` needs the rows of ``extremes`` only."""
    return _galleries(kappa, lambda row: Item(cut_text(texts[row]), _note(float(kappa[row]), row)))


def picture_items(
    kappa: np.ndarray, pictures: Mapping[int, Any], folder: Path = Path()
) -> tuple[Gallery, ...]:
    """Galleries of the least and the most certain pictures: paths, relative to the folder, or the bytes of files.

    A picture that cannot be read is replaced by a message.
    """

    def item(row: int) -> Item:
        source, note = pictures[row], _note(float(kappa[row]), row)
        name = "" if isinstance(source, bytes) else "/".join(Path(str(source)).parts[-2:])
        try:
            source = source if isinstance(source, bytes) else folder / str(source)
            content = base64.b64encode(read_thumbnail(source, _SIDE)).decode()
        except InvalidInputError:
            return Item(f"{cut_text(name)} cannot be read as a picture", note)
        return Item(cut_text(name), note, f"data:image/jpeg;base64,{content}")

    return _galleries(kappa, item)


def _galleries(kappa: np.ndarray, item: Callable[[int], Item]) -> tuple[Gallery, ...]:
    least, most = extremes(kappa)
    return tuple(
        Gallery(title, tuple(item(int(row)) for row in rows))
        for title, rows in (("Least certain", least), ("Most certain", most))
    )


def cut_text(text: Any) -> str:
    """The text on one line, shortened to a few hundred characters."""
    if text is None:
        return "(empty)"
    words = " ".join(str(text)[: 4 * _MAX_TEXT].split())
    return words if len(words) <= _MAX_TEXT else f"{words[: _MAX_TEXT - 1]}…"


def _note(kappa: float, row: int) -> str:
    return f"κ {format_number(kappa)}, row {row}"


def _results(found: Assessment) -> list[str]:
    """The main results, one sentence each."""
    low, median, high = np.quantile(found.kappa.astype(np.float64), (0.05, 0.5, 0.95))
    half, gain = float(found.kept[len(found.kept) // 2]), found.area_best - found.recall
    nats = f"{found.information:.2f} nats"
    carried = (
        f"A posterior carries {nats} of information about a partner: it narrows the search "
        f"{np.exp(found.information):.3g}-fold."
    )
    if abs(found.information) < _NOTHING:
        carried = f"The posteriors carry no information about a partner ({nats})."
    elif found.information < 0:
        carried = (
            f"The calibrated posteriors carry no information about a partner on average ({nats}): partners far outside "
            "of the caps cost more than the others gain. The order of the rows by κ does not depend on this."
        )
    results = [
        carried,
        f"90 % of the rows have a κ from {format_number(low)} to {format_number(high)}; "
        f"the median is {format_number(median)}.",
        f"The nearest other row is in the same group for {format_share(found.recall)} of {found.asked:,} rows, and for "
        f"{format_share(half)} of the half with the higher κ.",
    ]
    if gain > 0:
        share = format_share((found.area - found.recall) / gain)
        results.append(
            f"Rejecting rows by κ gains {share} of what the best order would, averaged over all rejected shares."
        )
    if found.auroc is not None and found.auroc < _WEAK:
        results.append(
            f"κ hardly separates right from wrong rows here (AUROC {found.auroc:.2f}; 0.5 is chance). More groups may "
            "help, or the vectors do not show which rows are ambiguous."
        )
    if 0.9 in found.coverage:
        measured = f"{100 * found.coverage[0.9]:.1f} %"
        results.append(f"A cap of mass 90 % contains the partner in {measured} of the pairs.")
    return results


def _certainty(kappa: np.ndarray, galleries: Sequence[Gallery]) -> Section:
    figure = Picture(
        _kappa_figure(kappa),
        f"κ of all {len(kappa):,} rows. A single narrow peak would mean that the vectors do not show which "
        "rows are ambiguous.",
        "Histogram of κ over the rows",
    )
    text = "The distribution of κ over the rows, and the rows with the lowest and the highest κ."
    return Section("certainty", "Certainty", text, (), (figure,), galleries=tuple(galleries))


def _rejection(found: Assessment) -> Section:
    figure = Picture(
        _rejection_figure(found),
        "Recall@1 of the remaining rows when the least certain ones are rejected.",
        "Recall@1 against the share of rows rejected, by κ, at random and in the best order",
    )
    text = f"The gain from rejecting the least certain rows. {found.asked:,} rows were looked up."
    return Section("rejection", "Rejecting uncertain rows", text, (), (figure,))


def _coverage(found: Assessment) -> Section:
    table = Table(
        "Coverage",
        "How often the cap around a row's μ contains the μ of a partner.",
        ("nominal", "measured", "difference"),
        tuple(
            (f"{100 * mass:g} %", f"{100 * share:.1f} %", f"{100 * (share - mass):+.1f} points")
            for mass, share in found.coverage.items()
        ),
    )
    figure = Picture(
        _coverage_figure(found.coverage),
        "Measured against nominal coverage. Above the diagonal caps are too wide, below it too narrow.",
        "Measured coverage against nominal coverage",
    )
    text = "Do caps contain as much as their nominal mass?"
    return Section("coverage", "Coverage", text, (table,), (figure,))


def _kappa_figure(kappa: np.ndarray) -> str:
    """A histogram of kappa, with the median marked; the axis is logarithmic if kappas differ tenfold."""
    with canvas("kappa", 1) as drawing:
        kappa_histogram(kappa, ax=drawing.axes[0]).get_legend().remove()
        drawing.legend()
    return drawing.svg


def _rejection_figure(found: Assessment) -> str:
    """Recall@1 of the rows that are kept against the share rejected: by kappa, in the best order, and at random.

    The curve by kappa ends where fewer than 30 rows are kept, whose Recall@1 would be noise.
    """
    shown = found.rejected <= max(0.5, 1 - _FEWEST / found.asked)
    kept = np.where(shown, found.kept, np.nan)
    return rejection_curves("head-rejection", found.rejected, kept, best=found.best, items="rows")


def rejection_curves(
    name: str, rejected: np.ndarray, kept: np.ndarray, *, best: np.ndarray, items: str
) -> str:
    """Recall@1 of the ``items`` that are kept against the share rejected; NaN is not drawn."""
    with canvas(name, 1, height=3.6) as drawing:
        style = {"score": "Recall@1", "items": items, "ax": drawing.axes[0]}
        draw_rejection(rejected, kept, best, **style).get_legend().remove()
        drawing.legend()
    return drawing.svg


def _coverage_figure(shares: Mapping[float, float]) -> str:
    """Measured against nominal coverage of a partner."""
    with canvas("head-coverage", 1, height=3.9) as drawing:
        coverage(shares, ax=drawing.axes[0]).get_legend().remove()
        drawing.legend()
    return drawing.svg
