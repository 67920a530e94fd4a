"""The page of a quickstart: where the encoder is certain, whether that is right, and what a search returns."""

import base64
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from aureole._io import atomic_write
from aureole.data._image_files import write_picture
from aureole.explorer import _figures as figures
from aureole.explorer._figures import CapSearch, two_caps_figure
from aureole.explorer._head import extremes
from aureole.explorer._page import Gallery, Item, Picture, Section, format_share, render
from aureole.plot import BLUE, COLOURS, MARKERS, canvas
from aureole.records import Record
from aureole.synthetic import KINDS, DrawnShapes

_SHOWN = 12
_SEEN = {"blur": "seen in training", "crop": "not seen in training"}


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
    return figures.rejection_curves(
        "quickstart-rejection", rejected, kept, best=best, items="pictures"
    )


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
