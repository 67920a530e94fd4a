"""Recovery: how close found posteriors are to the true ones, up to a rotation."""

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation._ranks import spearman
from aureole.sphere import mean_resultant_complement


def recovery(
    found: VonMisesFisher,
    mu: Float[Tensor, "n dim"],
    kappa: Float[Tensor, " n"],
    *,
    spread: Float[Tensor, " n"] | None = None,
    max_items: int = 2000,
) -> dict[str, float]:
    """Errors and rank correlations of mu, kappa and spread against the truth of the same inputs.

    mu is compared by the cosines of all pairs of the first ``max_items`` inputs (2,000 have two million pairs), which
    no rotation changes and which also works where the two spheres differ in dimension. "mae" is the mean absolute
    error; the paper's columns named RMSE hold it too. ``spread`` is the true mean cosine distance from the mode, which
    families other than the vMF have as well. Figures that do not exist (a constant or infinite kappa) are left out.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> found = recovery(VonMisesFisher(-q.mu, q.kappa + 0.5), q.mu, q.kappa)
    >>> found["mu_mae"], found["kappa_mae"], found["kappa_rank"]
    (0.0, 0.5, 1.0)
    """
    if len(found.kappa) != len(kappa) or len(mu) != len(kappa):
        raise InvalidInputError(
            f"{len(found.kappa)} found posteriors cannot be compared with {len(mu)} mu and {len(kappa)} kappa."
        )
    true_cosines, cosines = (_pair_cosines(x[:max_items]) for x in (mu, found.mu))
    result = {"mu_rank": spearman(true_cosines, cosines)}
    result |= _errors("mu", cosines - true_cosines)
    result["kappa_mean"] = found.kappa.double().mean().item()
    result["kappa_median"] = found.kappa.double().median().item()
    if bool(torch.isfinite(kappa).all()):
        result["kappa_true_mean"] = kappa.double().mean().item()
        result["kappa_rank"] = spearman(kappa, found.kappa)
        result |= _errors("kappa", found.kappa.double() - kappa.double())
    if spread is not None:
        own = mean_resultant_complement(found.kappa.double(), found.dim)
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
