"""Sums of expected positivities in log space, in the cheapest precision whose rounding does not show.

A sum over many pairs comes from the zonal series in float32 or float64. The error of a series is a rounding of the sum
of its terms' sizes, which is known, so each row of a sum knows its own error; where that would show in the loss, the
row is computed again in float64, and then pair by pair with the positive integral for the pairs whose terms cancel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aureole.sphere._geometry import unit_cosine
from aureole.sphere._interpolation import interpolated_log_positivity
from aureole.sphere._positivity import (
    MAX_TERMS,
    log_coefficients,
    log_positivity_by_integral,
    log_series,
    n_terms,
    unit_coefficients,
)
from aureole.sphere._row_sums import has_row_sums, row_sums
from aureole.sphere._zonal import zonal_basis, zonal_envelope, zonal_sizes, zonal_sum

# by dtype: one rounding; what a sum over unit vectors may lose to underflow; the share of a sum left out of the
# series; the error of a sum that does not show in the loss
_ROUNDING = {torch.float32: 6e-8, torch.float64: 1.2e-16}
_UNDERFLOW = {torch.float32: 1e-30, torch.float64: 1e-290}
_TAIL = {torch.float32: 1e-9, torch.float64: 1e-17}
_TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-10}
_SHORT = 32  # terms up to which the recurrence's errors add up to less than a rounding of the sizes
_WORTH = 0.5  # the share of rows that float32 must get right to be used at all
_BINS = 64  # of the cosine, in which the polynomials' sizes are bounded
_FLOOR = 1e-14  # of the largest possible positivity: below, the series in float64 is rounding
_MANY = 4096  # pairs from which on interpolation is tried


@dataclass(frozen=True)
class Items:
    """Posteriors [*batch] with the logs of their halves of the series' terms, None where it needs too many."""

    mu: Float[Tensor, "*batch dim"]
    kappa: Float[Tensor, "*batch"]
    logs: Float[Tensor, "*batch terms"] | None
    kappa_pos: Float[Tensor, ""]

    @staticmethod
    def of(
        posteriors: Sequence[tuple[Tensor, Tensor]],
        kappa_pos: Tensor | float,
        count: int | None = None,
    ) -> "list[Items]":
        """Items of (mu, kappa) each, with as many terms as float64 can resolve for the largest kappa of all."""
        mu, kappa = posteriors[0]
        kappa_pos = torch.as_tensor(kappa_pos, dtype=torch.float64, device=kappa.device)
        if count is None:
            top = max(float(k.detach().max()) for _, k in posteriors)
            count = n_terms([top, top, kappa_pos.item()], mu.shape[-1], tolerance=1e-17)
        if count > MAX_TERMS:
            return [Items(m, k, None, kappa_pos) for m, k in posteriors]
        flat = torch.cat([k.reshape(-1) for _, k in posteriors])
        logs = log_coefficients(flat, kappa_pos, mu.shape[-1], count)
        sizes = [k.numel() for _, k in posteriors]
        return [
            Items(m, k, part.view(*k.shape, count), kappa_pos)
            for (m, k), part in zip(posteriors, logs.split(sizes), strict=True)
        ]

    def __getitem__(self, index: Tensor | slice | tuple[slice | None, ...]) -> "Items":
        """Some of the items."""
        logs = None if self.logs is None else self.logs[index]
        return Items(self.mu[index], self.kappa[index], logs, self.kappa_pos)

    @property
    def dim(self) -> int:
        """The ambient dimension D."""
        return self.mu.shape[-1]


def log_pairs(first: Items, second: Items) -> Float[Tensor, "*batch"]:
    """Log h of each pair in float64; batches broadcast. By the integral where the terms of the series cancel."""
    cosine = unit_cosine(first.mu, second.mu)
    kappa1, kappa2 = (k.double().expand(cosine.shape) for k in (first.kappa, second.kappa))
    if first.logs is None or second.logs is None:
        return log_positivity_by_integral(cosine, kappa1, kappa2, first.kappa_pos, first.dim)
    limit = _TOLERANCE[first.mu.dtype] / (4 * _ROUNDING[torch.float64])
    value, trusted = log_series(cosine, first.logs + second.logs, first.dim, cancelled=limit)
    if bool(trusted.all()):
        return value
    lost = ~trusted
    exact = _log_lost(cosine[lost], kappa1[lost], kappa2[lost], first)
    return value.index_put((lost,), exact)


