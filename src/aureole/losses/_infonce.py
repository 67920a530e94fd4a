"""InfoNCE on the mean directions alone: the loss of point embeddings."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.losses._contrastive import TemperatureLoss, pair_cosines
from aureole.losses._cross_entropy import (
    cross_entropy,
    cross_entropy_among,
    cross_entropy_of_column,
)
from aureole.losses._negatives import Negatives


def infonce(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    inverse_temperature: Tensor | float,
) -> Float[Tensor, " batch"]:
    r"""The loss :math:`-\log\frac{e^{s^+}}{e^{s^+} + \sum_m e^{s^-_m}}` with :math:`s = \mu^T\mu'/T`.

    T is the temperature; kappa does not enter and gets no gradient.
    """
    if negatives.partner is not None:  # the partner is one of the columns
        scores = (inverse_temperature * anchor.mu) @ negatives.posterior.mu.T
        return cross_entropy_of_column(scores, negatives.partner)
    pairs, others = pair_cosines(anchor, positive, negatives)
    if negatives.excluded is not None:
        others = others.masked_fill(negatives.excluded, -torch.inf)
    return cross_entropy(inverse_temperature * pairs, inverse_temperature * others)


class InfoNCE(TemperatureLoss):
    """InfoNCE over mu, the loss of point embeddings. See ``TemperatureLoss`` for the parameters.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> InfoNCE(temperature=0.5)(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0))
    tensor(0.7002)
    """

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        return infonce(
            anchor,
            positive,
            negatives,
            inverse_temperature=self.inverse_temperature.to(anchor.mu.dtype),
        )

    def per_pair(self, posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"]) -> Float[Tensor, " p"]:
        """The loss of each pair among the posteriors, all others its negatives. Cost N^2 D."""
        cosines = (posterior.mu @ posterior.mu.T).clamp(-1, 1)
        return cross_entropy_among(self.inverse_temperature.to(cosines.dtype) * cosines, pairs)
