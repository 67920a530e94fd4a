"""The page of a quickstart: where the encoder is certain, whether that is right, and what a search returns."""

import base64
import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from aureole._io import atomic_write
from aureole.data._image_files import write_picture
from aureole.explorer._head import extremes, rejection_curves
from aureole.explorer._page import Gallery, Item, Picture, Section, format_share, render
from aureole.plot import (
    BAND,
    BLUE,
    COLOURS,
    GREY,
    MARKERS,
    RULE,
    VERMILION,
    WIDTH,
    canvas,
    place,
    sheet,
)
from aureole.records import Record
from aureole.synthetic import KINDS, DrawnShapes

_SHOWN = 12
_COLUMNS, _ROWS = 8, 8  # members shown of each search
_GAP = 3  # pixels between two pictures
_MARGIN, _SIDE_BY_SIDE = 0.15, 0.4  # inches: around the figure, and between the two searches
_SEEN = {"blur": "seen in training", "crop": "not seen in training"}


@dataclass(frozen=True)
class CapSearch:
    """A search: the query's picture and kappa, its cap, the items in it (best first), and every item's angle to mu."""

    title: str
    picture: UInt8[Tensor, "3 side side"]
    kappa: float
    degrees: float
    members: tuple[int, ...]
    angles: tuple[float, ...]


@dataclass(frozen=True)
class Findings:
    """The content of the page: the record, the held-out shapes with their kappas, the searches, and next steps.

    ``large`` are the held-out pictures in a larger size than the encoder sees.
    """

    record: Record
    shapes: DrawnShapes
    kappa: Tensor
    large: Tensor
    searches: Sequence[CapSearch]
    queries: Sequence[Tensor]
    steps: Sequence[tuple[str, str]]


def write_page(found: Findings, path: Path) -> Path:
    """Write the page atomically, and return its path."""
    record = found.record
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    html = render(
        "Embeddings that know how sure they are",
        [_search(found), _certain(found), _truth(found), _rejection(record.metrics), _next(found)],
        about=(
            f"An encoder was trained on {record.settings['pictures']:,} drawn shapes and people's votes on what they "
            f"show. Everything below is about {len(found.shapes):,} other pictures, which it did not see in training."
        ),
        results=_results(record.metrics),
        footer=[
            f"Command: {record.command}",
            f"Seed {record.seed}. Versions: {versions}.",
            "The encoder sees pictures of 32 pixels; this page shows the same shapes drawn in a larger size.",
        ],
        footer_title="How this page was made",
    )
    return atomic_write(path, html)


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


def scatter_figure(kappa: Tensor, entropy: Tensor, kinds: Tensor) -> str:
    """Kappa against the known entropy of each picture's labels, with a colour and a marker per kind of picture."""
    with canvas("quickstart-scatter", 1, height=4.0) as drawing:
        (axes,) = drawing.axes
        # entropies of clear pictures are all 0: spread a little, to show how many there are
        spread = np.random.default_rng(0).uniform(-0.03, 0.03, len(kappa))
        for number, kind in enumerate(KINDS):
            of = (kinds == number).numpy()
            x = entropy.numpy()[of] + (spread[of] if kind == "clear" else 0)
            style: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number]}
            axes.scatter(x, kappa.numpy()[of], s=9, alpha=0.55, linewidths=0, **style)
            axes.scatter([], [], s=40, label=kind, **style)
        axes.set(xlabel="known entropy of the labels, nats", ylabel="predicted κ")
        axes.set_ylim(bottom=0)
        drawing.legend()
    return drawing.svg


def fading_figure(metrics: Mapping[str, Any]) -> str:
    """The median kappa of clear pictures under increasing blur and tighter crops."""
    panels = (("blur", "width", "blur, pixels"), ("crop", "size", "crop, share of the side"))
    with canvas("quickstart-fading", 2, sharey=True) as drawing:
        for axes, (name, amount, label) in zip(drawing.axes, panels, strict=True):
            axes.plot(metrics[name][amount], metrics[name]["kappa"], "o-", color=BLUE)
            axes.set(xlabel=label, title=_SEEN[name])
        drawing.axes[1].invert_xaxis()
        drawing.axes[0].set_ylabel("median κ of clear pictures")
        drawing.axes[0].set_ylim(bottom=0)
    return drawing.svg


def rejection_figure(metrics: Mapping[str, Any]) -> str:
    """Recall@1 of the pictures that are kept against the share rejected: by kappa, in the best order, and at random."""
    rejected, kept = (np.array(metrics["rejection"][name]) for name in ("rejected", "kept"))
    best = np.minimum(1, kept[0] / np.maximum(1 - rejected, 1e-9))
    return rejection_curves("quickstart-rejection", rejected, kept, best=best, items="pictures")


