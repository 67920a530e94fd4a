"""Agreement: the tables of CIFAR-10H. The rows are data; each appears when its setting has records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from aureole.explorer import Run, Table
from aureole_paper.columns import COLUMNS, FOLD_FACTS, run_facts
from aureole_paper.paper_values import format_paper, paper_value
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    first_with,
    format_summary,
    numbers,
    summarise,
    summary,
)
from aureole_paper.tables import LABELS, paired, present


@dataclass(frozen=True)
class Row:
    """A row: its label, its setting, the paper's name for it, and metrics that its records keep under other names."""

    label: str
    setting: str
    paper: str = ""
    own: Mapping[str, str] = field(default_factory=dict)


_NEIGHBOURS = {"entropy_rank": "neighbour_entropy_rank", "crop_rank": "neighbour_crop_rank"}
_ENTROPY = {"entropy_rank": "softmax_entropy_rank", "crop_rank": "softmax_entropy_crop_rank"}
_ACCURACY = {"recall_at_1": "accuracy"}

# The first row that has records is the one that figures show.
LOSSES = (
    Row("closed form (ours)", "closed-form"),
    Row("closed form, κ = norm", "closed-form-norm"),
    Row("closed form, ensemble", "closed-form-ensemble"),
    Row("MCInfoNCE", "mcinfonce", "mcinfonce"),
    Row("ELK", "elk", "elk"),
    Row("HIB", "hib", "hib"),
    Row("InfoNCE, neighbours' distance", "infonce", "infonce", _NEIGHBOURS),
    Row("InfoNCE, untrained κ", "infonce", "infonce"),
    Row("classifier, 1 - max softmax", "softmax", own=_ACCURACY),
    Row("classifier, entropy of softmax", "softmax", own=_ENTROPY | _ACCURACY),
    Row("classifier fine-tuned on the votes", "softmax-votes", own=_ENTROPY | _ACCURACY),
    Row("votes: half against half", "ceiling", own={"entropy_rank": "split_half_rank"}),
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
)
VARIANTS = (
    Row("κ from two doubts", "closed-form"),
    Row("κ from two doubts", "resnet56"),
    Row("κ = norm", "closed-form-norm"),
    Row("κ = norm", "resnet56-norm"),
    Row("trained on crops too", "cropped"),
)
# those of the losses that have a κ to reject by
REJECTION = tuple(
    row
    for row in LOSSES
    if row.setting not in ("softmax", "softmax-votes", "ceiling") and row.own is not _NEIGHBOURS
)

_AGREEMENT = ("entropy_rank", "crop_rank", "recall_at_1")
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
_QUANTILES = ("5 %", "50 %", "95 %")
_KNOWN = "test images"
FOLDS_NOTE = "Mean ± standard error over folds; ↑: higher is better, ↓: lower is better."
_TIME_NOTE = "Time is that of training a fold."


def leading(groups: Groups, metric: str) -> Row | None:
    """The first row of the losses whose runs have a metric: what figures show of it."""
    return next((row for row in REJECTION if first_with(groups, row.setting, metric)), None)


def agreement_table(title: str, caption: str, groups: Groups, rows: Sequence[Row]) -> Table:
    """The table "paper | ours" of the rank correlations and Recall@1."""
    found = []
    for label, row, runs in _present(groups, rows):
        pairs = [(paper_number(row, metric), _ours(row, runs, metric)) for metric in _AGREEMENT]
        backbone = MISSING if row.setting == "ceiling" else COLUMNS["backbone"](runs)
        found.append((label, backbone, *chain(*pairs), *run_facts(runs)))
    lead = ("", "backbone")
    return paired(
        title,
        f"{caption} {FOLDS_NOTE} {_TIME_NOTE}",
        found,
        lead=lead,
        metrics=_AGREEMENT,
        facts=FOLD_FACTS,
    )


