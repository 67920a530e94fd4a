"""Contrastive expected likelihood kernel (the paper's supplement B.5)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole._validation import first_index
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses._contrastive import TemperatureLoss, pair_cosines
from aureole.losses._cross_entropy import (
    cross_entropy,
    cross_entropy_among,
    cross_entropy_of_column,
)
from aureole.losses._negatives import Negatives
from aureole.losses._pair_scores import pair_scores
from aureole.sphere import log_pair_likelihood


def elk(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    inverse_temperature: Tensor | float,
) -> Float[Tensor, " batch"]:
    r"""InfoNCE with the score :math:`\frac1T \log S\int Q(z|x)\,Q(z|x')\,dz`, for finite kappa.

    T is the temperature. Points, kappa = inf, are refused: two of them have no finite score.
    """
    _check_finite(anchor, positive, negatives.posterior)
    dim, rest = anchor.dim, negatives.posterior
    if negatives.partner is not None:  # the partner is one of the columns
        scores = pair_scores(anchor.mu @ rest.mu.T, anchor.kappa, rest.kappa, dim)
        return cross_entropy_of_column(scores, negatives.partner, inverse_temperature)
    pairs, others = pair_cosines(anchor, positive, negatives)
    log_pairs = log_pair_likelihood(pairs, anchor.kappa, positive.kappa, dim)
    if negatives.shared:
        log_others = pair_scores(others, anchor.kappa, rest.kappa, dim)
    else:
        log_others = log_pair_likelihood(others, anchor.kappa.unsqueeze(1), rest.kappa, dim)
    if negatives.excluded is not None:
        log_others = log_others.masked_fill(negatives.excluded, -torch.inf)
    return cross_entropy(inverse_temperature * log_pairs, inverse_temperature * log_others)


def _check_finite(*posteriors: VonMisesFisher) -> None:
    for posterior in posteriors:
        points = torch.isinf(posterior.kappa)
        if bool(points.any()):
            raise InvalidInputError(
                f"ELK takes finite concentrations, but kappa{first_index(points)} is inf ({int(points.sum())} of "
                f"{points.numel()} are): two points have no finite score. ClosedFormInfoNCE takes points."
            )


class ELK(TemperatureLoss):
    """InfoNCE over expected likelihoods, the positivity of kappa_pos = inf. See ``TemperatureLoss`` for the parameters.

    Concentrations must be finite.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> ELK(temperature=1.0)(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0))
    tensor(0.5270)
    """

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        return elk(
            anchor,
            positive,
            negatives,
            inverse_temperature=self.inverse_temperature.to(anchor.mu.dtype),
        )

    def per_pair(self, posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"]) -> Float[Tensor, " p"]:
        """The loss of each pair among the posteriors, all others its negatives. Cost N^2 D."""
        _check_finite(posterior)
        kappa = posterior.kappa
        scores = pair_scores(posterior.mu @ posterior.mu.T, kappa, kappa, posterior.dim)
        return cross_entropy_among(self.inverse_temperature.to(scores.dtype) * scores, pairs)
