"""The report of CIFAR-10H: a summary, and a section for every table and figure with records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data._image_files import read_picture
from aureole.errors import InvalidInputError
from aureole.explorer._page import Report, Run, Table, format_number
from aureole.plot import BLUE, GREY, VERMILION, WIDTH, canvas, place, sheet
from aureole_paper.cifar import CLASSES
from aureole_paper.paper_values import format_paper, paper_value
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    counted,
    first_with,
    format_summary,
    numbers,
    summarise,
    summary,
    value_at,
)
from aureole_paper.tables import (
    COLUMNS,
    FOLD_FACTS,
    LABELS,
    Plan,
    Texts,
    build_report,
    fixed,
    present,
    run_facts,
)


@dataclass(frozen=True)
class Row:
    """A row: its label, its setting, the paper's name for it, and metrics that its records store under other names."""

    label: str
    setting: str
    paper: str = ""
    own: Mapping[str, str] = field(default_factory=dict)


_NEIGHBOURS = {"entropy_rank": "neighbour_entropy_rank", "crop_rank": "neighbour_crop_rank"}
_ENTROPY = {"entropy_rank": "softmax_entropy_rank", "crop_rank": "softmax_entropy_crop_rank"}
# these records have the R-AUROC of the classifier's own errors, not of the nearest neighbours
_ACCURACY = {"recall_at_1": "accuracy", "r_auroc": ""}


def _with(suffix: str) -> dict[str, str]:
    """The names of the rank correlations at another temperature, or with other inputs."""
    names = {f"{metric}_rank": f"{metric}_rank_{suffix}" for metric in ("entropy", "crop")}
    return names | {"r_auroc": ""}


# one network each; figures show the first row that has records
LOSSES = (
    Row("closed form (ours)", "closed-form"),
    Row("the same, learning rate and head chosen inside the training images", "closed-form-nested"),
    Row("closed form and agreement of annotators, frozen network (ours)", "votes"),
    Row("closed form, κ = norm", "closed-form-norm"),
    Row("MCInfoNCE", "mcinfonce", "mcinfonce"),
    Row("ELK", "elk", "elk"),
    Row("HIB", "hib", "hib"),
    Row("InfoNCE, distance to neighbours", "infonce", "infonce", _NEIGHBOURS),
    Row("InfoNCE, untrained κ", "infonce", "infonce"),
)
TWO_NETWORKS = (
    Row("closed form, ensemble of two networks", "closed-form-ensemble"),
    Row("closed form and agreement of annotators, two frozen networks", "votes-ensemble"),
    Row("two classifiers, entropy of softmax, mirrored", "softmax-two"),
    Row("two classifiers, entropy of softmax, mirrored, T = 2", "softmax-two", own=_with("at_2")),
)
BASELINES = (
    Row("closed form (ours)", "closed-form"),
    Row("closed form and agreement of annotators, frozen network (ours)", "votes"),
    Row("the encoder before training", "step-0"),
    Row("classifier, 1 - max softmax", "softmax", own=_ACCURACY),
    Row("classifier, entropy of softmax", "softmax", own=_ENTROPY | _ACCURACY),
    Row("classifier, entropy of softmax, mirrored", "softmax-mirrored"),
    Row("the same, T = 2", "softmax-mirrored", own=_with("at_2")),
    Row("the same, T fitted on the votes", "softmax-mirrored", own=_with("fitted")),
    Row("classifier fine-tuned on the votes", "softmax-votes", own=_ENTROPY | _ACCURACY),
    Row("classifier fine-tuned on the votes, mirrored", "softmax-votes-mirrored"),
    Row("ridge regression of the disagreement", "ridge"),
    Row("the same, from the features alone", "ridge", own=_with("linear")),
    Row("ridge regression, two votes per image", "ridge-two-votes"),
    Row("closed form and agreement, two votes per image (ours)", "votes-two"),
    Row("closed form and agreement, one vote per image (ours)", "votes-one"),
    Row("votes: one half against the other", "ceiling", own={"entropy_rank": "split_half_rank"}),
    Row("votes: noise ceiling", "ceiling", own={"entropy_rank": "ceiling_rank"}),
)
LABEL_KINDS = (
    Row("CIFAR-10H, soft", "closed-form", "labels-soft"),
    Row("CIFAR-10H, hard", "labels-hard", "labels-hard"),
    Row("CIFAR-10, hard", "labels-cifar10", "labels-cifar10"),
)
PRETRAINING = (
    Row("with pretraining", "closed-form", "pretrained"),
    Row("from scratch", "scratch", "scratch"),
    Row("from scratch, longer, shifted images", "scratch-longer", "scratch"),
    Row("the same, also with CIFAR-10's training images", "scratch-cifar10", "scratch"),
)
VARIANTS = (
    Row("κ from prototypes", "closed-form"),
    Row("κ from prototypes", "resnet56"),
    Row("κ = norm", "closed-form-norm"),
    Row("κ = norm", "resnet56-norm"),
    Row("trained on crops too", "cropped"),
)
# the rows that have a κ to reject by
REJECTION = tuple(
    row
    for row in (*LOSSES, *TWO_NETWORKS)
    if row.own is not _NEIGHBOURS and not row.setting.startswith("softmax")
)
_AGREEMENT = ("entropy_rank", "crop_rank", "recall_at_1")
_ITEMS = "± images"  # the standard error by bootstrap over test images
_QUANTILES = ("5 %", "50 %", "95 %")
_KNOWN = "test images"
TEXTS = Texts("cifar10h")
_REJECTION = {
    "recall_at_1": "random",
    "rejection_area": "by κ",
    "rejection_area_softmax": "by softmax",
    "rejection_area_oracle": "best",
    "r_auroc": "by κ",
    "r_auroc_softmax": "by softmax",
    "aurc": "AURC ↓",
    "augrc": "AUGRC ↓",
}
_RESULTS = (
    "closed-form",
    "votes",
    "mcinfonce",
    "closed-form-ensemble",
    "votes-ensemble",
)  # the main results
_SIDE, _GAP = 32, 2  # pixels of a thumbnail, and between two
_PER_CLASS, _PER_ROW = 5, 6
_NAMED = 3  # classes of a credible set that are named


