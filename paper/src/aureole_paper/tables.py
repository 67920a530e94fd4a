"""Tables: the paper's numbers beside ours, one row per setting, mean ± standard error over seeds."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from aureole.explorer import Run, Table
from aureole_paper.columns import COLUMNS, FACTS, run_facts
from aureole_paper.controlled import MASSES
from aureole_paper.paper_values import CHOICES, format_paper, paper_value
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    format_summary,
    numbers,
    setting_values,
    summarise,
    summary,
)

LABELS = {
    "mu_rank": "μ rank corr. ↑",
    "mu_mae": "μ MAE ↓",
    "kappa_rank": "κ rank corr. ↑",
    "kappa_mae": "κ MAE ↓",
    "spread_rank": "spread rank corr. ↑",
    "spread_mae": "spread MAE ↓",
    "information": "nats per pair",
    "entropy_rank": "entropy rank corr. ↑",
    "crop_rank": "crop rank corr. ↑",
    "recall_at_1": "Recall@1 ↑",
}
MAE_NOTE = (
    "Errors are mean absolute errors (MAE); the paper's columns named RMSE hold them too, as its reference code "
    "computes MAE. Mean ± standard error over seeds; ↑: higher is better, ↓: lower is better. Time is that of training."
)
_RECOVERY = ("kappa_rank", "kappa_mae", "mu_rank", "mu_mae")  # what is hard first


def present(groups: Groups, names: Iterable[str]) -> list[str]:
    """The names that have runs, each once and followed by its run of the paper's preset if there is one."""
    both = (found for name in names for found in (name, f"{name}-paper") if found in groups)
    return list(dict.fromkeys(both))


def numbered(groups: Groups, prefix: str) -> list[tuple[int, str]]:
    """(Number, name) of the settings whose name is the prefix and a number, in its order, "-paper" taken off.

    Examples
    --------
    >>> numbered({"mc-samples-16": [], "mc-samples-4": [], "mc-samples-4-paper": []}, "mc-samples-")
    [(4, 'mc-samples-4'), (16, 'mc-samples-16')]
    """
    names = {name.removesuffix("-paper") for name in groups}
    matches = (re.fullmatch(re.escape(prefix) + "([0-9]+)", name) for name in names)
    return sorted((int(match[1]), match[0]) for match in matches if match)


def ratio(runs: Sequence[Run], above: str, below: str) -> Summary | None:
    """The summary of the ratio of two metrics over the runs that have both."""
    found = []
    for run in runs:
        pair = numbers(run.record.metrics.get(name) for name in (above, below))
        if len(pair) == 2 and pair[1] > 0:
            found.append(pair[0] / pair[1])
    return summarise(found) if found else None


def comparison(
    title: str,
    caption: str,
    groups: Groups,
    *,
    names: Iterable[str],
    metrics: Sequence[str] = _RECOVERY,
    columns: Sequence[str] = (),
    same: Mapping[str, str] | None = None,
) -> Table:
    """The table "paper | ours" of the metrics, a row per name that has runs, the run's facts last.

    ``columns`` are settings to show first (names in ``COLUMNS``); ``same`` maps a name to the one under which the
    paper's number is kept, where that depends on the table.
    """
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        cells = [COLUMNS[column](runs) for column in columns]
        pairs = [(_paper(name, metric, same or {}), _ours(runs, metric)) for metric in metrics]
        rows.append((name, *cells, *chain(*pairs), *run_facts(runs)))
    return paired(title, caption, rows, lead=("setting", *columns), metrics=metrics)


def paired(
    title: str,
    caption: str,
    rows: Iterable[tuple[str, ...]],
    *,
    lead: Sequence[str],
    metrics: Sequence[str],
    facts: Sequence[str] = FACTS,
) -> Table:
    """The table of rows that hold the cells of ``lead``, the paper's number and ours of each metric, and ``facts``."""
    spans = (("", len(lead)), *((LABELS[metric], 2) for metric in metrics), ("", len(facts)))
    header = (*lead, *(("paper", "ours") * len(metrics)), *facts)
    return Table(title, caption, header, tuple(rows), spans)


