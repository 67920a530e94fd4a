"""Training: fit encoders and frozen heads, and use the losses in other libraries' training loops."""

from aureole.training._assessment import (
    Assessment,
    assess,
    histogram,
)
from aureole.training._config import (
    EXAMPLES,
    KEYS,
    Config,
    read_config,
)
from aureole.training._diagnostics import (
    Diagnosis,
    diagnose,
)
from aureole.training._fit import (
    DivergenceError,
    Fit,
    Observer,
    _Run,
    check_fabric,
    fit,
)
from aureole.training._frozen import (
    FrozenHead,
    NotFittedError,
)
from aureole.training._head_folder import (
    HEAD_FORMAT,
)
from aureole.training._lightly import (
    LightlyLoss,
)
from aureole.training._metric_learning import (
    MetricLearningLoss,
    posterior_from_norm,
)
from aureole.training._objective import (
    objective,
    shared_objective,
)
from aureole.training._picture_recipe import (
    check_ranks,
)
from aureole.training._ranks import (
    STORE,
    from_first,
    is_first,
    joined,
    launched,
)
from aureole.training._recipe import (
    keyed,
)
from aureole.training._rows import (
    pair_rows,
)
from aureole.training._schedule import (
    Phase,
    paper_phases,
    three_phases,
    two_phases,
)
from aureole.training._scoring import (
    CHUNK,
    kappas,
    partner_cosines,
)
from aureole.training._sentence_transformers import (
    POSTERIOR,
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
from aureole.training._starts import (
    best_start,
)
from aureole.training._train import (
    train,
)

__all__ = [
    "Assessment",
    "Config",
    "Diagnosis",
    "DivergenceError",
    "Fit",
    "FrozenHead",
    "LightlyLoss",
    "MetricLearningLoss",
    "NotFittedError",
    "Observer",
    "Phase",
    "SentencePairLoss",
    "SentencePosterior",
    "assess",
    "diagnose",
    "encode_posterior",
    "fit",
    "load_pipeline",
    "minilm",
    "objective",
    "paper_phases",
    "pooling_pipeline",
    "posterior_from_norm",
    "posterior_of",
    "read_config",
    "save_pipeline",
    "shared_objective",
    "three_phases",
    "train",
    "two_phases",
]
