"""InfoNCE on the mean directions alone: the loss of point embeddings."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses._contrastive import TemperatureLoss, pair_cosines
from aureole.losses._cross_entropy import cross_entropy, cross_entropy_among
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

    def per_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Int[Tensor, "p 2"],
        anchors: slice,  # noqa: ARG002
        self_weight: float,
    ) -> Float[Tensor, " p"]:
        """The loss of each pair among the items. Cost N^2 D."""
        mu = self.single(posterior, self_weight).mu
        return cross_entropy_among(self.inverse_temperature.to(mu.dtype) * (mu @ mu.T), pairs)
