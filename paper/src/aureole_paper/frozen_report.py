"""The report of heads on frozen encoders, of text and of images: a summary, and a section per table with records."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from aureole.explorer._page import Gallery, Item, Report, Run, Table, format_number
from aureole.plot import BLUE, GREY, canvas
from aureole_paper.figures import draw_coverage
from aureole_paper.frozen_images import METHODS
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    counted,
    first_with,
    format_percent,
    format_summary,
    numbers,
    setting_values,
    summarise,
    summary,
    value_at,
)
from aureole_paper.tables import LABELS, Plan, Texts, build_report, present, run_facts

TEXTS = Texts("frozen")
PLAIN = "text"  # the setting that others are compared with
KAPPA = "kappa"
_SETTINGS = (PLAIN, "text-dropped", "text-stsb", "crops", "whole")  # shown first, in this order
_NAMES = {
    KAPPA: "κ",
    "words": "number of words",
    "characters": "number of characters",
    "norm": "norm of the vector",
}
_VIEWS = {
    "captions": "captions",
    "dropped": "captions, and one with half of its words",
    "stsb": "captions, and pairs of STS-B",
}
_CHANGES: dict[str, tuple[tuple[str | int, ...], bool]] = {
    # a column of the table of training pairs: its place in records, and whether it is a difference of shares
    "R@1 of μ, %": (("recall_at_1_of_mu",), False),
    "most certain half, points": (("gains", KAPPA, "half"), True),
    "least certain fifth, points": (("gains", KAPPA, "fifth"), True),
    "90 % caps, %": (("coverage", "0.9"), False),
    "all pairs, %": (("ambient", KAPPA, "all", 0), False),
    "of equal length, %": (("ambient", KAPPA, "equal_length", 0), False),
}
_PAIRS = {"all": "all pairs", "equal_length": "pairs with equally many words"}
_PARTS = {"snli": "SNLI", "mnli_m": "MNLI"}
_SIDES = ("premise", "hypothesis")
# metrics of all methods (header, words in a sentence); higher is better
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
_TRAINED_ON = {  # by the setting ``crops``
    True: "Trained on whole images and a crop of each.",
    False: "Trained on whole images only.",
}

Interval = tuple[float, float, float]  # the value, and the ends of its interval


def frozen_report(runs: Sequence[Run]) -> Report:
    """The report of runs of heads on frozen encoders."""
    return build_report(TEXTS, _PLANS, runs, results=main_results)


def main_results(groups: Groups) -> list[str]:
    """One sentence per main result that has runs."""
    results = (_gained(groups), _covered(groups), ambient_text(groups))
    return [result for result in results if result]


def settings_with(metric: str) -> Callable[[Groups], list[str]]:
    """A function that returns the settings that have runs with a metric, the known ones first."""

    def names(groups: Groups) -> list[str]:
        order = [*(name for name in _SETTINGS if name in groups), *groups]
        return [name for name in dict.fromkeys(order) if first_with(groups, name, metric)]

    return names


_text, _images = settings_with("gains"), settings_with("methods")


def _plain(groups: Groups) -> list[str]:
    """The text setting that tables show: captions alone, or else the first one with records."""
    return _text(groups)[:1]


def _plain_runs(groups: Groups) -> list[Run]:
    return [run for name in _plain(groups) for run in groups[name]]


def _entries(runs: Sequence[Run], *keys: str) -> list[str]:
    """The names of the dictionaries in the runs' metrics at the keys: κ first, then the baselines."""
    tables = [table for run in runs if isinstance(table := value_at(run, *keys), dict)]
    names = [name for table in tables for name in table if isinstance(table[name], dict)]
    known = [name for name in (*_NAMES, *METHODS) if name in names]
    return list(dict.fromkeys([*known, *names]))


def _named(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))


# captions


