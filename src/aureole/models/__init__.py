"""Encoders that return posteriors, and the networks they are built from."""

from aureole.models._card import Card, model_card
from aureole.models._encoders import (
    IndependentEncoder,
    MixtureEncoder,
    PaperEncoder,
    Part,
    SharedEncoder,
)
from aureole.models._feature_extractors import ImageFeatures, TextFeatures, mean_pool
from aureole.models._heads import KappaFromNorm, KappaFromPrototypes, MixtureHead, PosteriorHead
from aureole.models._networks import (
    MEAN,
    STD,
    CifarResNet,
    ResidualMLP,
    ResNet18,
    bfloat16_in_hardware,
    hold_statistics,
    paper_mlp,
    whiten_last_layer,
)
from aureole.models._posterior_encoder import Ensemble, MirroredViews, PosteriorEncoder
from aureole.models._pretrained import (
    MINILM_CAPTIONS,
    PACKAGED_HEADS,
    find_model,
    from_pretrained,
    push_to_hub,
)
from aureole.models._saving import (
    CARD,
    CONFIG,
    PIPELINE_FORMAT,
    PIPELINE_HEAD,
    PIPELINE_HEADS,
    WEIGHTS,
    build,
    check_weights,
    describe,
    format_of,
    load_classifier,
    load_folder,
    load_pipeline_head,
    save_folder,
)

__all__ = [
    "MINILM_CAPTIONS",
    "PACKAGED_HEADS",
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
    "PosteriorHead",
    "ResNet18",
    "ResidualMLP",
    "SharedEncoder",
    "TextFeatures",
    "find_model",
    "from_pretrained",
    "mean_pool",
    "model_card",
    "paper_mlp",
    "push_to_hub",
    "whiten_last_layer",
]