def cifar10h_report(runs: Sequence[Run]) -> Report:
    """The report of runs on CIFAR-10H."""
    metrics = ("entropy_rank", "crop_rank", "recall_at_1", "rejection_area", "r_auroc")
    return build_report(TEXTS, _PLANS, runs, results=main_results, metrics=metrics)


def main_results(groups: Groups) -> list[str]:
    """One sentence per main result that has runs; the paper's number next to ours where both are one network."""
    known = (*LOSSES, *TWO_NETWORKS)
    rows = [row for row in known if row.setting in _RESULTS and row.setting in groups]
    results = [_result(row, groups[row.setting]) for row in rows]
    ceiling = summary(groups.get("ceiling", ()), "ceiling_rank")
    if ceiling:
        results.append(
            "The entropy of about 50 votes is itself uncertain: a perfect prediction of people's disagreement would "
            f"have a rank correlation of about {format_summary(ceiling)} with it."
        )
    kept, softmax = (mean_rejection(groups, by) for by in ("kept", "softmax"))
    if kept is not None:
        half = len(kept) // 2
        other = "" if softmax is None else f" (by softmax: {format_number(softmax[half])})"
        results.append(
            "Rejecting the half of the images with the lowest κ raises Recall@1 from "
            f"{format_number(kept[0])} to {format_number(kept[half])}{other}."
        )
    return [result for result in results if result]


def _result(row: Row, runs: Sequence[Run]) -> str:
    """A sentence on a loss, with the paper's number unless it is an ensemble; empty if the runs lack these metrics."""
    other = row if row.paper else next(other for other in LOSSES if other.paper)
    words = {
        "entropy_rank": "rank correlation of κ with people's agreement",
        "crop_rank": "with the crop size",
        "recall_at_1": "Recall@1",
    }
    parts = []
    for metric, text in words.items():
        if value := summary(runs, metric):
            paper = f" (paper, {other.label}: {paper_number(other, metric)})"
            single = row not in TWO_NETWORKS
            parts.append(f"{text} {format_summary(value)}{paper if single else ''}")
    label = row.label[0].upper() + row.label[1:]
    return f"{label}, {counted(len(runs), 'fold')}: {', '.join(parts)}." if parts else ""