def _gained(groups: Groups) -> str:
    """A sentence on what κ gains on captions."""
    runs = _plain_runs(groups)
    recall = summary(runs, "recall_at_1")
    half, fifth = (summary(runs, "gains", KAPPA, part) for part in ("half", "fifth"))
    if not (recall and half and fifth):
        return ""
    return (
        f"Captions, {counted(len(runs), 'seed')}: R@1 is {format_percent(recall)} %; the half with the highest κ "
        f"differs by {format_percent(half, signed=True)} points, the fifth with the lowest κ by "
        f"{format_percent(fifth, signed=True)} points."
    )


def _captions_text(groups: Groups) -> dict[str, str]:
    words = summary(_plain_runs(groups), "words_rank")
    text = f"The rank correlation of κ with the number of words is {format_summary(words)}."
    return {"words": text if words else ""}


def _captions(groups: Groups, names: Sequence[str]) -> list[Table]:
    """R@1 of all captions, of the most certain half and of the least certain fifth, by κ and by each baseline."""
    runs = groups[names[0]]

    def cells(recall: str, *gains: str) -> tuple[str, ...]:
        shown = [format_percent(summary(runs, recall))]
        for part in ("half", "fifth"):
            pairs = [numbers([value_at(r, recall), value_at(r, *gains, part)]) for r in runs]
            sums = [sum(pair) for pair in pairs if len(pair) == 2]
            shown.append(format_percent(summarise(sums) if sums else None))
            shown.append(format_percent(summary(runs, *gains, part), signed=True))
        return (*shown, str(len(runs)))

    rows = [
        (_named(name), *cells("recall_at_1", "gains", name)) for name in _entries(runs, "gains")
    ]
    if summary(runs, "recall_at_1_of_mu"):
        rows.append(("κ, with μ as the vectors", *cells("recall_at_1_of_mu", "gains_of_mu")))
    caption = TEXTS("captions", name=names[0])
    header = ("certain by", "R@1 of all", "R@1", "points", "R@1", "points", "seeds")
    spans = (("", 2), ("most certain half", 2), ("least certain fifth", 2), ("", 1))
    return [Table("Captions", caption, header, tuple(rows), spans)]


def _summaries(runs: Sequence[Run], metric: str) -> list[Summary]:
    """The summary over seeds at each position of a list, over the runs whose list is as long as the first."""
    lists = [numbers(value) for run in runs if isinstance(value := value_at(run, metric), list)]
    lists = [values for values in lists if values and len(values) == len(lists[0])]
    return [summarise(values) for values in zip(*lists, strict=True)]


