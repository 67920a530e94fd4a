"""The recovery of true posteriors, up to a rotation."""

import torch
from jaxtyping import Float
from torch import Tensor

from aureole._rank_correlation import spearman
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere._normalizer import mean_resultant_complement


def recovery(
    posterior: VonMisesFisher,
    mu: Float[Tensor, "n dim"],
    kappa: Float[Tensor, " n"],
    *,
    spread: Float[Tensor, " n"] | None = None,
    max_items: int = 2000,
) -> dict[str, float]:
    """Errors and rank correlations of mu, kappa and spread against the truth of the same inputs.

    mu is compared through the cosines of all pairs of the first ``max_items`` inputs (2,000 have two million pairs).
    They do not change under rotation, and the two spheres may differ in dimension. "mae" is the mean absolute error,
    which is also what the paper's columns named RMSE contain. ``spread`` is the true mean cosine distance from the
    mode, which is also defined for families other than the vMF. Metrics that are undefined (for a constant or infinite
    kappa) are left out.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> metrics = recovery(VonMisesFisher(-q.mu, q.kappa + 0.5), q.mu, q.kappa)
    >>> metrics["mu_mae"], metrics["kappa_mae"], metrics["kappa_rank"]
    (0.0, 0.5, 1.0)
    """
    if len(posterior.kappa) != len(kappa) or len(mu) != len(kappa):
        raise InvalidInputError(
            f"{len(posterior.kappa)} posteriors cannot be compared with {len(mu)} true mu and {len(kappa)} true kappa."
        )
    true_cosines, cosines = (_pair_cosines(x[:max_items]) for x in (mu, posterior.mu))
    result = {"mu_rank": spearman(true_cosines, cosines)}
    result |= _errors("mu", cosines - true_cosines)
    result["kappa_mean"] = posterior.kappa.double().mean().item()
    result["kappa_median"] = posterior.kappa.double().median().item()
    if bool(torch.isfinite(kappa).all()):
        result["kappa_true_mean"] = kappa.double().mean().item()
        result["kappa_rank"] = spearman(kappa, posterior.kappa)
        result |= _errors("kappa", posterior.kappa.double() - kappa.double())
    if spread is not None:
        own = mean_resultant_complement(posterior.kappa.double(), posterior.dim)
        result["spread_rank"] = spearman(spread.double(), own)
        result |= _errors("spread", own - spread.double())
    return {name: value for name, value in result.items() if value == value}


def _pair_cosines(mu: Tensor) -> Tensor:
    mu = mu.double()
    i, j = torch.tril_indices(len(mu), len(mu), -1, device=mu.device)
    return (mu @ mu.T)[i, j]


def _errors(name: str, difference: Tensor) -> dict[str, float]:
    return {
        f"{name}_mae": difference.abs().mean().item(),
        f"{name}_rmse": difference.square().mean().sqrt().item(),
    }
