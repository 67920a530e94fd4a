"""The report of credible retrieval: coverage and size of credible sets, and which ranking is best."""

from collections.abc import Sequence

from aureole.explorer import BLUE, GREEN, ORANGE, VERMILION, Report, Run, Table, canvas
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    counted,
    format_summary,
    group,
    summary,
    value_at,
)
from aureole_paper.tables import Plan, build_sections, fixed, generic_table

SETTING = "credible-retrieval"
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
    "calibrated": (ORANGE, "^-."),
    "refitted": (GREEN, "v:"),
    "conformal": (BLUE, "o-"),
}
_PARTNERS = {"votes": "drawn by votes", "label": "with the same label"}
_MASSES = ("0.5", "0.8", "0.9", "0.95")
_RANKINGS = {
    "cosine": "cosine",
    "expected_cosine": "cosine times the mean length A(κ) of the item",
    "positivity": "expected positivity, both κ",
}
_FOLDS = "Mean ± standard error over folds."
_THIRDS = (
    "Clear: the third of the queries on which people agree most, with all ties (entropy 0 among them); ambiguous: "
    "the third on which they agree least. High and low κ: thirds by the query's κ."
)


def retrieval_report(runs: Sequence[Run]) -> Report:
    """The report of runs of credible retrieval."""
    groups = group(runs)
    results = (_coverage_text, _sizes_text, _ranking_text, _abstention_text, _index_text)
    return Report(
        "Credible retrieval among CIFAR-10H images",
        _about(groups),
        tuple(text for result in results if (text := result(groups))),
        tuple(build_sections(_PLANS, groups, _rest)),
    )


def verdict(difference: Summary) -> str:
    """What a mean difference and its standard error show; it counts from three standard errors on.

    Examples
    --------
    >>> verdict(Summary(0.02, 0.005, 5)), verdict(Summary(-0.02, 0.005, 5)), verdict(Summary(0.02, 0.05, 5))
    ('it helps', 'it hurts', 'no difference is shown')
    """
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


