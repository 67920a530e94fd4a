"""Two caps: one picture searched for sharp and blurred, with the real sets that come back."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from aureole.explorer._drawing import BLUE, GREY, VERMILION, WIDTH, canvas, place, sheet

_COLUMNS, _ROWS = 8, 8  # members shown of each search
_GAP = 3  # pixels between two
_MARGIN = 0.15  # inches
_SIDE_BY_SIDE = 0.4  # inches between the two searches


@dataclass(frozen=True)
class CapSearch:
    """A search: the query's picture and kappa, its cap, the items in it (best first), and every item's angle to mu."""

    title: str
    picture: UInt8[Tensor, "3 side side"]
    kappa: float
    degrees: float
    members: tuple[int, ...]
    angles: tuple[float, ...]


def count_labels(labels: Sequence[str]) -> str:
    """How often each label is there, the most frequent first.

    Examples
    --------
    >>> count_labels(["star", "drop", "star"])
    '2 stars, 1 drop'
    """
    return ", ".join(f"{n} {_plural(name, n)}" for name, n in Counter(labels).most_common())


def two_caps_figure(
    searches: Sequence[CapSearch],
    pictures: UInt8[Tensor, "n 3 side side"],
    labels: Sequence[str],
    queries: Sequence[UInt8[Tensor, "3 side side"]] | None = None,
) -> str:
    """The searches side by side as SVG: the query, its cap among all items, and below them the set that came back.

    ``pictures`` and ``labels`` are those of the gallery's items. ``queries`` are shown instead of the searches' own
    pictures, such as the same in a higher resolution.
    """
    shown = [search.picture for search in searches] if queries is None else list(queries)
    width = (WIDTH - _SIDE_BY_SIDE * (len(searches) - 1)) / len(searches)
    tile = width / _COLUMNS
    rows = max(min(_ROWS, -(-len(search.members) // _COLUMNS)) for search in searches)
    top = 2.62  # inches: where the sets begin
    bottom = top + rows * tile
    height = bottom + 0.6
    rim = max(90.0, *(angle for search in searches for angle in search.angles))
    with canvas("two-caps", 1, height=height) as drawing:
        axes = sheet(drawing, height)
        axes.set(xlim=(-_MARGIN, WIDTH + _MARGIN), ylim=(height + _MARGIN, -_MARGIN / 3))
        for number, (search, picture) in enumerate(zip(searches, shown, strict=True)):
            x = number * (width + _SIDE_BY_SIDE)
            found = [labels[i] for i in search.members]
            axes.text(x, 0.2, f"a {search.title} query", weight="bold", size=15)
            axes.text(x, 0.42, f"κ = {search.kappa:.0f}, cap of {search.degrees:.0f}°", size=12.5)
            place(axes, _pixels(picture), x, 0.58, 1.15)
            _dial(axes, search, labels, rim, centre=(x + width - 0.83, 1.26))
            axes.text(x, 2.28, f"{_images(len(found))} in the cap", weight="bold", size=13)
            axes.text(x, 2.48, _short(found), size=11.5, color=GREY)
            place(axes, _mosaic(pictures, search.members), x, top, width)
            more = len(found) - _COLUMNS * _ROWS
            if more > 0:
                axes.text(x, bottom + 0.12, f"and {more} more", size=11.5, color=GREY)
        for line, words in enumerate(_legend(len(labels), rim)):
            axes.text(0, bottom + 0.38 + 0.2 * line, words, size=10.5, color=GREY)
    return drawing.svg


def _legend(count: int, rim: float) -> list[str]:
    return [
        f"Each dot is one of {count} pictures, by its angle to the query (rim: {rim:.0f}°).",
        "Blue: the cap that the query's own certainty asks for. Orange: the pictures in it.",
    ]


def _dial(
    axes: Any, search: CapSearch, labels: Sequence[str], rim: float, *, centre: tuple[float, float]
) -> None:
    """All items by their angle to mu, a sector for each label; the cap is a disc."""
    radius = 0.82  # inches
    from_middle = radius / rim
    turn = np.linspace(0, 2 * math.pi, 181)

    def ring(r: float) -> tuple[np.ndarray, np.ndarray]:
        return centre[0] + r * np.cos(turn), centre[1] + r * np.sin(turn)

    axes.fill(*ring(radius), facecolor="#f6f6f6", edgecolor="#c8c8c8", linewidth=1)
    axes.fill(*ring(search.degrees * from_middle), facecolor=BLUE, alpha=0.16, linewidth=0)
    axes.plot(*ring(search.degrees * from_middle), color=BLUE, linewidth=1.8)
    names = sorted(set(labels))
    sector = 2 * math.pi / len(names)
    seen: Counter[str] = Counter()
    total = Counter(labels)
    points = np.empty((len(labels), 2))
    for row, (label, angle) in enumerate(zip(labels, search.angles, strict=True)):
        seen[label] += 1
        at = sector * (names.index(label) + 0.08 + 0.84 * seen[label] / (total[label] + 1))
        r = angle * from_middle
        points[row] = centre[0] + r * math.cos(at), centre[1] + r * math.sin(at)
    inside = np.zeros(len(labels), bool)
    inside[list(search.members)] = True
    axes.scatter(*points[~inside].T, s=4, color=GREY, linewidths=0, alpha=0.7, zorder=3)
    axes.scatter(*points[inside].T, s=9, color=VERMILION, linewidths=0, zorder=4)
    axes.plot(*centre, "*", color=BLUE, markersize=9, zorder=5)


def _mosaic(pictures: Tensor, members: Sequence[int]) -> np.ndarray:
    """The members' pictures row by row, white where there is none."""
    side = pictures.shape[-1]
    step = side + _GAP * side // 32
    rows = max(1, min(_ROWS, -(-len(members) // _COLUMNS)))
    paper = np.full((rows * step, _COLUMNS * step, 3), 255, np.uint8)
    for at, number in enumerate(members[: _COLUMNS * _ROWS]):
        y, x = step * (at // _COLUMNS), step * (at % _COLUMNS)
        paper[y : y + side, x : x + side] = _pixels(pictures[number])
    return paper


def _pixels(picture: Tensor) -> np.ndarray:
    return picture.permute(1, 2, 0).numpy()


def _images(count: int) -> str:
    return f"{count} picture{'' if count == 1 else 's'}"


def _short(found: Sequence[str]) -> str:
    """The labels in one line that fits."""
    text = count_labels(found)
    if len(text) <= 34:
        return text
    (name, count), *others = Counter(found).most_common()
    rest = sum(n for _, n in others)
    return f"{count} {_plural(name, count)}, {rest} of {len(others)} other shapes"


def _plural(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name}es" if name.endswith("s") else f"{name}s"
