"""Sections: which settings, tables and figures make up each part of the report of the controlled experiment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aureole.reports import figures, maps
from aureole.reports.page import Picture, Section
from aureole.reports.runs import Groups
from aureole.reports.tables import (
    MAE_NOTE,
    Table,
    comparison,
    coverage_table,
    generic_table,
    grid_table,
    hib_table,
    high_dim_table,
    numbered,
    present,
    sources_table,
)

__all__ = ["build_sections"]

_BASE_NOTE = "The row base is our ambiguous setting at a third of its length, which ablations are compared with. "
_HIB = "tuning-hib-a"


@dataclass(frozen=True)
class _Plan:
    """How a section is made.

    It is there if a setting of ``names`` that is not among ``beside`` has runs. ``owns`` is False for a section that
    looks at runs which belong elsewhere. Figures are a drawing function and a caption, whose first sentence names it.
    """

    anchor: str
    title: str
    text: str
    names: Callable[[Groups], Sequence[str]]
    tables: Callable[[Groups, Sequence[str]], Sequence[Table]]
    beside: tuple[str, ...] = ()
    figures: tuple[tuple[Callable[[Groups], str | None], str], ...] = ()
    owns: bool = True


def build_sections(groups: Groups) -> list[Section]:
    """The sections that have runs of their own, in the page's order; all runs left over are in the last."""
    sections: list[Section] = []
    used: set[str] = set()
    for plan in _PLANS:
        names = plan.names(groups)
        if not present(groups, [name for name in names if name not in plan.beside]):
            continue
        shown = present(groups, names)
        tables = tuple(table for table in plan.tables(groups, names) if table.rows)
        drawn = [(draw(groups), caption) for draw, caption in plan.figures]
        pictures = tuple(Picture(svg, text, text.split(". ")[0]) for svg, text in drawn if svg)
        if not tables and not pictures:
            continue
        runs = tuple(run for name in shown for run in groups[name])
        sections.append(Section(plan.anchor, plan.title, plan.text, tables, pictures, runs))
        used.update(shown if plan.owns else ())
    rest = [name for name in groups if name not in used]
    if rest:
        metrics = ("mu_rank", "mu_mae", "kappa_rank", "kappa_mae", "spread_rank", "spread_mae")
        table = generic_table("Other runs", MAE_NOTE, groups, rest, metrics=metrics)
        runs = tuple(run for name in rest for run in groups[name])
        text = "Records in the folder that no other section shows."
        sections.append(Section("other", "Other runs", text, (table,), (), runs))
    return sections


def _fixed(*names: str) -> Callable[[Groups], list[str]]:
    return lambda _: list(names)


def _numbered(*prefixes: str, first: str | None = None) -> Callable[[Groups], list[str]]:
    """The settings of the prefixes by their numbers, after ``first``."""
    lead = [first] if first else []
    return lambda groups: lead + [name for p in prefixes for _, name in numbered(groups, p)]


def _encoders(groups: Groups) -> list[str]:
    """The encoders by dimension; base has that of the process."""
    return [name for _, name in sorted([*numbered(groups, "encoder-dim-"), (10, "base")])]


def _starting(prefix: str) -> Callable[[Groups], list[str]]:
    def names(groups: Groups) -> list[str]:
        found = (name.removesuffix("-paper") for name in groups if name.startswith(prefix))
        return list(dict.fromkeys(found))

    return names


def _recovery(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "Table 1 of the paper (tab:toy_correctsetups) and the caption of its Figure 2 (fig:2dplot), "
        "beside ours. In the injective process "
        "true κ is infinite: the paper says that found κ goes to infinity, ours shows its median. "
    )
    columns = ("D", "κ range")
    return [
        comparison(
            "Recovery of known posteriors", caption + MAE_NOTE, groups, names=names, columns=columns
        )
    ]


