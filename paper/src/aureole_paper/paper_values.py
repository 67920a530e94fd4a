"""The paper's numbers: the one place where they are typed.

The paper's columns named RMSE hold mean absolute errors (its reference code computes those), so they are kept as "mae".
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PaperValue:
    """A mean and, where the paper gives one, its standard error over five seeds; and where the paper has it.

    ``relation`` is what stands before the number where the paper gives a bound or a limit, ``decimals`` how many the
    paper prints.
    """

    source: str
    mean: float
    error: float | None = None
    relation: str = ""
    decimals: int = 2


def _row(source: str, **values: tuple[float, float]) -> dict[str, PaperValue]:
    return {name: PaperValue(source, *value) for name, value in values.items()}


_MAIN, _FAMILIES, _LOSSES = "tab:toy_correctsetups", "tab:toy_distrfamily", "tab:bench_results"
_PLANE, _TEXT = "fig:2dplot, caption", "section 5.1, text"
_AMBIGUOUS = _row(
    _MAIN, mu_mae=(0.04, 0.00), mu_rank=(0.99, 0.00), kappa_mae=(6.15, 0.61), kappa_rank=(0.82, 0.04)
)  # fmt: skip
_SPREAD = _row(_FAMILIES, spread_mae=(0.05, 0.00), spread_rank=(0.75, 0.04))
_SHARED = "tab:ablation_shared"
_VOTES, _LABELS, _SCRATCH = "tab:bench_cifar", "tab:cifar_dataset", "tab:cifar_pretraining"


def _recall(mean: float) -> dict[str, PaperValue]:
    return {"recall_at_1": PaperValue("tab:infonce", mean, decimals=3)}


# by our name of the setting, then by our name of the metric
PAPER: dict[str, dict[str, PaperValue]] = {
    "ambiguous": _AMBIGUOUS | _SPREAD,
    "clear": _row(
        _MAIN, mu_mae=(0.05, 0.00), mu_rank=(0.98, 0.00), kappa_mae=(125.02, 10.64), kappa_rank=(0.64, 0.04)
    ),
    "injective": _row(_MAIN, mu_mae=(0.05, 0.01), mu_rank=(0.98, 0.00))
    | {"kappa_mean": PaperValue(_MAIN, math.inf, None, "κ → ")},
    "two-dim": _row(
        _PLANE, mu_mae=(0.05, 0.00), mu_rank=(1.00, 0.00), kappa_mae=(2.89, 0.56), kappa_rank=(0.82, 0.05)
    ),
    "gaussian": _row(
        _FAMILIES, mu_mae=(0.04, 0.00), mu_rank=(0.99, 0.00), spread_mae=(0.04, 0.00), spread_rank=(0.70, 0.05)
    ),
    "laplace": _row(
        _FAMILIES, mu_mae=(0.05, 0.01), mu_rank=(0.98, 0.00), spread_mae=(0.02, 0.00), spread_rank=(0.66, 0.06)
    ),
    "losses-hib": _row(
        _LOSSES, mu_mae=(0.18, 0.02), mu_rank=(0.82, 0.03), kappa_mae=(1e14, 1e14), kappa_rank=(-0.02, 0.09)
    ),
    "losses-elk": _row(
        _LOSSES, mu_mae=(0.02, 0.00), mu_rank=(1.00, 0.00), kappa_mae=(21.70, 0.31), kappa_rank=(0.92, 0.00)
    ),
    "losses-infonce": _row("tab:infonce", mu_mae=(0.83, 0.00), mu_rank=(0.99, 0.00)),
    "shared-backbone": _row(
        _SHARED, mu_mae=(0.04, 0.00), mu_rank=(0.99, 0.00), kappa_mae=(7.31, 1.53), kappa_rank=(0.87, 0.02)
    ),
    "mc-samples-4": {"kappa_rank": PaperValue(_TEXT, 0.77)},
    "mc-samples-16": {"kappa_mae": PaperValue(_TEXT, 4.55)},
    "encoder-dim-8": {"kappa_rank": PaperValue(_TEXT, 0.6, None, "≥ ")},
    "encoder-dim-16": {"kappa_rank": PaperValue(_TEXT, 0.6, None, "≥ ")},
    "encoder-dim-32": {"kappa_rank": PaperValue(_TEXT, 0.6, None, "≥ ")},
    "cifar10h/hib": _row(_VOTES, entropy_rank=(0.28, 0.00), crop_rank=(0.69, 0.02)),
    "cifar10h/elk": _row(_VOTES, entropy_rank=(0.14, 0.05), crop_rank=(0.51, 0.03)),
    "cifar10h/mcinfonce": _row(_VOTES, entropy_rank=(0.29, 0.01), crop_rank=(0.68, 0.01)) | _recall(0.863),
    "cifar10h/infonce": _recall(0.858),
    "cifar10h/labels-soft": _row(_LABELS, entropy_rank=(0.29, 0.01), crop_rank=(0.68, 0.01)),
    "cifar10h/labels-hard": _row(_LABELS, entropy_rank=(0.24, 0.01), crop_rank=(0.64, 0.02)),
    "cifar10h/labels-cifar10": _row(_LABELS, entropy_rank=(0.28, 0.01), crop_rank=(0.69, 0.02)),
    "cifar10h/pretrained": {"entropy_rank": PaperValue(_SCRATCH, 0.33), "crop_rank": PaperValue(_SCRATCH, 0.70)},
    "cifar10h/scratch": {"entropy_rank": PaperValue(_SCRATCH, 0.31), "crop_rank": PaperValue(_SCRATCH, 0.62)},
}  # fmt: skip

# rows of ours that are compared with a number that the paper gives under another name
_SAME = {
    "injective-longer": "injective",
    "injective-longest": "injective",
    "losses-mcinfonce": "ambiguous",
    "losses-elk-paper-scale": "losses-elk",
    "mc-samples-512": "ambiguous",
    **{
        f"{name}{end}": "mc-samples-16"
        for name in ("mc-samples-16", "sources-mc-paper-rule")
        for end in ("-1600", "-6400")
    },
    "sources-mc-paper-rule": "mc-samples-16",
}


def paper_value(setting: str, metric: str) -> PaperValue | None:
    """The paper's number for a setting and a metric; None where the paper has none.

    A run of the paper's preset ("ambiguous-paper") is compared with the same number as ours.
    """
    name = setting.removesuffix("-paper")
    return PAPER.get(_SAME.get(name, name), {}).get(metric)


def format_paper(value: PaperValue) -> str:
    """The number as the paper prints it, such as "6.15 ± 0.61", "≥ 0.60" or "1e14 ± 1e14"."""
    shown = [_plain(x, value.decimals) for x in (value.mean, value.error) if x is not None]
    return value.relation + " ± ".join(shown)


def _plain(x: float, decimals: int) -> str:
    if math.isinf(x):
        return "∞"
    return f"{x:.0e}".replace("e+", "e") if abs(x) >= 1e4 else f"{x:.{decimals}f}"
