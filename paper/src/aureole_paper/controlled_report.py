"""The report of the controlled experiment: a summary, and a section for every table and figure with records."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from aureole.explorer._page import Report, Run, Table
from aureole_paper import figures
from aureole_paper.controlled import MASSES
from aureole_paper.paper_values import format_paper, paper_value
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    counted,
    format_percent,
    format_summary,
    numbers,
    setting_values,
    summarise,
    summary,
)
from aureole_paper.tables import (
    COLUMNS,
    FACTS,
    LABELS,
    RECOVERY_METRICS,
    Plan,
    Texts,
    build_report,
    fixed,
    generic_table,
    numbered,
    ours,
    paired_table,
    present,
    run_facts,
    settings_table,
)

TEXTS = Texts("controlled")
_RATIOS = {
    "κ MAE / mean κ ↓": ("kappa_mae", "kappa_true_mean"),
    "mean κ, ours / true": ("kappa_mean", "kappa_true_mean"),
}
_SPREAD = ("mu_rank", "mu_mae", "spread_rank", "spread_mae")


def controlled_report(runs: Sequence[Run]) -> Report:
    """The report of runs of the controlled experiment."""
    metrics = ("mu_rank", "mu_mae", "kappa_rank", "kappa_mae", "spread_rank", "spread_mae")
    return build_report(TEXTS, PLANS, runs, results=main_results, metrics=metrics)


def main_results(groups: Groups) -> list[str]:
    """One sentence per main result that has runs, with the paper's number next to ours."""
    names = present(groups, ("ambiguous", "clear", "two-dim"))
    results = [_result(name, groups[name]) for name in names]
    coverage = summary(groups.get("ambiguous", ()), "latent_coverage", "0.9")
    if coverage:
        results.append(
            f"Credible caps of mass 90 % contain {format_percent(coverage)} % of the latents in the ambiguous setting."
        )
    return [result for result in results if result]


def _result(name: str, runs: Sequence[Run]) -> str:
    """A sentence on κ in a setting; empty if the runs lack these metrics."""
    parts = []
    for metric, words in (("kappa_rank", "rank correlation"), ("kappa_mae", "mean absolute error")):
        value, theirs = summary(runs, metric), paper_value(name, metric)
        if value and theirs:
            parts.append(f"{words} {format_summary(value)} (paper: {format_paper(theirs)})")
    presets = ", ".join(map(str, setting_values(runs, "preset"))) or "unknown"
    title = name.removesuffix("-paper").capitalize()
    facts = f"preset {presets}, {counted(len(runs), 'seed')}"
    return f"{title} ({facts}): κ is recovered with {' and '.join(parts)}." if parts else ""


def ratio(runs: Sequence[Run], above: str, below: str) -> Summary | None:
    """The summary of the ratio of two metrics over the runs that have both."""
    pairs = [numbers(run.record.metrics.get(name) for name in (above, below)) for run in runs]
    ratios = [pair[0] / pair[1] for pair in pairs if len(pair) == 2 and pair[1] > 0]
    return summarise(ratios) if ratios else None


def _compared(
    anchor: str,
    *columns: str,
    metrics: Sequence[str] = RECOVERY_METRICS,
    same: Mapping[str, str] | None = None,
) -> Callable[[Groups, Sequence[str]], list[Table]]:
    """A section's one table "paper | ours"; ``same`` maps a setting to the one that has the paper's number."""

    def build(groups: Groups, names: Sequence[str]) -> list[Table]:
        rows = []
        for name in present(groups, names):
            runs, plain = groups[name], name.removesuffix("-paper")
            key = (same or {}).get(plain, plain)
            pairs = [(_paper(key, metric), ours(runs, metric)) for metric in metrics]
            cells = [COLUMNS[column](runs) for column in columns]
            rows.append((name, *cells, *chain(*pairs), *run_facts(runs)))
        title, lead = TEXTS(anchor, "title"), ("setting", *columns)
        return [paired_table(title, TEXTS(anchor), rows, lead=lead, metrics=metrics)]

    return build


