"""Training: fit encoders and frozen heads, and use the losses in the training loops of other libraries."""

from aureole.training._fit import FitOptions, Phase, fit
from aureole.training._frozen_head import FrozenHead
from aureole.training._metric_learning import MetricLearningLoss
from aureole.training._sentence_transformers import (
    SentencePairLoss,
    SentencePosterior,
    encode_posterior,
    load_pipeline,
    minilm,
    save_pipeline,
)
from aureole.training._two_towers import TwoTowerHead

__all__ = [
    "FitOptions",
    "FrozenHead",
    "MetricLearningLoss",
    "Phase",
    "SentencePairLoss",
    "SentencePosterior",
    "TwoTowerHead",
    "encode_posterior",
    "fit",
    "load_pipeline",
    "minilm",
    "save_pipeline",
]
