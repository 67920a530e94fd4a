"""Processes with known posteriors, to check what a loss recovers.

Inputs x are uniform on [0, 1]^d. A random network gives each a posterior over its latent z on the sphere; two inputs
are a positive pair as often as their latents are close.
"""

from aureole.data.processes.bimodal import BimodalProcess
from aureole.data.processes.families import VMF, Dirac, Family, Gaussian, Laplace
from aureole.data.processes.generators import Generator, draw_generator
from aureole.data.processes.process import ControlledProcess, Rule

__all__ = [
    "VMF",
    "BimodalProcess",
    "ControlledProcess",
    "Dirac",
    "Family",
    "Gaussian",
    "Generator",
    "Laplace",
    "Rule",
    "draw_generator",
]