def _results(metrics: Mapping[str, Any]) -> list[str]:
    sharp, blurred = metrics["searches"]
    return [
        f"κ is lower where votes disagree: its rank correlation with the known entropy of the labels is "
        f"{-metrics['entropy_rank']:.2f}; the best possible value is {-metrics['entropy_rank_best']:.2f}.",
        f"The nearest other picture has the same label for {format_share(metrics['recall_at_1'])} of the pictures, and "
        f"for {format_share(metrics['recall_at_1_sure_half'])} of the half with the higher κ.",
        f"A sharp {metrics['query']} has a cap of {sharp['degrees']:.0f}° and returns {sharp['members']} pictures. "
        f"The same picture, blurred, has a cap of {blurred['degrees']:.0f}° and returns {blurred['members']}.",
    ]


def _certain(found: Findings) -> Section:
    least, most = extremes(found.kappa.numpy(), _SHOWN)

    def item(row: int) -> Item:
        votes = found.shapes.votes[row]
        order = votes.double().argsort(descending=True, stable=True)[:2].tolist()
        shown = ", ".join(f"{found.shapes.names[c]} {int(votes[c])}" for c in order if votes[c] > 0)
        text = f"κ {float(found.kappa[row]):.1f}"
        return Item(text, f"votes of {int(votes.sum())}: {shown}", _data_uri(found.large[row]))

    galleries = tuple(
        Gallery(title, tuple(item(int(row)) for row in rows))
        for title, rows in (("Most certain", most), ("Least certain", least))
    )
    text = (
        "The encoder maps each picture to a direction μ, what it shows, and a concentration κ, how certain that is. "
        "Each picture is shown with its κ and its votes."
    )
    return Section("certain", "Most and least certain pictures", text, (), (), galleries=galleries)


def _truth(found: Findings) -> Section:
    scatter = Picture(
        scatter_figure(found.kappa, found.shapes.entropy, found.shapes.kinds),
        "Each marker is a picture. Clear ones show one shape, morphs lie between two, and faded ones are so blurred "
        "that similar shapes cannot be distinguished.",
        "κ against the known entropy of the labels of each picture: κ falls as the entropy grows",
    )
    fading = Picture(
        fading_figure(found.record.metrics),
        "The same clear pictures, degraded step by step. Training included blurred pictures, and κ falls with blur as "
        "it should. It included no crops: κ measures how ambiguous a picture of a known kind is, and on "
        "out-of-distribution pictures it can be arbitrary, even high. It does not detect them.",
        "Median κ of clear pictures under growing blur and tighter crops",
    )
    text = (
        "The votes were drawn from distributions that we chose, so the truth is known. The encoder never saw it: it "
        "learned from pairs of pictures with the same vote."
    )
    return Section("truth", "Is the uncertainty right?", text, (), (scatter, fading))


def _search(found: Findings) -> Section:
    count = min(found.record.settings["gallery"], len(found.shapes))
    labels = [found.shapes.names[label] for label in found.shapes.labels[:count]]
    figure = Picture(
        two_caps_figure(found.searches, found.large[:count], labels, found.queries),
        "One picture, sharp and blurred. The uncertainty of the query decides how many results it returns.",
        "A sharp query with a small cap and few results next to a blurred one with a wide cap and many",
    )
    text = (
        f"A list of the ten nearest is too long for a certain query and too short for an uncertain one. Here a query "
        f"returns all pictures in the cap around μ that contains {100 * found.record.settings['mass']:g} % of its "
        "posterior."
    )
    return Section("search", "A search that fits the query", text, (), (figure,))


def _rejection(metrics: Mapping[str, Any]) -> Section:
    figure = Picture(
        rejection_figure(metrics),
        "If you reject the pictures with the lowest κ, the others are more often right.",
        "Recall@1 of the pictures that are kept, against the share rejected by κ",
    )
    text = "Which pictures should a person check? Those with the lowest κ first."
    return Section("rejection", "Rejecting uncertain pictures", text, (), (figure,))


def _next(found: Findings) -> Section:
    items = tuple(Item(command, what) for what, command in found.steps)
    text = "Run these in the folder in which you ran aureole quickstart."
    return Section("next", "Next steps", text, (), (), galleries=(Gallery("Commands", items),))


def _data_uri(picture: Tensor) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        write_picture(picture, path)
        content = base64.b64encode(path.read_bytes()).decode()
    return f"data:image/png;base64,{content}"
