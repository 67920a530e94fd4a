"""InfoNCE on the mean directions alone: the loss of point embeddings."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.losses._contrastive import (
    ContrastiveLoss,
    cross_entropy,
    cross_entropy_among,
    pair_cosines,
)
from aureole.losses._negatives import Negatives


def infonce(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    kappa_pos: Tensor | float,
) -> Float[Tensor, " batch"]:
    r"""The loss :math:`-\log\frac{e^{s^+}}{e^{s^+} + \sum_m e^{s^-_m}}` with :math:`s = \kappa_{pos}\mu^T\mu'`.

    kappa does not enter and gets no gradient.
    """
    pairs, others = pair_cosines(anchor, positive, negatives)
    if negatives.excluded is not None:
        others = others.masked_fill(negatives.excluded, -torch.inf)
    return cross_entropy(kappa_pos * pairs, kappa_pos * others)


class InfoNCE(ContrastiveLoss):
    """InfoNCE over mu, with 1 / kappa_pos as its temperature. See ``ContrastiveLoss`` for the parameters.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> InfoNCE(kappa_pos=2.0)(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0))
    tensor(0.7002)
    """

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        return infonce(anchor, positive, negatives, kappa_pos=self.kappa_pos.to(anchor.mu.dtype))

    def per_pair(self, posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"]) -> Float[Tensor, " p"]:
        """The loss of each pair among the posteriors, all others its negatives. Cost N^2 D."""
        cosines = (posterior.mu @ posterior.mu.T).clamp(-1, 1)
        return cross_entropy_among(self.kappa_pos.to(cosines.dtype) * cosines, pairs)
