"""The page of a quickstart: what an encoder of drawn shapes is sure of, whether rightly, and what it finds."""

import base64
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from aureole._io import atomic_write
from aureole.data import KINDS, DrawnShapes, write_picture
from aureole.explorer._drawing import BLUE, COLOURS, GREY, MARKERS, VERMILION, canvas
from aureole.explorer._head import extremes
from aureole.explorer._page import Gallery, Item, Picture, Section, render
from aureole.explorer._two_caps import CapSearch, two_caps_figure
from aureole.records import Record

_SHOWN = 12
_SEEN = {"blur": "seen in training", "crop": "foreign"}


@dataclass(frozen=True)
class Findings:
    """What the page shows: the record, the held-out shapes with their kappas, the searches, and what to do next.

    ``large`` are the held-out pictures in a size for people, of which the encoder saw small ones.
    """

    record: Record
    shapes: DrawnShapes
    kappa: Tensor
    large: Tensor
    searches: Sequence[CapSearch]
    queries: Sequence[Tensor]
    steps: Sequence[tuple[str, str]]


def quickstart_page(found: Findings) -> str:
    """The page as HTML: styles and pictures inline, no scripts, nothing loaded."""
    metrics = found.record.metrics
    sections = [
        _search(found),
        _certain(found),
        _agreement(found),
        _rejection(metrics),
        _next(found),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in found.record.versions.items())
    return render(
        "Embeddings that know how sure they are",
        sections,
        about=(
            f"An encoder was trained on {found.record.settings['pictures']:,} drawn shapes and the votes on what they "
            f"show. All below is about {len(found.shapes):,} other pictures, which it had not seen."
        ),
        results=_results(metrics),
        footer=[
            f"Made by: {found.record.command}",
            f"Seed {found.record.seed}. Versions: {versions}.",
            "The encoder sees pictures of 32 pixels; here they are drawn again in a larger size from the same numbers.",
        ],
        footer_title="How this page was made",
    )


def write_page(found: Findings, path: Path) -> Path:
    """Write the page whole or not at all, and return its path."""
    html = quickstart_page(found)
    return atomic_write(path, html)


def scatter_figure(kappa: Tensor, entropy: Tensor, kinds: Tensor) -> str:
    """Kappa against the known entropy of each picture's labels, a colour and a mark for each way it was made."""
    with canvas("quickstart-scatter", 1, height=4.0) as drawing:
        (axes,) = drawing.axes
        # entropies of clear pictures are all 0: spread a little, so that one sees how many there are
        spread = np.random.default_rng(0).uniform(-0.03, 0.03, len(kappa))
        for number, kind in enumerate(KINDS):
            of = (kinds == number).numpy()
            x = entropy.numpy()[of] + (spread[of] if kind == "clear" else 0)
            axes.scatter(
                x, kappa.numpy()[of], s=9, alpha=0.55, linewidths=0,
                color=COLOURS[number], marker=MARKERS[number],
            )  # fmt: skip
            axes.scatter([], [], s=40, color=COLOURS[number], marker=MARKERS[number], label=kind)
        axes.set(xlabel="known entropy of the labels, nats", ylabel="κ, which the encoder says")
        axes.set_ylim(bottom=0)
        drawing.legend()
    return drawing.svg