def variant_table(title: str, caption: str, groups: Groups, rows: Sequence[Row]) -> Table:
    """The table of the rank correlations and Recall@1 of variants for which the paper has no numbers."""
    found = tuple(
        (
            label,
            COLUMNS["backbone"](runs),
            *(_ours(row, runs, metric) for metric in _AGREEMENT),
            *run_facts(runs),
        )
        for label, row, runs in _present(groups, rows)
    )
    header = ("", "backbone", *(LABELS[metric] for metric in _AGREEMENT), *FOLD_FACTS)
    return Table(title, f"{caption} {FOLDS_NOTE} {_TIME_NOTE}", header, found)


def rejection_table(title: str, caption: str, groups: Groups, rows: Sequence[Row]) -> Table:
    """The table of what is gained when the least certain images are rejected."""
    found = tuple(
        (label, *(_ours(row, runs, metric) for metric in _REJECTION), str(len(runs)))
        for label, row, runs in _present(groups, rows)
    )
    header = ("", *_REJECTION.values(), "folds")
    spans = (
        ("", 1),
        ("area under the rejection curve ↑", 4),
        ("R-AUROC ↑", 2),
        ("", 3),
    )
    return Table(title, f"{caption} {FOLDS_NOTE}", header, found, spans)


def foreign_table(title: str, caption: str, groups: Groups, rows: Sequence[Row]) -> Table:
    """The table of quantiles of κ on test images, then on images unlike those of training, highest median first."""
    found = []
    for _, row, runs in _present(groups, rows):
        ratios = foreign_ratios(groups, row)
        for kind in (_KNOWN, *ratios):
            cells = [format_summary(quantile(runs, kind, at)) for at in range(len(_QUANTILES))]
            found.append((kind, *cells, format_summary(ratios.get(kind)), str(len(runs))))
    header = ("images", *_QUANTILES, "median, relative", "folds")
    spans = (("", 1), ("κ, quantile", len(_QUANTILES)), ("", 2))
    return Table(title, caption, header, tuple(found), spans)


def foreign_ratios(groups: Groups, row: Row) -> dict[str, Summary]:
    """The median κ of each kind of foreign image, relative to that of the test images of its fold; highest first."""
    found: dict[str, list[float]] = {}
    for run in groups.get(row.setting, ()):
        known = _quantiles(run, _KNOWN)
        for kind in _foreign(run):
            these = _quantiles(run, kind)
            if kind != _KNOWN and these and known and known[1] > 0:
                found.setdefault(kind, []).append(these[1] / known[1])
    ratios = {kind: summarise(values) for kind, values in found.items()}
    return dict(sorted(ratios.items(), key=lambda pair: -pair[1].mean))


def quantile(runs: Sequence[Run], kind: str, at: int) -> Summary | None:
    """The summary of a quantile of κ (0, 1, 2: 5, 50, 95 %) on a kind of image over folds."""
    values = [found[at] for run in runs if (found := _quantiles(run, kind))]
    return summarise(values) if values else None


def paper_number(row: Row, metric: str) -> str:
    """The paper's number for a row as it is printed."""
    value = paper_value(f"cifar10h/{row.paper}", metric) if row.paper else None
    return MISSING if value is None else format_paper(value)


def _present(groups: Groups, rows: Sequence[Row]) -> list[tuple[str, Row, Sequence[Run]]]:
    """(Label, row, runs) of the rows that have runs; runs of the paper's preset are a row of their own."""
    return [
        (row.label if name == row.setting else f"{row.label}, paper's preset", row, groups[name])
        for row in rows
        for name in present(groups, [row.setting])
    ]


def _ours(row: Row, runs: Sequence[Run], metric: str) -> str:
    """Our number under the row's own name for the metric; what is an accuracy says so."""
    name = row.own.get(metric, metric)
    shown = format_summary(summary(runs, name))
    return f"accuracy {shown}" if name == "accuracy" and shown != MISSING else shown


def _foreign(run: Run) -> dict[str, list[float]]:
    found = run.record.metrics.get("foreign")
    return found if isinstance(found, dict) else {}


def _quantiles(run: Run, kind: str) -> list[float]:
    """The quantiles of κ on a kind of image, or nothing where a record has not all of them."""
    found = numbers(_foreign(run).get(kind) or ())
    return found if len(found) == len(_QUANTILES) else []
