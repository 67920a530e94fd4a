"""Aureole's losses inside other libraries' training loops; none of these libraries is imported or needed here."""

from aureole.training.adapters.lightly import LightlyLoss
from aureole.training.adapters.metric_learning import MetricLearningLoss

__all__ = ["LightlyLoss", "MetricLearningLoss"]