def log_row_sums(
    own: Items,
    rest: Items,
    *,
    excluded: Bool[Tensor, "n m"] | None = None,
    weights: Float[Tensor, " m"] | None = None,
    log_known: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, " n"]:
    r"""The logs of :math:`\sum_j w_j h_{ij}` over all items of ``rest`` that are not excluded, in float64.

    An error shows from a share of 3e-6 on in float32 and 1e-10 in float64: of the sum itself, or, where ``log_known``
    is the log of what will be added to it, of the average share that the sums have in these totals.
    """
    n, device = len(own.kappa), own.mu.device
    whole = _Rows(own, rest, excluded, weights, log_known, symmetric=own is rest)
    value = torch.zeros(n, dtype=torch.float64, device=device)
    left = torch.arange(n, device=device)  # rows that are not yet computed
    if own.logs is not None:
        for dtype in (torch.float32, torch.float64):
            if torch.finfo(dtype).bits < torch.finfo(own.mu.dtype).bits or not len(left):
                continue
            part = whole if len(left) == n else whole.take(left)
            sums, clear = part.by_series(dtype)
            if dtype == torch.float32 and float(clear.double().mean()) < _WORTH:
                continue  # too few to be worth the backward pass through all of them
            value = value.index_put((left[clear],), sums[clear])
            left = left[~clear]
    if len(left):
        value = value.index_put((left,), whole.take(left).by_pair())
    return value


