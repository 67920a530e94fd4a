"""Evaluation: pure functions of posteriors and what is known about them."""

from aureole.evaluation._bootstrap import (
    bootstrap,
)
from aureole.evaluation._calibration import (
    Calibration,
    fit_calibration,
)
from aureole.evaluation._ceiling import (
    split_half_rank,
    vote_ceiling,
)
from aureole.evaluation._coverage import (
    MASSES,
    latent_coverage,
    partner_angle,
    partner_coverage,
    predictive_coverage,
)
from aureole.evaluation._kappa_rejection import (
    SAMPLED,
    kappa_rejection,
)
from aureole.evaluation._metrics import (
    AUGRC,
    AURC,
    RAUROC,
    RankCorrelation,
    RecallAt1,
    RejectionArea,
)
from aureole.evaluation._modes import (
    align_mixtures,
    divergence,
    mode_recovery,
    rotate_mixture,
)
from aureole.evaluation._ranking import (
    average_precision,
    nearest_label_matches,
    normalised_gain,
    recall_at_1,
)
from aureole.evaluation._ranks import (
    average_ranks,
    partial_spearman,
    spearman,
)
from aureole.evaluation._recovery import (
    recovery,
)
from aureole.evaluation._rejection import (
    area_under_rejection,
    augrc,
    aurc,
    oracle_area,
    r_auroc,
    rejection_curve,
)
from aureole.evaluation._sets import (
    set_class_entropy,
    set_coverage,
    set_share,
    thirds,
)

__all__ = [
    "AUGRC",
    "AURC",
    "RAUROC",
    "Calibration",
    "RankCorrelation",
    "RecallAt1",
    "RejectionArea",
    "area_under_rejection",
    "augrc",
    "aurc",
    "average_precision",
    "average_ranks",
    "fit_calibration",
    "latent_coverage",
    "nearest_label_matches",
    "normalised_gain",
    "oracle_area",
    "partner_angle",
    "partner_coverage",
    "predictive_coverage",
    "r_auroc",
    "recall_at_1",
    "recovery",
    "rejection_curve",
    "set_class_entropy",
    "set_coverage",
    "set_share",
    "spearman",
    "split_half_rank",
    "thirds",
    "vote_ceiling",
]
