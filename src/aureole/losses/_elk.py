"""Contrastive expected likelihood kernel (the paper's supplement B.5)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole._validation import first_index
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses._contrastive import TemperatureLoss, clamped, pair_cosines
from aureole.losses._cross_entropy import cross_entropy, cross_entropy_among
from aureole.losses._negatives import Negatives
from aureole.sphere._positivity import log_pair_likelihood


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
    pairs, others = pair_cosines(anchor, positive, negatives)
    rest, dim = negatives.posterior.kappa, anchor.dim
    log_pairs = log_pair_likelihood(pairs, anchor.kappa, positive.kappa, dim)
    log_others = log_pair_likelihood(others, anchor.kappa.unsqueeze(1), rest, dim)
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

    def per_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Int[Tensor, "p 2"],
        anchors: slice,  # noqa: ARG002
        self_weight: float,
    ) -> Float[Tensor, " p"]:
        """The loss of each pair among the items. Cost N^2 D."""
        q = self.single(posterior, self_weight)
        _check_finite(q)
        cosine = clamped(q.mu @ q.mu.T)
        scores = log_pair_likelihood(cosine, q.kappa.unsqueeze(1), q.kappa, q.dim)
        return cross_entropy_among(self.inverse_temperature.to(scores.dtype) * scores, pairs)