def leading(groups: Groups, metric: str) -> Row | None:
    """The first row of the losses whose runs have a metric: the one that figures show."""
    return next((row for row in REJECTION if first_with(groups, row.setting, metric)), None)


def paper_number(row: Row, metric: str) -> str:
    """The paper's number for a row as it is printed."""
    value = paper_value(f"cifar10h/{row.paper}", metric) if row.paper else None
    return MISSING if value is None else format_paper(value)


def _present(groups: Groups, rows: Sequence[Row]) -> list[tuple[str, Row, Sequence[Run]]]:
    """(Label, row, runs) of the rows that have runs; runs of the paper's preset are a separate row."""
    return [
        (row.label if name == row.setting else f"{row.label}, paper's preset", row, groups[name])
        for row in rows
        for name in present(groups, [row.setting])
    ]


def _ours(row: Row, runs: Sequence[Run], metric: str) -> str:
    """Our number under the row's own name for the metric; an accuracy is labelled as one."""
    name = row.own.get(metric, metric)
    shown = format_summary(summary(runs, name))
    return f"accuracy {shown}" if name == "accuracy" and shown != MISSING else shown


def item_error(runs: Sequence[Run], metric: str) -> float | None:
    r"""The standard error of a mean over folds by bootstrap over test images, :math:`\sqrt{\sum_k s_k^2} / K`.

    The K test sets are disjoint, so their errors :math:`s_k` are independent. None unless all records have one.
    """
    errors = numbers(value_at(run, "bootstrap_errors", metric) for run in runs)
    if not errors or len(errors) < len(runs):
        return None
    return math.sqrt(math.fsum(error**2 for error in errors)) / len(errors)


def _item_error(row: Row, runs: Sequence[Run], metric: str) -> str:
    error = item_error(runs, row.own.get(metric, metric))
    return MISSING if error is None else format_number(error, 3)


def _agreement_table(title: str, caption: str, groups: Groups, rows: Sequence[Row]) -> Table:
    """The table "paper | ours | error over images" of the rank correlations and Recall@1."""
    cells = []
    for label, row, runs in _present(groups, rows):
        numbers = [
            (paper_number(row, metric), _ours(row, runs, metric), _item_error(row, runs, metric))
            for metric in _AGREEMENT
        ]
        cells.append((label, COLUMNS["backbone"](runs), *chain(*numbers), *run_facts(runs)))
    spans = (("", 2), *((LABELS[metric], 3) for metric in _AGREEMENT), ("", len(FOLD_FACTS)))
    header = ("", "backbone", *(("paper", "ours", _ITEMS) * len(_AGREEMENT)), *FOLD_FACTS)
    return Table(title, caption, header, tuple(cells), spans)


def _own_table(title: str, caption: str, groups: Groups, rows: Sequence[Row]) -> Table:
    """The table of rows that the paper does not have: each metric with both standard errors, and the R-AUROC."""
    metrics = (*_AGREEMENT, "r_auroc")
    cells = []
    for label, row, runs in _present(groups, rows):
        numbers = [(_ours(row, runs, metric), _item_error(row, runs, metric)) for metric in metrics]
        backbone = MISSING if row.setting == "ceiling" else COLUMNS["backbone"](runs)
        cells.append((label, backbone, *chain(*numbers), str(len(runs))))
    labels = {**LABELS, "r_auroc": "R-AUROC ↑"}
    spans = (("", 2), *((labels[metric], 2) for metric in metrics), ("", 1))
    header = ("", "backbone", *(("mean", _ITEMS) * len(metrics)), "folds")
    return Table(title, caption, header, tuple(cells), spans)


def _losses(groups: Groups, _: Sequence[str]) -> list[Table]:
    tables = [_agreement_table("Losses", TEXTS("losses"), groups, LOSSES)]
    for title, key, rows in (
        ("Two networks", "two", TWO_NETWORKS),
        ("Baselines", "baselines", BASELINES),
    ):
        tables.append(_own_table(title, TEXTS("losses", key), groups, rows))
    return tables


