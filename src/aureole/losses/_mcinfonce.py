"""MCInfoNCE, the paper's loss (Formulas 4 and 6): the InfoNCE fraction averaged over draws of all posteriors."""

import functools
import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses._contrastive import PositivityLoss
from aureole.losses._draws import check_samples, draw, log_mean_exp_over_draws
from aureole.losses._negatives import InBatch, Negatives


def mcinfonce(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    kappa_pos: Tensor | float,
    n_samples: int,
    quasi: bool = False,
) -> Float[Tensor, " batch"]:
    r"""The loss :math:`-\log\frac1K\sum_k\frac{e^{s^+_k}}{e^{s^+_k} + \sum_m e^{s^-_{mk}}}`, scores of the k-th draws.

    The scores are :math:`s_k = \kappa_{pos}\,z_k^Tz'_k`. It differs from the paper's by the constant log M. Its limit
    for large K is -log E[fraction] with one z in numerator and denominator, not the closed form's ratio of
    expectations; the two agree up to a constant as M grows. Cost K B M D.
    """
    draws = draw([anchor, positive, negatives.posterior], n_samples, quasi=quasi)
    fraction = functools.partial(log_fraction, kappa_pos=kappa_pos, negatives=negatives)
    n_pairs = anchor.batch_shape[0] * negatives.posterior.batch_shape[-1]
    return -log_mean_exp_over_draws(fraction, draws, n_pairs)


def log_fraction(
    z: Tensor, z_pos: Tensor, z_neg: Tensor, *, kappa_pos: Tensor | float, negatives: Negatives
) -> Tensor:
    """Log of the InfoNCE fraction per draw and anchor, [K, B]."""
    pairs = (z * z_pos).sum(-1)
    others = z @ z_neg.mT if negatives.shared else (z_neg @ z.unsqueeze(-1)).squeeze(-1)
    others = kappa_pos * others
    if negatives.excluded is not None:
        others = others.masked_fill(negatives.excluded, -torch.inf)
    return -torch.nn.functional.softplus(torch.logsumexp(others, -1) - kappa_pos * pairs)


def mcinfonce_among(
    posterior: VonMisesFisher,
    pairs: Int[Tensor, "p 2"],
    *,
    kappa_pos: Tensor | float,
    n_samples: int,
    quasi: bool = False,
    self_weight: float = 0.0,
) -> Float[Tensor, " p"]:
    """The loss of each pair (i, j) among N items, all others its negatives: K draws per item serve all its pairs.

    With a ``self_weight``, as many copies of the anchor, each drawn again, are among its candidates. Cost K N^2 D.
    """
    draws = draw([posterior] * (2 if self_weight else 1), n_samples, quasi=quasi)
    i, j = pairs.unbind(-1)
    itself = torch.eye(posterior.batch_shape[0], dtype=torch.bool, device=pairs.device)

    def log_fractions(z: Tensor, again: Tensor | None = None) -> Tensor:
        others = torch.logsumexp((kappa_pos * (z @ z.mT)).masked_fill(itself, -torch.inf), -1)
        partner = z[:, j]
        if again is not None:
            copies = kappa_pos * (z * again).sum(-1) + math.log(self_weight)
            others = torch.logaddexp(others, copies)
            partner = torch.where((i == j).unsqueeze(-1), again[:, j], partner)
        return kappa_pos * (z[:, i] * partner).sum(-1) - others[:, i]

    return -log_mean_exp_over_draws(log_fractions, draws, itself.numel())


class MCInfoNCE(PositivityLoss):
    """The paper's loss, by K draws. See ``PositivityLoss`` for the other parameters.

    Parameters
    ----------
    kappa_pos
        Concentration of a partner's latent around its anchor's.
    n_samples
        K, the draws per posterior; the loss is biased upward for small K.
    quasi
        Use Sobol points, shifted and shuffled at random for each posterior.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> loss = MCInfoNCE(kappa_pos=20.0, n_samples=64)
    >>> loss(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0)).isfinite()
    tensor(True)
    """

    def __init__(
        self,
        kappa_pos: float,
        n_samples: int = 64,
        *,
        quasi: bool = False,
        learn_kappa_pos: bool = False,
        in_batch: InBatch = "both",
        gather: bool = False,
        reduction: Literal["mean", "none"] = "mean",
    ) -> None:
        super().__init__(
            kappa_pos,
            learn_kappa_pos=learn_kappa_pos,
            in_batch=in_batch,
            gather=gather,
            reduction=reduction,
        )
        self.n_samples = check_samples(n_samples)
        self.quasi = quasi

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        kappa_pos = self.kappa_pos.to(anchor.mu.dtype)
        return mcinfonce(
            anchor,
            positive,
            negatives,
            kappa_pos=kappa_pos,
            n_samples=self.n_samples,
            quasi=self.quasi,
        )

    def per_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Int[Tensor, "p 2"],
        anchors: slice,  # noqa: ARG002
        self_weight: float,
    ) -> Float[Tensor, " p"]:
        """The loss of each pair among the items. Cost K N^2 D."""
        q = self.single(posterior)
        return mcinfonce_among(
            q,
            pairs,
            kappa_pos=self.kappa_pos.to(q.mu.dtype),
            n_samples=self.n_samples,
            quasi=self.quasi,
            self_weight=self_weight,
        )
