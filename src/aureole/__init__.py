"""Embeddings that know how sure they are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aureole import (
        caps,
        data,
        distributions,
        embed,
        encoders,
        engines,
        errors,
        evaluation,
        explorer,
        losses,
        match,
        models,
        plot,
        serve,
        sphere,
        synthetic,
        training,
    )
    from aureole.caps import ConformalMass, CredibleIndex
    from aureole.distributions import (
        MixtureVMF,
        SphereUniform,
        VonMisesFisher,
        expected_positivity,
        fuse,
    )
    from aureole.evaluation import diagnose
    from aureole.explorer import explore
    from aureole.losses import ELK, ClosedFormInfoNCE, InfoNCE, MCInfoNCE
    from aureole.match import MatchCalibrator
    from aureole.models import PosteriorEncoder, PosteriorHead
    from aureole.training import FrozenHead

__version__ = "0.3.0.dev0"
__all__ = [
    "ELK",
    "ClosedFormInfoNCE",
    "ConformalMass",
    "CredibleIndex",
    "FrozenHead",
    "InfoNCE",
    "MCInfoNCE",
    "MatchCalibrator",
    "MixtureVMF",
    "PosteriorEncoder",
    "PosteriorHead",
    "SphereUniform",
    "VonMisesFisher",
    "__version__",
    "caps",
    "data",
    "diagnose",
    "distributions",
    "embed",
    "encoders",
    "engines",
    "errors",
    "evaluation",
    "expected_positivity",
    "explore",
    "explorer",
    "fuse",
    "losses",
    "match",
    "models",
    "plot",
    "serve",
    "sphere",
    "synthetic",
    "training",
]

# the packages, and the names that come from them; each is imported when it is first used
_NAMES = {
    "data": (),
    "distributions": (
        "MixtureVMF",
        "SphereUniform",
        "VonMisesFisher",
        "expected_positivity",
        "fuse",
    ),
    "encoders": (),
    "errors": (),
    "evaluation": ("diagnose",),
    "explorer": ("explore",),
    "losses": ("ELK", "ClosedFormInfoNCE", "InfoNCE", "MCInfoNCE"),
    "models": ("PosteriorEncoder", "PosteriorHead"),
    "plot": (),
    "caps": ("ConformalMass", "CredibleIndex"),
    "engines": (),
    "match": ("MatchCalibrator",),
    "embed": (),
    "serve": (),
    "sphere": (),
    "synthetic": (),
    "training": ("FrozenHead",),
}
_OWNERS = {name: package for package, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a package, or the package of a name, when it is first used: ``import aureole`` imports no torch."""
    if name in _NAMES:
        return import_module(f"aureole.{name}")
    if name not in _OWNERS:
        raise AttributeError(f"module 'aureole' has no attribute {name!r}")
    value = getattr(import_module(f"aureole.{_OWNERS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
