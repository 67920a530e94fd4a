"""Figures of the reports as SVG: caps on the sphere, two searches, the metrics of a head."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from aureole.caps import CredibleIndex, Hits
from aureole.distributions import VonMisesFisher
from aureole.explorer._page import format_number
from aureole.plot import (
    BAND,
    BLUE,
    GREY,
    RULE,
    VERMILION,
    WIDTH,
    canvas,
    coverage,
    draw_rejection,
    kappa_histogram,
    place,
    sheet,
)
from aureole.sphere import normalize
from aureole.training._assessment import Assessment

_TURN = np.linspace(0, 2 * math.pi, 361)
_KAPPAS = {"a confident query": 60.0, "a vague query": 8.0}
_COLUMNS, _ROWS = 8, 8  # members shown of each search
_GAP = 3  # pixels between two pictures
_MARGIN, _SIDE_BY_SIDE = 0.15, 0.4  # inches: around the figure, and between the two searches
_FEWEST = 30  # rows: a mean over fewer is not drawn


def caps_figure(mass: float = 0.9, *, rows: int = 400, seed: int = 0) -> str:
    """Two queries with one mu and different kappa, their caps of ``mass``, and the search results, as SVG."""
    rng = torch.Generator().manual_seed(seed)
    mu = normalize(torch.randn(rows, 3, generator=rng))
    names = [str(i) for i in range(rows)]
    centre = normalize(torch.tensor([0.3, -0.8, 0.5]))
    with (
        CredibleIndex.create("faiss://", VonMisesFisher(mu, 40.0), names) as index,
        canvas("caps", len(_KAPPAS), height=3.7) as drawing,
    ):
        for axes, (title, kappa) in zip(drawing.axes, _KAPPAS.items(), strict=True):
            hits = index.search(VonMisesFisher(centre, kappa), mass)
            assert isinstance(hits, Hits)
            degrees = math.degrees(math.acos(float(hits.threshold[0])))
            _draw(axes, mu.numpy(), centre.numpy(), hits)
            axes.set_title(f"{title}, κ = {kappa:g}\ncap of {degrees:.0f}°: {len(hits)} items")
        drawing.legend(columns=2)
    return drawing.svg


def _draw(axes: Any, mu: np.ndarray, centre: np.ndarray, hits: Hits) -> None:
    """Draw the sphere seen along its second axis; points on the far side are pale."""
    axes.fill(np.cos(_TURN), np.sin(_TURN), facecolor=BAND, edgecolor=GREY, linewidth=1)
    axes.plot(np.cos(_TURN), 0.25 * np.sin(_TURN), color=RULE, linewidth=0.8)
    inside = np.zeros(len(mu), bool)
    inside[[int(name) for name in hits.ids]] = True
    front = mu[:, 1] < 0
    for chosen, colour, size, label in (
        (~inside, GREY, 7, "outside the cap"),
        (inside, VERMILION, 16, "in the set"),
    ):
        x, z = mu[chosen & front][:, [0, 2]].T
        axes.scatter(x, z, s=size, color=colour, linewidths=0, label=label, zorder=3)
        x, z = mu[chosen & ~front][:, [0, 2]].T
        axes.scatter(x, z, s=size, color=colour, linewidths=0, alpha=0.18, zorder=2)
    rim = _rim(centre, float(hits.threshold[0]))
    for visible, style in ((rim[:, 1] < 0, "-"), (rim[:, 1] >= 0, ":")):
        x, z = np.where(visible[:, None], rim, np.nan)[:, [0, 2]].T
        label = "the cap" if style == "-" else None
        axes.plot(x, z, style, color=BLUE, linewidth=1.8, zorder=4, label=label)
    x, z = centre[[0, 2]]
    axes.plot(x, z, "*", color=BLUE, markersize=13, zorder=5, label="μ of the query")
    axes.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    axes.set_axis_off()


def _rim(centre: np.ndarray, cosine: float) -> np.ndarray:
    """The circle of all directions with this cosine to the centre."""
    across = np.linalg.svd(centre[None])[2][1:]
    sine = math.sqrt(max(0.0, 1 - cosine**2))
    around = np.cos(_TURN)[:, None] * across[0] + np.sin(_TURN)[:, None] * across[1]
    return cosine * centre + sine * around


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
    """How often each label occurs, the most frequent first."""
    return ", ".join(f"{n} {_plural(name, n)}" for name, n in Counter(labels).most_common())


def two_caps_figure(
    searches: Sequence[CapSearch],
    pictures: UInt8[Tensor, "n 3 side side"],
    labels: Sequence[str],
    queries: Sequence[UInt8[Tensor, "3 large large"]] | None = None,
) -> str:
    """The searches side by side as SVG: the query, its cap among all items, and below it the results.

    ``pictures`` and ``labels`` are those of the gallery's items. ``queries`` replace the
    searches' own pictures, for example in a higher resolution.
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
            counted = f"{len(found)} {_plural('picture', len(found))} in the cap"
            axes.text(x, 2.28, counted, weight="bold", size=13)
            axes.text(x, 2.48, _short(found), size=11.5, color=GREY)
            place(axes, _mosaic(pictures, search.members), x, top, width)
            more = len(found) - _COLUMNS * _ROWS
            if more > 0:
                axes.text(x, bottom + 0.12, f"and {more} more", size=11.5, color=GREY)
        notes = (
            f"Each dot is one of {len(labels)} pictures, by its angle to the query (rim: {rim:.0f}°).",
            "Blue: the cap that the query's own certainty asks for. Orange: the pictures in it.",
        )
        for line, words in enumerate(notes):
            axes.text(0, bottom + 0.38 + 0.2 * line, words, size=10.5, color=GREY)
    return drawing.svg


