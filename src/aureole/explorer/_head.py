"""The report of a head: one page on what its posteriors are worth on a table of vectors."""

import base64
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole._io import atomic_write
from aureole.data import read_thumbnail
from aureole.errors import InvalidInputError
from aureole.explorer import _certainty as certainty
from aureole.explorer._page import Gallery, Item, Picture, Section, Table, format_number, render
from aureole.training import Assessment

_SHOWN = 12  # items of each gallery
_LONGEST = 300  # characters of a text
_SIDE = 192  # pixels of a thumbnail

_READING = (
    "Every row has a direction μ, which says what it is, and a certainty κ, which says how well its vector pins that "
    "down. A high κ: things that belong together with this row lie close to it. A low κ: they may lie far away, so "
    "look at more of them, ask back, or have a person decide.",
    "κ is a matter of degree, not a probability, and is relative to κ_pos, the closeness that partners are supposed "
    "to have. Compare the κ of rows under one head; do not compare κ of two heads.",
    "Recall@1 asks for a row whether the row nearest to it belongs to its group. If κ means something, setting aside "
    "the least certain rows makes the rest more often right: the blue curve rises above the random order. It cannot "
    "rise above the best order, which knows all answers.",
    "Coverage asks whether promises are kept: the 90 % cap of a row should hold the direction of a partner nine times "
    "out of ten. Above the diagonal the caps are wider than needed, below it they are too narrow to rely on.",
    "Figures are honest only for rows that the head was not fitted on.",
)


def write_head_report(
    found: Assessment,
    out: Path,
    *,
    source: str,
    galleries: Sequence[Gallery] = (),
) -> Path:
    """Write the page on an assessment to a file, whole or not at all, and return its path."""
    html = head_page(found, source=source, galleries=galleries)
    return atomic_write(out, html)


def head_page(found: Assessment, *, source: str, galleries: Sequence[Gallery] = ()) -> str:
    """The page on an assessment as HTML; ``source`` says what was assessed."""
    import aureole

    reading = Section("reading", "How to read this", "\n\n".join(_READING), (), ())
    sections = [reading, _certainty(found, galleries), _rejection(found), _coverage(found)]
    if found.profile:
        sections.append(_profile(found))
    versions = f"aureole {aureole.__version__}, torch {torch.__version__}, Python {platform.python_version()}."
    return render(
        "How sure are these vectors?",
        sections,
        about=f"{source}: {len(found.kappa):,} rows in {found.groups:,} groups; posteriors of {found.dim} dimensions.",
        results=_results(found),
        footer=[f"Made by aureole evaluate. Versions: {versions}"],
        footer_title="How this page was made",
    )


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
    """Galleries of the least and the most certain texts; those of the rows that ``extremes`` names are enough."""
    return _galleries(kappa, lambda row: Item(_cut(texts[row]), _note(float(kappa[row]), row)))


def picture_items(kappa: np.ndarray, paths: Mapping[int, Any], folder: Path) -> tuple[Gallery, ...]:
    """Galleries of the least and the most certain pictures; their paths are relative to the folder.

    A picture that cannot be read is a line that says so.
    """

    def item(row: int) -> Item:
        name, note = str(paths[row]), _note(float(kappa[row]), row)
        try:
            content = base64.b64encode(read_thumbnail(folder / name, _SIDE)).decode()
        except InvalidInputError:
            return Item(f"{_cut(name)} cannot be read as a picture", note)
        return Item(_cut(Path(name).name), note, f"data:image/jpeg;base64,{content}")

    return _galleries(kappa, item)


def _galleries(kappa: np.ndarray, item: Callable[[int], Item]) -> tuple[Gallery, ...]:
    least, most = extremes(kappa)
    return tuple(
        Gallery(title, tuple(item(int(row)) for row in rows))
        for title, rows in (("Least certain", least), ("Most certain", most))
    )