def _about(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
    sizes = [
        f"{value.mean:,.0f}" if (value := summary(runs, *keys)) else MISSING
        for keys in (("queries",), ("gallery",), ("fitted", "votes", "pairs"))
    ]
    return (
        "An encoder learned posteriors vMF(μ, κ) of images from pairs that share a label drawn from people's votes, "
        f"as in the main CIFAR-10H setting. Of a fold's unseen test images {sizes[0]} are queries and {sizes[1]} the "
        "gallery. A query's set is every item in its predictive cap, which contains a partner with a nominal "
        "probability. The cap depends on κ_pos and on one κ for all partners, the median of the gallery. A partner is "
        "drawn by votes, like the training pairs (a class by the query's votes, then an item by the items' votes for "
        "it), or is any item with the same CIFAR-10 label. Everything fitted is fitted on "
        f"{sizes[2]} disjoint pairs of validation images, none of them a test image. {counted(len(runs), 'fold')}."
    )


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
        axes.plot([0, 100], [0, 100], color="black", linewidth=1, label="as promised")
        for method, line in curves.items():
            colour, style = _STYLES[method]
            x, y = zip(*line, strict=True)
            axes.plot(x, y, style, color=colour, markersize=6, label=METHODS[method])
        axes.set(xlabel="nominal, %", ylabel="measured, %", xlim=(0, 100), ylim=(0, 101))
        drawing.legend(columns=2)
    return drawing.svg


def _coverage_text(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
    shares = {m: summary(runs, "coverage", "votes", m, "0.9", "all") for m in METHODS}
    if not shares["model"]:
        return ""
    parts = [f"{METHODS[m]} {percent(share)} %" for m, share in shares.items() if share]
    return f"Sets with 90 % nominal coverage contain a partner drawn by votes: with {', with '.join(parts)}."


def _sizes_text(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
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


def _ranking_text(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
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


def _abstention_text(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
    everyone, kept, share = (
        summary(runs, "abstention", name) for name in ("recall_at_1", "kept", "asked_back")
    )
    if not (everyone and kept and share):
        return ""
    return (
        f"Recall@1 rises from {percent(everyone)} % to {percent(kept)} % when the {100 * share.mean:.0f} % of the "
        "queries with the widest caps ask back."
    )


def _index_text(groups: Groups) -> str:
    runs = groups.get(SETTING, ())
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
    runs = groups.get(SETTING, ())
    tables = []
    header = ("caps from", *(f"{100 * float(mass):g} %" for mass in _MASSES))
    for partners, words in _PARTNERS.items():
        caption = (
            f"How often sets contain a partner {words}, in %, by their nominal coverage. {_FOLDS}"
        )
        rows = _rows(runs, ("coverage", partners), [(mass, "all") for mass in _MASSES])
        tables.append(Table(f"Coverage of partners {words}", caption, header, rows))
    caption = (
        f"How often sets of 90 % nominal coverage contain a partner drawn by votes, in %, for parts of the queries. "
        f"{_THIRDS} Nominal coverage is an average over all queries, not a guarantee for each part. {_FOLDS}"
    )
    rows = _rows(runs, ("coverage", "votes"), [("0.9", part) for part in PARTS])
    header = ("caps from", *PARTS.values())
    return [*tables, Table("Coverage of parts of the queries", caption, header, rows)]


def _sizes(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    tables = []
    for mass in ("0.5", "0.9"):
        caption = (
            f"Mean share of the gallery in sets of {100 * float(mass):g} %, in %. A class is a tenth of it. "
            f"{_THIRDS} Fitted on partners drawn by votes. {_FOLDS}"
        )
        rows = _rows(runs, ("size", "votes"), [(mass, part) for part in PARTS])
        title = f"Size of {100 * float(mass):g} % sets"
        tables.append(Table(title, caption, ("caps from", *PARTS.values()), rows))
    caption = (
        "Rank correlation of the entropy of the classes in a query's set with the entropy of people's votes on the "
        "query, by the mass of the set; for comparison, that of the classes of the whole gallery weighted by expected "
        f"positivity, and that of 1/κ. {_FOLDS}"
    )
    ranks = _rows(runs, ("class_entropy_rank", "votes"), [(mass,) for mass in _MASSES], plain=True)
    for name, label in (("positivity", "all items, weighted by positivity"), ("kappa", "1/κ")):
        value = summary(runs, "class_entropy_rank", name)
        if value:
            ranks = (*ranks, (label, format_summary(value), *[""] * (len(_MASSES) - 1)))
    header = ("caps from", *(f"{100 * float(mass):g} %" for mass in _MASSES))
    return [*tables, Table("Mixed sets and people's votes", caption, header, ranks)]


def _rows(
    runs: Sequence[Run],
    path: tuple[str, ...],
    columns: Sequence[tuple[str, ...]],
    *,
    plain: bool = False,
) -> tuple[tuple[str, ...], ...]:
    """A row for each method that has these metrics."""
    rows = []
    for method, label in METHODS.items():
        values = [summary(runs, *path, method, *column) for column in columns]
        if any(values):
            rows.append((label, *map(format_summary if plain else percent, values)))
    return tuple(rows)


def _ranking(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    caption = (
        "The whole gallery ranked for every query, in %. mAP and Recall@1: an item with the query's label is relevant. "
        "nDCG: an item's gain is the probability that a voter on the query and one on the item name the same class. "
        "P(positive) has the order of expected positivity; with the query's κ alone positivity has the order of the "
        f"cosine. {_FOLDS}"
    )
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
    gained = f"Points gained over the cosine, paired by query and fold. {_THIRDS} {_FOLDS}"
    header = ("ranked by", *MEASURES.values())
    return [
        Table("Rankings", caption, header, rows),
        Table("Gained over the cosine", gained, header, gains),
    ]


def _abstention(groups: Groups, _: Sequence[str]) -> list[Table]:
    runs = groups.get(SETTING, ())
    share = summary(runs, "abstention", "asked_back")
    caption = (
        f"Recall@1, in %, when {100 * share.mean if share else 0:.0f} % of the queries ask back: those with the widest "
        "caps (lowest κ), those on which people disagree most, or wrong ones, an upper bound that needs the answers. "
        f"{_FOLDS}"
    )
    labels = {
        "recall_at_1": "none",
        "kept": "widest caps",
        "kept_by_votes": "highest entropy of votes",
        "kept_best": "the wrong ones",
    }
    rows = tuple(
        (label, percent(value))
        for name, label in labels.items()
        if (value := summary(runs, "abstention", name))
    )
    return [Table("Asking back", caption, ("queries that ask back", "Recall@1"), rows)]


def _rest(groups: Groups, names: Sequence[str]) -> Table:
    return generic_table("Other runs", _FOLDS, groups, names)


_PLANS = (
    Plan(
        "coverage",
        "Coverage",
        lambda groups: f"{_coverage_text(groups)} {_index_text(groups)}".strip(),
        fixed(SETTING),
        _coverage,
        figures={
            coverage_figure: "Measured against nominal coverage of a partner drawn by votes. Above the diagonal sets "
            "are larger than needed, below it they are too small; mean over folds.",
        },
    ),
    Plan("sizes", "Sizes of sets", _sizes_text, fixed(SETTING), _sizes),
    Plan("ranking", "Ranking", _ranking_text, fixed(SETTING), _ranking),
    Plan("abstention", "Asking back", _abstention_text, fixed(SETTING), _abstention),
)
