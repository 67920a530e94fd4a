"""Sets in records: their figures over folds, in percent, points and plain sentences."""

from aureole_paper.records import MISSING, Groups, Summary, summary

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


def verdict(found: Summary) -> str:
    """What a mean and its standard error say of a difference: it counts from three standard errors on.

    Examples
    --------
    >>> verdict(Summary(0.02, 0.005, 5)), verdict(Summary(-0.02, 0.005, 5)), verdict(Summary(0.02, 0.05, 5))
    ('it helps', 'it hurts', 'no difference is shown')
    """
    if found.error is None:
        return "one fold shows no difference"
    if abs(found.mean) < 3 * found.error or found.mean == 0:
        return "no difference is shown"
    return "it helps" if found.mean > 0 else "it hurts"


def percent(found: Summary | None) -> str:
    """The mean ± standard error of a share, in percent."""
    if found is None:
        return MISSING
    error = "" if found.error is None else f" ± {100 * found.error:.1f}"
    return f"{100 * found.mean:.1f}{error}"


def points(found: Summary | None) -> str:
    """The mean ± standard error of a difference of shares, in points, with its sign."""
    if found is None:
        return MISSING
    error = "" if found.error is None else f" ± {100 * found.error:.2f}"
    return f"{100 * found.mean:+.2f}{error}"


def coverage_text(groups: Groups) -> str:
    """How often sets that promise 90 % hold a partner."""
    runs = groups.get(SETTING, ())
    found = {m: summary(runs, "coverage", "votes", m, "0.9", "all") for m in METHODS}
    if not found["model"]:
        return ""
    parts = [f"{METHODS[m]} {percent(s)} %" for m, s in found.items() if s]
    return f"Sets that promise to hold a partner drawn by votes in 90 % of cases hold it, by {', by '.join(parts)}."


def sizes_text(groups: Groups) -> str:
    """How large sets of 90 % are for parts of the queries."""
    runs = groups.get(SETTING, ())
    texts = []
    for method in ("model", "conformal"):
        found = [summary(runs, "size", "votes", method, "0.9", part) for part in PARTS]
        if all(found):
            shares = [percent(part) for part in found]
            texts.append(
                f"{METHODS[method]}: {shares[1]} % of the gallery for clear and {shares[2]} % for ambiguous queries, "
                f"{shares[3]} % where κ is high and {shares[4]} % where it is low"
            )
    return f"Mean size of 90 % sets. With {'; with '.join(texts)}." if texts else ""


def ranking_text(groups: Groups) -> str:
    """Whether expected positivity ranks better than the cosine."""
    runs = groups.get(SETTING, ())
    parts = []
    for measure in MEASURES:
        cosine = summary(runs, "ranking", "cosine", measure, "all")
        more = summary(runs, "gain", "positivity", measure, "all")
        if cosine and more:
            parts.append(
                f"{MEASURES[measure]} {percent(cosine)} % by the cosine, {points(more)} points by expected "
                f"positivity: {verdict(more)}"
            )
    if not parts:
        return ""
    return (
        "Does knowing both uncertainties help to rank? The cosine knows neither κ; expected positivity knows the "
        f"query's and the item's. {'. '.join(parts)} (paired by fold, mean ± standard error; a difference counts from "
        "three standard errors on)."
    )


def abstention_text(groups: Groups) -> str:
    """What Recall@1 is when some queries ask back."""
    runs = groups.get(SETTING, ())
    names = ("recall_at_1", "kept", "asked_back")
    found = [summary(runs, "abstention", name) for name in names]
    if not all(found):
        return ""
    everyone, kept, share = found
    return (
        f"Recall@1 goes from {percent(everyone)} % to {percent(kept)} % when the "
        f"{100 * share.mean if share else 0:.0f} % of the queries with the widest caps ask back."
    )


def index_text(groups: Groups) -> str:
    """Whether an index returned the same sets."""
    runs = groups.get(SETTING, ())
    found = [summary(runs, "index", name) for name in ("searches", "members", "differing")]
    if not all(found):
        return ""
    searches, members, differing = (round(s.mean * s.n) for s in found if s)
    same = "no item differs" if differing == 0 else f"{differing:,} items differ"
    return (
        f"CredibleIndex on FAISS was asked for {searches:,} of these sets, {members:,} items in all: {same} from a "
        "look at every pair."
    )
