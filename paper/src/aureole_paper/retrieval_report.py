"""The report of credible retrieval: whether sets keep their promises, how large they are, and which ranking is best."""

from collections.abc import Sequence
from typing import Any

from aureole.explorer import BLUE, GREEN, ORANGE, VERMILION, Report, Run, Table, canvas
from aureole_paper.plans import Plan, build_sections, fixed
from aureole_paper.records import MISSING, Groups, counted, format_summary, group, summary
from aureole_paper.sets import (
    MEASURES,
    METHODS,
    PARTS,
    SETTING,
    abstention_text,
    coverage_text,
    index_text,
    percent,
    points,
    ranking_text,
    sizes_text,
)
from aureole_paper.tables import generic_table

_STYLES = {
    "model": (VERMILION, "s--"),
    "calibrated": (ORANGE, "^-."),
    "refitted": (GREEN, "v:"),
    "conformal": (BLUE, "o-"),
}
_PARTNERS = {"votes": "drawn by votes", "label": "of the same label"}
_MASSES = ("0.5", "0.8", "0.9", "0.95")
_RANKINGS = {
    "cosine": "cosine",
    "expected_cosine": "cosine times the mean length A(κ) of the item",
    "positivity": "expected positivity, both κ",
}
_FOLDS = "Mean ± standard error over folds."
_THIRDS = (
    "Clear: the third of the queries that people agree most on, with all that tie (entropy 0 among them); ambiguous: "
    "the third that they agree least on. High and low κ: thirds by the query's κ."
)


def retrieval_report(runs: Sequence[Run]) -> Report:
    """The report of runs of credible retrieval."""
    groups = group(runs)
    results = (coverage_text, sizes_text, ranking_text, abstention_text, index_text)
    return Report(
        "Credible retrieval among CIFAR-10H images",
        _about(groups),
        tuple(text for result in results if (text := result(groups))),
        tuple(build_sections(_PLANS, groups, _rest)),
    )


def coverage_figure(groups: Groups) -> str | None:
    """How often sets hold a partner drawn by votes, against how often they promise to, for each way to make them."""
    runs = groups.get(SETTING, ())
    curves = {}
    for method in METHODS:
        masses = sorted({m for run in runs for m in _masses(run, method)}, key=float)
        found = [(m, summary(runs, "coverage", "votes", method, m, "all")) for m in masses]
        curves[method] = [(100 * float(m), 100 * s.mean) for m, s in found if s]
    curves = {method: line for method, line in curves.items() if line}
    if not curves:
        return None
    with canvas("retrieval-coverage", 1, height=4.4) as drawing:
        (axes,) = drawing.axes
        axes.plot([0, 100], [0, 100], color="black", linewidth=1, label="as promised")
        for method, line in curves.items():
            colour, style = _STYLES[method]
            x, y = zip(*line, strict=True)
            axes.plot(x, y, style, color=colour, markersize=6, label=METHODS[method])
        axes.set(xlabel="promised, %", ylabel="measured, %", xlim=(0, 100), ylim=(0, 101))
        drawing.legend(columns=2)
    return drawing.svg


def _masses(run: Run, method: str) -> list[str]:
    coverage: Any = run.record.metrics.get("coverage")
    for key in ("votes", method):
        coverage = coverage.get(key) if isinstance(coverage, dict) else None
    return list(coverage) if isinstance(coverage, dict) else []


