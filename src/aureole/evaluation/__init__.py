"""Evaluation: pure functions of posteriors and what is known about them."""

from aureole.evaluation.ceiling import split_half_rank, vote_ceiling
from aureole.evaluation.coverage import latent_coverage, partner_coverage
from aureole.evaluation.ranking import nearest_label_matches, recall_at_1
from aureole.evaluation.ranks import average_ranks, spearman
from aureole.evaluation.recovery import recovery
from aureole.evaluation.rejection import (
    area_under_rejection,
    augrc,
    aurc,
    oracle_area,
    r_auroc,
    rejection_curve,
)

__all__ = [
    "area_under_rejection",
    "augrc",
    "aurc",
    "average_ranks",
    "latent_coverage",
    "nearest_label_matches",
    "oracle_area",
    "partner_coverage",
    "r_auroc",
    "recall_at_1",
    "recovery",
    "rejection_curve",
    "spearman",
    "split_half_rank",
    "vote_ceiling",
]
