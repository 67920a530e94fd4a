"""Closed-form InfoNCE: the ratio of expected positivities, without a single draw."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses._contrastive import PositivityLoss
from aureole.losses._cross_entropy import log1p_exp
from aureole.losses._log_sums import (
    distinct_pairs,
    log_others,
    log_row_sums,
    log_sum_by_row,
    log_weighted_sum,
    partners,
)
from aureole.losses._negatives import InBatch, Negatives
from aureole.losses._self_pairs import agreement_loss
from aureole.sphere._geometry import unit_cosine
from aureole.sphere._positivity_table import Positivities

_DENSE = 16  # pairs per anchor from which on the pairs are read from the matrix of all logs


@dataclass(frozen=True)
class KappaPos:
    """kappa_pos as a tensor, and as the number that chooses a table."""

    value: Tensor
    number: float

    @staticmethod
    def of(value: Tensor | float) -> "KappaPos":
        tensor = torch.as_tensor(value, dtype=torch.float64)
        return KappaPos(tensor, float(tensor.detach()))

    def over(self, cosines: Sequence[Tensor], kappas: Sequence[Tensor], dim: int) -> Positivities:
        """Return what computes the positivities of these cosines and kappas."""
        return _over(cosines, kappas, self.value, dim, self.number)


# tables are built from values of the batch: a compiled graph ends here
_over: Callable[..., Positivities] = torch.compiler.disable(Positivities.over)  # pyright: ignore


def closed_form_infonce(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    kappa_pos: KappaPos,
) -> Float[Tensor, " batch"]:
    r"""Return the loss :math:`-\log\frac{h(x, x^+)}{h(x, x^+) + \sum_m h(x, x^-_m)}` with expected positivities h.

    The pairs' logs are computed in float64, those of the negatives in the posteriors' dtype. Minimal, up to a constant,
    where h is the density ratio P(x+|x)/P(x-), for any number of negatives. Cost: some tens of elementwise operations
    on B M entries, see ``sphere._positivity_table``.
    """
    rest = negatives.posterior
    pairs = unit_cosine(anchor.mu, positive.mu)
    kappas = (anchor.kappa, positive.kappa, rest.kappa)
    if negatives.shared:
        others = unit(anchor.mu) @ unit(rest.mu).T
        h = kappa_pos.over([pairs, others], kappas, anchor.dim)
        logs = h.matrix(others, anchor.kappa, rest.kappa)
    else:
        others = unit_cosine(anchor.mu.unsqueeze(1), rest.mu)
        h = kappa_pos.over([pairs, others], kappas, anchor.dim)
        logs = h.each(others, anchor.kappa.unsqueeze(1), rest.kappa)
    log_known = h.each(pairs, anchor.kappa, positive.kappa)
    if negatives.excluded is not None:
        logs = logs.masked_fill(negatives.excluded, -torch.inf)
    return log1p_exp(log_row_sums(logs).double() - log_known).to(anchor.mu.dtype)


def closed_form_among(
    posterior: VonMisesFisher,
    pairs: Int[Tensor, "p 2"],
    *,
    kappa_pos: KappaPos,
    anchors: slice = slice(None),
    self_weight: float = 0.0,
) -> Float[Tensor, " p"]:
    r"""Return the loss :math:`-\log\frac{h_{ij}}{w h_{ii} + \sum_{k \ne i} h_{ik}}` of each pair (i, j) among N items.

    All other items are the negatives, as in ``closed_form_infonce``. Each item is encoded once and each of the A N
    positivities of A anchors computed once, however many pairs there are. Pairs (i, i) need a self-weight w.
    """
    n, mu = len(posterior.kappa), unit(posterior.mu)
    first, last, _ = anchors.indices(n)
    rows = slice(first, last)
    distinct, listed = distinct_pairs(pairs, n)
    i, j = distinct.unbind(-1)
    cosine, known = mu[rows] @ mu.T, unit_cosine(posterior.mu[i], posterior.mu[j])
    h = kappa_pos.over([cosine, known], [posterior.kappa], posterior.dim)
    logs = h.matrix(cosine, posterior.kappa[rows], posterior.kappa)
    if len(pairs) > _DENSE * (last - first):
        log_known = logs[i - first, j].double()
    else:
        log_known = h.each(known, posterior.kappa[i], posterior.kappa[j])
    log_itself = None
    if self_weight:
        one = torch.ones_like(posterior.kappa[rows], dtype=torch.float64)
        log_itself = h.each(one, posterior.kappa[rows], posterior.kappa[rows])
    loss = _loss_of_listed(
        logs,
        distinct - distinct.new_tensor([first, 0]),
        first,
        log_known,
        (log_itself, self_weight),
    )
    return loss.to(posterior.mu.dtype)[listed]


def _loss_of_listed(
    logs: Float[Tensor, "a n"],
    pairs: Int[Tensor, "p 2"],
    first: int,
    log_known: Float[Tensor, " p"],
    itself: tuple[Tensor | None, float],
) -> Float[Tensor, " p"]:
    """Return the loss of distinct pairs (row, item), given the matrix of logs and those of the pairs in float64."""
    log_itself, self_weight = itself
    alone = pairs[:, 0] + first == pairs[:, 1]
    other, log_other = pairs[~alone], log_known[~alone]
    excluded = partners(other, (logs.shape[0], logs.shape[1]), first)
    log_rows = log_row_sums(logs.masked_fill(excluded, -torch.inf)).double()
    if log_itself is None:
        return log1p_exp(log_others(log_rows, log_other, other) - log_other)
    log_rows = torch.logaddexp(log_rows, log_itself + math.log(self_weight))
    log_partners = log_sum_by_row(log_other, other[:, 0], len(logs))
    row = pairs[alone, 0]
    loss = log_rows.new_empty(len(pairs))
    ordinary = log1p_exp(log_others(log_rows, log_other, other) - log_other)
    loss = loss.index_put((~alone,), ordinary)
    return loss.index_put((alone,), torch.logaddexp(log_rows, log_partners)[row] - log_itself[row])


def mixture_among(
    posterior: MixtureVMF, pairs: Int[Tensor, "p 2"], *, kappa_pos: KappaPos
) -> Float[Tensor, " p"]:
    r"""Return the loss :math:`-\log\frac{h_{ij}}{\sum_{k \ne i} h_{ik}}` of pairs (i, j) among N mixtures.

    With c components each,
    :math:`h_{ij} = \sum_{ab} w_{ia} w_{jb}\,h(\mu_{ia}^T\mu_{jb}, \kappa_{ia}, \kappa_{jb})`: expected positivity is
    bilinear in the weights. Cost N^2 c^2 positivities.
    """
    n, count = posterior.weights.shape
    weights = posterior.weights.double()
    mu, kappa = unit(posterior.mu).flatten(0, 1), posterior.kappa.flatten()
    distinct, listed = distinct_pairs(pairs, n)
    i, j = distinct.unbind(-1)
    cosine = mu @ mu.T
    known = unit_cosine(posterior.mu[i][:, :, None], posterior.mu[j][:, None])
    h = kappa_pos.over([cosine, known], [kappa], posterior.dim)
    each = h.each(known, posterior.kappa[i][:, :, None], posterior.kappa[j][:, None])
    log_known = log_weighted_sum(
        each.flatten(1), (weights[i, :, None] * weights[j, None]).flatten(1)
    )
    excluded = partners(distinct, (n, n)).repeat_interleave(count, 0).repeat_interleave(count, 1)
    logs = h.matrix(cosine, kappa, kappa).double().masked_fill(excluded, -torch.inf)
    rows = log_weighted_sum(logs, weights.flatten().unsqueeze(0))
    rows = log_weighted_sum(rows.view(n, count), weights)
    loss = log1p_exp(log_others(rows, log_known, distinct) - log_known)
    return loss.to(posterior.mu.dtype)[listed]


def unit(mu: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """Return directions of norm 1 to rounding in their own dtype, so that gradients are tangential."""
    return mu / torch.linalg.vector_norm(mu, dim=-1, keepdim=True)


class ClosedFormInfoNCE(PositivityLoss):
    """InfoNCE over expected positivities in closed form: no draws, no Monte Carlo bias.

    Parameters
    ----------
    kappa_pos
        Concentration of a partner's latent around its anchor's.
    centring
        Weight of the squared length of the mean of mu over the negatives, added to the loss. Where mu(x) does not fill
        the space, InfoNCE does not see a tilt of all mu towards a spare direction, which inflates kappa; a weak weight
        such as 0.02 removes it, a strong one (2) wins over the data.
    agreement_weight
        Weight of the term of ``among(..., agreement=...)``.
    learn_kappa_pos, in_batch, gather, reduction
        See ``PositivityLoss``.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> ClosedFormInfoNCE(kappa_pos=20.0)(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0))
    tensor(0.5408)
    """

    def __init__(
        self,
        kappa_pos: float,
        *,
        centring: float = 0.0,
        agreement_weight: float = 1.0,
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
        self.centring, self.agreement_weight = float(centring), float(agreement_weight)

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        value = closed_form_infonce(anchor, positive, negatives, kappa_pos=self._kappa_pos())
        pool = negatives.posterior if negatives.pool is None else negatives.pool
        return self._centred(value, pool)

    def per_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Int[Tensor, "p 2"],
        anchors: slice,
        self_weight: float,
    ) -> Float[Tensor, " p"]:
        """The loss of each pair among the items, of which only the anchors' positivities are computed."""
        if isinstance(posterior, MixtureVMF) and not self_weight:
            value = mixture_among(posterior, pairs, kappa_pos=self._kappa_pos())
            return self._centred(value, posterior.components)
        q = self.single(posterior)
        value = closed_form_among(
            q, pairs, kappa_pos=self._kappa_pos(), anchors=anchors, self_weight=self_weight
        )
        return self._centred(value, q)

    def agreement_term(
        self, posterior: VonMisesFisher | MixtureVMF, agreement: Float[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        """The mean of -a log p - (1 - a) log(1 - p) over items whose agreement a was observed, times its weight.

        p is the chance that two draws of an item match, see ``log_self_match``: annotators who disagree are data too.
        """
        q = self.single(posterior)
        value = agreement_loss(q.kappa, agreement, kappa_pos=self.kappa_pos, dim=q.dim)
        return (self.agreement_weight * value).to(q.mu.dtype)

    def _kappa_pos(self) -> KappaPos:
        return KappaPos(self.kappa_pos, self.known_kappa_pos())

    def _centred(self, value: Tensor, pool: VonMisesFisher) -> Tensor:
        if not self.centring:
            return value
        return value + self.centring * pool.mu.flatten(0, -2).mean(0).square().sum()