def _paper(name: str, metric: str) -> str:
    value = paper_value(name, metric)
    if value is None and metric == "kappa_mae":
        value = paper_value(name, "kappa_mean")  # true kappa is infinite: the paper gives the limit
    return MISSING if value is None else format_paper(value)


def _own(
    anchor: str, *columns: str, metrics: Sequence[str], last: str
) -> Callable[[Groups, Sequence[str]], list[Table]]:
    """A section's one table of our own metrics and a ratio, where the paper has no numbers."""

    def cells(runs: Sequence[Run]) -> list[str]:
        own = [COLUMNS[column](runs) for column in columns]
        own += [ours(runs, metric) for metric in metrics]
        return [*own, format_summary(ratio(runs, *_RATIOS[last]))]

    def build(groups: Groups, names: Sequence[str]) -> list[Table]:
        header = (*columns, *(LABELS[metric] for metric in metrics), last)
        options = {"names": present(groups, names), "header": header, "cells": cells}
        return [settings_table(TEXTS(anchor, "title"), TEXTS(anchor), groups, **options)]

    return build


def _coverage(groups: Groups, names: Sequence[str]) -> list[Table]:
    """Empirical coverage in percent: credible caps of the latent, predictive caps of a partner."""
    kinds = ("latent_coverage", "partner_coverage")
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        shares = [summary(runs, kind, f"{mass:g}") for kind in kinds for mass in MASSES]
        if any(shares):
            rows.append((name, *map(format_percent, shares), *run_facts(runs)))
    n = len(MASSES)
    spans = (
        ("", 1),
        ("credible caps: latent inside, %", n),
        ("predictive caps: partner inside, %", n),
        ("", len(FACTS)),
    )
    nominal = tuple(f"{100 * mass:g} %" for mass in MASSES)
    header = ("setting", *nominal, *nominal, *FACTS)
    return [Table("Coverage", TEXTS("coverage"), header, tuple(rows), spans)]


def _bimodal(groups: Groups, names: Sequence[str]) -> list[Table]:
    metrics = (
        *("divergence", "divergence_torn", "modes_found", "mode_degrees_median"),
        *("weight_rank", "weight_mae", "kappa_rank", "kappa_mae"),
    )
    title = TEXTS("bimodal", "title")
    return [generic_table(title, TEXTS("bimodal"), groups, names, metrics=metrics)]


def _numbered(*prefixes: str, first: Sequence[str] = ()) -> Callable[[Groups], list[str]]:
    """The settings of the prefixes by their numbers, after ``first``."""
    return lambda groups: [*first, *(name for p in prefixes for _, name in numbered(groups, p))]


def _encoders(groups: Groups) -> list[str]:
    """The encoders by dimension; base has the dimension of the process."""
    return [name for _, name in sorted([*numbered(groups, "encoder-dim-"), (10, "base")])]


def _self_pairs(groups: Groups) -> list[str]:
    """The settings with self-pairs by dimension, each after the one without."""
    dims = [dim for dim, _ in numbered(groups, "self-pairs-")]
    both = [name for dim in dims for name in (f"high-dim-fixed-{dim}", f"self-pairs-{dim}")]
    return [*both, "ambiguous", "ambiguous-self-pairs"]


def _ladder(groups: Groups) -> list[str]:
    """The rungs in order; base is the last one."""
    return [*sorted(name for name in groups if name.startswith("ladder-")), "base"]


def _bimodal_names(groups: Groups) -> list[str]:
    names = (name.removesuffix("-paper") for name in groups if name.startswith("bimodal"))
    return list(dict.fromkeys(names))


