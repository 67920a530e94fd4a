"""The report of the controlled experiment: a summary, and a section for every table and figure with records."""

from collections.abc import Callable, Mapping, Sequence

from aureole.explorer import Report, Run, Section, Table
from aureole_paper import figures, tables
from aureole_paper.controlled import MASSES
from aureole_paper.paper_values import format_paper, paper_value
from aureole_paper.records import (
    Groups,
    Summary,
    counted,
    format_percent,
    format_summary,
    group,
    numbers,
    setting_values,
    summarise,
    summary,
)
from aureole_paper.tables import (
    FACTS,
    LABELS,
    RECOVERY_METRICS,
    Plan,
    comparison,
    fixed,
    generic_table,
    numbered,
    ours,
    present,
    run_facts,
    settings_table,
)

MAE_NOTE = (
    "Errors are mean absolute errors (MAE); so are the paper's columns named RMSE, as its reference code "
    "computes MAE. Mean ± standard error over seeds; ↑: higher is better, ↓: lower is better. Time is training time."
)
_BASE_NOTE = "The row base is our ambiguous setting at a third of its length, the reference of the ablations. "


def controlled_report(runs: Sequence[Run]) -> Report:
    """The report of runs of the controlled experiment."""
    groups = group(runs)
    about = (
        f"This page compares {counted(len(runs), 'record')} of {counted(len(groups), 'setting')} with the paper's "
        "controlled experiment: an encoder learns posteriors vMF(μ, κ) from contrastive pairs of a process whose true "
        "posteriors are known. Preset fast is our loss, process, networks and schedule on a CPU; preset paper is the "
        "paper's own configuration. Fast differs from the paper in several ways at once, so its rows show what our "
        "whole configuration reaches, not the effect of one change."
    )
    title = "The controlled experiment: the paper's numbers and ours"
    return Report(title, about, tuple(main_results(groups)), tuple(build_sections(groups)))


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


def build_sections(groups: Groups) -> list[Section]:
    """The sections of the controlled experiment that have runs of their own; the last lists all other runs."""
    return tables.build_sections(_PLANS, groups, _rest)


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


def _own(*metrics: str) -> dict[str, Callable[[Sequence[Run]], str]]:
    """Columns of our metrics."""
    return {LABELS[metric]: lambda runs, metric=metric: ours(runs, metric) for metric in metrics}


def _high_dim(groups: Groups, names: Sequence[str]) -> list[Table]:
    """High dimensions, for which the paper has a figure but no numbers."""
    caption = (
        "Fixed: κ and κ_pos as at D = 10, so a pair carries less and less information about its partner as D grows. "
        "Matched: both scaled so that a pair would carry as much information as at D = 10 if μ were uniform. The "
        "information is measured on the process itself. The paper only has Figure 7, and reports considerable drops "
        "from D = 40. "
    )
    metrics = _own("information", *RECOVERY_METRICS) | {
        "κ MAE / mean κ ↓": lambda runs: format_summary(ratio(runs, "kappa_mae", "kappa_true_mean"))
    }
    columns = ("D", "κ range", "κ_pos")
    return [_settings("High dimensions", caption, groups, names, columns, metrics)]


def _sources(groups: Groups, names: Sequence[str]) -> list[Table]:
    """One change at a time, from our configuration towards the paper's."""
    caption = (
        "Rule: how the process accepts a positive pair, exactly or by the paper's saturating ratio. Full-rank: a "
        "generator whose μ uses all directions of the sphere. Centring: the weight of our remedy for the tilt, part of "
        "the closed form only. A ratio of 1 in the last column means that κ is right on average. "
    )
    metrics = _own(*RECOVERY_METRICS) | {
        "mean κ, ours / true": lambda runs: format_summary(
            ratio(runs, "kappa_mean", "kappa_true_mean")
        )
    }
    columns = ("rule", "full-rank generator", "loss", "centring")
    return [_settings("Where the error of κ comes from", caption, groups, names, columns, metrics)]