def _cut(text: Any) -> str:
    """The text on one line, not longer than a few."""
    if text is None:
        return "(nothing)"
    words = " ".join(str(text)[: 4 * _LONGEST].split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _note(kappa: float, row: int) -> str:
    return f"κ {format_number(kappa)}, row {row}"


def _results(found: Assessment) -> list[str]:
    """The main results in plain sentences."""
    low, median, high = np.quantile(found.kappa.astype(np.float64), (0.05, 0.5, 0.95))
    half, gain = float(found.kept[len(found.kept) // 2]), found.area_best - found.recall
    results = [
        f"A posterior tells {found.information:.2f} nats about a partner: it narrows the search "
        f"{np.exp(found.information):.3g}-fold.",
        f"κ runs from {format_number(low)} to {format_number(high)} in the middle nine tenths of the rows; "
        f"the median is {format_number(median)}.",
        f"The nearest other row is of the same group for {_percent(found.recall)} of {found.asked:,} rows, and for "
        f"{_percent(half)} of the half that κ is surest of.",
    ]
    if gain > 0:
        share = _percent((found.area - found.recall) / gain)
        results.append(f"Over all shares set aside, κ gains {share} of what the best order would.")
    if 0.9 in found.coverage:
        results.append(
            f"Caps that promise to hold a partner in 90 % of cases hold it in {100 * found.coverage[0.9]:.1f} %."
        )
    return results


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _certainty(found: Assessment, galleries: Sequence[Gallery]) -> Section:
    text = "How κ is spread over the rows, and which rows are at the ends of it."
    figure = Picture(
        certainty.kappa_figure(found.kappa),
        f"κ of all {len(found.kappa):,} rows. A single narrow peak would mean that the vectors do not tell which "
        "rows are ambiguous.",
        "Histogram of κ over the rows",
    )
    return Section("certainty", "Certainty", text, (), (figure,), galleries=tuple(galleries))


def _rejection(found: Assessment) -> Section:
    auroc = "not defined" if found.auroc is None else f"{found.auroc:.3f}"
    rows = (
        ("by κ", f"{found.area:.3f}"),
        ("random order", f"{found.recall:.3f}"),
        ("best order", f"{found.area_best:.3f}"),
    )
    table = Table(
        "Area under the curve",
        "Mean Recall@1 over all shares set aside. The chance that a wrong row has a lower κ than a right one: "
        f"{auroc}.",
        ("rows set aside", "area"),
        rows,
    )
    figure = Picture(
        certainty.rejection_figure(found),
        "Recall@1 of the rows that are left when the least certain ones are set aside.",
        "Recall@1 against the share of rows set aside, by κ, at random and in the best order",
    )
    text = f"What is gained when the least certain rows are set aside. {found.asked:,} rows were looked up."
    return Section("rejection", "Setting uncertain rows aside", text, (table,), (figure,))


def _coverage(found: Assessment) -> Section:
    rows = tuple(
        (f"{100 * mass:g} %", f"{100 * share:.1f} %", f"{100 * (share - mass):+.1f} points")
        for mass, share in found.coverage.items()
    )
    table = Table(
        "Coverage",
        "How often the cap around a row's μ holds the μ of a partner.",
        ("promised", "measured", "difference"),
        rows,
    )
    figure = Picture(
        certainty.coverage_figure(found.coverage),
        "Promised against measured coverage. Above the diagonal caps are too wide, below it too narrow.",
        "Measured coverage against promised coverage",
    )
    return Section("coverage", "Coverage", "Are promises kept?", (table,), (figure,))


def _profile(found: Assessment) -> Section:
    figure = Picture(
        certainty.profile_figure(found.profile, found.kappa_pos),
        "Information on held-out pairs when the head was fitted, against κ_pos. The axis spans half a nat or more.",
        "Held-out information against κ_pos",
    )
    text = (
        "κ_pos says how close the latents of partners are. Pairs tell it from κ only weakly: where this curve is "
        "flat, another κ_pos would do as well, and would scale all κ. The order of the rows hardly changes."
    )
    return Section("profile", "The choice of κ_pos", text, (), (figure,))
