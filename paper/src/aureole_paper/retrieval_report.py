"""The report of credible retrieval: coverage and size of credible sets, and which ranking is best."""

from collections.abc import Callable, Sequence

from aureole.explorer._page import Report, Run, Table
from aureole.plot import BLUE, GREEN, INK, PURPLE, VERMILION, canvas
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    counted,
    format_summary,
    summary,
    value_at,
)
from aureole_paper.tables import Plan, Texts, build_report, fixed

SETTING = "credible-retrieval"
TEXTS = Texts("retrieval")
METHODS = {
    "model": "the model's κ and κ_pos",
    "calibrated": "κ calibrated",
    "refitted": "κ calibrated, κ_pos refitted",
    "conformal": "conformal mass",
}
PARTS = {
    "all": "all",
    "clear": "clear",
    "ambiguous": "ambiguous",
    "sure": "high κ",
    "vague": "low κ",
}
MEASURES = {
    "map": "mAP",
    "ndcg": "nDCG of votes",
    "ndcg_10": "nDCG@10 of votes",
    "recall_at_1": "Recall@1",
}
_STYLES = {
    "model": (VERMILION, "s--"),
    "calibrated": (PURPLE, "^-."),
    "refitted": (GREEN, "v:"),
    "conformal": (BLUE, "o-"),
}
_PARTNERS = {"votes": "drawn by votes", "label": "with the same label"}
_MASSES = {f"{100 * float(mass):g} %": mass for mass in ("0.5", "0.8", "0.9", "0.95")}
_RANKINGS = {
    "cosine": "cosine",
    "expected_cosine": "cosine times the mean length A(κ) of the item",
    "positivity": "expected positivity, both κ",
}
_ASKING = {
    "recall_at_1": "none",
    "kept": "widest caps",
    "kept_by_votes": "highest entropy of votes",
    "kept_best": "the wrong ones",
}


def retrieval_report(runs: Sequence[Run]) -> Report:
    """The report of runs of credible retrieval."""
    return build_report(TEXTS, _PLANS, runs, results=_results, about=_about)


def _values(groups: Groups) -> dict[str, str]:
    """The sentences with numbers; empty where records lack them."""
    runs = groups.get(SETTING, ())
    return {
        "coverage": _coverage_text(runs),
        "sizes": _sizes_text(runs),
        "ranking": _ranking_text(runs),
        "abstention": _abstention_text(runs),
        "index": _index_text(runs),
    }


def _results(groups: Groups) -> list[str]:
    return [text for text in _values(groups).values() if text]


def verdict(difference: Summary) -> str:
    """What a mean difference and its standard error show; it counts from three standard errors on."""
    if difference.error is None:
        return "one fold shows no difference"
    if abs(difference.mean) < 3 * difference.error or difference.mean == 0:
        return "no difference is shown"
    return "it helps" if difference.mean > 0 else "it hurts"


def percent(value: Summary | None, *, signed: bool = False) -> str:
    """The mean ± standard error of a share in percent; of a difference of shares, ``signed``, in points."""
    if value is None:
        return MISSING
    decimals, sign = (2, "+") if signed else (1, "")
    error = "" if value.error is None else f" ± {100 * value.error:.{decimals}f}"
    return f"{100 * value.mean:{sign}.{decimals}f}{error}"


def _about(groups: Groups) -> dict[str, str]:
    runs = groups.get(SETTING, ())
    keys = {"queries": ("queries",), "gallery": ("gallery",), "pairs": ("fitted", "votes", "pairs")}
    sizes = {name: summary(runs, *path) for name, path in keys.items()}
    shown = {name: f"{size.mean:,.0f}" if size else MISSING for name, size in sizes.items()}
    return shown | {"count": counted(len(runs), "fold")}


def coverage_figure(groups: Groups) -> str | None:
    """Measured against nominal coverage of a partner drawn by votes, for each method."""
    runs = groups.get(SETTING, ())
    curves = {}
    for method in METHODS:
        tables = [value_at(run, "coverage", "votes", method) for run in runs]
        masses = {mass for table in tables if isinstance(table, dict) for mass in table}
        points = [
            (100 * float(mass), 100 * value.mean)
            for mass in sorted(masses, key=float)
            if (value := summary(runs, "coverage", "votes", method, mass, "all"))
        ]
        if points:
            curves[method] = points
    if not curves:
        return None
    with canvas("retrieval-coverage", 1, height=4.4) as drawing:
        (axes,) = drawing.axes
        axes.plot([0, 100], [0, 100], color=INK, linewidth=1, label="as promised")
        for method, line in curves.items():
            colour, style = _STYLES[method]
            x, y = zip(*line, strict=True)
            axes.plot(x, y, style, color=colour, markersize=6, label=METHODS[method])
        axes.set(xlabel="nominal, %", ylabel="measured, %", xlim=(0, 100), ylim=(0, 101))
        drawing.legend(columns=2)
    return drawing.svg


def _coverage_text(runs: Sequence[Run]) -> str:
    shares = {m: summary(runs, "coverage", "votes", m, "0.9", "all") for m in METHODS}
    if not shares["model"]:
        return ""
    parts = [f"{METHODS[m]} {percent(share)} %" for m, share in shares.items() if share]
    return f"Sets with 90 % nominal coverage contain a partner drawn by votes: with {', with '.join(parts)}."


