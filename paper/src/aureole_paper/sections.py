"""Sections: which settings, tables and figures make up each part of the report of the controlled experiment."""

from collections.abc import Callable, Sequence

from aureole.explorer import Section, Table
from aureole_paper import figures, maps, plans
from aureole_paper.plans import Plan, fixed
from aureole_paper.records import Groups
from aureole_paper.tables import (
    MAE_NOTE,
    comparison,
    coverage_table,
    generic_table,
    grid_table,
    hib_table,
    high_dim_table,
    numbered,
    sources_table,
)

_BASE_NOTE = "The row base is our ambiguous setting at a third of its length, which ablations are compared with. "
_HIB = "tuning-hib-a"


def build_sections(groups: Groups) -> list[Section]:
    """The sections of the controlled experiment that have runs of their own; all runs left over are in the last."""
    return plans.build_sections(_PLANS, groups, _rest)


def _rest(groups: Groups, names: Sequence[str]) -> Table:
    metrics = ("mu_rank", "mu_mae", "kappa_rank", "kappa_mae", "spread_rank", "spread_mae")
    return generic_table("Other runs", MAE_NOTE, groups, names, metrics=metrics)


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
        "Table 1 of the paper and the caption of its Figure 2, "
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
        "Table 2 of the paper beside ours. The spread is the mean cosine distance from the "
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
        "Tables 3 and 11 of the paper beside ours, on one process and for about "
        "the same time. "
        f"{_BASE_NOTE}The paper has one row for ELK; ours has two scales. "
    )
    columns = ("loss", "inputs per batch")
    return [comparison("Losses", caption + MAE_NOTE, groups, names=names, columns=columns)]


def _samples(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "The paper shows this in Figure 3, of which its text gives two numbers; 512 samples are its "
        "ambiguous setting. "
        f"{_BASE_NOTE}It is the closed form: no samples. Batches are smaller where a sample costs more. "
    )
    columns = ("samples", "inputs per batch")
    return [
        comparison("Monte Carlo samples", caption + MAE_NOTE, groups, names=names, columns=columns)
    ]


def _encoder_table(groups: Groups, names: Sequence[str]) -> list[Table]:
    caption = (
        "The process has ten dimensions. The paper shows this in Figure 4, of which its text "
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
    caption = f"Table 8 of the paper beside ours. {_BASE_NOTE}"
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
    Plan(
        "recovery",
        "Recovery of known posteriors",
        "Does the encoder find the true posteriors, up to a rotation?",
        fixed(
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
    Plan(
        "families",
        "Posteriors of other families",
        "The process is no vMF, the encoder still is.",
        fixed("ambiguous", "gaussian", "laplace"),
        _families,
        beside=("ambiguous",),
    ),
    Plan(
        "losses",
        "Losses",
        "The same encoder and process under other losses.",
        fixed(
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
    Plan(
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
    Plan(
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
    Plan(
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
    Plan(
        "shared-backbone",
        "One backbone with two heads",
        "μ and κ from networks of their own, or κ from a head on μ's: in process and encoder (shared-backbone, as in "
        "the paper), or in the encoder alone (shared-encoder).",
        fixed("base", "shared-backbone", "shared-encoder"),
        _shared,
        beside=("base",),
    ),
    Plan(
        "sources",
        "Where the error of κ comes from",
        "One change at a time, from our configuration towards the paper's.",
        fixed(
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
    Plan(
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
    Plan(
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
    Plan(
        "tuning",
        "The paper's grid search",
        "Short runs on a seed that no other table uses.",
        _starting("tuning-"),
        _tuning,
    ),
)
