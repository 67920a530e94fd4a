"""Cross-entropies of matrices of log scores: InfoNCE of separate negatives, and of pairs among items."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.losses._log_sums import distinct_pairs, log_others, partners


def cross_entropy(
    positive: Float[Tensor, "*batch"], negative: Float[Tensor, "*batch m"]
) -> Float[Tensor, "*batch"]:
    r"""Return the InfoNCE loss :math:`-\log\frac{e^p}{e^p + \sum_m e^{n_m}}` of log scores; log(M + 1) at chance."""
    return log1p_exp(torch.logsumexp(negative, -1) - positive)


def cross_entropy_among(
    scores: Float[Tensor, "n n"], pairs: Int[Tensor, "p 2"]
) -> Float[Tensor, " p"]:
    r"""Return the loss :math:`-\log\frac{e^{s_{ij}}}{\sum_{k \ne i} e^{s_{ik}}}` of pairs (i, j) among n items."""
    pairs, listed = distinct_pairs(pairs, len(scores))
    own = scores[pairs[:, 0], pairs[:, 1]]
    rest = scores.masked_fill(partners(pairs, (len(scores), len(scores))), -torch.inf)
    return log1p_exp(log_others(torch.logsumexp(rest, -1), own, pairs) - own)[listed]


def log1p_exp(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return log(1 + e^x) to rounding for every x: ``softplus`` drops 2e-9 from its threshold on."""
    return torch.logaddexp(x, torch.zeros_like(x))
