"""What a search takes: its options, and the posteriors that it searches for."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from aureole.caps._caps import Kind, Posterior
from aureole.caps._hits import Rank
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search: the cap of a query, and the score of the hits inside.

    Parameters
    ----------
    kind
        'predictive': the cap holds the mu of a partner, and needs ``kappa_pos``. 'credible': it holds the query's own
        latent; it is smaller, often so small that it holds the query alone. Default: predictive if ``kappa_pos`` is
        known, else credible.
    kappa_pos
        How close the latents of two partners are (default: that of the index's ``origin``, unless ``kind`` is
        'credible'). With it, hits have their expected positivity.
    kappa_other
        Concentration of the partner in predictive caps (default: the gallery's typical kappa).
    prior
        Share of positives among all pairs. With it, and ``kappa_pos``, hits have their P(positive).
    rank
        Order of the hits: 'cosine', or 'positivity', which takes the items' kappa into account. Ties are ordered by id.
    guarantee
        'conformal': use the calibration saved with the index, so that predictive caps keep their promise.
    widest
        Angle in radians. A query whose cap is wider gets no hits, and its ``asks_back`` is set.
    """

    kind: Kind | None = None
    kappa_pos: float | None = None
    kappa_other: float | None = None
    prior: float | None = None
    rank: Rank = "cosine"
    guarantee: Literal["conformal"] | None = None
    widest: float | None = None

    def __post_init__(self) -> None:
        if self.rank not in ("cosine", "positivity"):
            raise InvalidInputError(f"rank must be 'cosine' or 'positivity', but is {self.rank!r}.")
        if self.guarantee is not None:
            if self.guarantee != "conformal" or self.kind == "credible":
                raise InvalidInputError(
                    "guarantee must be 'conformal', which needs kind='predictive', but is "
                    f"{self.guarantee!r} with kind={self.kind!r}."
                )
        elif self.kappa_pos is None and (self.rank == "positivity" or self.prior is not None):
            raise InvalidInputError("the positivity of a hit and P(positive) need kappa_pos.")


def checked_query(posterior: Posterior, dim: int) -> Posterior:
    """The query without gradients, with which its cap would be solved for; raise if it is not valid.

    This is the only check of a query. Its kappa may be inf: a point, whose credible cap is the point itself.
    """
    if not isinstance(posterior, (VonMisesFisher, MixtureVMF)):
        raise InvalidInputError(
            f"a query is a VonMisesFisher or a MixtureVMF, but got {type(posterior).__name__}."
        )
    if len(posterior.batch_shape) > 1:
        raise InvalidInputError(
            f"queries have the batch shape () or (n,), but got {tuple(posterior.batch_shape)}."
        )
    if posterior.dim != dim:
        raise InvalidInputError(
            f"the gallery lies in R^{dim}, but the query lies in R^{posterior.dim}."
        )
    mu, kappa = posterior.mu.numpy(force=True), posterior.kappa.numpy(force=True)
    square = np.einsum("...d,...d->...", mu, mu, dtype=np.float64)  # faster than torch for one
    if not ((square > 0) & (square < np.inf) & (kappa >= 0)).all():
        raise InvalidInputError(
            "a query has a mu that is no direction (zero or not finite), or a kappa below 0."
        )
    if isinstance(posterior, MixtureVMF) or not posterior.kappa.requires_grad:
        return posterior
    return VonMisesFisher(posterior.mu.detach(), posterior.kappa.detach(), validate_args=False)


def one_query(posterior: Posterior, row: int) -> Posterior:
    """One query of a batch."""
    if isinstance(posterior, MixtureVMF):
        parts = (posterior.weights[row], posterior.mu[row], posterior.kappa[row])
        return MixtureVMF(*parts, validate_args=False)
    return VonMisesFisher(posterior.mu[row], posterior.kappa[row], validate_args=False)
