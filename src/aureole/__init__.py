"""Embeddings that know how sure they are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from aureole.models import (
    KappaFromNorm,
    KappaFromPrototypes,
    MixtureHead,
    PosteriorEncoder,
    PosteriorHead,
)
from aureole.retrieval import ConformalMass, CredibleIndex, MatchCalibrator
from aureole.training import FrozenHead

if TYPE_CHECKING:
    from aureole import data, encoders, evaluation, explorer, retrieval, scale, serve, training
    from aureole.evaluation import diagnose

__version__ = "0.2.0.dev0"
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
    "MatchCalibrator",
    "MixtureHead",
    "MixtureVMF",
    "PosteriorEncoder",
    "PosteriorHead",
    "SphereUniform",
    "VonMisesFisher",
    "__version__",
    "data",
    "diagnose",
    "encoders",
    "errors",
    "evaluation",
    "expected_positivity",
    "explorer",
    "fuse",
    "log_expected_positivity",
    "losses",
    "models",
    "retrieval",
    "scale",
    "serve",
    "sphere",
    "training",
]

_LAZY = {"data", "encoders", "evaluation", "explorer", "retrieval", "scale", "serve", "training"}


def __getattr__(name: str) -> Any:
    """Import a subpackage when it is first used."""
    if name == "diagnose":
        return import_module("aureole.evaluation").diagnose
    if name in _LAZY:
        return import_module(f"aureole.{name}")
    raise AttributeError(f"module 'aureole' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
