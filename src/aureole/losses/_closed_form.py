"""Closed-form InfoNCE: the ratio of expected positivities, without a single draw."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses._contrastive import PositivityLoss, pair_cosines
from aureole.losses._negatives import InBatch, Negatives
from aureole.sphere import (
    bessel_ratios,
    interpolated_log_positivity,
    log_positivity,
    log_series,
    n_terms,
    pairwise_from_ratios,
    positive_terms,
    zonal_basis,
)

# by the dtype in which negatives are summed: the series' tail, and the noise of a sum, both relative to its bound
_TOLERANCE = {torch.float32: 3e-8, torch.float64: 1e-13}
_WORTH = 0.5  # the share of sums that float32 must get right to be used at all
NOISE = {torch.float32: 1e-6, torch.float64: 1e-12}
FLOOR = 1e-9  # of h(c = 1): below, a pair leaves the series, whose error would pass 1e-5
_ENTRIES = 2**22  # terms of pairs at a time


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
    Cost B M terms, with 10 to 50 terms in common settings (see ``sphere.positivity.n_terms``).
    """
    cosines, others = pair_cosines(anchor, positive, negatives)
    n = anchor.batch_shape[0]
    kappas = [anchor.kappa, positive.kappa, negatives.posterior.kappa.flatten()]
    series = Series.of(torch.cat(kappas), kappa_pos, anchor.dim)
    own, partner, rest = series.ratios[:n], series.ratios[n : 2 * n], series.ratios[2 * n :]
    log_pairs = _log_pairs(
        cosines, own * partner * series.terms, anchor.kappa, positive.kappa, series
    )
    log_others = _log_others(
        others,
        own,
        rest.reshape(*negatives.posterior.batch_shape, -1),
        series,
        anchor.kappa,
        negatives,
        log_pairs.detach(),
    )
    return torch.nn.functional.softplus(log_others - log_pairs).to(anchor.mu.dtype)


def closed_form_among(
    posterior: VonMisesFisher,
    pairs: Int[Tensor, "p 2"],
    *,
    kappa_pos: Tensor | float,
    anchors: slice = slice(None),
) -> Float[Tensor, " p"]:
    r"""The loss :math:`-\log\frac{h_{ij}}{\sum_{k \ne i} h_{ik}}` of each pair (i, j) among N items.

    All other items are the negatives, as in ``closed_form_infonce``. Each item is encoded once and each of the
    N^2 / 2 positivities computed once, however many pairs there are: cost (N^2 / 2 + P) terms. Where all anchors i are
    among A items, ``anchors`` says which: then it is A N + P.
    """
    series = Series.of(posterior.kappa, kappa_pos, posterior.dim)
    i, j = pairs.unbind(-1)
    mu, kappa, ratios = posterior.mu, posterior.kappa, series.ratios
    cosines = (mu[i] * mu[j]).sum(-1).clamp(-1, 1)
    log_pairs = _log_pairs(
        cosines, ratios[i] * ratios[j] * series.terms, kappa[i], kappa[j], series
    )
    first, last, _ = anchors.indices(len(mu))
    own = ratios if last - first == len(mu) else ratios[first:last]
    itself = torch.eye(len(mu), dtype=torch.bool, device=mu.device)[first:last]
    log_rows = _log_others(
        (mu[first:last] @ mu.T).clamp(-1, 1),
        own,
        ratios,
        series,
        kappa[first:last],
        Negatives(posterior, itself),
    )
    return (log_rows[i - first] - log_pairs).to(mu.dtype)


@dataclass(frozen=True)
class Series:
    """The series' coefficients for a set of concentrations: Bessel ratios [n, terms] and the part of kappa_pos."""

    ratios: Tensor
    terms: Tensor
    kappa_pos: Tensor
    dim: int
    bounds: tuple[float, float, float]

    @classmethod
    def of(cls, kappa: Tensor, kappa_pos: Tensor | float, dim: int) -> "Series":
        """The coefficients of these concentrations, as many as float64 can see."""
        kappa_pos = torch.as_tensor(kappa_pos, dtype=torch.float64, device=kappa.device)
        top = kappa.detach().max().item()
        bounds = (top, top, kappa_pos.item())
        count = n_terms(bounds, dim, tolerance=_TOLERANCE[torch.float64])
        ratios = bessel_ratios(dim / 2 - 1, kappa.double(), count)
        return cls(ratios, positive_terms(dim, count, kappa_pos), kappa_pos, dim, bounds)

    def needed(self, dtype: torch.dtype) -> int:
        """How many of the terms show in sums of this dtype."""
        return min(n_terms(self.bounds, self.dim, tolerance=_TOLERANCE[dtype]), len(self.terms))


