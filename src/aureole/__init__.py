"""Embeddings that know how sure they are."""

from aureole import errors, losses, models, sphere
from aureole.distributions import (
    MixtureVMF,
    SphereUniform,
    VonMisesFisher,
    expected_positivity,
    fuse,
    log_expected_positivity,
)
from aureole.losses import ELK, ClosedFormInfoNCE, HedgedInstance, InfoNCE, MCInfoNCE
from aureole.models import KappaFromNorm, KappaFromPrototypes, MixtureHead, PosteriorEncoder
from aureole.retrieval import ConformalMass, CredibleIndex
from aureole.training.frozen import FrozenHead

__version__ = "0.1.0"
__all__ = [
    "ELK",
    "ClosedFormInfoNCE",
    "ConformalMass",
    "CredibleIndex",
    "FrozenHead",
    "HedgedInstance",
    "InfoNCE",
    "KappaFromNorm",
    "KappaFromPrototypes",
    "MCInfoNCE",
    "MixtureHead",
    "MixtureVMF",
    "PosteriorEncoder",
    "SphereUniform",
    "VonMisesFisher",
    "__version__",
    "errors",
    "expected_positivity",
    "fuse",
    "log_expected_positivity",
    "losses",
    "models",
    "sphere",
]
