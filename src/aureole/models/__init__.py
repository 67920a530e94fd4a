"""Encoders that return posteriors, and the networks they are made of."""

from aureole.models.encoders import (
    IndependentEncoder,
    MixtureEncoder,
    PaperEncoder,
    SharedEncoder,
)
from aureole.models.networks import ResidualMLP, paper_mlp

__all__ = [
    "IndependentEncoder",
    "MixtureEncoder",
    "PaperEncoder",
    "ResidualMLP",
    "SharedEncoder",
    "paper_mlp",
]