def fading_figure(metrics: Mapping[str, Any]) -> str:
    """The median kappa of clear pictures under a growing blur, and under ever tighter crops."""
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
    """Recall@1 of what is kept against the share set aside: by kappa, in the best order, and at random."""
    rejected, kept = (np.array(metrics["rejection"][name]) for name in ("rejected", "kept"))
    best = np.minimum(1, kept[0] / np.maximum(1 - rejected, 1e-9))
    with canvas("quickstart-rejection", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        axes.plot(rejected, best, ":", color=GREY, label="best order")
        axes.plot(rejected, kept, color=BLUE, linewidth=2.6, label="by κ")
        axes.axhline(kept[0], color=VERMILION, linestyle="-.", linewidth=1.2, label="random order")
        axes.set(xlabel="share of pictures set aside", ylabel="Recall@1 of the others", xlim=(0, 1))
        axes.set_ylim(top=1.004)
        drawing.legend()
    return drawing.svg


def _results(metrics: Mapping[str, Any]) -> list[str]:
    sharp, blurred = metrics["searches"]
    return [
        f"κ falls where votes disagree: its rank correlation with the known entropy of the labels is "
        f"{-metrics['entropy_rank']:.2f}, of {-metrics['entropy_rank_best']:.2f} that can be reached.",
        f"The nearest other picture has the same label for {_percent(metrics['recall_at_1'])} of the pictures, and for "
        f"{_percent(metrics['recall_at_1_sure_half'])} of the half that κ is surest of.",
        f"A sharp {metrics['query']} asks for a cap of {sharp['degrees']:.0f}° and gets {sharp['members']} pictures. "
        f"The same one, blurred, asks for {blurred['degrees']:.0f}° and gets {blurred['members']}.",
    ]


def _certain(found: Findings) -> Section:
    least, most = extremes(found.kappa.numpy(), _SHOWN)

    def item(row: int) -> Item:
        share = found.shapes.votes[row].double()
        order = share.argsort(descending=True, stable=True)[:2].tolist()
        total = int(share.sum())
        votes = ", ".join(f"{found.shapes.names[c]} {int(share[c])}" for c in order if share[c] > 0)
        text = f"κ {float(found.kappa[row]):.1f}"
        return Item(text, f"votes of {total}: {votes}", _data_uri(found.large[row]))

    galleries = tuple(
        Gallery(title, tuple(item(int(row)) for row in rows))
        for title, rows in (("Most certain", most), ("Least certain", least))
    )
    text = (
        "The encoder gives each picture a direction μ, which says what it shows, and a certainty κ. Below each picture "
        "stand its κ and how the votes on it were divided."
    )
    return Section("certain", "What it is sure of", text, (), (), galleries=galleries)


def _agreement(found: Findings) -> Section:
    scatter = Picture(
        scatter_figure(found.kappa, found.shapes.entropy, found.shapes.kinds),
        "Each mark is a picture. Clear ones show one shape, morphs lie between two, and faded ones are blurred so that "
        "shapes that look alike melt together.",
        "κ against the known entropy of the labels of each picture: κ falls as the entropy grows",
    )
    fading = Picture(
        fading_figure(found.record.metrics),
        "The same clear pictures, spoilt step by step. Training pictures were blurred too, and κ falls as it should. "
        "None was cropped: κ tells how ambiguous a picture of a known kind is, and may say anything, even that it is "
        "surer, of a foreign one. It is no detector of foreign pictures.",
        "Median κ of clear pictures under growing blur and tighter crops",
    )
    text = (
        "The votes were drawn from distributions that we set, so the truth is known. The encoder never saw it: it "
        "learned from pairs of pictures that got the same vote."
    )
    return Section("truth", "Is it right to be unsure?", text, (), (scatter, fading))


def _search(found: Findings) -> Section:
    count = min(found.record.settings["gallery"], len(found.shapes))
    labels = [found.shapes.names[label] for label in found.shapes.labels[:count]]
    figure = Picture(
        two_caps_figure(found.searches, found.large[:count], labels, found.queries),
        "One picture, sharp and blurred. Nobody said how many results to return: the query's own certainty did.",
        "A sharp query with a small cap and few results beside a blurred one with a wide cap and many",
    )
    text = (
        f"A list of the ten nearest is too long for a sure query and too short for a vague one. Here a query returns "
        f"all pictures in the cap around μ that holds {100 * found.record.settings['mass']:g} % of its posterior."
    )
    return Section("search", "A search that fits the query", text, (), (figure,))


def _rejection(metrics: Mapping[str, Any]) -> Section:
    figure = Picture(
        rejection_figure(metrics),
        "Set aside the pictures with the lowest κ, and the others are more often right.",
        "Recall@1 of the pictures that are kept, against the share that is set aside by κ",
    )
    text = "Which pictures should a person look at? Those with the lowest κ first."
    return Section("rejection", "Setting pictures aside", text, (), (figure,))


def _next(found: Findings) -> Section:
    items = tuple(Item(command, what) for what, command in found.steps)
    text = "Run these where aureole quickstart was run. Each works on what it wrote."
    return Section("next", "What to do next", text, (), (), galleries=(Gallery("Commands", items),))


def _data_uri(picture: Tensor) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        write_picture(picture, path)
        content = base64.b64encode(path.read_bytes()).decode()
    return f"data:image/png;base64,{content}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
