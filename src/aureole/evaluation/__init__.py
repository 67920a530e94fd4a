"""Evaluation metrics: pure functions of posteriors and ground truth, and a torchmetrics class for training loops."""

from typing import TYPE_CHECKING, Any

from aureole._rank_correlation import spearman
from aureole.evaluation._calibration import (
    Calibration,
    fit_calibration,
    latent_coverage,
    partner_coverage,
    predictive_coverage,
)
from aureole.evaluation._diagnosis import diagnose
from aureole.evaluation._recovery import recovery
from aureole.evaluation._rejection import augrc, aurc, r_auroc, rejection_curve
from aureole.evaluation._retrieval_metrics import nearest_label_matches, recall_at_1

if TYPE_CHECKING:
    from aureole.evaluation._torchmetrics import StreamingMetric

__all__ = [
    "Calibration",
    "StreamingMetric",
    "augrc",
    "aurc",
    "diagnose",
    "fit_calibration",
    "latent_coverage",
    "nearest_label_matches",
    "partner_coverage",
    "predictive_coverage",
    "r_auroc",
    "recall_at_1",
    "recovery",
    "rejection_curve",
    "spearman",
]


def __getattr__(name: str) -> Any:
    """Import torchmetrics when its class is first used."""
    if name != "StreamingMetric":
        raise AttributeError(f"module 'aureole.evaluation' has no attribute {name!r}")
    from aureole.evaluation._torchmetrics import StreamingMetric

    return StreamingMetric