def _ablations(groups: Groups, _: Sequence[str]) -> list[Table]:
    def beyond(rows: Sequence[Row]) -> bool:
        """Whether other rows than the first, the reference, have runs."""
        return any(row.setting in groups for row in rows[1:])

    tables = []
    for title, rows in (("Labels", LABEL_KINDS), ("Pretraining", PRETRAINING)):
        if beyond(rows):
            caption = TEXTS("labels", title.lower())
            tables.append(_agreement_table(title, caption, groups, rows))
    if beyond(VARIANTS):
        cells = tuple(
            (
                label,
                COLUMNS["backbone"](runs),
                *(_ours(row, runs, metric) for metric in _AGREEMENT),
                *run_facts(runs),
            )
            for label, row, runs in _present(groups, VARIANTS)
        )
        header = ("", "backbone", *(LABELS[metric] for metric in _AGREEMENT), *FOLD_FACTS)
        caption = TEXTS("labels", "variants")
        tables.append(Table("Heads, backbones and crops", caption, header, cells))
    return tables


def _rejection(groups: Groups, _: Sequence[str]) -> list[Table]:
    rows = [row for row in REJECTION if summary(groups.get(row.setting, ()), "rejection_area")]
    cells = tuple(
        (label, *(_ours(row, runs, metric) for metric in _REJECTION), str(len(runs)))
        for label, row, runs in _present(groups, rows)
    )
    spans = (("", 1), ("area under the rejection curve ↑", 4), ("R-AUROC ↑", 2), ("", 3))
    return [
        Table("Rejection", TEXTS("rejection"), ("", *_REJECTION.values(), "folds"), cells, spans)
    ]


def _foreign(groups: Groups, _: Sequence[str]) -> list[Table]:
    """Quantiles of κ on test images, then on out-of-distribution images, highest median first."""
    row = leading(groups, "foreign")
    cells = []
    for _, shown, runs in _present(groups, [row] if row else []):
        ratios = foreign_ratios(groups, shown)
        for kind in (_KNOWN, *ratios):
            quantiles = [format_summary(_quantile(runs, kind, at)) for at in range(len(_QUANTILES))]
            cells.append((kind, *quantiles, format_summary(ratios.get(kind)), str(len(runs))))
    caption = TEXTS("foreign", label=row.label if row else "")
    header = ("images", *_QUANTILES, "median, relative", "folds")
    spans = (("", 1), ("κ, quantile", len(_QUANTILES)), ("", 2))
    return [Table("Out of distribution", caption, header, tuple(cells), spans)]


def foreign_ratios(groups: Groups, row: Row) -> dict[str, Summary]:
    """The median κ of each kind of foreign image, relative to that of the test images of its fold; highest first."""
    medians: dict[str, list[float]] = {}
    for run in groups.get(row.setting, ()):
        known = _quantiles(run, _KNOWN)
        for kind in value_at(run, "foreign") or ():
            own = _quantiles(run, kind)
            if kind != _KNOWN and own and known and known[1] > 0:
                medians.setdefault(kind, []).append(own[1] / known[1])
    ratios = {kind: summarise(values) for kind, values in medians.items()}
    return dict(sorted(ratios.items(), key=lambda pair: -pair[1].mean))


def _foreign_text(groups: Groups) -> dict[str, str]:
    """What the medians show."""
    row = leading(groups, "foreign")
    ratios = foreign_ratios(groups, row) if row else {}
    if row is None or not ratios:
        return {"medians": ""}
    runs = groups[row.setting]
    lower = [kind for kind in ratios if ratios[kind].mean < 1]
    text = f"The median κ is lower than on test images for {_listed(lower)}"
    higher = [kind for kind in ratios if kind not in lower]
    text += f", and not lower for {_listed(higher)}. " if higher else ". "
    limit = _quantile(runs, _KNOWN, 0)
    medians = {kind: _quantile(runs, kind, 1) for kind in ratios}
    kept = [kind for kind, value in medians.items() if limit and value and value.mean > limit.mean]
    text += (
        "A threshold on κ that keeps 95 % of the test images would keep more than half of the images of these kinds: "
        f"{_listed(kept)}."
    )
    return {"medians": text}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _quantile(runs: Sequence[Run], kind: str, at: int) -> Summary | None:
    """The summary of a quantile of κ (0, 1, 2: 5, 50, 95 %) on a kind of image over folds."""
    values = [quantiles[at] for run in runs if (quantiles := _quantiles(run, kind))]
    return summarise(values) if values else None


