"""Pairs of an input with itself, weights of pairs, and the agreement of annotators: two draws of one posterior."""

import torch
from jaxtyping import Float
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError
from aureole.sphere import log_normalizer, log_positivity


def log_self_match(
    kappa: Float[Tensor, "*batch"], kappa_pos: Tensor | float, dim: int
) -> Float[Tensor, "*batch"]:
    r"""The log of the chance that two independent draws of vMF(mu, kappa) match, in float64; mu does not matter.

    Draws z and z' match with chance :math:`e^{\kappa_{pos}(z^Tz' - 1)}`, so this rises from near 0 to 1 at kappa = inf.

    Examples
    --------
    >>> log_self_match(torch.tensor([16.0, 32.0, torch.inf]), kappa_pos=20.0, dim=64).exp()
    tensor([1.1126e-07, 7.8082e-07, 1.0000e+00], dtype=torch.float64)
    """
    both = kappa.double()
    scale = torch.as_tensor(kappa_pos, dtype=torch.float64, device=kappa.device)
    uniform = log_normalizer(torch.zeros_like(scale), dim)
    highest = log_normalizer(scale, dim) - uniform + scale  # of two draws that coincide
    value = log_positivity(torch.ones_like(both), both, both, scale, dim)
    # by rounding, a very concentrated posterior may lie just above the highest
    return (value - highest).clamp(max=0.0).masked_fill(torch.isinf(both), 0.0)


def agreement_loss(
    kappa: Float[Tensor, " n"],
    agreement: Float[Tensor, " n"],
    *,
    kappa_pos: Tensor | float,
    dim: int,
) -> Float[Tensor, ""]:
    r"""The mean of :math:`-a\log p - (1 - a)\log(1 - p)` over items whose agreement a was observed, in float64.

    ``agreement`` is the share of an item's pairs of annotators that agree, NaN where fewer than two annotated it. p is
    the chance that two draws of the item's posterior match. 0 if nothing was observed.
    """
    if agreement.shape != kappa.shape:
        raise InvalidInputError(
            f"agreement must have one value per item, shape {tuple(kappa.shape)}, but has shape "
            f"{tuple(agreement.shape)}."
        )
    wrong = (agreement < 0) | (agreement > 1)
    if bool(wrong.any()):
        raise InvalidInputError(
            f"agreement must lie in [0, 1], or be NaN where it was not observed, but agreement{first_index(wrong)} is "
            f"{agreement[wrong][0].item():.6g}."
        )
    seen = ~torch.isnan(agreement)
    share = agreement[seen].to(kappa.device, torch.float64)
    log_p = log_self_match(kappa[seen], kappa_pos, dim)
    some = share < 1  # the others have no mismatch, so that p = 1 costs nothing
    log_mismatch = torch.log(-torch.expm1(log_p[some]))
    total = -(share * log_p).sum() - ((1 - share[some]) * log_mismatch).sum()
    return total / max(1, len(share))


def listed_pairs(
    pairs: Tensor, weights: Float[Tensor, " p"] | None, n: int
) -> tuple[Tensor, Float[Tensor, " p"] | None]:
    """(Indices [P, 2], weights [P]) of listed pairs, which are not checked, or of a matrix of weights [N, N]."""
    if pairs.is_sparse or (pairs.is_floating_point() and pairs.shape == (n, n)):
        if weights is not None:
            raise InvalidInputError("pairs is a matrix of weights already: leave out weights.")
        matrix = pairs.coalesce() if pairs.is_sparse else pairs.to_sparse()
        if matrix.shape != (n, n):
            raise InvalidInputError(
                f"a matrix of weights of {n} items must have shape {(n, n)}, but has {tuple(matrix.shape)}."
            )
        pairs, weights = matrix.indices().T, matrix.values()
        present = weights != 0
        if not bool(present.all()):
            pairs, weights = pairs[present], weights[present]
        if not len(pairs):
            raise InvalidInputError("all weights of pairs are 0: at least one must be positive.")
    if weights is not None:
        _check_weights(weights, len(pairs))
    return pairs, weights


def _check_weights(weights: Tensor, n_pairs: int) -> None:
    if weights.shape != (n_pairs,):
        raise InvalidInputError(
            f"weights must have one value per pair, shape {(n_pairs,)}, but has shape {tuple(weights.shape)}."
        )
    bad = ~((weights >= 0) & torch.isfinite(weights))
    if bool(bad.any()):
        raise InvalidInputError(
            f"weights must be at least 0 and finite, but weights{first_index(bad)} is "
            f"{weights[bad][0].item():.6g} ({int(bad.sum())} of {bad.numel()} are off)."
        )
    if not bool((weights > 0).any()):
        raise InvalidInputError("all weights of pairs are 0: at least one must be positive.")