def high_dim_table(groups: Groups, names: Iterable[str]) -> Table:
    """The table of high dimensions, where the paper gives a figure but no numbers."""
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        cells = [COLUMNS[column](runs) for column in ("D", "κ range", "κ_pos")]
        cells += [_ours(runs, metric) for metric in ("information", *_RECOVERY)]
        cells.append(format_summary(ratio(runs, "kappa_mae", "kappa_true_mean")))
        rows.append((name, *cells, *run_facts(runs)))
    header = (
        *("setting", "D", "κ range", "κ_pos"),
        *(LABELS[metric] for metric in ("information", *_RECOVERY)),
        *("κ MAE / mean κ ↓", *FACTS),
    )
    caption = (
        "Fixed: κ and κ_pos as at D = 10, so a pair tells less and less about its partner as D grows. Matched: both "
        "scaled so that a pair would carry as much information as at D = 10 if μ were uniform. The information is "
        "measured on the process itself. The paper shows this in Figure 7 only, and reports "
        "considerable drops from D = 40. "
    )
    return Table("High dimensions", caption + MAE_NOTE, header, tuple(rows))


def sources_table(groups: Groups, names: Iterable[str]) -> Table:
    """The table of one change at a time, from our configuration towards the paper's."""
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        cells = [COLUMNS[c](runs) for c in ("rule", "full-rank generator", "loss", "centring")]
        cells += [_ours(runs, metric) for metric in _RECOVERY]
        cells.append(format_summary(ratio(runs, "kappa_mean", "kappa_true_mean")))
        rows.append((name, *cells, *run_facts(runs)))
    header = (
        *("setting", "rule", "full-rank generator", "loss", "centring"),
        *(LABELS[metric] for metric in _RECOVERY),
        *("mean κ found / true", *FACTS),
    )
    caption = (
        "Rule: how the process accepts a positive pair, exactly or by the paper's saturating ratio. Full-rank: a "
        "generator whose μ uses all directions of the sphere. Centring: the weight of our remedy for the tilt, part of "
        "the closed form alone. A last ratio of 1 means that κ is right on average. "
    )
    return Table("Where the error of κ comes from", caption + MAE_NOTE, header, tuple(rows))


def coverage_summary(runs: Sequence[Run], kind: str, mass: float) -> Summary | None:
    """The summary of a coverage ("latent_coverage" or "partner_coverage") at a nominal mass, in percent."""
    tables = (run.record.metrics.get(kind) for run in runs)
    shares = numbers(table.get(f"{mass:g}") for table in tables if isinstance(table, dict))
    return summarise([100 * share for share in shares]) if shares else None


def coverage_table(groups: Groups, names: Iterable[str]) -> Table:
    """The table of empirical coverage in percent, credible caps of the latent and predictive caps of a partner."""
    kinds = ("latent_coverage", "partner_coverage")
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        found = [coverage_summary(runs, kind, mass) for kind in kinds for mass in MASSES]
        if any(found):
            rows.append((name, *map(format_summary, found), *run_facts(runs)))
    n = len(MASSES)
    spans = (
        ("", 1),
        ("credible caps hold the latent, %", n),
        ("predictive caps hold the partner, %", n),
        ("", len(FACTS)),
    )
    nominal = tuple(f"{100 * mass:g} %" for mass in MASSES)
    caption = (
        "How often a cap that promises the mass in the header holds what it promises to hold, in percent; a "
        "right posterior gives the header's number. The paper has no such table. Mean ± standard error over seeds."
    )
    return Table(
        "Coverage", caption, ("setting", *nominal, *nominal, *FACTS), tuple(rows), spans
    )  # fmt: skip