def _log_pairs(
    cosines: Tensor, terms: Tensor, kappa1: Tensor, kappa2: Tensor, series: Series
) -> Tensor:
    """Log h of each pair in float64: by the series, by the integral where the series has lost its digits."""
    value, trusted = log_series(cosines.double(), terms, series.dim, floor=FLOOR)
    if bool(trusted.all()):
        return value
    lost = ~trusted
    exact = log_positivity(
        cosines[lost].double(), kappa1[lost], kappa2[lost], series.kappa_pos, series.dim
    )
    return value.index_put((lost,), exact)


def _log_others(
    cosines: Tensor,
    own: Tensor,
    rest: Tensor,
    series: Series,
    kappa: Tensor,
    negatives: Negatives,
    log_known: Tensor | None = None,
) -> Tensor:
    """Log of the sum over negatives per anchor, in the cheapest dtype whose rounding does not show.

    ``log_known`` is the log of what will be added to each sum: where that dominates, less precision is enough.
    """
    n, dim = cosines.shape[0], series.dim
    if log_known is None:
        log_known = torch.full((n,), -torch.inf, dtype=torch.float64, device=cosines.device)
    log_others = torch.zeros_like(log_known)
    left = torch.arange(n, device=cosines.device)  # the anchors whose sums are still wanted
    for dtype in (torch.float32, torch.float64):
        if torch.finfo(dtype).bits < torch.finfo(cosines.dtype).bits or not len(left):
            continue
        used = series.needed(dtype)
        everyone = len(left) == n
        part = negatives if everyone else _rows(negatives, left)
        values = rest if everyone else _take(rest, part, left)
        rows = slice(None) if everyone else left
        value, clear = _log_sum(
            cosines[rows].to(dtype), own[rows, :used], values[..., :used], series.terms[:used], part,
            log_known[rows], dim, symmetric=everyone and own is rest,
        )  # fmt: skip
        if dtype == torch.float32 and not bool(clear.double().mean() > _WORTH):
            continue  # nearly all are to be done again: then all are, and nothing flows back through these
        log_others = log_others.index_put((left[clear],), value[clear])
        left = left[~clear]
    if len(left):
        entries = rest.shape[-2] * rest.shape[-1]
        found = [
            _log_sum_by_pair(cosines, own, rest, series, kappa, negatives, log_known, rows)
            for rows in left.split(max(1, _ENTRIES // entries))
        ]
        log_others = log_others.index_put((left,), torch.cat(found))
    return log_others


def _log_sum_by_pair(
    cosines: Tensor,
    own: Tensor,
    rest: Tensor,
    series: Series,
    kappa: Tensor,
    negatives: Negatives,
    log_known: Tensor,
    rows: Tensor,
) -> Tensor:
    """Log of the sum over negatives of some anchors, pair by pair in log space.

    A pair whose series has lost its digits has less than FLOOR of its value at c = 1. It goes to the
    integral, or very many to its interpolation, unless all such pairs of its anchor together are less than a thousandth
    of the rest.
    """
    part = _rows(negatives, rows)
    cosine = cosines[rows].double()
    terms = own[rows].unsqueeze(1) * _take(rest, part, rows) * series.terms
    each, trusted = log_series(cosine, terms, series.dim, floor=FLOOR)
    lost = ~trusted
    if part.excluded is not None:
        each = each.masked_fill(part.excluded, -torch.inf)
        lost = lost & ~part.excluded
    each = each.masked_fill(lost, -torch.inf)
    with torch.no_grad():
        most = torch.log(terms.sum(-1) * FLOOR).masked_fill(~lost, -torch.inf)
        seen = torch.logaddexp(torch.logsumexp(each, -1), log_known[rows])
        matters = torch.logsumexp(most, -1) > seen + math.log(1e-3)
        lost = lost & matters.unsqueeze(-1)
    if bool(lost.any()):
        others = _take(negatives.posterior.kappa, part, rows).expand_as(cosine)
        mine = kappa[rows].unsqueeze(1).expand_as(cosine)
        exact = interpolated_log_positivity(
            cosine[lost], mine[lost], others[lost], series.kappa_pos, series.dim
        )
        each = each.index_put((lost,), exact)
    return torch.logsumexp(each, -1)


def _rows(negatives: Negatives, index: Tensor) -> Negatives:
    """The negatives of some anchors (only what is excluded differs for shared ones)."""
    excluded = None if negatives.excluded is None else negatives.excluded[index]
    return Negatives(negatives.posterior, excluded)


def _take(values: Tensor, negatives: Negatives, index: Tensor) -> Tensor:
    """The negatives' values for some anchors: all of them where they are shared."""
    return values if negatives.shared else values[index]


def _log_sum(
    cosines: Tensor,
    own: Tensor,
    rest: Tensor,
    terms: Tensor,
    negatives: Negatives,
    log_pairs: Tensor,
    dim: int,
    *,
    symmetric: bool,
) -> tuple[Tensor, Tensor]:
    """(Log of the sum over negatives, whether rounding in the cosines' dtype does not show in the loss) per anchor."""
    dtype = cosines.dtype
    if negatives.shared:
        values, scale = pairwise_from_ratios(cosines, own, rest, terms, dim, symmetric=symmetric)
    else:
        basis = zonal_basis(cosines, dim, terms.shape[-1])
        values, scale = (((own * terms).unsqueeze(1) * rest).to(dtype) * basis).sum(-1), 0.0
    values = values.clamp(min=0)  # a sum of cancelling terms can round below 0
    if negatives.excluded is not None:
        values = values.masked_fill(negatives.excluded, 0.0)
    total = values.sum(-1, dtype=torch.float64)
    with torch.no_grad():
        bound = (own * terms * rest.sum(-2)).sum(-1)  # what the sum would be with every cosine 1
        log_seen = torch.logaddexp(torch.log(total) + scale, log_pairs)
        clear = (torch.log(bound * (NOISE[dtype] / 1e-3)) < log_seen) & (total > 0)
    return torch.log(torch.where(clear, total, 1.0)) + scale, clear


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
        learn_kappa_pos: bool = False,
        in_batch: InBatch = "next",
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
        self.centring = float(centring)

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        value = closed_form_infonce(anchor, positive, negatives, kappa_pos=self.kappa_pos)
        pool = negatives.posterior if negatives.pool is None else negatives.pool
        return self._centred(value, pool)

    def per_pair(self, posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"]) -> Float[Tensor, " p"]:
        """The loss of each pair among the posteriors, all others its negatives."""
        value = closed_form_among(posterior, pairs, kappa_pos=self.kappa_pos)
        return self._centred(value, posterior)

    def per_pair_of_anchors(
        self, posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"], anchors: slice
    ) -> Float[Tensor, " p"]:
        """The loss of each pair, whose anchors are all among some items: those items' positivities alone."""
        value = closed_form_among(posterior, pairs, kappa_pos=self.kappa_pos, anchors=anchors)
        return self._centred(value, posterior)

    def per_pair_of_mixtures(
        self, posterior: MixtureVMF, pairs: Int[Tensor, "p 2"]
    ) -> Float[Tensor, " p"]:
        """The loss of each pair among mixtures, all others its negatives."""
        from aureole.losses._mixture import mixture_among

        value = mixture_among(posterior, pairs, kappa_pos=self.kappa_pos)
        return self._centred(value, posterior.components)

    def _centred(self, value: Tensor, pool: VonMisesFisher) -> Tensor:
        if not self.centring:
            return value
        return value + self.centring * pool.mu.flatten(0, -2).mean(0).square().sum()
