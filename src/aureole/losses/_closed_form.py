"""Closed-form InfoNCE: the ratio of expected positivities, without a single draw."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses._contrastive import PositivityLoss
from aureole.losses._cross_entropy import log1p_exp
from aureole.losses._mixture import mixture_among
from aureole.losses._negatives import InBatch, Negatives
from aureole.losses._positivity_sums import (
    Items,
    distinct_pairs,
    log_others,
    log_pairs,
    log_row_sums,
    log_sum_by_row,
    log_sums_by_series,
    partners,
)
from aureole.losses._self_pairs import agreement_loss
from aureole.sphere._positivity import MAX_TERMS, n_terms

_DENSE = 16  # pairs per anchor from which on every positivity is computed by itself
_AT_ONCE = 1 << 17  # of them at a time; more are computed again in the backward pass


def closed_form_infonce(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    *,
    kappa_pos: Tensor | float,
) -> Float[Tensor, " batch"]:
    r"""The loss :math:`-\log\frac{h(x, x^+)}{h(x, x^+) + \sum_m h(x, x^-_m)}` with expected positivities h.

    The pairs' logs are computed in float64. The negatives are summed in the posteriors' dtype, in float64 where its
    rounding would show (high kappa_pos in high dimension), and pair by pair in log space where even that would.
    Minimal, up to a constant, where h is the density ratio P(x+|x)/P(x-), for any number of negatives.
    Cost B M terms, with 10 to 50 terms in common settings (see ``sphere.n_terms``).
    """
    posteriors = (anchor, positive, negatives.posterior)
    own, partner, rest = Items.of([(q.mu, q.kappa) for q in posteriors], kappa_pos)
    log_known = log_pairs(own, partner)
    if negatives.shared:
        log_sums = log_row_sums(
            own, rest, excluded=negatives.excluded, log_known=log_known.detach()
        )
    else:
        each = log_pairs(own[:, None], rest)
        if negatives.excluded is not None:
            each = each.masked_fill(negatives.excluded, -torch.inf)
        log_sums = torch.logsumexp(each, -1)
    return log1p_exp(log_sums - log_known).to(anchor.mu.dtype)


def _by_series(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negatives: Negatives,
    kappa_pos: Tensor,
    known: float,
) -> Float[Tensor, " batch"]:
    """``closed_form_infonce`` by the series alone, for a kappa_pos that is also known as a plain number."""
    count = _most_terms(known, anchor.dim)
    posteriors = (anchor, positive, negatives.posterior)
    items = Items.of([(q.mu, q.kappa) for q in posteriors], kappa_pos, count)
    log_known, log_sums = log_sums_by_series(*items, excluded=negatives.excluded)
    return log1p_exp(log_sums - log_known).to(anchor.mu.dtype)


def _most_terms(kappa_pos: float, dim: int) -> int:
    """How many terms the series needs at this kappa_pos, whatever the other concentrations."""
    count = n_terms([math.inf, math.inf, kappa_pos], dim, tolerance=1e-17)
    if count > MAX_TERMS:
        raise InvalidInputError(
            f"with static=True, kappa_pos = {kappa_pos:g} is too large for D = {dim}: the series "
            f"would need more than {MAX_TERMS} terms. Use the loss without static."
        )
    return count


def closed_form_among(
    posterior: VonMisesFisher,
    pairs: Int[Tensor, "p 2"],
    *,
    kappa_pos: Tensor | float,
    anchors: slice = slice(None),
    self_weight: float = 0.0,
) -> Float[Tensor, " p"]:
    r"""The loss :math:`-\log\frac{h_{ij}}{w h_{ii} + \sum_{k \ne i} h_{ik}}` of each pair (i, j) among N items.

    All other items are the negatives, as in ``closed_form_infonce``. Each item is encoded once and each of the
    N^2 / 2 positivities computed once, however many pairs there are: cost (N^2 / 2 + P) terms. If all anchors i are
    among A items, pass them as ``anchors``: then it is A N + P. With more than 16 pairs per anchor, as in a dense
    matrix of weights, all N^2 logs are computed one by one in float64. Pairs (i, i) need a self-weight w.
    """
    (items,) = Items.of([(posterior.mu, posterior.kappa)], kappa_pos)
    first, last, _ = anchors.indices(len(posterior.mu))
    if len(pairs) > _DENSE * (last - first):
        loss = _among_all(items, pairs, slice(first, last), self_weight)
        return loss.to(posterior.mu.dtype)
    pairs, listed = distinct_pairs(pairs, len(items.kappa))
    loss = _among_listed(items, pairs, slice(first, last), self_weight)
    return loss.to(posterior.mu.dtype)[listed]


def _among_listed(
    items: Items, pairs: Int[Tensor, "p 2"], anchors: slice, self_weight: float
) -> Float[Tensor, " p"]:
    """The loss of distinct pairs: sums over each anchor's row without its partners, and the pairs one by one."""
    n, n_rows = len(items.kappa), anchors.stop - anchors.start
    own = items if n_rows == n else items[anchors]
    rows = pairs - pairs.new_tensor([anchors.start, 0])
    itself = pairs[:, 0] == pairs[:, 1]
    other = rows[~itself]
    log_known = log_pairs(own[other[:, 0]], items[other[:, 1]])
    log_partners = log_sum_by_row(log_known, other[:, 0], n_rows)
    log_itself = log_pairs(own, own) if self_weight else None
    log_copies = None if log_itself is None else log_itself + math.log(self_weight)
    known = log_partners if log_copies is None else torch.logaddexp(log_partners, log_copies)
    log_rest = log_row_sums(
        own, items, excluded=partners(other, (n_rows, n), anchors.start), log_known=known.detach()
    )
    if log_itself is None or log_copies is None:
        return log1p_exp(log_others(log_rest, log_known, other) - log_known)
    log_rows = torch.logaddexp(log_rest, log_copies)
    loss = log_rest.new_empty(len(pairs))
    ordinary = log1p_exp(log_others(log_rows, log_known, other) - log_known)
    row = rows[itself, 0]
    alone = torch.logaddexp(log_rows, log_partners)[row] - log_itself[row]
    return loss.index_put((~itself,), ordinary).index_put((itself,), alone)


