"""Aureole's losses inside other libraries' training loops; none of these libraries is imported or needed here."""

from aureole.training.adapters.lightly import LightlyLoss
from aureole.training.adapters.metric_learning import MetricLearningLoss
from aureole.training.adapters.sentence_transformers import (
    SentencePairLoss,
    SentencePosterior,
    encode_posterior,
    load_pipeline,
    minilm,
    posterior_of,
    save_pipeline,
)

__all__ = [
    "LightlyLoss",
    "MetricLearningLoss",
    "SentencePairLoss",
    "SentencePosterior",
    "encode_posterior",
    "load_pipeline",
    "minilm",
    "posterior_of",
    "save_pipeline",
]