def _settings(
    title: str,
    caption: str,
    groups: Groups,
    names: Sequence[str],
    columns: Sequence[str],
    metrics: Mapping[str, Callable[[Sequence[Run]], str]],
) -> Table:
    names = present(groups, names)
    caption += MAE_NOTE
    return settings_table(title, caption, groups, names=names, columns=columns, metrics=metrics)


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
    caption = (
        "How often a cap with the nominal coverage in the header contains the latent or the partner, in percent; a "
        "correct posterior gives the number in the header. The paper has no such table. Mean ± standard error over "
        "seeds."
    )
    header = ("setting", *nominal, *nominal, *FACTS)
    return [Table("Coverage", caption, header, tuple(rows), spans)]


def _compared(
    title: str, caption: str, *columns: str, **options: object
) -> Callable[[Groups, Sequence[str]], list[Table]]:
    """A section's one table: the paper's numbers next to ours."""

    def build(groups: Groups, names: Sequence[str]) -> list[Table]:
        text = f"{caption} {MAE_NOTE}"
        return [comparison(title, text, groups, names=names, columns=columns, **options)]  # type: ignore[arg-type]

    return build


def _bimodal(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "Divergence: KL(truth, ours) in nats, over all inputs and over the torn ones, whose smaller weight is above "
        "0.2. Modes found: share of torn inputs with both modes within 20 degrees. Mean ± standard error over seeds."
    )
    metrics = (
        *("divergence", "divergence_torn", "modes_found", "mode_degrees_median"),
        *("weight_rank", "weight_mae", "kappa_rank", "kappa_mae"),
    )
    return [generic_table("Posteriors with two modes", caption, groups, names, metrics=metrics)]


def _rest(groups: Groups, names: Sequence[str]) -> Table:
    metrics = ("mu_rank", "mu_mae", "kappa_rank", "kappa_mae", "spread_rank", "spread_mae")
    return generic_table("Other runs", MAE_NOTE, groups, names, metrics=metrics)


def _numbered(*prefixes: str, first: str | None = None) -> Callable[[Groups], list[str]]:
    """The settings of the prefixes by their numbers, after ``first``."""
    lead = [first] if first else []
    return lambda groups: lead + [name for p in prefixes for _, name in numbered(groups, p)]


def _encoders(groups: Groups) -> list[str]:
    """The encoders by dimension; base has the dimension of the process."""
    return [name for _, name in sorted([*numbered(groups, "encoder-dim-"), (10, "base")])]


def _starting(prefix: str) -> Callable[[Groups], list[str]]:
    def names(groups: Groups) -> list[str]:
        chosen = (name.removesuffix("-paper") for name in groups if name.startswith(prefix))
        return list(dict.fromkeys(chosen))

    return names