def _among_all(
    items: Items, pairs: Int[Tensor, "p 2"], anchors: slice, self_weight: float
) -> Float[Tensor, " p"]:
    """The loss of so many pairs that the log of every positivity is computed, some rows at a time."""

    def losses(rows: slice) -> Tensor:
        log_h = log_pairs(items[rows][:, None], items[None, :])
        here = torch.arange(rows.stop - rows.start, device=log_h.device)
        weight = torch.zeros_like(log_h)
        weight[here, here + rows.start] = math.log(self_weight) if self_weight else -math.inf
        i, j = mine[(mine[:, 0] >= rows.start) & (mine[:, 0] < rows.stop)].unbind(-1)
        return torch.logsumexp(log_h + weight, 1)[i - rows.start] - log_h[i - rows.start, j]

    order = torch.argsort(pairs[:, 0], stable=True)
    mine = pairs[order]
    height = max(1, _AT_ONCE // len(items.kappa))
    starts = range(anchors.start, anchors.stop, height)
    blocks = [slice(start, min(start + height, anchors.stop)) for start in starts]
    if len(blocks) == 1:
        found = losses(blocks[0])
    else:
        found = torch.cat([checkpoint(losses, block, use_reentrant=False) for block in blocks])
    return torch.empty_like(found).index_put((order,), found)


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
    static
        Never read a value back from the device: for accelerators, with posteriors of ``validate_args=False``. The
        loss is then the series in float64, where a positivity below 1e-14 of the largest possible counts as that much:
        right unless kappa_pos is large for the dimension. Nothing is checked. ``among`` ignores it, and so does
        ``torch.compile``, under which the loss is one operator that reads values back and checks no input.
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
        static: bool = False,
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
        self.static = static

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        if torch.compiler.is_compiling():
            parts = [x for q in (anchor, positive, negatives.posterior) for x in (q.mu, q.kappa)]
            value = _compiled(parts, self.kappa_pos, negatives.excluded)
        elif self.static:
            value = _by_series(anchor, positive, negatives, self.kappa_pos, self.known_kappa_pos())
        else:
            value = closed_form_infonce(anchor, positive, negatives, kappa_pos=self.kappa_pos)
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
            value = mixture_among(posterior, pairs, kappa_pos=self.kappa_pos)
            return self._centred(value, posterior.components)
        q = self.single(posterior)
        value = closed_form_among(
            q, pairs, kappa_pos=self.kappa_pos, anchors=anchors, self_weight=self_weight
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

    def unchecked(self) -> bool:
        """Whether the loss is to read nothing back from the device."""
        return self.trusted or self.static or torch.compiler.is_compiling()

    def _centred(self, value: Tensor, pool: VonMisesFisher) -> Tensor:
        if not self.centring:
            return value
        return value + self.centring * pool.mu.flatten(0, -2).mean(0).square().sum()


@torch.library.custom_op("aureole::closed_form_infonce", mutates_args=())
def _compiled(posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None) -> Tensor:
    """``closed_form_infonce`` for torch.compile, which calls it as one operator and does not look inside."""
    return _of_tensors(posteriors, kappa_pos, excluded)


@_compiled.register_fake
def _(posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None) -> Tensor:  # noqa: ARG001
    return posteriors[0].new_empty(posteriors[0].shape[0])


@torch.library.custom_op("aureole::closed_form_infonce_backward", mutates_args=())
def _compiled_backward(
    grad: Tensor, posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None
) -> list[Tensor]:
    key = torch._C.DispatchKey.AutogradFunctionality  # off inside an operator, and needed here
    with torch._C._SetExcludeDispatchKeyGuard(key, False), torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() for x in (*posteriors, kappa_pos)]
        value = _of_tensors(leaves[:-1], leaves[-1], excluded)
        return [x.clone() for x in torch.autograd.grad(value, leaves, grad)]


@_compiled_backward.register_fake
def _(
    grad: Tensor,  # noqa: ARG001
    posteriors: list[Tensor],
    kappa_pos: Tensor,
    excluded: Tensor | None,  # noqa: ARG001
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (*posteriors, kappa_pos)]


def _compiled_context(ctx, inputs, output) -> None:  # noqa: ARG001
    posteriors, kappa_pos, excluded = inputs
    ctx.save_for_backward(*posteriors, kappa_pos, excluded)


def _compiled_gradients(ctx, grad: Tensor) -> tuple[list[Tensor], Tensor, None]:
    *posteriors, kappa_pos, excluded = ctx.saved_tensors
    *found, last = _compiled_backward(grad, posteriors, kappa_pos, excluded)
    return found, last, None


_compiled.register_autograd(_compiled_gradients, setup_context=_compiled_context)


def _of_tensors(posteriors: list[Tensor], kappa_pos: Tensor, excluded: Tensor | None) -> Tensor:
    anchor, positive, rest = (
        VonMisesFisher(mu, kappa, validate_args=False)
        for mu, kappa in zip(posteriors[::2], posteriors[1::2], strict=True)
    )
    return closed_form_infonce(anchor, positive, Negatives(rest, excluded), kappa_pos=kappa_pos)
