"""Encoders that return posteriors, and the networks they are made of."""

from aureole.models._adapters import (
    ImageFeatures,
    TextFeatures,
    mean_pool,
)
from aureole.models._backbones import (
    MEAN,
    STD,
    CifarResNet,
    ResNet18,
    hold_statistics,
    load_classifier,
)
from aureole.models._blueprint import (
    HEADS,
    build,
    describe,
    outline,
)
from aureole.models._card import (
    Card,
    model_card,
)
from aureole.models._encoders import (
    IndependentEncoder,
    MixtureEncoder,
    PaperEncoder,
    Part,
    SharedEncoder,
)
from aureole.models._heads import (
    KappaFromNorm,
    KappaFromPrototypes,
    MixtureHead,
)
from aureole.models._independent import (
    save_independent,
)
from aureole.models._last_layer import (
    whiten_last_layer,
)
from aureole.models._networks import (
    ResidualMLP,
    paper_mlp,
)
from aureole.models._posterior_encoder import (
    PosteriorEncoder,
)
from aureole.models._precision import (
    bfloat16_in_hardware,
)
from aureole.models._pretrained import (
    MINILM_CAPTIONS,
    find_model,
)
from aureole.models._saving import (
    CARD,
    CONFIG,
    WEIGHTS,
    check_weights,
    format_of,
    load_folder,
    save_folder,
)
from aureole.models._views import (
    Ensemble,
    MirroredViews,
)

__all__ = [
    "Card",
    "CifarResNet",
    "Ensemble",
    "ImageFeatures",
    "IndependentEncoder",
    "KappaFromNorm",
    "KappaFromPrototypes",
    "MirroredViews",
    "MixtureEncoder",
    "MixtureHead",
    "PaperEncoder",
    "PosteriorEncoder",
    "ResNet18",
    "ResidualMLP",
    "SharedEncoder",
    "TextFeatures",
    "find_model",
    "mean_pool",
    "model_card",
    "paper_mlp",
]