def _quantiles(run: Run, kind: str) -> list[float]:
    """The quantiles of κ on a kind of image, or nothing if the record lacks some of them."""
    values = numbers(value_at(run, "foreign", kind) or ())
    return values if len(values) == len(_QUANTILES) else []


def mean_rejection(groups: Groups, by: str) -> np.ndarray | None:
    """Recall@1 of the leading row at rejected shares from 0 to 1, mean over the folds that have as many points."""
    row = leading(groups, "rejection")
    runs = groups[row.setting] if row else ()
    curves = [numbers(value_at(run, "rejection", by) or ()) for run in runs]
    curves = [curve for curve in curves if len(curve) > 1]
    curves = [curve for curve in curves if len(curve) == len(curves[0])]
    return np.mean(curves, axis=0) if curves else None


def rejection_figure(groups: Groups) -> str | None:
    """Recall@1 of the kept images against the rejected share: by κ, by softmax, in the best order and at random."""
    kept, softmax = (mean_rejection(groups, by) for by in ("kept", "softmax"))
    if kept is None:
        return None
    share = np.linspace(0, 1, len(kept))
    with canvas("rejection", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        # the best order rejects all wrong images before any right one
        best = np.minimum(1, kept[0] / np.maximum(1 - share, 1e-9))
        axes.plot(share, best, ":", color=GREY, label="best order")
        if softmax is not None:
            x = np.linspace(0, 1, len(softmax))
            axes.plot(x, softmax, "--", color=VERMILION, label="softmax")
        axes.plot(share, kept, color=BLUE, linewidth=2.6, label="κ")
        axes.axhline(kept[0], color=GREY, linestyle="-.", linewidth=1.2, label="random order")
        axes.set(xlabel="share of images rejected", ylabel="Recall@1 of the others", xlim=(0, 1))
        axes.set_ylim(top=1.004)
        drawing.legend(columns=4)
    return drawing.svg


def pictured(groups: Groups) -> Run | None:
    """The run whose pictures are shown: the first that has some, with the thumbnails next to its record."""
    row = leading(groups, "pictures")
    run = first_with(groups, row.setting, "pictures") if row else None
    return run if run and _thumbnails(run).is_file() else None


def gallery_figure(groups: Groups) -> str | None:
    """The least certain images of each class on the left, the most certain ones on the right."""
    run = pictured(groups)
    classes = value_at(run, "pictures", "classes") if run else None
    if run is None or not classes:
        return None
    tiles = _read_tiles(run)
    left, top, between = 1.05, 0.3, 0.25  # inches
    width = (WIDTH - left - between) / 2
    height = width * _pixels(len(classes)) / _pixels(_PER_CLASS)
    with canvas("gallery", 1, height=top + height) as drawing:
        axes = sheet(drawing, top + height)
        for start, kind, title, colour in (
            (left, "lowest", "least certain", VERMILION),
            (left + width + between, "highest", "most certain", BLUE),
        ):
            shown = [i for each in classes for i in _padded(each.get(kind, ()), _PER_CLASS)]
            place(axes, _mosaic(tiles, shown, _PER_CLASS), start, top, width)
            axes.text(start + width / 2, top - 0.1, title, ha="center", weight="bold", color=colour)
        for at, name in zip(range(len(classes)), CLASSES, strict=False):
            middle = top + (at + 0.5) * height / len(classes)
            axes.text(left - 0.08, middle, name, ha="right", va="center", size=12.5)
    return drawing.svg


def retrieval_figure(groups: Groups) -> str | None:
    """Queries from certain to uncertain, each with its 95 % cap: how many images of which classes, and some of them."""
    run = pictured(groups)
    queries = value_at(run, "pictures", "queries") if run else None
    if run is None or not queries:
        return None
    tiles = _read_tiles(run)
    side, text, top, between = 1.19, 1.57, 0.3, 0.16  # inches
    start = side + text
    height = top + len(queries) * (side + between)
    with canvas("retrieval", 1, height=height) as drawing:
        axes = sheet(drawing, height)
        for x, title in ((0.0, "query"), (side + 0.1, "95 % cap"), (start, "images in the cap")):
            axes.text(x, top - 0.1, title, weight="bold", size=12.5)
        for at, query in enumerate(queries):
            y = top + at * (side + between)
            place(axes, _mosaic(tiles, [query["query"]], 1), 0.0, y, side)
            for line, words in enumerate(_cap_lines(query)):
                axes.text(side + 0.1, y + 0.14 + 0.198 * line, words, size=12)
            shown = _padded(query["shown"], 2 * _PER_ROW)
            place(axes, _mosaic(tiles, shown, _PER_ROW), start, y, WIDTH - start)
    return drawing.svg


def _cap_lines(query: dict[str, Any]) -> list[str]:
    """The content of a credible set in a few short lines: κ, the number of images, and the most frequent classes."""
    counts = sorted(zip(query["classes"], CLASSES, strict=False), key=lambda pair: -pair[0])
    lines = [f"{name} {count}" for count, name in counts[:_NAMED] if count]
    others = sum(count for count, _ in counts[_NAMED:])
    lead = [f"κ {format_number(query['kappa'], 1)}", f"{counted(query['inside'], 'image')}:"]
    return [*lead, *lines, *([f"others {others}"] if others else [])]


def _thumbnails(run: Run) -> Path:
    return (run.folder / run.path).with_suffix(".png")


def _read_tiles(run: Run) -> np.ndarray:
    """The thumbnails of a run, [n, 32, 32, 3]."""
    path, expected = _thumbnails(run), value_at(run, "pictures", "tiles")
    pixels = read_picture(path).permute(1, 2, 0).numpy()
    if pixels.shape != (_SIDE * expected, _SIDE, 3):
        raise InvalidInputError(
            f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels, but its record lists {expected} "
            f"thumbnails of {_SIDE} x {_SIDE} in a column. Run the setting again to write both."
        )
    return pixels.reshape(expected, _SIDE, _SIDE, 3)


def _mosaic(tiles: np.ndarray, shown: Sequence[int], columns: int) -> np.ndarray:
    """The tiles with these numbers row by row, white between them and for numbers out of range."""
    step = _SIDE + _GAP
    rows = -(-len(shown) // columns)
    paper = np.full((_pixels(rows), _pixels(columns), 3), 255, np.uint8)
    for at, number in enumerate(shown):
        if 0 <= number < len(tiles):
            y, x = step * (at // columns), step * (at % columns)
            paper[y : y + _SIDE, x : x + _SIDE] = tiles[number]
    return paper


def _pixels(tiles: int) -> int:
    """The length of a line of tiles in pixels."""
    return tiles * (_SIDE + _GAP) - _GAP


def _padded(shown: Sequence[int], length: int) -> list[int]:
    return [*shown, *[-1] * length][:length]


def _showing(metric: str) -> Callable[[Groups], list[str]]:
    """The setting that represents all others for a metric."""

    def names(groups: Groups) -> list[str]:
        row = leading(groups, metric)
        return [row.setting] if row else []

    return names


def _pictured(groups: Groups) -> dict[str, str]:
    """Which run the pictures are from."""
    run = pictured(groups)
    return {"pictured": f"setting {run.setting}, fold {run.record.seed}" if run else MISSING}


def _settings(*lists: Sequence[Row]) -> Callable[[Groups], list[str]]:
    return fixed(*dict.fromkeys(row.setting for rows in lists for row in rows))


_PLANS = (
    Plan("losses", _settings(LOSSES, TWO_NETWORKS, BASELINES), _losses),
    Plan(
        "labels",
        _settings(LABEL_KINDS, PRETRAINING, VARIANTS),
        _ablations,
        context=("closed-form",),
    ),
    Plan("rejection", _settings(REJECTION), _rejection, (rejection_figure,), owns=False),
    Plan("gallery", _showing("pictures"), figures=(gallery_figure,), values=_pictured, owns=False),
    Plan(
        "retrieval", _showing("pictures"), figures=(retrieval_figure,), values=_pictured, owns=False
    ),
    Plan("foreign", _showing("foreign"), _foreign, values=_foreign_text, owns=False),
)
