"""Closed-form InfoNCE over posteriors with several modes: expected positivity is bilinear in the weights."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF, log_expected_positivity
from aureole.losses._closed_form import FLOOR, NOISE, Series
from aureole.sphere import pairwise_from_ratios, zonal_basis


def mixture_among(
    posterior: MixtureVMF, pairs: Int[Tensor, "p 2"], *, kappa_pos: Tensor | float
) -> Float[Tensor, " p"]:
    r"""The loss :math:`-\log\frac{h_{ij}}{\sum_{k \ne i} h_{ik}}` of pairs (i, j) among N mixtures of c components.

    :math:`h_{ij} = \sum_{ab} w_{ia} w_{jb}\,h(\mu_{ia}^T\mu_{jb}, \kappa_{ia}, \kappa_{jb})`. Precision as in
    ``closed_form_infonce``; cost (N^2 + P) c^2 terms.
    """
    n, count = posterior.weights.shape
    series = Series.of(posterior.kappa.flatten(), kappa_pos, posterior.dim)
    ratios = series.ratios.view(n, count, -1) * posterior.weights.double().unsqueeze(-1)
    i, j = pairs.unbind(-1)
    log_pairs = _log_pairs(posterior, i, j, ratios, series)
    log_rows = torch.zeros(n, dtype=torch.float64, device=pairs.device)
    left = torch.arange(n, device=pairs.device)
    for dtype in (torch.float32, torch.float64):
        if torch.finfo(dtype).bits < torch.finfo(posterior.mu.dtype).bits or not len(left):
            continue
        value, clear = _log_rows(posterior, left, ratios, series, dtype)
        log_rows = log_rows.index_put((left[clear],), value[clear])
        left = left[~clear]
    if len(left):
        first, second = _take(posterior, left).expand((n, len(left))), _take(posterior, slice(None))
        each = log_expected_positivity(first, _column(second), series.kappa_pos).T
        itself = left.unsqueeze(1) == torch.arange(n, device=pairs.device)
        total = torch.logsumexp(each.masked_fill(itself, -torch.inf), -1)
        log_rows = log_rows.index_put((left,), total.double())
    return (log_rows[i] - log_pairs).to(posterior.mu.dtype)


def _log_pairs(
    posterior: MixtureVMF, i: Tensor, j: Tensor, ratios: Tensor, series: Series
) -> Tensor:
    """Log h of each pair in float64: by the series, by integrals where the series has lost its digits."""
    mu = posterior.mu.double()
    cosine = torch.einsum("pad,pbd->pab", mu[i], mu[j]).clamp(-1, 1)
    terms = ratios[i].unsqueeze(2) * ratios[j].unsqueeze(1) * series.terms
    bound = terms.sum((1, 2, 3))
    share = (terms * zonal_basis(cosine, series.dim, terms.shape[-1])).sum((1, 2, 3)) / bound
    trusted = share > FLOOR
    value = torch.log(torch.where(trusted, share, 1.0)) + torch.log(bound)
    lost = (~trusted).nonzero()[:, 0]
    if not len(lost):
        return value
    exact = log_expected_positivity(
        _take(posterior, i[lost]), _take(posterior, j[lost]), series.kappa_pos
    )
    return value.index_put((lost,), exact.double())


def _log_rows(
    posterior: MixtureVMF, rows: Tensor, ratios: Tensor, series: Series, dtype: torch.dtype
) -> tuple[Float[Tensor, " r"], Bool[Tensor, " r"]]:
    """(Log of the sum over all other items, whether rounding in this dtype does not show) per row."""
    n, count, _ = ratios.shape
    used = series.needed(dtype)
    own, rest = ratios[rows, :, :used], ratios[:, :, :used]
    mu = posterior.mu.to(dtype)
    cosine = (mu[rows].flatten(0, 1) @ mu.flatten(0, 1).T).clamp(-1, 1)
    values, scale = pairwise_from_ratios(
        cosine, own.flatten(0, 1), rest.flatten(0, 1), series.terms[:used], series.dim
    )
    values = values.view(len(rows), count, n, count).sum((1, 3)).clamp(min=0)
    itself = rows.unsqueeze(1) == torch.arange(n, device=rows.device)
    total = values.masked_fill(itself, 0.0).sum(-1, dtype=torch.float64)
    with torch.no_grad():
        bound = (own.sum(1) * series.terms[:used] * rest.sum((0, 1))).sum(-1)
        clear = (total > 0) & (torch.log(bound * (NOISE[dtype] / 1e-3)) < torch.log(total) + scale)
    return torch.log(torch.where(clear, total, 1.0)) + scale, clear


def _take(posterior: MixtureVMF, index: Tensor | slice) -> MixtureVMF:
    return MixtureVMF(
        posterior.weights[index], posterior.mu[index], posterior.kappa[index], validate_args=False
    )


def _column(posterior: MixtureVMF) -> MixtureVMF:
    return MixtureVMF(
        posterior.weights.unsqueeze(1),
        posterior.mu.unsqueeze(1),
        posterior.kappa.unsqueeze(1),
        validate_args=False,
    )
