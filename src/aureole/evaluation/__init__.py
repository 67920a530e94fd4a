"""Evaluation metrics: pure functions of posteriors and ground truth, and torchmetrics classes for training loops."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aureole.evaluation._calibration import (
    CAP_MASSES,
    Calibration,
    fit_calibration,
    latent_coverage,
    partner_angle,
    partner_coverage,
    predictive_coverage,
)
from aureole.evaluation._diagnosis import Diagnosis, diagnose
from aureole.evaluation._rank_correlation import (
    average_ranks,
    bootstrap,
    bootstrap_error,
    partial_spearman,
    spearman,
    split_half_rank,
    vote_ceiling,
)
from aureole.evaluation._recovery import (
    align_mixtures,
    divergence,
    mode_recovery,
    recovery,
    rotate_mixture,
)
from aureole.evaluation._rejection import (
    SAMPLED,
    area_under_rejection,
    augrc,
    aurc,
    kappa_rejection,
    oracle_area,
    r_auroc,
    rejection_curve,
)
from aureole.evaluation._retrieval_metrics import (
    average_precision,
    nearest_label_matches,
    normalised_gain,
    recall_at_1,
    set_class_entropy,
    set_coverage,
    set_share,
    thirds,
)

if TYPE_CHECKING:
    from aureole.evaluation._torchmetrics import (
        AUGRC,
        AURC,
        RAUROC,
        RankCorrelation,
        RecallAt1,
        RejectionArea,
    )

__all__ = [
    "AUGRC",
    "AURC",
    "CAP_MASSES",
    "RAUROC",
    "Calibration",
    "Diagnosis",
    "RankCorrelation",
    "RecallAt1",
    "RejectionArea",
    "align_mixtures",
    "area_under_rejection",
    "augrc",
    "aurc",
    "average_precision",
    "average_ranks",
    "bootstrap",
    "bootstrap_error",
    "diagnose",
    "divergence",
    "fit_calibration",
    "latent_coverage",
    "mode_recovery",
    "nearest_label_matches",
    "normalised_gain",
    "oracle_area",
    "partial_spearman",
    "partner_angle",
    "partner_coverage",
    "predictive_coverage",
    "r_auroc",
    "recall_at_1",
    "recovery",
    "rejection_curve",
    "rotate_mixture",
    "set_class_entropy",
    "set_coverage",
    "set_share",
    "spearman",
    "split_half_rank",
    "thirds",
    "vote_ceiling",
]

_NEED_TORCHMETRICS = {"AUGRC", "AURC", "RAUROC", "RankCorrelation", "RecallAt1", "RejectionArea"}


def __getattr__(name: str) -> Any:
    """Import torchmetrics when one of its classes is first used."""
    if name in _NEED_TORCHMETRICS:
        return getattr(import_module("aureole.evaluation._torchmetrics"), name)
    raise AttributeError(f"module 'aureole.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