def grid_table(groups: Groups, names: Iterable[str]) -> Table:
    """The table of the paper's grid search, each loss's best rank correlation of κ first."""
    columns = ("loss", "negatives", "κ_pos learned", "phases")

    def order(name: str) -> tuple[str, float]:
        found = summary(groups[name], "kappa_rank")
        return COLUMNS["loss"](groups[name]), -(found.mean if found else -2.0)

    rows = []
    for name in sorted(present(groups, names), key=order):
        runs = groups[name]
        cells = [COLUMNS[column](runs) for column in columns]
        cells += [_chosen(runs), *(_ours(runs, metric) for metric in _RECOVERY)]
        rows.append((name, *cells, *run_facts(runs)))
    header = (
        *("setting", *columns, "paper's choice"),
        *(LABELS[metric] for metric in _RECOVERY),
        *FACTS,
    )
    caption = (
        "The paper's grid on a seed of its own, in far shorter runs; 0 negatives are in-batch ones. The paper chose by "
        "the rank correlation of κ (Table 7). "
    )
    return Table("The paper's grid search", caption + MAE_NOTE, header, tuple(rows))


def hib_table(groups: Groups, names: Iterable[str]) -> Table:
    """The rank correlation of κ by HIB's a (rows) and b (columns)."""
    found: dict[tuple[float, float], str] = {}
    runs: list[Run] = []
    for name in present(groups, names):
        pairs = setting_values(groups[name], "hib")
        if pairs and len(pairs[0]) == 2:
            a, b = pairs[0]
            found[float(a), float(b)] = _ours(groups[name], "kappa_rank")
            runs += groups[name]
    bs = sorted({b for _, b in found})
    rows = [
        (f"a = {a:g}", *(found.get((a, b), MISSING) for b in bs))
        for a in sorted({a for a, _ in found})
    ]
    facts = dict(zip(FACTS, run_facts(runs), strict=True))
    caption = (
        f"Rank correlation of κ. Preset {facts['preset']}, {facts['batches']} batches, one run per cell unless a "
        f"standard error is given, {facts['time, s']} s of training on average. The paper chose a = 1, b = 0."
    )
    return Table("HIB's a and b", caption, ("", *(f"b = {b:g}" for b in bs)), tuple(rows))


def generic_table(
    title: str, caption: str, groups: Groups, names: Iterable[str], metrics: Sequence[str] = ()
) -> Table:
    """The table of the metrics, or of all that are numbers, for settings without a table of their own."""
    names = present(groups, names)
    if not metrics:
        runs = [run for name in names for run in groups[name]]
        keys = dict.fromkeys(key for run in runs for key in run.record.metrics)
        metrics = [key for key in keys if summary(runs, key) and not key.startswith("seconds_")]
    rows = []
    for name in names:
        cells = [format_summary(summary(groups[name], metric)) for metric in metrics]
        rows.append((name, *cells, *run_facts(groups[name])))
    labels = (LABELS.get(metric, metric.replace("_", " ")) for metric in metrics)
    return Table(title, caption, ("setting", *labels, *FACTS), tuple(rows))


def _paper(name: str, metric: str, same: Mapping[str, str]) -> str:
    plain = name.removesuffix("-paper")
    key = same.get(plain, plain)
    value = paper_value(key, metric)
    if value is None and metric == "kappa_mae":
        value = paper_value(key, "kappa_mean")  # points: the paper says where kappa goes
    return MISSING if value is None else format_paper(value)


def _ours(runs: Sequence[Run], metric: str) -> str:
    if metric.startswith("kappa") and setting_values(runs, "loss") == ["infonce"]:
        return "not learned"
    found = summary(runs, metric)
    if found is None and metric == "kappa_mae":
        median = summary(runs, "kappa_median")
        return MISSING if median is None else f"median κ {format_summary(median)}"
    return format_summary(found)


def _chosen(runs: Sequence[Run]) -> str:
    """The word yes where the paper chose these settings for the loss, else nothing."""
    settings = runs[0].record.settings
    choice = CHOICES.get(str(settings.get("loss")))
    fits = choice and all(settings.get(key) == value for key, value in choice.items())
    return "yes" if fits else ""
