"""Embeddings that know how sure they are."""

from aureole import errors, sphere
from aureole.distributions import MixtureVMF, SphereUniform, VonMisesFisher, fuse

__version__ = "0.1.0.dev0"
__all__ = [
    "MixtureVMF",
    "SphereUniform",
    "VonMisesFisher",
    "__version__",
    "errors",
    "fuse",
    "sphere",
]
