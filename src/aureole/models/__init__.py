"""Encoders that return posteriors, and the networks they are made of."""

from aureole.models.adapters import ImageFeatures, TextFeatures, mean_pool
from aureole.models.backbones import CifarResNet, ResNet18
from aureole.models.card import Card, model_card
from aureole.models.encoders import (
    IndependentEncoder,
    MixtureEncoder,
    PaperEncoder,
    SharedEncoder,
)
from aureole.models.heads import KappaFromNorm, KappaFromPrototypes, MixtureHead
from aureole.models.networks import ResidualMLP, paper_mlp
from aureole.models.posterior_encoder import PosteriorEncoder
from aureole.models.views import Ensemble, MirroredViews

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
    "mean_pool",
    "model_card",
    "paper_mlp",
]