def _families(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "Table 2 of the paper (tab:toy_distrfamily) beside ours. The spread is the mean cosine distance from the "
        "mode, which "
        "posteriors of all families have. "
    )
    metrics = ("mu_rank", "mu_mae", "spread_rank", "spread_mae")
    return [
        comparison(
            "Posteriors of other families",
            caption + MAE_NOTE,
            groups,
            names=names,
            metrics=metrics,
            columns=("posterior",),
        )
    ]


def _losses(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "Tables 3 and 11 of the paper (tab:bench_results, tab:infonce) beside ours, on one process and for about "
        "the same time. "
        f"{_BASE_NOTE}The paper has one row for ELK; ours has two scales. "
    )
    columns = ("loss", "inputs per batch")
    return [comparison("Losses", caption + MAE_NOTE, groups, names=names, columns=columns)]


def _samples(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "The paper shows this in Figure 3 (fig:mc), of which its text gives two numbers; 512 samples are its "
        "ambiguous setting. "
        f"{_BASE_NOTE}It is the closed form: no samples. Batches are smaller where a sample costs more. "
    )
    columns = ("samples", "inputs per batch")
    return [
        comparison("Monte Carlo samples", caption + MAE_NOTE, groups, names=names, columns=columns)
    ]


def _encoder_table(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "The process has ten dimensions. The paper shows this in Figure 4 (fig:encoder_size), of which its text "
        "gives a bound. " + _BASE_NOTE
    )
    return [
        comparison(
            "Dimension of the encoder",
            caption + MAE_NOTE,
            groups,
            names=names,
            columns=("encoder D",),
            same={"base": "ambiguous"},
        )
    ]


