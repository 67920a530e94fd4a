"""Thumbnails: what images a model is least and most sure of, and what it would retrieve for some with their doubt."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aureole.data import read_picture
from aureole.errors import InvalidInputError
from aureole.explorer import BLUE, VERMILION, WIDTH, Run, canvas, format_number, place, sheet
from aureole_paper.agreement_tables import leading
from aureole_paper.cifar10 import CLASSES
from aureole_paper.records import Groups, first_with

_SIDE, _GAP = 32, 2  # pixels of a thumbnail, and between two
_PER_CLASS, _PER_ROW = 5, 6
_NAMED = 3  # classes of a credible set that are named


def pictured(groups: Groups) -> Run | None:
    """The run whose pictures are shown: the first that has some, with the thumbnails beside its record."""
    row = leading(groups, "pictures")
    run = first_with(groups, row.setting, "pictures") if row else None
    return run if run and _thumbnails(run).is_file() else None


def gallery_figure(groups: Groups) -> str | None:
    """The least certain images of each class on the left, the most certain ones on the right."""
    run = pictured(groups)
    classes = run.record.metrics["pictures"].get("classes") if run else None
    if run is None or not classes:
        return None
    tiles = _Tiles(run)
    left, top, between = 1.05, 0.3, 0.25  # inches
    width = (WIDTH - left - between) / 2
    height = width * _pixels(len(classes)) / _pixels(_PER_CLASS)
    with canvas("gallery", 1, height=top + height) as drawing:
        axes = sheet(drawing, top + height)
        for start, kind, title, colour in (
            (left, "lowest", "least certain", VERMILION),
            (left + width + between, "highest", "most certain", BLUE),
        ):
            shown = [i for each in classes for i in _row(each.get(kind, ()))]
            picture = tiles.mosaic(shown, _PER_CLASS)
            place(axes, picture, start, top, width)
            axes.text(start + width / 2, top - 0.1, title, ha="center", weight="bold", color=colour)
        for at, name in zip(range(len(classes)), CLASSES, strict=False):
            middle = top + (at + 0.5) * height / len(classes)
            axes.text(left - 0.08, middle, name, ha="right", va="center", size=12.5)
    return drawing.svg


def retrieval_figure(groups: Groups) -> str | None:
    """Queries from sure to unsure, each with what its 95 % cap holds: how many of which classes, and some of them."""
    run = pictured(groups)
    queries = run.record.metrics["pictures"].get("queries") if run else None
    if run is None or not queries:
        return None
    tiles = _Tiles(run)
    side, text, top, between = 1.19, 1.57, 0.3, 0.16  # inches
    start = side + text
    height = top + len(queries) * (side + between)
    with canvas("retrieval", 1, height=height) as drawing:
        axes = sheet(drawing, height)
        for x, title in ((0.0, "query"), (side + 0.1, "95 % cap"), (start, "images in the cap")):
            axes.text(x, top - 0.1, title, weight="bold", size=12.5)
        for at, query in enumerate(queries):
            y = top + at * (side + between)
            place(axes, tiles.mosaic([query["query"]], 1), 0.0, y, side)
            for line, words in enumerate(_summary(query)):
                axes.text(side + 0.1, y + 0.14 + 0.198 * line, words, size=12)
            shown = list(query["shown"])
            shown += [-1] * (2 * _PER_ROW - len(shown))
            place(axes, tiles.mosaic(shown, _PER_ROW), start, y, WIDTH - start)
    return drawing.svg


class _Tiles:
    """The thumbnails of a run, [n, 32, 32, 3]."""

    def __init__(self, run: Run) -> None:
        path, expected = _thumbnails(run), run.record.metrics["pictures"]["tiles"]
        pixels = read_picture(path).permute(1, 2, 0).numpy()
        if pixels.shape != (_SIDE * expected, _SIDE, 3):
            raise InvalidInputError(
                f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels, but its record speaks of {expected} "
                f"thumbnails of {_SIDE} x {_SIDE} in a column. Run the setting again to write both."
            )
        self.pixels = pixels.reshape(expected, _SIDE, _SIDE, 3)

    def mosaic(self, shown: Sequence[int], columns: int) -> np.ndarray:
        """The tiles of these numbers row by row, white between them and where the number is none of theirs."""
        step = _SIDE + _GAP
        rows = -(-len(shown) // columns)
        paper = np.full((_pixels(rows), _pixels(columns), 3), 255, np.uint8)
        for at, number in enumerate(shown):
            if 0 <= number < len(self.pixels):
                y, x = step * (at // columns), step * (at % columns)
                paper[y : y + _SIDE, x : x + _SIDE] = self.pixels[number]
        return paper


def _pixels(tiles: int) -> int:
    """How many pixels a line of tiles is long."""
    return tiles * (_SIDE + _GAP) - _GAP


def _summary(query: dict[str, Any]) -> list[str]:
    """What a credible set holds, in a few short lines: κ, the number of images, and of which classes most are."""
    counts = sorted(zip(query["classes"], CLASSES, strict=False), key=lambda pair: -pair[0])
    lines = [f"{name} {count}" for count, name in counts[:_NAMED] if count]
    others = sum(count for count, _ in counts[_NAMED:])
    noun = "image" if query["inside"] == 1 else "images"
    lead = [f"κ {format_number(query['kappa'], 1)}", f"{query['inside']} {noun}:"]
    return [*lead, *lines, *([f"others {others}"] if others else [])]


def _row(numbers: Sequence[int]) -> list[int]:
    """As many numbers as a row of the gallery has, -1 where there are too few."""
    return [*numbers, *[-1] * _PER_CLASS][:_PER_CLASS]


def _thumbnails(run: Run) -> Any:
    return (run.folder / run.path).with_suffix(".png")
