"""Adapter to lightly: use any aureole loss as ``loss(out0, out1)`` on the outputs of two views."""

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.distributions._values import cat
from aureole.errors import InvalidInputError
from aureole.losses import ContrastiveLoss
from aureole.losses._contrastive import check_posteriors
from aureole.losses._negatives import resolve_negatives
from aureole.training._metric_learning import (
    Head,
    WatchedLoss,
    posterior_from_norm,
    posteriors_of,
)


class LightlyLoss(WatchedLoss):
    r"""An aureole loss with the interface of lightly: ``loss(out0, out1)``, where rows i are two views of one item.

    The value is the mean of loss(q0, q1) and loss(q1, q0), where the negatives of an anchor are the n - 1 other
    items of the OTHER view: :math:`\ell_i = -\log\frac{h(q^0_i, q^1_i)}{\sum_j h(q^0_i, q^1_j)}` for scores h.

    NT-Xent, ``lightly.loss.NTXentLoss``, also takes the n - 1 other items of the anchor's OWN view. With
    ``InfoNCE(temperature=temperature)`` its loss of an anchor is this one plus
    :math:`\log\left(1 + \sum_{j \ne i} h(q^0_i, q^0_j)\,/\,\sum_j h(q^0_i, q^1_j)\right)`, so it is never smaller. To
    get its negatives with any aureole loss, pass both views to
    ``MetricLearningLoss(loss)(torch.cat([out0, out1]), torch.arange(n).repeat(2))``.

    Parameters
    ----------
    loss
        The aureole loss. Its ``in_batch`` is ignored: the negatives are all other items, with ``gather`` those of all
        ranks. With the reduction "none" there is one value per item.
    head
        Turns raw outputs [n, D] into posteriors [n]; by default :math:`\mu = e/|e|` and :math:`\kappa = |e|`. If it is
        a module, its parameters belong to this one: pass them to the optimiser.

    Examples
    --------
    >>> from aureole.losses import ClosedFormInfoNCE
    >>> loss = LightlyLoss(ClosedFormInfoNCE(kappa_pos=20.0))
    >>> views = 10 * torch.eye(4)
    >>> loss(views, views)
    tensor(0.0416)
    """

    def __init__(self, loss: ContrastiveLoss, head: Head = posterior_from_norm) -> None:
        super().__init__()
        self.loss = loss
        self.head = head

    def forward(self, out0: Tensor, out1: Tensor) -> Float[Tensor, "..."]:
        """The loss of the raw outputs [n, D] of two views."""
        if out0.shape != out1.shape:
            raise InvalidInputError(
                "out0 and out1 must have the same shape (n, dim), with two views of item i in rows i, but have "
                f"{tuple(out0.shape)} and {tuple(out1.shape)}."
            )
        first = posteriors_of("out0", out0, self.head)
        second = posteriors_of("out1", out1, self.head)
        check_posteriors(first, second, None)
        rows = torch.arange(len(first))
        self.watch(cat([first, second]), torch.stack([rows, rows + len(rows)], 1))
        with torch.autocast(out0.device.type, enabled=False):
            value = (self._one_way(first, second) + self._one_way(second, first)) / 2
        return value if self.loss.reduction == "none" else value.mean()

    def _one_way(self, anchor: VonMisesFisher, positive: VonMisesFisher) -> Float[Tensor, " n"]:
        """The loss of each anchor against the partners of all other anchors."""
        negatives = resolve_negatives(
            anchor, positive, None, in_batch="all", gather=self.loss.gather
        )
        return self.loss.per_anchor(anchor, positive, negatives)
