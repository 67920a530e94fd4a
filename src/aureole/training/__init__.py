"""Training: fit encoders and frozen heads, and use the losses in the training loops of other libraries."""

from aureole.evaluation import Diagnosis, diagnose
from aureole.training._assessment import (
    CHUNK,
    Assessment,
    assess,
    histogram,
    kappas,
    partner_cosines,
)
from aureole.training._config import EXAMPLES, KEYS, Config, read_config
from aureole.training._distributed import STORE, from_first, is_first, joined, launched
from aureole.training._fit import (
    DivergenceError,
    Fit,
    FitOptions,
    Observer,
    best_start,
    check_fabric,
    fit,
)
from aureole.training._frozen_head import HEAD_FORMAT, FrozenHead, NotFittedError, pair_rows
from aureole.training._lightly import LightlyLoss
from aureole.training._metric_learning import MetricLearningLoss, posterior_from_norm
from aureole.training._recipes import check_ranks, keyed, train
from aureole.training._schedule import Phase, paper_phases, three_phases, two_phases
from aureole.training._sentence_transformers import (
    SentencePairLoss,
    SentencePosterior,
    encode_posterior,
    load_pipeline,
    minilm,
    minilm_folder,
    pooling_pipeline,
    posterior_of,
    save_pipeline,
)
from aureole.training._two_towers import TwoTowerHead

__all__ = [
    "Assessment",
    "Config",
    "DivergenceError",
    "Fit",
    "FitOptions",
    "FrozenHead",
    "LightlyLoss",
    "MetricLearningLoss",
    "NotFittedError",
    "Observer",
    "Phase",
    "SentencePairLoss",
    "SentencePosterior",
    "TwoTowerHead",
    "assess",
    "best_start",
    "encode_posterior",
    "fit",
    "load_pipeline",
    "minilm",
    "paper_phases",
    "posterior_from_norm",
    "posterior_of",
    "read_config",
    "save_pipeline",
    "three_phases",
    "train",
    "two_phases",
]
