"""Diagnostics: what a batch of posteriors says about collapse of mu, collapse of kappa, and the tilt."""

import warnings
from dataclasses import dataclass

import torch

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import AureoleWarning

_ONE_SPOT = 0.98  # length of the mean of mu
_FLAT = 0.01  # standard deviation of log kappa


@dataclass(frozen=True)
class Diagnosis:
    """Figures of a batch of posteriors.

    ``mean_length`` is ``|E mu|``: 0 for a centred cloud, 1 when all mu agree; a length that grows while the loss stands
    still is the tilt (all mu lean towards a spare direction and kappa is inflated). ``smallest_eigenvalue`` is that of
    E[mu mu^T] times D: 1 for an isotropic cloud, 0 when a direction is unused.
    """

    mean_length: float
    smallest_eigenvalue: float
    kappa_low: float
    kappa_median: float
    kappa_high: float
    log_kappa_spread: float


@torch.no_grad()
def diagnose(posterior: VonMisesFisher | MixtureVMF) -> Diagnosis:
    """The figures of a batch of posteriors; kappa_low and kappa_high are its 5 % and 95 % quantiles.

    Examples
    --------
    >>> diagnose(VonMisesFisher(torch.eye(4), torch.tensor([1.0, 2.0, 4.0, 8.0]))).mean_length
    0.5
    """
    mu, kappa = posterior.mu.float().flatten(0, -2), posterior.kappa.float().flatten()
    moment = mu.T @ mu / len(mu)
    low, median, high = torch.quantile(kappa, kappa.new_tensor([0.05, 0.5, 0.95])).tolist()
    return Diagnosis(
        mean_length=mu.mean(0).norm().item(),
        smallest_eigenvalue=torch.linalg.eigvalsh(moment)[0].item() * posterior.dim,
        kappa_low=low,
        kappa_median=median,
        kappa_high=high,
        log_kappa_spread=kappa.log().std().item(),
    )


def warn_of_collapse(diagnosis: Diagnosis, *, learns_kappa: bool) -> None:
    """Warn where all mu have gone to one spot, or all kappa are the same although kappa was trained."""
    if diagnosis.mean_length > _ONE_SPOT:
        warnings.warn(
            f"mu has collapsed: the mean of mu has length {diagnosis.mean_length:.3f}, so all inputs go to one spot. "
            "Call encoder.initialise(inputs) before training, lower the learning rate, or check that pairs and inputs "
            "belong together.",
            AureoleWarning,
            stacklevel=2,
        )
    if learns_kappa and diagnosis.log_kappa_spread < _FLAT:
        warnings.warn(
            f"kappa has collapsed: it is {diagnosis.kappa_median:.4g} for nearly all inputs (standard deviation of "
            f"log kappa {diagnosis.log_kappa_spread:.1e}). All inputs are equally certain, or kappa was not "
            "trained for long enough.",
            AureoleWarning,
            stacklevel=2,
        )
