"""Closed-form InfoNCE over posteriors with several modes: expected positivity is bilinear in the weights."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF
from aureole.losses._cross_entropy import log1p_exp
from aureole.losses._positivity_sums import (
    Items,
    log_others,
    log_pairs,
    log_row_sums,
    log_sum_by_row,
    log_weighted_sum,
    partners,
)


def mixture_among(
    posterior: MixtureVMF, pairs: Int[Tensor, "p 2"], *, kappa_pos: Tensor | float
) -> Float[Tensor, " p"]:
    r"""The loss :math:`-\log\frac{h_{ij}}{\sum_{k \ne i} h_{ik}}` of pairs (i, j) among N mixtures of c components.

    :math:`h_{ij} = \sum_{ab} w_{ia} w_{jb}\,h(\mu_{ia}^T\mu_{jb}, \kappa_{ia}, \kappa_{jb})`. Precision as in
    ``closed_form_infonce``; cost (N^2 + P) c^2 terms.
    """
    n, count = posterior.weights.shape
    weights = posterior.weights.double()
    (components,) = Items.of([(posterior.mu, posterior.kappa)], kappa_pos)
    pairs, listed = torch.unique(pairs, dim=0, return_inverse=True)
    i, j = pairs.unbind(-1)
    each = log_pairs(components[i][:, :, None], components[j][:, None])
    log_known = log_weighted_sum(
        each.flatten(1), (weights[i, :, None] * weights[j, None]).flatten(1)
    )
    known = log_sum_by_row(log_known.detach(), i, n)
    excluded = partners(pairs, (n, n)).repeat_interleave(count, 0).repeat_interleave(count, 1)
    flat = Items(
        components.mu.flatten(0, 1),
        components.kappa.flatten(),
        None if components.logs is None else components.logs.flatten(0, 1),
        components.kappa_pos,
    )
    log_rows = log_row_sums(
        flat,
        flat,
        excluded=excluded,
        weights=weights.flatten(),
        log_known=known.repeat_interleave(count),
    )
    log_rows = log_weighted_sum(log_rows.view(n, count), weights)
    loss = log1p_exp(log_others(log_rows, log_known, pairs) - log_known)
    return loss.to(posterior.mu.dtype)[listed]