def _sizes_text(runs: Sequence[Run]) -> str:
    texts = []
    for method in ("model", "conformal"):
        sizes = [summary(runs, "size", "votes", method, "0.9", part) for part in PARTS]
        if all(sizes):
            shares = [percent(part) for part in sizes]
            texts.append(
                f"{METHODS[method]}: {shares[1]} % of the gallery for clear and {shares[2]} % for ambiguous queries, "
                f"{shares[3]} % where κ is high and {shares[4]} % where it is low"
            )
    return f"Mean size of 90 % sets. With {'; with '.join(texts)}." if texts else ""


def _ranking_text(runs: Sequence[Run]) -> str:
    parts = []
    for measure in MEASURES:
        cosine = summary(runs, "ranking", "cosine", measure, "all")
        gain = summary(runs, "gain", "positivity", measure, "all")
        if cosine and gain:
            parts.append(
                f"{MEASURES[measure]} {percent(cosine)} % by the cosine, {percent(gain, signed=True)} points by "
                f"expected positivity: {verdict(gain)}"
            )
    if not parts:
        return ""
    return (
        "Do both uncertainties improve the ranking? The cosine uses no κ; expected positivity uses the query's and "
        f"the item's. {'. '.join(parts)} (paired by fold, mean ± standard error; a difference counts from three "
        "standard errors on)."
    )


def _abstention_text(runs: Sequence[Run]) -> str:
    everyone, kept, share = (
        summary(runs, "abstention", name) for name in ("recall_at_1", "kept", "asked_back")
    )
    if not (everyone and kept and share):
        return ""
    return (
        f"Recall@1 rises from {percent(everyone)} % to {percent(kept)} % when the {100 * share.mean:.0f} % of the "
        "queries with the widest caps get no answer."
    )


def _index_text(runs: Sequence[Run]) -> str:
    counts = [summary(runs, "index", name) for name in ("searches", "members", "differing")]
    if not all(counts):
        return ""
    searches, members, differing = (round(s.mean * s.n) for s in counts if s)
    same = "no item differs" if differing == 0 else f"{differing:,} items differ"
    return (
        f"CredibleIndex on FAISS searched {searches:,} of these sets, {members:,} items in total: {same} from a brute "
        "force search."
    )


def _coverage(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs, tables = groups.get(SETTING, ()), []
    for partners, words in _PARTNERS.items():
        rows = _rows(runs, ("coverage", partners), [(mass, "all") for mass in _MASSES.values()])
        title, caption = f"Coverage of partners {words}", TEXTS("coverage", partners=words)
        tables.append(Table(title, caption, ("caps from", *_MASSES), rows))
    rows = _rows(runs, ("coverage", "votes"), [("0.9", part) for part in PARTS])
    title, caption = "Coverage of parts of the queries", TEXTS("coverage", "parts")
    return [*tables, Table(title, caption, ("caps from", *PARTS.values()), rows)]


def _sizes(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs, tables = groups.get(SETTING, ()), []
    for mass in ("0.5", "0.9"):
        share = f"{100 * float(mass):g}"
        rows = _rows(runs, ("size", "votes"), [(mass, part) for part in PARTS])
        title, caption = f"Size of {share} % sets", TEXTS("sizes", mass=share)
        tables.append(Table(title, caption, ("caps from", *PARTS.values()), rows))
    columns = [(mass,) for mass in _MASSES.values()]
    ranks = _rows(runs, ("class_entropy_rank", "votes"), columns, format_summary)
    for name, label in (("positivity", "all items, weighted by positivity"), ("kappa", "1/κ")):
        if value := summary(runs, "class_entropy_rank", name):
            ranks = (*ranks, (label, format_summary(value), *[""] * (len(_MASSES) - 1)))
    title, caption = "Mixed sets and people's votes", TEXTS("sizes", "votes")
    return [*tables, Table(title, caption, ("caps from", *_MASSES), ranks)]


def _rows(
    runs: Sequence[Run],
    path: tuple[str, ...],
    columns: Sequence[tuple[str, ...]],
    show: Callable[[Summary | None], str] = percent,
) -> tuple[tuple[str, ...], ...]:
    """A row for each method that has these metrics."""
    rows = []
    for method, label in METHODS.items():
        values = [summary(runs, *path, method, *column) for column in columns]
        if any(values):
            rows.append((label, *map(show, values)))
    return tuple(rows)


def _ranking(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    rows = tuple(
        (label, *(percent(summary(runs, "ranking", name, m, "all")) for m in MEASURES))
        for name, label in _RANKINGS.items()
        if summary(runs, "ranking", name, "map", "all")
    )
    gains = tuple(
        (
            f"{label}, {words} queries",
            *(percent(summary(runs, "gain", name, m, part), signed=True) for m in MEASURES),
        )
        for name, label in _RANKINGS.items()
        for part, words in PARTS.items()
        if summary(runs, "gain", name, "map", part)
    )
    header = ("ranked by", *MEASURES.values())
    return [
        Table("Rankings", TEXTS("ranking"), header, rows),
        Table("Gained over the cosine", TEXTS("ranking", "gained"), header, gains),
    ]


def _abstention(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    share = summary(runs, "abstention", "asked_back")
    caption = TEXTS("abstention", share=f"{100 * share.mean:.0f}" if share else MISSING)
    rows = tuple(
        (label, percent(value))
        for name, label in _ASKING.items()
        if (value := summary(runs, "abstention", name))
    )
    return [Table("Abstention", caption, ("unanswered queries", "Recall@1"), rows)]


_PLANS = (
    Plan("coverage", fixed(SETTING), _coverage, (coverage_figure,), values=_values),
    Plan("sizes", fixed(SETTING), _sizes, values=_values),
    Plan("ranking", fixed(SETTING), _ranking, values=_values),
    Plan("abstention", fixed(SETTING), _abstention, values=_values),
)