_HIGH_DIM = ("high-dim-fixed-", "high-dim-matched-")
_SAME = {"base": "ambiguous"}
# rows that are the paper's own task: its rule of pairs, and its generator on the circle
_PAPER_TASKS = {"sources-paper-rule": "ambiguous", "two-dim-arc": "two-dim"}
_BY_BATCHES = tuple(
    f"{name}{end}"
    for end in ("", "-1600", "-6400")
    for name in ("mc-samples-16", "sources-mc-paper-rule")
)
PLANS = (
    Plan(
        "recovery",
        fixed(
            *("ambiguous", "sources-paper-rule", "clear"),
            *("injective", "injective-longer", "injective-longest", "two-dim", "two-dim-arc"),
        ),
        _compared("recovery", "D", "κ range", "rule", same=_PAPER_TASKS),
        (figures.posterior_figure, figures.scatter_figure),
        context=("sources-paper-rule",),
    ),
    Plan(
        "families",
        fixed("ambiguous", "gaussian", "laplace"),
        _compared("families", "posterior", metrics=_SPREAD),
        context=("ambiguous",),
    ),
    Plan(
        "losses",
        fixed(
            *("base", "losses-mcinfonce", "losses-mcinfonce-joint", "losses-elk"),
            *("losses-elk-paper-scale", "losses-hib", "losses-infonce"),
        ),
        _compared("losses", "loss", "inputs per batch"),
        context=("base",),
    ),
    Plan(
        "mc-samples",
        _numbered("mc-samples-", first=("base",)),
        _compared("mc-samples", "samples", "inputs per batch"),
        (figures.samples_figure,),
        context=("base",),
    ),
    Plan(
        "mc-batches",
        fixed(*_BY_BATCHES),
        _compared("mc-batches", "rule", "inputs per batch"),
        context=_BY_BATCHES[:2],
    ),
    Plan(
        "encoder-dim",
        _encoders,
        _compared("encoder-dim", "encoder D", same=_SAME),
        context=("base",),
    ),
    Plan(
        "high-dim",
        _numbered(*_HIGH_DIM),
        _own(
            *("high-dim", "D", "κ range", "κ_pos"),
            metrics=("information", *RECOVERY_METRICS),
            last="κ MAE / mean κ ↓",
        ),
        (figures.dimension_figure,),
    ),
    Plan(
        "self-pairs",
        _self_pairs,
        _own(
            *("self-pairs", "D", "self-pairs"),
            metrics=("information", *RECOVERY_METRICS),
            last="mean κ, ours / true",
        ),
        (figures.self_pairs_figure,),
        context=("ambiguous", *(f"high-dim-fixed-{dim}" for dim in range(2, 257))),
    ),
    Plan(
        "ladder",
        _ladder,
        _own(
            *("ladder", "loss", "rule", "architecture", "pairs", "phases", "centring"),
            "average of weights",
            metrics=RECOVERY_METRICS,
            last="mean κ, ours / true",
        ),
        context=("base",),
    ),
    Plan(
        "shared-backbone",
        fixed("base", "shared-backbone", "shared-encoder"),
        _compared("shared-backbone", "architecture", same=_SAME),
        context=("base",),
    ),
    Plan(
        "sources",
        fixed(
            *("base", "sources-no-centring", "sources-paper-rule"),
            *("sources-paper-rule-no-centring", "mc-samples-16", "sources-mc-paper-rule"),
            *("sources-full-rank", "sources-full-rank-no-centring", "sources-full-rank-paper-rule"),
            *("sources-full-rank-mc", "sources-full-rank-mc-paper-rule"),
        ),
        _own(
            *("sources", "rule", "full-rank generator", "loss", "centring"),
            metrics=RECOVERY_METRICS,
            last="mean κ, ours / true",
        ),
        context=("base", "mc-samples-16"),
    ),
    Plan(
        "tilt",
        fixed(
            *("tilt-deficient-no-centring", "tilt-deficient"),
            *("tilt-full-rank-no-centring", "tilt-full-rank"),
        ),
        _own(
            *("tilt", "full-rank generator", "centring"),
            metrics=("mean_length", *RECOVERY_METRICS),
            last="mean κ, ours / true",
        ),
    ),
    Plan(
        "coverage",
        _numbered(
            *_HIGH_DIM,
            first=(
                *("ambiguous", "clear", "two-dim", "gaussian", "laplace"),
                *("base", "shared-backbone"),
            ),
        ),
        _coverage,
        (figures.coverage_figure,),
        owns=False,
    ),
    Plan("bimodal", _bimodal_names, _bimodal, (figures.modes_figure,)),
)
