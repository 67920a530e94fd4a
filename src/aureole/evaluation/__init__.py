"""Evaluation: pure functions of posteriors and what is known about them."""

from aureole.evaluation.coverage import latent_coverage, partner_coverage
from aureole.evaluation.ranks import average_ranks, spearman
from aureole.evaluation.recovery import recovery

__all__ = ["average_ranks", "latent_coverage", "partner_coverage", "recovery", "spearman"]
