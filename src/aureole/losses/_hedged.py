"""Hedged instance embeddings on the sphere (the paper's supplement B.4, after Oh et al. 2019)."""

import functools
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses._contrastive import ContrastiveLoss
from aureole.losses._draws import check_samples, draw, log_mean_exp_over_draws
from aureole.losses._negatives import InBatch, Negatives


def hedged_instance(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    a: float,
    b: float,
    n_samples: int,
) -> Float[Tensor, " batch"]:
    r"""The loss :math:`-\log E[s(a z^Tz^+ + b)] - \frac1M\sum_m \log E[1 - s(a z^Tz^-_m + b)]`, s the sigmoid.

    The logs are of averages over draws (the public reference code averages logs instead).
    """
    draws = draw([anchor, positive, negatives.posterior], n_samples)
    match = log_mean_exp_over_draws(
        lambda z, z_pos: logsigmoid(a * (z * z_pos).sum(-1) + b), draws[:2], anchor.batch_shape[0]
    )
    clash = functools.partial(_log_clash, a=a, b=b, shared=negatives.shared)
    n_pairs = anchor.batch_shape[0] * negatives.posterior.batch_shape[-1]
    apart = log_mean_exp_over_draws(clash, [draws[0], draws[2]], n_pairs)
    if negatives.excluded is None:
        return -match - apart.mean(-1)
    kept = ~negatives.excluded
    return -match - torch.where(kept, apart, 0.0).sum(-1) / kept.sum(-1)


def hedged_instance_among(
    posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"], *, a: float, b: float, n_samples: int
) -> Float[Tensor, " p"]:
    """The loss of each pair (i, j) among N items, all others its negatives: K draws per item serve all its pairs.

    Cost K N^2 D.
    """
    (draws,) = draw([posterior], n_samples)
    i, j = pairs.unbind(-1)
    n = posterior.batch_shape[0]
    match = log_mean_exp_over_draws(
        lambda z: logsigmoid(a * (z[:, i] * z[:, j]).sum(-1) + b), [draws], len(pairs)
    )
    apart = log_mean_exp_over_draws(
        lambda z: logsigmoid(-(a * (z @ z.mT) + b)), [draws], n * n
    ).masked_fill(torch.eye(n, dtype=torch.bool, device=pairs.device), 0.0)
    return -match - (apart.sum(-1)[i] - apart[i, j]) / (n - 2)


def _log_clash(z: Tensor, z_neg: Tensor, *, a: float, b: float, shared: bool) -> Tensor:
    """log(1 - s(a z.z- + b)) per draw and pair, [K, B, M]."""
    others = z @ z_neg.mT if shared else (z_neg @ z.unsqueeze(-1)).squeeze(-1)
    return logsigmoid(-(a * others + b))


class HedgedInstance(ContrastiveLoss):
    """HIB over vMF posteriors, without its KL regulariser, as in the paper.

    Parameters
    ----------
    a, b
        Slope and offset of the match probability s(a z.z' + b).
    n_samples
        Draws per posterior.
    in_batch, gather, reduction
        See ``ContrastiveLoss``.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> HedgedInstance(a=1.0, b=0.0)(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0)).isfinite()
    tensor(True)
    """

    def __init__(
        self,
        *,
        a: float = 1.0,
        b: float = 0.0,
        n_samples: int = 64,
        in_batch: InBatch = "both",
        gather: bool = False,
        reduction: Literal["mean", "none"] = "mean",
    ) -> None:
        super().__init__(in_batch=in_batch, gather=gather, reduction=reduction)
        self.a, self.b, self.n_samples = float(a), float(b), check_samples(n_samples)

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        return hedged_instance(
            anchor, positive, negatives, a=self.a, b=self.b, n_samples=self.n_samples
        )

    def per_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Int[Tensor, "p 2"],
        anchors: slice,  # noqa: ARG002
        self_weight: float,
    ) -> Float[Tensor, " p"]:
        """The loss of each pair among the items. Cost K N^2 D."""
        q = self.single(posterior, self_weight)
        return hedged_instance_among(q, pairs, a=self.a, b=self.b, n_samples=self.n_samples)
