"""Methods: heads on image features beside what else says how uncertain an image is. The rows follow the records."""

from collections.abc import Sequence
from dataclasses import replace

from aureole.explorer import Run, Table, format_number
from aureole_paper.caption_tables import entries
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    counted,
    format_percent,
    format_summary,
    setting_values,
    summary,
)

_LABELS = {
    "class-head": "class head",
    "frozen-head": "FrozenHead",
    "norm": "norm of the features",
    "nearest": "distance to the nearest",
    "nearest-10": "distance to the nearest ten",
    "softmax": "1 - max softmax",
    "softmax-entropy": "entropy of softmax",
    "mc-dropout": "MC dropout",
    "ensemble": "ensemble of classifiers",
    "loss-squared": "predicted loss (squared)",
    "loss-ranked": "predicted loss (ranked)",
}
# what all methods are judged by; higher is better
_JUDGED = {
    "entropy_rank": ("entropy ↑", "the entropy of the votes"),
    "crop_rank": ("crop size ↑", "the crop size"),
    "r_auroc": ("R-AUROC ↑", "wrong neighbours (R-AUROC)"),
    "rejection_area": ("area ↑", "the area under the rejection curve"),
}
_OWN = {
    "recall_at_1": "Recall@1, %",
    "own_r_auroc": "R-AUROC",
    "own_rejection_area": "area",
    "kappa_median": "median κ",
}


def method_label(name: str) -> str:
    """The method of a name as tables call it; of an unknown one, its name.

    Examples
    --------
    >>> method_label("mc-dropout"), method_label("hedged-bets")
    ('MC dropout', 'hedged bets')
    """
    return _LABELS.get(name, name.replace("-", " "))


def ordered_methods(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """(Heads, peers) among the methods of the runs, those that we know first; heads have posteriors."""
    found = entries(runs, "methods")
    ordered = [*(name for name in _LABELS if name in found), *found]
    names = list(dict.fromkeys(ordered))
    heads = [name for name in names if summary(runs, "methods", name, "kappa_median")]
    return heads, [name for name in names if name not in heads]


def methods_table(groups: Groups, name: str) -> Table:
    """Methods by measures, heads first; the best of each column that all have is marked."""
    runs = groups[name]
    heads, peers = ordered_methods(runs)
    rows, marked = [], []
    for method in (*heads, *peers):
        judged = [_shown(_of(runs, method, metric)) for metric in _JUDGED]
        own = [_own(runs, method, metric) for metric in _OWN]
        seconds = _of(runs, method, "seconds")
        shown = MISSING if seconds is None else format_number(seconds.mean, 0)
        rows.append((method_label(method), *judged, *own, shown, str(_seeds(runs, method))))
    for column, metric in enumerate(_JUDGED, start=1):
        found = {m: _of(runs, m, metric) for m in (*heads, *peers)}
        means = {m: s.mean for m, s in found.items() if s}
        best = max(means.values(), default=None)
        marked += [(k, column) for k, m in enumerate(found) if m in means and means[m] == best]
    header = ("", *(label for label, _ in _JUDGED.values()), *_OWN.values(), "time, s", "seeds")
    spans = (
        ("", 1),
        ("rank correlation", 2),
        ("neighbours, features", 2),
        ("heads, with their own μ", len(_OWN)),
        ("", 2),
    )
    recall = format_percent(summary(runs, "features", "recall_at_1"))
    oracle = _shown(summary(runs, "features", "rejection_area_oracle"))
    learnt = {
        "True": "Whole images and a crop of each to learn from. ",
        "False": "Whole images alone to learn from. ",
    }.get(" ".join(map(str, setting_values(runs, "crops"))), "")
    caption = (
        f"{learnt}Entropy: rank correlation of the uncertainty with the entropy of people's votes. Crop: that of "
        "certainty with the share of the side that a crop has left. "
        "R-AUROC and area: whether the nearest other test image, by the cosine of the frozen features, has the same "
        f"label, which it has for {recall} %; the best order would have an area of {oracle}. Bold: the highest mean of "
        "a column. Mean ± standard error over seeds; time is that of fitting and scoring, and what two methods share "
        "is counted with the first."
    )
    title = f"Setting {name}"
    return Table(title, caption, header, tuple(rows), spans, tuple(marked))


def images_text(groups: Groups, names: Sequence[str]) -> str:
    """Which peers are above the best head by each measure, in the first setting, in sentences."""
    if not names:
        return ""
    runs = groups[names[0]]
    heads, peers = ordered_methods(runs)
    return _told(runs, heads, peers, f"Setting {names[0]}, the best head and the peers above it")


def images_result(groups: Groups, names: Sequence[str]) -> str:
    """How many peers are above the best head by each measure, in the first setting, in a sentence."""
    runs = groups[names[0]] if names else ()
    heads, peers = ordered_methods(runs)
    parts = [
        f"{len(above) or 'none'} by {_JUDGED[metric][1]}"
        for metric in _JUDGED
        if (found := _above(runs, metric, heads, peers))
        for above in (found[1],)
    ]
    if not parts or not peers:
        return ""
    return (
        f"Images, setting {names[0]}, {counted(len(runs), 'seed')}: of {counted(len(peers), 'peer')}, "
        f"{', '.join(parts)} {'is' if len(peers) == 1 else 'are'} above the best head."
    )


def _told(runs: Sequence[Run], heads: Sequence[str], peers: Sequence[str], start: str) -> str:
    parts = []
    for metric, (_, words) in _JUDGED.items():
        found = _above(runs, metric, heads, peers)
        if found:
            best, above = found
            listed = ", ".join(_valued(runs, peer, metric) for peer in above)
            after = f"above it {listed}" if above else "no peer is above it"
            parts.append(f"By {words}: {_valued(runs, best, metric)}; {after}.")
    return f"{start}. {' '.join(parts)}" if parts else ""


def _above(
    runs: Sequence[Run], metric: str, heads: Sequence[str], peers: Sequence[str]
) -> tuple[str, list[str]] | None:
    """(The best head by the mean of a metric, the peers above it, best first); None if no head has it."""
    means = {name: s.mean for name in (*heads, *peers) if (s := _of(runs, name, metric))}
    best = max((head for head in heads if head in means), key=lambda head: means[head], default="")
    if not best:
        return None
    above = [peer for peer in peers if means.get(peer, means[best]) > means[best]]
    return best, sorted(above, key=lambda peer: -means[peer])


def _valued(runs: Sequence[Run], method: str, metric: str) -> str:
    found = _of(runs, method, metric)
    return f"{method_label(method)} {MISSING if found is None else format_number(found.mean)}"


def _of(runs: Sequence[Run], method: str, metric: str) -> Summary | None:
    return summary(runs, "methods", method, metric)


def _own(runs: Sequence[Run], method: str, metric: str) -> str:
    found = _of(runs, method, metric)
    return format_percent(found) if metric == "recall_at_1" else _shown(found)


def _seeds(runs: Sequence[Run], method: str) -> int:
    return max((s.n for metric in _JUDGED if (s := _of(runs, method, metric))), default=0)


def _shown(found: Summary | None) -> str:
    """The mean ± standard error; what is the same for every seed has no error to show."""
    if found is not None and found.error is not None and found.error < 1e-9:
        found = replace(found, error=None)
    return format_summary(found)