def _about(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
    queries, gallery = (summary(runs, name) for name in ("queries", "gallery"))
    pairs = summary(runs, "fitted", "votes", "pairs")
    sizes = [f"{found.mean:,.0f}" if found else MISSING for found in (queries, gallery, pairs)]
    return (
        "An encoder learned posteriors vMF(μ, κ) of images from pairs that share a label drawn from people's votes, "
        "as in the main CIFAR-10H setting. "
        f"Of a fold's unseen test images {sizes[0]} are queries and {sizes[1]} the gallery. A query's set is every "
        "item in its predictive cap, which promises to hold a partner with a given probability. It is made with κ_pos "
        "and one κ for all partners, the gallery's median. A partner is drawn by votes, as the pairs that the encoder "
        "learned from (a class by the query's votes, then an item by the items' votes for it), or is any item of the "
        f"same CIFAR-10 label. What is fitted is fitted on {sizes[2]} disjoint pairs of validation images, which share "
        f"no image with the test. {counted(len(runs), 'fold')}."
    )


def _coverage(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    tables = []
    for partners, words in _PARTNERS.items():
        caption = f"How often, in %, sets hold a partner {words}, by what they promise. {_FOLDS}"
        path = ("coverage", partners)
        rows = _rows(runs, path, [(mass, "all") for mass in _MASSES])
        header = ("caps made with", *(f"{100 * float(mass):g} %" for mass in _MASSES))
        tables.append(Table(f"Coverage of partners {words}", caption, header, rows))
    caption = (
        f"How often, in %, sets that promise 90 % hold a partner drawn by votes, for parts of the queries. {_THIRDS} A "
        f"promise is about all queries: no method here promises it for a part. {_FOLDS}"
    )
    rows = _rows(runs, ("coverage", "votes"), [("0.9", part) for part in PARTS])
    header = ("caps made with", *PARTS.values())
    return [*tables, Table("Coverage of parts of the queries", caption, header, rows)]


def _sizes(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    tables = []
    for mass in ("0.5", "0.9"):
        caption = (
            f"Mean share of the gallery, in %, that sets of {100 * float(mass):g} % hold. A class is a tenth of it. "
            f"{_THIRDS} Fitted on partners drawn by votes. {_FOLDS}"
        )
        rows = _rows(runs, ("size", "votes"), [(mass, part) for part in PARTS])
        title = f"Size of {100 * float(mass):g} % sets"
        tables.append(Table(title, caption, ("caps made with", *PARTS.values()), rows))
    caption = (
        "Rank correlation of the entropy of the classes in a query's set with the entropy of people's votes on the "
        "query, by the mass of the set; beside it that of the classes of the whole gallery, weighed by expected "
        f"positivity, and that of 1/κ. {_FOLDS}"
    )
    ranks = _rows(runs, ("class_entropy_rank", "votes"), [(mass,) for mass in _MASSES], plain=True)
    for name, label in (("positivity", "all items, weighed by positivity"), ("kappa", "1/κ")):
        found = summary(runs, "class_entropy_rank", name)
        if found:
            ranks = (*ranks, (label, format_summary(found), *[""] * (len(_MASSES) - 1)))
    header = ("caps made with", *(f"{100 * float(mass):g} %" for mass in _MASSES))
    return [*tables, Table("Mixed sets and people's votes", caption, header, ranks)]


def _rows(
    runs: Sequence[Run],
    path: tuple[str, ...],
    columns: Sequence[tuple[str, ...]],
    *,
    plain: bool = False,
) -> tuple[tuple[str, ...], ...]:
    """A row for each way to make caps that has figures."""
    rows = []
    for method, label in METHODS.items():
        found = [summary(runs, *path, method, *column) for column in columns]
        if any(found):
            rows.append((label, *((format_summary if plain else percent)(s) for s in found)))
    return tuple(rows)


def _ranking(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    caption = (
        "The whole gallery ranked for every query, in %. mAP and Recall@1: an item of the query's label is relevant. "
        "nDCG: an item's gain is the probability that a voter on the query and one on the item name the same class. "
        "P(positive) has the order of expected positivity; with the query's κ alone positivity has the order of the "
        f"cosine. {_FOLDS}"
    )
    rows = [
        (label, *(percent(summary(runs, "ranking", name, m, "all")) for m in MEASURES))
        for name, label in _RANKINGS.items()
        if summary(runs, "ranking", name, "map", "all")
    ]
    gains = [
        (f"{label}, {words} queries", *(points(summary(runs, "gain", name, m, part)) for m in MEASURES))
        for name, label in _RANKINGS.items()
        for part, words in PARTS.items()
        if summary(runs, "gain", name, "map", part)
    ]  # fmt: skip
    gained = f"Points gained over the cosine, paired by query and fold. {_THIRDS} {_FOLDS}"
    return [
        Table("Rankings", caption, ("ranked by", *MEASURES.values()), tuple(rows)),
        Table("Gained over the cosine", gained, ("ranked by", *MEASURES.values()), tuple(gains)),
    ]


def _abstention(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    share = summary(runs, "abstention", "asked_back")
    caption = (
        f"Recall@1, in %, when {100 * share.mean if share else 0:.0f} % of the queries ask back: those with the widest "
        "caps (lowest κ), those that people disagree most on, or as many as are wrong, which nobody knows beforehand. "
        f"{_FOLDS}"
    )
    labels = {
        "recall_at_1": "none",
        "kept": "widest caps",
        "kept_by_votes": "highest entropy of votes",
        "kept_best": "the wrong ones",
    }
    rows = [
        (label, percent(summary(runs, "abstention", name)))
        for name, label in labels.items()
        if summary(runs, "abstention", name)
    ]
    return [Table("Asking back", caption, ("who asks back", "Recall@1"), tuple(rows))]


def _rest(groups: Groups, names: Sequence[str]) -> Table:
    return generic_table("Other runs", _FOLDS, groups, names)


_PLANS = (
    Plan(
        "coverage",
        "Coverage",
        lambda groups: f"{coverage_text(groups)} {index_text(groups)}".strip(),
        fixed(SETTING),
        _coverage,
        figures=(
            (
                coverage_figure,
                "How often sets hold a partner drawn by votes, against how often they promise to. Above the diagonal "
                "sets are larger than needed, below it they are too small to rely on; mean over folds.",
            ),
        ),
    ),
    Plan("sizes", "Sizes of sets", sizes_text, fixed(SETTING), _sizes),
    Plan("ranking", "Ranking", ranking_text, fixed(SETTING), _ranking),
    Plan("abstention", "Asking back", abstention_text, fixed(SETTING), _abstention),
)