_PLANS = (
    Plan(
        "recovery",
        "Recovery of known posteriors",
        "Does the encoder recover the true posteriors, up to a rotation?",
        fixed(
            *("ambiguous", "clear", "injective", "injective-longer", "injective-longest"),
            *("two-dim", "two-dim-arc"),
        ),
        _compared(
            "Recovery of known posteriors",
            "Table 1 of the paper and the caption of its Figure 2. In the injective process true κ is infinite: the "
            "paper reports that learned κ goes to infinity, ours shows its median.",
            *("D", "κ range"),
        ),
        figures={
            figures.posterior_figure: "Example posteriors on the circle, true and learned. Densities stand on the "
            "circle, all to one scale; a colour is an input. One seed of the setting two-dim.",
            figures.scatter_figure: "Learned κ against true κ, 400 inputs of one seed. On the diagonal κ is right.",
        },
    ),
    Plan(
        "families",
        "Posteriors of other families",
        "The posteriors of the process are not vMFs; those of the encoder still are.",
        fixed("ambiguous", "gaussian", "laplace"),
        _compared(
            "Posteriors of other families",
            "Table 2 of the paper. The spread is the mean cosine distance from the mode, which is defined for all "
            "families.",
            "posterior",
            metrics=("mu_rank", "mu_mae", "spread_rank", "spread_mae"),
        ),
        context=("ambiguous",),
    ),
    Plan(
        "losses",
        "Losses",
        "The same encoder and process under other losses.",
        fixed(
            *("base", "losses-mcinfonce", "losses-mcinfonce-joint", "losses-elk"),
            *("losses-elk-paper-scale", "losses-hib", "losses-infonce"),
        ),
        _compared(
            "Losses",
            "Tables 3 and 11 of the paper; ours are on one process and trained for about the same time. "
            f"{_BASE_NOTE}The paper has one row for ELK; ours has two scales.",
            *("loss", "inputs per batch"),
        ),
        context=("base",),
    ),
    Plan(
        "mc-samples",
        "Monte Carlo samples",
        "What more samples improve in the paper's estimator of the loss, and the closed form, which needs none.",
        _numbered("mc-samples-", first="base"),
        _compared(
            "Monte Carlo samples",
            "The paper shows this in Figure 3, and its text gives two numbers; 512 samples are its ambiguous setting. "
            f"{_BASE_NOTE}It is the closed form: no samples. Batches are smaller where there are more samples.",
            *("samples", "inputs per batch"),
        ),
        context=("base",),
        figures={
            figures.samples_figure: "κ against the number of Monte Carlo samples. Bars are standard errors over seeds; "
            "the line is the closed form; diamonds are the numbers in the paper's text.",
        },
    ),
    Plan(
        "encoder-dim",
        "Dimension of the encoder",
        "The sphere of the encoder has fewer or more dimensions than that of the process.",
        _encoders,
        _compared(
            "Dimension of the encoder",
            "The process has ten dimensions. The paper shows this in Figure 4, and its text gives a bound. "
            + _BASE_NOTE.strip(),
            "encoder D",
            same={"base": "ambiguous"},
        ),
        context=("base",),
    ),
    Plan(
        "high-dim",
        "High dimensions",
        "Process and encoder have more dimensions.",
        _numbered("high-dim-fixed-", "high-dim-matched-"),
        _high_dim,
        figures={
            figures.dimension_figure: "Rank correlation of κ and information per pair against the dimension. Matched: "
            "κ and κ_pos are scaled to keep the information of a pair, if μ were uniform.",
        },
    ),
    Plan(
        "shared-backbone",
        "One backbone with two heads",
        "μ and κ from separate networks, or κ from a head on the network of μ: in process and encoder "
        "(shared-backbone, as in the paper), or in the encoder only (shared-encoder).",
        fixed("base", "shared-backbone", "shared-encoder"),
        _compared(
            "One backbone with two heads",
            f"Table 8 of the paper. {_BASE_NOTE.strip()}",
            "architecture",
            same={"base": "ambiguous"},
        ),
        context=("base",),
    ),
    Plan(
        "sources",
        "Where the error of κ comes from",
        "One change at a time, from our configuration towards the paper's.",
        fixed(
            *("base", "sources-no-centring", "sources-paper-rule"),
            *("sources-paper-rule-no-centring", "mc-samples-16", "sources-mc-paper-rule"),
            *("sources-full-rank", "sources-full-rank-no-centring", "sources-full-rank-paper-rule"),
            *("sources-full-rank-mc", "sources-full-rank-mc-paper-rule"),
        ),
        _sources,
        context=("base", "mc-samples-16"),
    ),
    Plan(
        "coverage",
        "Coverage",
        "Do caps contain as much as their nominal mass?",
        lambda groups: [
            *("ambiguous", "clear", "two-dim", "gaussian", "laplace", "base", "shared-backbone"),
            *_numbered("high-dim-fixed-", "high-dim-matched-")(groups),
        ],
        _coverage,
        figures={
            figures.coverage_figure: "Empirical minus nominal coverage in percentage points. Grey: within two points. "
            "Above 0 the caps are too wide, below 0 too narrow. Bars are standard errors over seeds.",
        },
        owns=False,
    ),
    Plan(
        "bimodal",
        "Posteriors with two modes",
        "Each input could be one of two things. A mixture of two vMFs can represent that, a single vMF cannot.",
        _starting("bimodal"),
        _bimodal,
        figures={
            figures.modes_figure: "Two torn posteriors as maps of the sphere: the truth, a learned mixture, a learned "
            "single vMF. Contours of the density, relative to its peak; learned posteriors are rotated onto the "
            "truth.",
        },
    ),
)