def _shared(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = f"Table 8 of the paper (tab:ablation_shared) beside ours. {_BASE_NOTE}"
    return [
        comparison(
            "One backbone with two heads",
            caption + MAE_NOTE,
            groups,
            names=names,
            columns=("architecture",),
            same={"base": "ambiguous"},
        )
    ]


def _tuning(groups: Groups, names: Sequence[str]) -> list[Table]:
    return [
        grid_table(groups, [name for name in names if not name.startswith(_HIB)]),
        hib_table(groups, [name for name in names if name.startswith(_HIB)]),
    ]


def _bimodal(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "Divergence: KL(truth, found) in nats, over all inputs and the torn ones, whose lesser weight is above 0.2. "
        "Modes found: share of torn inputs with both modes within 20 degrees. Mean ± standard error over seeds."
    )
    metrics = (
        *("divergence", "divergence_torn", "modes_found", "mode_degrees_median"),
        *("weight_rank", "weight_mae", "kappa_rank", "kappa_mae"),
    )
    return [generic_table("Posteriors with two modes", caption, groups, names, metrics=metrics)]


_PLANS = (
    _Plan(
        "recovery",
        "Recovery of known posteriors",
        "Does the encoder find the true posteriors, up to a rotation?",
        _fixed(
            "ambiguous",
            "clear",
            "injective",
            "injective-longer",
            "injective-longest",
            "two-dim",
            "two-dim-arc",
        ),
        _recovery,
        figures=(
            (
                figures.posterior_figure,
                "Example posteriors of the circle, true and found. Densities stand on the circle, to one scale; "
                "a colour is an input. One seed of the setting two-dim.",
            ),
            (
                figures.scatter_figure,
                "κ found against κ true, 400 inputs of one seed. On the diagonal the certainty is right.",
            ),
            (
                figures.learning_figure,
                "κ during training in the ambiguous setting, mean over seeds. Dashed: the paper's final value. "
                "There is no rank correlation until κ is trained.",
            ),
            (
                figures.injective_figure,
                "Median κ during training on an injective process, log scale. True κ is infinite, so it should grow "
                "for as long as training goes on.",
            ),
        ),
    ),
    _Plan(
        "families",
        "Posteriors of other families",
        "The process is no vMF, the encoder still is.",
        _fixed("ambiguous", "gaussian", "laplace"),
        _families,
        beside=("ambiguous",),
    ),
    _Plan(
        "losses",
        "Losses",
        "The same encoder and process under other losses.",
        _fixed(
            "base",
            "losses-mcinfonce",
            "losses-mcinfonce-joint",
            "losses-elk",
            "losses-elk-paper-scale",
            "losses-hib",
            "losses-infonce",
        ),
        _losses,
        beside=("base",),
    ),
    _Plan(
        "mc-samples",
        "Monte Carlo samples",
        "What the paper's estimator of the loss gains from more samples, and the closed form, which needs none.",
        _numbered("mc-samples-", first="base"),
        _samples,
        beside=("base",),
        figures=(
            (
                figures.samples_figure,
                "κ against the number of Monte Carlo samples. Bars are standard errors over seeds; the line is the "
                "closed form; diamonds are the numbers that the paper's text gives.",
            ),
        ),
    ),
    _Plan(
        "encoder-dim",
        "Dimension of the encoder",
        "The encoder's sphere has fewer or more dimensions than that of the process.",
        _encoders,
        _encoder_table,
        beside=("base",),
        figures=(
            (
                figures.encoder_figure,
                "κ against the dimension of the encoder. The process has ten. Bars are standard errors over seeds.",
            ),
        ),
    ),
    _Plan(
        "high-dim",
        "High dimensions",
        "Process and encoder have more dimensions.",
        _numbered("high-dim-fixed-", "high-dim-matched-"),
        lambda groups, names: [high_dim_table(groups, names)],
        figures=(
            (
                figures.dimension_figure,
                "Rank correlation of κ and information per pair against the dimension. Matched: κ and κ_pos grow so "
                "that a pair keeps its information.",
            ),
        ),
    ),
    _Plan(
        "shared-backbone",
        "One backbone with two heads",
        "μ and κ from networks of their own, or from one backbone.",
        _fixed("base", "shared-backbone"),
        _shared,
        beside=("base",),
    ),
    _Plan(
        "sources",
        "Where the error of κ comes from",
        "One change at a time, from our configuration towards the paper's.",
        _fixed(
            "base",
            "sources-no-centring",
            "sources-paper-rule",
            "sources-paper-rule-no-centring",
            "mc-samples-16",
            "sources-mc-paper-rule",
            "sources-full-rank",
            "sources-full-rank-no-centring",
            "sources-full-rank-paper-rule",
            "sources-full-rank-mc",
            "sources-full-rank-mc-paper-rule",
        ),
        lambda groups, names: [sources_table(groups, names)],
        beside=("base", "mc-samples-16"),
    ),
    _Plan(
        "coverage",
        "Coverage",
        "Do regions that promise a mass hold it?",
        lambda groups: [
            *("ambiguous", "clear", "two-dim", "gaussian", "laplace", "base", "shared-backbone"),
            *_numbered("high-dim-fixed-", "high-dim-matched-")(groups),
        ],
        lambda groups, names: [coverage_table(groups, names)],
        figures=(
            (
                figures.coverage_figure,
                "Empirical minus nominal coverage in percentage points. Grey: within two points. Above 0 the caps are "
                "too wide, below 0 too narrow. Bars are standard errors over seeds.",
            ),
        ),
        owns=False,
    ),
    _Plan(
        "bimodal",
        "Posteriors with two modes",
        "Each input could be one of two things. A mixture of two vMFs can say so, a single vMF cannot.",
        _starting("bimodal"),
        _bimodal,
        figures=(
            (
                maps.modes_figure,
                "Two torn posteriors as maps of the sphere: the truth, what a mixture found, what a single vMF found. "
                "Contours of the density, relative to its peak; found posteriors are rotated onto the truth.",
            ),
        ),
    ),
    _Plan(
        "tuning",
        "The paper's grid search",
        "Short runs on a seed that no other table uses.",
        _starting("tuning-"),
        _tuning,
    ),
)
