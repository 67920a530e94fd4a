"""The report of adaptive retrieval: every rule on every data set, and every place where ours loses."""

from collections.abc import Sequence

from aureole.explorer._page import Report, Run, Table
from aureole.plot import BLUE, GREY, canvas
from aureole_paper.records import (
    Groups,
    Summary,
    counted,
    format_percent,
    format_summary,
    numbers,
    summary,
    value_at,
)
from aureole_paper.tables import Plan, Texts, build_report, fixed, present

TEXTS = Texts("adaptive")
SETTINGS = {
    "insuranceqa-minilm": "InsuranceQA, MiniLM",
    "insuranceqa-gte-small": "InsuranceQA, gte-small",
    "captions-minilm": "Captions, MiniLM",
}
OURS, MAPPED = "ours", "ours, query map"
RULES = {
    "fixed k": "fixed k",
    "cosine": "one cosine",
    "conflare": "conflare's cut",
    "largest gap": "largest gap",
    "z-score": "z-score",
    "softmax over the gallery": "softmax over the gallery",
    "cosine - level": "cosine - level",
    "cosine - hubness": "cosine - hubness",
    "CSLS": "CSLS",
    "CSLS, own questions included": "CSLS, own questions included",
    "BM25": "BM25",
    OURS: "MatchCalibrator",
    f"{OURS}, with BM25": "MatchCalibrator + BM25",
    "CSLS, query map": "CSLS after the query map",
    MAPPED: "MatchCalibrator, query map",
    f"{MAPPED}, with BM25": "MatchCalibrator, query map + BM25",
}
_MEASURES = {
    "pooled AP": ("pooled_ap",),
    "R@1": ("recall_at_1",),
    "F1": ("f1",),
    "results": ("results",),
    "size at 90 %": ("at 90 %", "size"),
    "held, %": ("at 90 %", "held"),
}
# a measure in which a rule can be better than ours: its name, its path, and the sign of better
_RACES = {
    "pooled AP": (("pooled_ap",), 1),
    "F1": (("f1",), 1),
    "size of sets at 90 %": (("at 90 %", "size"), -1),
}
_BARS = ("cosine", "cosine - level", "CSLS", OURS, MAPPED)
_CUES = ("highest cosine", "highest probability", "gap of the best two", "mean of the ten best")


def adaptive_report(runs: Sequence[Run]) -> Report:
    """The report of runs of adaptive retrieval."""
    return build_report(TEXTS, _PLANS, runs, results=_results, about=_about)


def _about(groups: Groups) -> dict[str, str]:
    counts = {label: len(groups[name]) for name, label in SETTINGS.items() if name in groups}
    return {"counts": ", ".join(f"{label}: {counted(n, 'run')}" for label, n in counts.items())}


def _results(groups: Groups) -> list[str]:
    """For every data set, the rules that are better than ours, which is the plain calibrator."""
    lines = []
    for name, label in SETTINGS.items():
        runs, parts = groups.get(name, ()), []
        for measure, (path, sign) in _RACES.items():
            own = summary(runs, "rules", OURS, *path)
            if own is None:
                continue
            better = [
                f"{RULES[rule]} ({_number(value)})"
                for rule in RULES
                if not rule.startswith(OURS)
                and (value := summary(runs, "rules", rule, *path))
                and sign * (value.mean - own.mean) > 0
            ]
            said = f"better: {', '.join(better)}" if better else "no other rule is better"
            parts.append(f"{measure} {_number(own)}; {said}")
        if parts:
            lines.append(f"{label}. MatchCalibrator without a query map has {'. '.join(parts)}.")
    return lines


def _number(value: Summary | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:.0f}" if value.mean >= 10 else f"{value.mean:.3f}"


def rule_figure(groups: Groups) -> str | None:
    """Pooled average precision of five scores on the first setting."""
    runs = groups.get(next(iter(SETTINGS)), ())
    found = {rule: summary(runs, "rules", rule, "pooled_ap") for rule in _BARS}
    bars = {RULES[rule]: value.mean for rule, value in found.items() if value}
    if not bars:
        return None
    names, values = list(bars)[::-1], list(bars.values())[::-1]
    colours = [BLUE if name.startswith("MatchCalibrator") else GREY for name in names]
    with canvas("adaptive", 1, height=2.4) as drawing:
        (axes,) = drawing.axes
        axes.barh(names, values, color=colours)
        for row, value in enumerate(values):
            axes.text(value, row, f" {value:.3f}", va="center")
        axes.set(xlabel="average precision")
        axes.set_xlim(0, 1.15 * max(values))
    return drawing.svg


def _rules(groups: Groups, names: Sequence[str]) -> list[Table]:
    tables = []
    for name in present(groups, names):
        rows = []
        for rule, label in RULES.items():
            cells = [summary(groups[name], "rules", rule, *path) for path in _MEASURES.values()]
            if any(cells):
                shown = [format_summary(cell) for cell in cells[:-1]]
                rows.append((label, *shown, format_percent(cells[-1])))
        title, caption = (
            SETTINGS[name],
            TEXTS("rules", data=SETTINGS[name], seeds=counted(len(groups[name]), "run")),
        )
        tables.append(Table(title, caption, ("rule", *_MEASURES), tuple(rows)))
    return tables


