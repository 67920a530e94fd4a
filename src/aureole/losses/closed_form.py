"""Closed-form InfoNCE: the ratio of expected positivities, without a single draw."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.losses.contrastive import ContrastiveLoss, pair_cosines
from aureole.losses.negatives import Negatives
from aureole.sphere.bessel import bessel_ratios
from aureole.sphere.positivity import (
    log_positivity,
    log_series,
    n_terms,
    pairwise_from_ratios,
    positive_terms,
)
from aureole.sphere.zonal import zonal_basis

__all__ = ["ClosedFormInfoNCE", "closed_form_infonce"]

# by the dtype in which negatives are summed: the series' tail, and the noise of a sum, both relative to its bound
_TOLERANCE = {torch.float32: 3e-8, torch.float64: 1e-13}
_NOISE = {torch.float32: 1e-6, torch.float64: 1e-12}
_FLOOR = (
    1e-9  # below this part of h(c = 1) a pair's log leaves the series, whose error would pass 1e-5
)


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
    pairs, others = pair_cosines(anchor, positive, negatives)
    dim, n = anchor.dim, anchor.batch_shape[0]
    kappa_pos = torch.as_tensor(kappa_pos, dtype=torch.float64, device=pairs.device)
    kappa = torch.cat([anchor.kappa, positive.kappa, negatives.posterior.kappa.flatten()]).double()
    bounds = [kappa.detach().max().item()] * 2 + [kappa_pos.item()]
    count = n_terms(bounds, dim, tolerance=_TOLERANCE[torch.float64])
    ratios = bessel_ratios(dim / 2 - 1, kappa, count)
    own, partner, rest = ratios[:n], ratios[n : 2 * n], ratios[2 * n :]
    terms = positive_terms(dim, count, kappa_pos)

    log_pairs, trusted = log_series(pairs.double(), own * partner * terms, dim, floor=_FLOOR)
    if not bool(trusted.all()):
        exact = log_positivity(
            pairs[~trusted].double(),
            anchor.kappa[~trusted],
            positive.kappa[~trusted],
            kappa_pos,
            dim,
        )
        log_pairs = log_pairs.index_put((~trusted,), exact)

    rest = rest.reshape(*negatives.posterior.batch_shape, count)
    log_others = torch.zeros_like(log_pairs)
    left = torch.arange(n, device=pairs.device)  # the anchors whose sums are still wanted
    for dtype in (torch.float32, torch.float64):
        if torch.finfo(dtype).bits < torch.finfo(others.dtype).bits or not len(left):
            continue
        used = min(n_terms(bounds, dim, tolerance=_TOLERANCE[dtype]), count)
        part = _rows(negatives, left)
        value, clear = _log_sum(
            others[left].to(dtype), own[left, :used], _take(rest, part, left)[..., :used], terms[:used], part,
            log_pairs.detach()[left], dim,
        )  # fmt: skip
        log_others = log_others.index_put((left[clear],), value[clear])
        left = left[~clear]
    if len(left):
        part = _rows(negatives, left)
        kappa = _take(negatives.posterior.kappa, part, left)
        each = log_positivity(
            others[left].double(), anchor.kappa[left].unsqueeze(1), kappa, kappa_pos, dim
        )
        if part.excluded is not None:
            each = each.masked_fill(part.excluded, -torch.inf)
        log_others = log_others.index_put((left,), torch.logsumexp(each, -1))
    return torch.nn.functional.softplus(log_others - log_pairs).to(anchor.mu.dtype)


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
) -> tuple[Tensor, Tensor]:
    """(Log of the sum over negatives, whether rounding in the cosines' dtype does not show in the loss) per anchor."""
    dtype = cosines.dtype
    if negatives.shared:
        values, scale = pairwise_from_ratios(cosines, own, rest, terms, dim)
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
        clear = (torch.log(bound * (_NOISE[dtype] / 1e-3)) < log_seen) & (total > 0)
    return torch.log(torch.where(clear, total, 1.0)) + scale, clear


class ClosedFormInfoNCE(ContrastiveLoss):
    """InfoNCE over expected positivities in closed form: no draws, no Monte Carlo bias.

    Parameters
    ----------
    kappa_pos
        Concentration of a partner's latent around its anchor's.
    centring
        Weight of the squared length of the mean of mu over the negatives, added to the loss. Where mu(x) does not fill
        the space, InfoNCE does not see a tilt of all mu towards a spare direction, which inflates kappa; a weak weight
        such as 0.02 removes it, a strong one (2) wins over the data.
    options
        See ``ContrastiveLoss``.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), 10.0)
    >>> ClosedFormInfoNCE(kappa_pos=20.0)(q, q, VonMisesFisher(torch.eye(4)[:3], 10.0))
    tensor(0.5408)
    """

    def __init__(self, kappa_pos: float, *, centring: float = 0.0, **options: Any) -> None:
        super().__init__(kappa_pos, **options)
        self.centring = float(centring)

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        value = closed_form_infonce(anchor, positive, negatives, kappa_pos=self.kappa_pos)
        if self.centring:
            pool = negatives.posterior if negatives.pool is None else negatives.pool
            mean = pool.mu.flatten(0, -2).mean(0)
            value = value + self.centring * mean.square().sum()
        return value