def rejection_figure(groups: Groups) -> str | None:
    """R@1 of the captions that are kept against the share rejected by κ, and at random."""
    points = _summaries(groups.get(PLAIN, ()), "rejection")
    if len(points) < 2:
        return None
    share = 10 * np.arange(len(points))  # records have one value for each tenth that is rejected
    kept = np.array([100 * s.mean for s in points])
    error = np.array([100 * (s.error or 0.0) for s in points])
    with canvas("frozen-rejection", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        axes.fill_between(share, kept - error, kept + error, color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(share, kept, "o-", color=BLUE, markersize=5, label="lowest κ first")
        axes.axhline(kept[0], color=GREY, linestyle="-.", linewidth=1.2, label="random order")
        axes.set(xlabel="captions rejected, %", ylabel="R@1 of the others, %", xlim=(0, share[-1]))
        drawing.legend()
    return drawing.svg


def caption_figure(groups: Groups) -> str | None:
    """The median κ of the first to the last caption of a photo."""
    points = _summaries(groups.get(PLAIN, ()), "kappa_by_caption")
    if not points:
        return None
    places = range(1, len(points) + 1)
    means, errors = [s.mean for s in points], [s.error or 0.0 for s in points]
    with canvas("frozen-captions", 1, height=3.6) as drawing:
        (axes,) = drawing.axes
        axes.errorbar(places, means, errors, fmt="o", color=BLUE, markersize=8, capsize=4)
        axes.set(xlabel="number of the caption", ylabel="median κ")
        axes.set_xticks(list(places))
        axes.set_ylim(0, 1.1 * max(map(sum, zip(means, errors, strict=True))))
    return drawing.svg


def _extreme_galleries(groups: Groups) -> list[Gallery]:
    """The captions with the lowest and the highest κ, of the first seed."""
    run = first_with(groups, PLAIN, "extremes")
    galleries = []
    for title, name in (("Least confident", "lowest"), ("Most confident", "highest")):
        pairs = (value_at(run, "extremes", name) if run else None) or ()
        items = [Item(" ".join(text.split()), f"κ {format_number(kappa)}") for text, kappa in pairs]
        if items:
            galleries.append(Gallery(title, tuple(items)))
    return galleries


def _change_table(groups: Groups, names: Sequence[str]) -> list[Table]:
    """The settings that differ in their training pairs, side by side."""
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        views = sorted({str(run.record.settings.get("views", MISSING)) for run in runs})
        held = ", ".join(_VIEWS.get(view, view) for view in views)
        information = format_summary(summary(runs, "information"))
        cells = [format_percent(summary(runs, *keys), signed=s) for keys, s in _CHANGES.values()]
        rows.append((name, held, information, *cells, *run_facts(runs)[2:]))
    header = ("setting", "a group holds", LABELS["information"], *_CHANGES, "seeds", "time, s")
    spans = (("", 2), ("captions", 5), ("AmbiEnt: reading has higher κ", 2), ("", 2))
    return [Table("Training pairs", TEXTS("pairs"), header, tuple(rows), spans)]


def changes(groups: Groups, name: str, *keys: str | int) -> Summary | None:
    """The paired difference of a metric of a setting to captions alone, over the seeds that both have."""
    plain = {run.record.seed: run for run in groups.get(PLAIN, ())}
    pairs = [
        numbers([value_at(run, *keys), value_at(plain[run.record.seed], *keys)])
        for run in groups.get(name, ())
        if run.record.seed in plain
    ]
    differences = [pair[0] - pair[1] for pair in pairs if len(pair) == 2]
    return summarise(differences) if differences else None


def _change_text(groups: Groups) -> dict[str, str]:
    """How further training pairs changed the results, on the seeds that both settings have."""
    parts = []
    for name in _text(groups):
        half = changes(groups, name, "gains", KAPPA, "half")
        same = changes(groups, name, "ambient", KAPPA, "equal_length", 0)
        if name != PLAIN and half and same:
            parts.append(
                f"{name}, {counted(half.n, 'seed')}: the gain of the most certain half changed by "
                f"{format_percent(half, signed=True)} points, the share of AmbiEnt's pairs with equally many words "
                f"whose reading has the higher κ by {format_percent(same, signed=True)} points."
            )
    start = "Compared with captions alone, on the same seeds."
    return {"changes": " ".join((start, *parts)) if parts else ""}


# coverage


def _coverage_of(groups: Groups, names: Iterable[str]) -> dict[str, dict[float, Summary]]:
    """{Row: {nominal mass: measured share}} of all heads that have coverage, text and images."""
    coverage: dict[str, dict[float, Summary]] = {}
    for name in present(groups, names):
        runs = groups[name]
        kinds = {name: ("coverage",), f"{name}, held-out pairs": ("held_out_coverage",)}
        methods = _entries(runs, "methods")
        kinds |= {f"{name}, {m.replace('-', ' ')}": ("methods", m, "coverage") for m in methods}
        for label, keys in kinds.items():
            tables = (value_at(run, *keys) for run in runs)
            masses = {m for t in tables if isinstance(t, dict) for m in t if _is_share(m)}
            shares = {float(m): summary(runs, *keys, m) for m in sorted(masses, key=float)}
            known = {mass: share for mass, share in shares.items() if share}
            if known:
                coverage[label] = known
    return coverage


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def _covered(groups: Groups) -> str:
    """A sentence on the coverage of caps."""
    shares = next(iter(_coverage_of(groups, _plain(groups)).values()), {})
    if not shares:
        return ""
    nominal = ", ".join(f"{100 * mass:g}" for mass in shares)
    measured = ", ".join(f"{100 * share.mean:.1f}" for share in shares.values())
    return f"Caps with nominal coverage {nominal} % contain another caption of the photo in {measured} % of cases."


def _known(groups: Groups) -> list[str]:
    return [*_text(groups), *_images(groups)]


def _coverage(groups: Groups, names: Sequence[str]) -> list[Table]:
    coverage = _coverage_of(groups, names)
    masses = sorted({mass for shares in coverage.values() for mass in shares})
    rows = tuple(
        (label, *(format_percent(shares.get(mass)) for mass in masses))
        for label, shares in coverage.items()
    )
    header = ("head", *(f"{100 * mass:g} %" for mass in masses))
    return [Table("Coverage", TEXTS("coverage"), header, rows)]


def _coverage_text(groups: Groups) -> dict[str, str]:
    gaps = {
        (label, mass): share.mean - mass
        for label, shares in _coverage_of(groups, _known(groups)).items()
        for mass, share in shares.items()
    }
    if not gaps:
        return {"largest": ""}
    label, mass = max(gaps, key=lambda place: abs(gaps[place]))
    gap = f"{100 * gaps[label, mass]:+.1f} points: {label}, at {100 * mass:g} %."
    return {"largest": f"The largest difference is {gap}"}


def coverage_figure(groups: Groups) -> str | None:
    """Measured minus nominal coverage of one text setting, as the others would overlap it, and of heads on images."""
    coverage = _coverage_of(groups, [*_plain(groups), *_images(groups)])
    masses = sorted({mass for shares in coverage.values() for mass in shares})
    if not masses:
        return None
    rows = -(-len(coverage) // 2)
    with canvas("frozen-coverage", 1, height=3.2 + 0.25 * rows) as drawing:
        (axes,) = drawing.axes
        draw_coverage(axes, coverage, masses)
        axes.set(xlabel="nominal, %", ylabel="measured - nominal,\npoints")
        drawing.legend(columns=2)
    return drawing.svg


# sentences that are not captions


def _interval(run: Run, *keys: str) -> Interval | None:
    """(The value, the ends of its interval) of a run at the keys, or None if it lacks one of them."""
    value = value_at(run, *keys)
    values = numbers(value) if isinstance(value, list) else []
    return (values[0], values[1], values[2]) if len(values) == 3 else None


def _shown(interval: Interval | None, pattern: str, scale: float = 100.0) -> str:
    """The value and the ends of its interval by a pattern, in percent unless ``scale`` is 1."""
    return pattern.format(*(scale * x for x in interval)) if interval else MISSING


def ambient_text(groups: Groups) -> str:
    """What AmbiEnt's intervals show, in sentences."""
    run = next((first_with(groups, name, "ambient") for name in _plain(groups)), None)
    everything = _interval(run, "ambient", KAPPA, "all") if run else None
    if run is None or everything is None:
        return ""
    share = "{:.1f} % ({:.1f} to {:.1f})"
    text = (
        f"AmbiEnt, seed {run.record.seed}: a reading has a higher κ than the ambiguous sentence in "
        f"{_shown(everything, share)} of all pairs. "
    )
    words = _interval(run, "ambient", "words", "all")
    if words:
        text += f"The number of words is higher in {_shown(words, share)}. "
    same = _interval(run, "ambient", KAPPA, "equal_length")
    if same:
        if same[1] > 0.5:
            verdict = "lies above 50 %: κ carries more information than the number of words"
        elif same[2] < 0.5:
            verdict = "lies below 50 %: here κ is higher for the ambiguous sentence"
        else:
            verdict = "contains 50 %: there is no evidence that κ carries more information than the number of words"
        text += f"Among pairs with equally many words it is {_shown(same, share)}; the interval {verdict}."
    return text.strip()


def _ambient(groups: Groups, names: Sequence[str]) -> list[Table]:
    """How often a reading has a higher certainty than the ambiguous sentence, by κ and by each baseline."""
    run = first_with(groups, names[0], "ambient")
    if run is None:
        return []
    runs, rows = groups[names[0]], []
    for name in _entries(runs, "ambient"):
        intervals = (_interval(run, "ambient", name, kind) for kind in _PAIRS)
        rows.append((_named(name), *(_shown(i, "{:.1f} [{:.1f}, {:.1f}]") for i in intervals)))
        if name == KAPPA and len(runs) > 1:
            means = [summary(runs, "ambient", KAPPA, kind, 0) for kind in _PAIRS]
            rows.append((f"κ, {len(runs)} seeds", *map(format_percent, means)))
    counts = [_count(run, "ambient", key) for key in ("pairs", "pairs_of_equal_length")]
    header = tuple(f"{label} ({n}), %" for label, n in zip(_PAIRS.values(), counts, strict=True))
    return [Table("AmbiEnt", TEXTS("far", "ambient"), ("certain by", *header), tuple(rows))]


def _chaos(groups: Groups, names: Sequence[str]) -> list[Table]:
    """The rank correlations of uncertainty with the entropy of the votes on pairs of sentences."""
    run = first_with(groups, names[0], "chaos")
    places = _places(run) if run else []
    if run is None or not places:
        return []
    rank = "{:z.3f} [{:z.3f}, {:z.3f}]"  # z: no -0.000
    runs, rows = groups[names[0]], []
    ways = {
        (name, way): None
        for place in places
        for name in _entries([run], "chaos", *place)
        for way in value_at(run, "chaos", *place, name)
    }
    for name, way in ways:
        intervals = (_interval(run, "chaos", *place, name, way) for place in places)
        given = ", given length" if way == "given_length" else ""
        rows.append((f"{_named(name)}{given}", *(_shown(i, rank, 1.0) for i in intervals)))
        if name == KAPPA and len(runs) > 1:
            means = [summary(runs, "chaos", *place, name, way, 0) for place in places]
            rows.append((f"κ, {len(runs)} seeds{given}", *map(format_summary, means)))
    spans = [("", 1)]
    for part in dict.fromkeys(part for part, _ in places):
        label = f"{_PARTS.get(part, part)}, {_count(run, 'chaos', part, 'pairs')} pairs"
        spans.append((label, sum(place[0] == part for place in places)))
    caption = TEXTS("far", "chaos")
    header = ("uncertain by", *(side for _, side in places))
    return [Table("ChaosNLI", caption, header, tuple(rows), tuple(spans))]


def _places(run: Run) -> list[tuple[str, str]]:
    """(Part, side) of ChaosNLI that a run has."""
    parts = _entries([run], "chaos")
    ordered = dict.fromkeys([*(part for part in _PARTS if part in parts), *parts])
    both = [(part, side) for part in ordered for side in _SIDES]
    return [place for place in both if _entries([run], "chaos", *place)]


def _count(run: Run, *keys: str) -> str:
    values = numbers([value_at(run, *keys)])
    return f"{values[0]:,.0f}" if values else MISSING


# images


def _method_label(name: str) -> str:
    return METHODS.get(name, name.replace("-", " "))


def _of(runs: Sequence[Run], method: str, metric: str) -> Summary | None:
    return summary(runs, "methods", method, metric)


def _heads_and_baselines(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """(Heads, baselines) among the methods of the runs; heads have posteriors."""
    names = _entries(runs, "methods")
    heads = [name for name in names if _of(runs, name, "kappa_median")]
    return heads, [name for name in names if name not in heads]


def _methods_table(groups: Groups, name: str) -> Table:
    """Methods by metrics, heads first; the best value of each common column is marked."""
    runs = groups[name]
    heads, baselines = _heads_and_baselines(runs)
    methods = [*heads, *baselines]
    rows = []
    for method in methods:
        judged = [format_summary(_of(runs, method, metric)) for metric in _JUDGED]
        share, *others = (_of(runs, method, metric) for metric in _OWN)
        own = (format_percent(share), *map(format_summary, others))
        seconds = _of(runs, method, "seconds")
        shown = MISSING if seconds is None else format_number(seconds.mean, 0)
        seeds = max((s.n for metric in _JUDGED if (s := _of(runs, method, metric))), default=0)
        rows.append((_method_label(method), *judged, *own, shown, str(seeds)))
    marked = []
    for column, metric in enumerate(_JUDGED, start=1):
        means = _means(runs, methods, metric)
        best = max(means.values(), default=None)
        marked += [(methods.index(m), column) for m, mean in means.items() if mean == best]
    header = ("", *(label for label, _ in _JUDGED.values()), *_OWN.values(), "time, s", "seeds")
    spans = (
        *(("", 1), ("rank correlation", 2), ("neighbours, features", 2)),
        *(("heads, with their own μ", len(_OWN)), ("", 2)),
    )
    recall = format_percent(summary(runs, "features", "recall_at_1"))
    oracle = format_summary(summary(runs, "features", "rejection_area_oracle"))
    crops = setting_values(runs, "crops")
    data = _TRAINED_ON.get(crops[0], "") if len(crops) == 1 else ""
    caption = TEXTS("images", data=data, recall=recall, oracle=oracle)
    return Table(f"Setting {name}", caption, header, tuple(rows), spans, tuple(marked))


def _means(runs: Sequence[Run], methods: Iterable[str], metric: str) -> dict[str, float]:
    return {name: s.mean for name in methods if (s := _of(runs, name, metric))}


def images_text(groups: Groups) -> dict[str, str]:
    """Which baselines are above the best head by each metric, in the first setting."""
    name = _images(groups)[0]
    runs, parts = groups[name], []
    heads, baselines = _heads_and_baselines(runs)
    for metric, (_, words) in _JUDGED.items():
        if own := _means(runs, heads, metric):
            best = max(own.items(), key=lambda pair: pair[1])
            others = sorted(_means(runs, baselines, metric).items(), key=lambda pair: -pair[1])
            shown = (best, *(pair for pair in others if pair[1] > best[1]))
            valued = [f"{_method_label(m)} {format_number(mean)}" for m, mean in shown]
            after = f"above it {', '.join(valued[1:])}" if valued[1:] else "no baseline is above it"
            parts.append(f"By {words}: {valued[0]}; {after}.")
    start = f"Setting {name}, the best head and the baselines above it."
    return {"above": " ".join((start, *parts)) if parts else ""}


_PLANS = (
    Plan("captions", _plain, _captions, (rejection_figure, caption_figure), values=_captions_text),
    Plan(
        "coverage",
        lambda groups: [name for name in _known(groups) if _coverage_of(groups, [name])],
        _coverage,
        (coverage_figure,),
        values=_coverage_text,
        owns=False,
    ),
    Plan(
        "far",
        _plain,
        lambda groups, names: [*_ambient(groups, names), *_chaos(groups, names)],
        values=lambda groups: {"ambient": ambient_text(groups)},
        owns=False,
    ),
    Plan("pairs", _text, _change_table, context=(PLAIN,), values=_change_text),
    Plan(
        "extremes",
        lambda groups: [PLAIN] if _extreme_galleries(groups) else [],
        galleries=_extreme_galleries,
        owns=False,
    ),
    Plan(
        "images",
        _images,
        lambda groups, names: [_methods_table(groups, name) for name in present(groups, names)],
        values=images_text,
    ),
)
