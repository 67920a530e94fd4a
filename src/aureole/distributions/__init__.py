"""Distributions on the sphere, as torch.distributions know them."""

from aureole.distributions._kernels import expected_positivity, fuse, log_expected_positivity
from aureole.distributions._mixture import MixtureVMF
from aureole.distributions._values import from_state  # pickles name it here
from aureole.distributions._von_mises_fisher import SphereUniform, VonMisesFisher

__all__ = [
    "MixtureVMF",
    "SphereUniform",
    "VonMisesFisher",
    "expected_positivity",
    "fuse",
    "log_expected_positivity",
]