def _thresholds(groups: Groups, names: Sequence[str]) -> list[Table]:
    columns = (
        ("calibration_error",),
        ("precision 0.5 asked", "precision"),
        ("precision 0.5 asked", "recall"),
        ("precision 0.5 asked", "recall of CSLS"),
        ("recall 0.5 asked", "recall"),
        ("recall 0.5 asked", "precision"),
        ("recall 0.5 asked", "precision of CSLS"),
    )
    header = ("", "error", "precision", "kept", "recall", "CSLS", "recall", "kept", "precision", "CSLS")  # fmt: skip
    spans = (("", 1), ("calibration", 1), ("precision 0.5 asked", 4), ("recall 0.5 asked", 4))
    rows = []
    for name in present(groups, names):
        for rule in (OURS, MAPPED):
            runs = groups[name]
            cells = [format_summary(summary(runs, "rules", rule, *path)) for path in columns]
            kept = [_kept(runs, rule, *path) for path in (columns[1], columns[4])]
            cells = [*cells[:2], kept[0], *cells[2:5], kept[1], *cells[5:]]
            label = f"{SETTINGS[name]}{', query map' if rule == MAPPED else ''}"
            rows.append((label, *cells))
    return [Table("Thresholds for new questions", TEXTS("thresholds"), header, tuple(rows), spans)]


def _kept(runs: Sequence[Run], rule: str, *path: str) -> str:
    """In how many runs a share was at least the 0.5 that was asked for."""
    values = numbers(value_at(run, "rules", rule, *path) for run in runs)
    return f"{sum(value >= 0.5 for value in values)} of {len(values)}"


def _labels(groups: Groups, names: Sequence[str]) -> list[Table]:
    rows = [
        (SETTINGS[name], f"{int(count):,}", *_label_cells(groups[name], count))
        for name in present(groups, names)
        for count in ("50", "200", "1000")
    ]
    header = ("", "labels", "CSLS", "ours", "query map", "ours", "query map", "ours", "query map")
    spans = (("", 2), ("pooled AP", 3), ("calibration error", 2), ("precision 0.5 shown", 2))
    return [Table("Few labels", TEXTS("labels"), header, tuple(rows), spans)]


def _label_cells(runs: Sequence[Run], count: str) -> list[str]:
    paths = [("few labels", count, rule) for rule in ("CSLS", OURS, MAPPED)]
    cells = [format_summary(summary(runs, *path, "pooled_ap")) for path in paths]
    cells += [format_summary(summary(runs, *path, "calibration_error")) for path in paths[1:]]
    for path in paths[1:]:
        values = (value_at(run, *path, "precision 0.5 asked", "precision") for run in runs)
        cells.append(f"{len(numbers(values))} of {len(runs)}")
    return cells


def _conditional(groups: Groups, names: Sequence[str]) -> list[Table]:
    fifths = [f"fifth {i} of sizes" for i in range(1, 6)]
    parts = {**dict(zip(fifths, ("smallest", "2", "3", "4", "largest"), strict=True))}
    parts |= {"one matches": "one", "two matches": "two", "more matches": "more"}
    rows = []
    for name in present(groups, names):
        for rule in (OURS, MAPPED):
            cells = [summary(groups[name], "rules", rule, "conditional", part) for part in parts]
            label = f"{SETTINGS[name]}{', query map' if rule == MAPPED else ''}"
            rows.append((label, *map(format_percent, cells)))
    spans = (("", 1), ("by fifth of the size of sets", 5), ("by number of matches", 3))
    header = ("", *parts.values())
    title = "Share of matches in sets at 90 %, in %"
    return [Table(title, TEXTS("conditional"), header, tuple(rows), spans)]


def _abstention(groups: Groups, names: Sequence[str]) -> list[Table]:
    tables = []
    for name in present(groups, names):
        runs = groups[name]
        found = value_at(runs[0], "abstention")
        cases = list(found) if isinstance(found, dict) else []
        rows = [
            (
                case,
                *(_number(summary(runs, "abstention", case, cue, "auroc")) for cue in _CUES),
                *(
                    format_percent(summary(runs, "abstention", case, cue, "answered at 97 %"))
                    for cue in _CUES
                ),
            )
            for case in cases
        ]
        spans = (("", 1), ("AUROC", len(_CUES)), ("answered at 97 %, in %", len(_CUES)))
        header = ("unanswerable questions", *_CUES, *_CUES)
        tables.append(Table(SETTINGS[name], TEXTS("abstention"), header, tuple(rows), spans))
    return tables


_ALL, _INSURANCE = fixed(*SETTINGS), fixed(*list(SETTINGS)[:2])
_PLANS = (
    Plan("rules", _ALL, _rules, (rule_figure,)),
    Plan("thresholds", _ALL, _thresholds, owns=False),
    Plan("labels", _ALL, _labels, owns=False),
    Plan("conditional", _ALL, _conditional, owns=False),
    Plan("abstention", _INSURANCE, _abstention, owns=False),
)  # fmt: skip
