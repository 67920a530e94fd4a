"""Distributions on the sphere, as torch.distributions know them."""

from aureole.distributions.constraint import unit_sphere
from aureole.distributions.fusion import fuse
from aureole.distributions.kernels import expected_positivity, log_expected_positivity
from aureole.distributions.mixture import MixtureVMF
from aureole.distributions.uniform import SphereUniform
from aureole.distributions.von_mises_fisher import VonMisesFisher

__all__ = [
    "MixtureVMF",
    "SphereUniform",
    "VonMisesFisher",
    "expected_positivity",
    "fuse",
    "log_expected_positivity",
    "unit_sphere",
]