def _dial(
    axes: Any, search: CapSearch, labels: Sequence[str], rim: float, *, centre: tuple[float, float]
) -> None:
    """All items by their angle to mu, a sector for each label; the cap is a disc."""
    radius = 0.82  # inches
    from_middle = radius / rim
    turn = np.linspace(0, 2 * math.pi, 181)

    def ring(r: float) -> tuple[np.ndarray, np.ndarray]:
        return centre[0] + r * np.cos(turn), centre[1] + r * np.sin(turn)

    axes.fill(*ring(radius), facecolor=BAND, edgecolor=RULE, linewidth=1)
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
    """The members' pictures row by row, with nothing in the gaps."""
    side = pictures.shape[-1]
    step = side + _GAP * side // 32
    rows = max(1, min(_ROWS, -(-len(members) // _COLUMNS)))
    paper = np.zeros((rows * step, _COLUMNS * step, 4), np.uint8)
    for at, number in enumerate(members[: _COLUMNS * _ROWS]):
        y, x = step * (at // _COLUMNS), step * (at % _COLUMNS)
        paper[y : y + side, x : x + side, :3] = _pixels(pictures[number])
        paper[y : y + side, x : x + side, 3] = 255
    return paper


def _pixels(picture: Tensor) -> np.ndarray:
    return picture.permute(1, 2, 0).numpy()


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


def kappa_figure(kappa: np.ndarray) -> str:
    """A histogram of kappa, with the median marked; the axis is logarithmic if kappas differ tenfold."""
    with canvas("kappa", 1) as drawing:
        kappa_histogram(kappa, ax=drawing.axes[0]).get_legend().remove()
        drawing.legend()
    return drawing.svg


def rejection_figure(found: Assessment) -> str:
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


def coverage_figure(shares: Mapping[float, float]) -> str:
    """Measured against nominal coverage of a partner."""
    with canvas("head-coverage", 1, height=3.9) as drawing:
        coverage(shares, ax=drawing.axes[0]).get_legend().remove()
        drawing.legend()
    return drawing.svg


def profile_figure(profile: Mapping[float, float], kappa_pos: float) -> str:
    """The held-out information against kappa_pos on a log scale, with the chosen value marked."""
    values = sorted(profile.items())
    x, y = zip(*values, strict=True)
    with canvas("head-profile", 1) as drawing:
        (axes,) = drawing.axes
        axes.plot(x, y, "o-", color=BLUE, markersize=6, label="held-out information")
        chosen = f"chosen: {format_number(kappa_pos)}"
        axes.axvline(kappa_pos, color=VERMILION, linestyle="--", label=chosen)
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{value:.3g}" for value in x])
        axes.minorticks_off()
        middle, half = (max(y) + min(y)) / 2, max(0.55 * (max(y) - min(y)), 0.25)
        axes.set(xlabel="κ_pos", ylabel="nats", ylim=(middle - half, middle + half))
        drawing.legend()
    return drawing.svg
