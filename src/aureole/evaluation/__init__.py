"""Evaluation metrics: pure functions of posteriors and ground truth."""

from aureole._rank_correlation import spearman
from aureole.evaluation._calibration import (
    Calibration,
    fit_calibration,
    partner_coverage,
    predictive_coverage,
)
from aureole.evaluation._diagnosis import diagnose
from aureole.evaluation._recovery import recovery
from aureole.evaluation._rejection import aurc, r_auroc, rejection_curve
from aureole.evaluation._retrieval_metrics import nearest_label_matches

__all__ = [
    "Calibration",
    "aurc",
    "diagnose",
    "fit_calibration",
    "nearest_label_matches",
    "partner_coverage",
    "predictive_coverage",
    "r_auroc",
    "recovery",
    "rejection_curve",
    "spearman",
]