def log_sums_by_series(
    own: Items,
    partner: Items,
    rest: Items,
    *,
    excluded: Bool[Tensor, "n m"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(The pairs' logs, the logs of the sums over the rest [m] or [n, m]), by the series in float64 alone.

    Reads nothing back from the device. A positivity below 1e-14 of the largest possible counts as that much.
    """
    units = [_unit_items(items) for items in (own, partner, rest)]
    (mu, terms, scale), (partner_mu, partner_terms, partner_scale), _ = units
    pair = _series(mu, partner_mu, terms * partner_terms, own.dim)
    log_pair = torch.log(pair.clamp(min=_FLOOR)) + scale + partner_scale
    rest_mu, rest_terms, rest_scale = units[2]
    top = rest_scale.amax(-1, keepdim=True)
    rest_terms = rest_terms * torch.exp(rest_scale - top).unsqueeze(-1)
    if rest.mu.dim() == 3:
        total = _series(mu.unsqueeze(1), rest_mu, terms.unsqueeze(1) * rest_terms, own.dim).sum(-1)
    elif has_row_sums(mu):
        total, _ = row_sums(mu @ rest_mu.T, terms, rest_terms, own.dim, excluded)
    else:
        values = zonal_sum(mu @ rest_mu.T, terms, rest_terms, own.dim)
        total = (values if excluded is None else values.masked_fill(excluded, 0.0)).sum(-1)
    return log_pair, torch.log(total.clamp(min=_FLOOR)) + scale + top.squeeze(-1)


def _unit_items(items: Items) -> tuple[Tensor, Tensor, Tensor]:
    """(Directions, unit coefficients, log scales) in float64."""
    assert items.logs is not None
    return _unit(items.mu.double()), *unit_coefficients(items.logs)


def _series(first: Tensor, second: Tensor, terms: Tensor, dim: int) -> Tensor:
    cosine = (first * second).sum(-1)
    return (terms * zonal_basis(cosine, dim, terms.shape[-1])).sum(-1)


@dataclass(frozen=True)
class _Rows:
    """Rows of a matrix of positivities, to be summed."""

    own: Items
    rest: Items
    excluded: Tensor | None
    weights: Tensor | None
    log_known: Tensor | None
    symmetric: bool = False

    def take(self, index: Tensor) -> "_Rows":
        excluded = None if self.excluded is None else self.excluded[index]
        log_known = None if self.log_known is None else self.log_known[index]
        return _Rows(self.own[index], self.rest, excluded, self.weights, log_known)

    def cosines(self, dtype: torch.dtype) -> Tensor:
        own = _unit(self.own.mu.to(dtype))
        rest = own if self.symmetric else _unit(self.rest.mu.to(dtype))
        return own @ rest.T

    def column_weights(self, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(Weights of the unit series' values, log of the factor divided out of them)."""
        top = scale.max()
        weights = torch.exp(scale - top)
        if self.weights is not None:
            weights = weights * self.weights.double()
        return weights.to(dtype), top

    def by_series(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(Logs of the sums, whether rounding in this dtype does not show in them)."""
        own, scale, rest, rest_scale = self.coefficients(dtype)
        cosine = self.cosines(dtype)
        weights, top = self.column_weights(rest_scale, dtype)
        sizes = None
        if has_row_sums(cosine):
            rest = rest * weights.unsqueeze(-1)
            total, sizes = row_sums(cosine, own, rest, self.own.dim, self.excluded)
            sizes = sizes * max(1.0, own.shape[-1] / _SHORT)
        else:
            values = zonal_sum(cosine, own, rest, self.own.dim, symmetric=self.symmetric)
            if self.excluded is not None:
                values = values.masked_fill(self.excluded, 0.0)
            total = (values @ weights).double()
        scale = scale + top
        with torch.no_grad():
            most = self.allowed(total, scale) - _UNDERFLOW[dtype]
            most = most / _ROUNDING[dtype] - 0.5 * self.slope() * total.abs()
            if sizes is None:
                sizes = self.noise(cosine, own, rest * weights.unsqueeze(-1), most)
            # a sum that does not show in the loss may still round to 0 or below, and has no log
            clear = (sizes < most) & (total > 0)
        return torch.log(torch.where(clear, total, 1.0)) + scale, clear

    def coefficients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(Unit coefficients, log scales) of both sides, as many as show in this dtype."""
        assert self.own.logs is not None
        assert self.rest.logs is not None
        tops = [float(x.kappa.detach().max()) for x in (self.own, self.rest)]
        count = n_terms([*tops, self.own.kappa_pos.item()], self.own.dim, tolerance=_TAIL[dtype])
        rest, rest_scale = unit_coefficients(self.rest.logs[:, :count])
        rest = rest.to(dtype)
        if self.symmetric:
            return rest, rest_scale, rest, rest_scale
        own, scale = unit_coefficients(self.own.logs[:, :count])
        return own.to(dtype), scale, rest, rest_scale

    def noise(self, cosine: Tensor, own: Tensor, rest: Tensor, most: Tensor) -> Tensor:
        """Bounds of the sums of the terms' sizes: the error of each row in roundings.

        From a table per row over bins of the cosine, with the largest coefficients of any column; from the table's
        largest entries alone if those already are below ``most``.
        """
        envelope = zonal_envelope(self.own.dim, own.shape[-1], _BINS, own.dtype, own.device)
        table = torch.nn.functional.pad((own * rest.amax(0)) @ envelope, (0, 1))
        bound = cosine.shape[1] * table.amax(-1).double()
        if bool((bound < most).all()):
            return bound
        place = ((cosine + 1) * (_BINS / 2)).long().clamp_(0, _BINS - 1)
        if self.excluded is not None:
            place.masked_fill_(self.excluded, _BINS)  # the padding
        return table.gather(1, place).sum(-1, dtype=torch.float64)

    def slope(self) -> Tensor:
        """About the largest slope of each row's logs in the cosine, which carries the cosine's own rounding."""
        inverse = 1 / self.own.kappa.double() + 1 / self.rest.kappa.detach().double().max()
        return 1 / (inverse + 1 / self.own.kappa_pos)

    def allowed(self, total: Tensor, scale: Tensor) -> Tensor:
        """The error that does not show in each sum, given sums less their log scale."""
        tolerance = _TOLERANCE[self.own.mu.dtype]
        if self.log_known is None:
            return tolerance * total
        known = self.log_known - scale
        counted = torch.isfinite(known)  # a row without a pair is in no loss
        gap = torch.log(total.clamp(min=0)) - torch.where(counted, known, 0.0)
        share = torch.where(counted, torch.sigmoid(gap), 0.0).sum() / counted.sum().clamp(min=1)
        return tolerance * torch.maximum(total, share * torch.exp(known.clamp(max=700)))

    def by_pair(self) -> Tensor:
        """The logs of the sums, with the integral for every pair whose terms cancel and that matters."""
        cosine = self.cosines(torch.float64)
        if self.own.logs is None:
            lost = torch.ones_like(cosine, dtype=torch.bool)
            if self.excluded is not None:
                lost = ~self.excluded
            return self.with_exact(None, lost, cosine)
        own, scale, rest, rest_scale = self.coefficients(torch.float64)
        weights, top = self.column_weights(rest_scale, torch.float64)
        values = zonal_sum(cosine, own, rest, self.own.dim) * weights
        if self.excluded is not None:
            values = values.masked_fill(self.excluded, 0.0)
        with torch.no_grad():
            sizes = zonal_sizes(cosine, own, rest, self.own.dim) * weights.abs()
            noise = 4 * _ROUNDING[torch.float64] * sizes + _UNDERFLOW[torch.float64]
            if self.excluded is not None:
                noise.masked_fill_(self.excluded, 0.0)
            lost = noise > _TOLERANCE[self.own.mu.dtype] * values
            allowed = self.allowed(torch.where(lost, 0.0, values).sum(-1), scale + top)
            lost &= noise * cosine.shape[1] > allowed.unsqueeze(-1)
        total = torch.where(lost, 0.0, values).sum(-1)
        return self.with_exact((total, scale + top), lost, cosine)

    def with_exact(
        self, summed: tuple[Tensor, Tensor] | None, lost: Tensor, cosine: Tensor
    ) -> Tensor:
        """The logs of the rows' sums: what is summed already, and the integrals of the lost pairs."""
        kappas = [self.own.kappa.double().unsqueeze(1), self.rest.kappa.double()]
        one, two = (k.expand(cosine.shape)[lost] for k in kappas)
        exact = _log_lost(cosine[lost].clamp(-1, 1), one, two, self.own)
        each = torch.full_like(cosine, -torch.inf).index_put((lost,), exact)
        if self.weights is None:
            exact_sum = torch.logsumexp(each, -1)
        else:
            exact_sum = log_weighted_sum(each, self.weights.double().unsqueeze(0))
        if summed is None:
            return exact_sum
        total, scale = summed
        some = total.detach() > 0
        log_total = torch.where(some, torch.log(torch.where(some, total, 1.0)) + scale, -torch.inf)
        return torch.logsumexp(torch.stack([exact_sum, log_total], -1), -1)


def log_weighted_sum(
    logs: Float[Tensor, "n m"], weights: Float[Tensor, "#n m"]
) -> Float[Tensor, " n"]:
    """The logs of the weighted sums of exponentials, linear in the weights: a weight of 0 has its gradient."""
    absent = (weights == 0).expand(logs.shape)
    top = logs.detach().masked_fill(absent, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    shifted = torch.where(absent, (logs - top).clamp(max=80.0), logs - top)
    total = (weights * torch.exp(shifted)).sum(-1)
    some = total.detach() > 0
    log_total = torch.log(torch.where(some, total, 1.0)) + top.squeeze(-1)
    return torch.where(some, log_total, -torch.inf)


def log_others(
    log_rows: Float[Tensor, " n"],
    log_pairs: Float[Tensor, " p"],
    pairs: Int[Tensor, "p 2"],
) -> Float[Tensor, " p"]:
    """The log of the sum over all items that are neither of a pair, for distinct pairs (i, j).

    ``log_rows`` holds the sums over items that are not partners of i; i's other partners are added.
    """
    i = pairs[:, 0]
    same = torch.bincount(i, minlength=len(log_rows))
    most = int(same.max())
    if most <= 1:
        return log_rows[i]
    order = torch.argsort(i, stable=True)
    start = same.cumsum(0) - same
    place = torch.empty_like(order)
    place[order] = torch.arange(len(i), device=i.device) - start[i[order]]
    table = torch.full((len(log_rows), most), -torch.inf, dtype=log_pairs.dtype, device=i.device)
    table = table.index_put((i, place), log_pairs)[i]
    table = table.scatter(1, place.unsqueeze(1), -torch.inf)
    return torch.logsumexp(torch.cat([table, log_rows[i].unsqueeze(1)], 1), 1)


def distinct_pairs(
    pairs: Int[Tensor, "p 2"], n: int
) -> tuple[Int[Tensor, "d 2"], Int[Tensor, " p"]]:
    """(The distinct pairs among n items, in order; the place of each pair in them): ``unique`` by rows is slow."""
    row, column = pairs.long().unbind(-1)
    flat, place = torch.unique(row * n + column, return_inverse=True)
    return torch.stack([flat // n, flat % n], -1), place


def partners(pairs: Int[Tensor, "p 2"], shape: tuple[int, int], first: int = 0) -> Tensor:
    """The matrix [a, n] of pairs (row, item) and of each row with its own item, row 0 being item ``first``."""
    mask = torch.zeros(shape, dtype=torch.bool, device=pairs.device)
    rows = torch.arange(shape[0], device=pairs.device)
    mask[rows, rows + first] = True
    mask[pairs[:, 0], pairs[:, 1]] = True
    return mask


def log_sum_by_row(logs: Float[Tensor, " p"], row: Int[Tensor, " p"], n: int) -> Tensor:
    """The log of the sum of exponentials per row, -inf for rows without any."""
    top = torch.full((n,), -torch.inf, dtype=logs.dtype, device=logs.device)
    top = top.scatter_reduce(0, row, logs.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, row, torch.exp(logs - top[row]))
    some = total > 0
    return torch.where(some, torch.log(torch.where(some, total, 1.0)) + top, -torch.inf)


def _log_lost(cosine: Tensor, kappa1: Tensor, kappa2: Tensor, items: Items) -> Tensor:
    """The logs of pairs that the series cannot give: by integrals, very many by interpolation."""
    if len(cosine) < _MANY:
        return log_positivity_by_integral(cosine, kappa1, kappa2, items.kappa_pos, items.dim)
    tolerance = _TOLERANCE[items.mu.dtype] / 3
    return interpolated_log_positivity(
        cosine, kappa1, kappa2, items.kappa_pos, items.dim, tolerance=tolerance
    )


def _unit(mu: Tensor) -> Tensor:
    """The directions with norm 1 to rounding in their own dtype, so that gradients are tangential."""
    return mu / torch.linalg.vector_norm(mu, dim=-1, keepdim=True)
