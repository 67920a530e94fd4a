"""Encoders that return posteriors, and the networks they are built from."""

from aureole.models._card import Card
from aureole.models._encoders import IndependentEncoder
from aureole.models._feature_extractors import TextFeatures
from aureole.models._heads import KappaFromNorm, MixtureHead, PosteriorHead
from aureole.models._networks import CifarResNet, ResidualMLP, whiten_last_layer
from aureole.models._posterior_encoder import PosteriorEncoder

__all__ = [
    "Card",
    "CifarResNet",
    "IndependentEncoder",
    "KappaFromNorm",
    "MixtureHead",
    "PosteriorEncoder",
    "PosteriorHead",
    "ResidualMLP",
    "TextFeatures",
    "whiten_last_layer",
]
