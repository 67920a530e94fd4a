"""Draws of posteriors inside Monte Carlo losses: random or quasi-random, and sums over them in bounded memory."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError

_PAIRS_AT_ONCE = 2**22  # similarities kept at a time; more are computed again in the backward pass


def draw(
    posteriors: Sequence[VonMisesFisher], n_samples: int, *, quasi: bool = False
) -> list[Float[Tensor, "k *batch dim"]]:
    """Draws [K, *batch, D] of each batch of posteriors, with their gradients.

    With ``quasi`` those of each posterior come from a Sobol sequence, shifted by a random vector of its own (modulo 1)
    and put in a random order of its own. Every point is uniform on the cube. In one order for all, the k-th points of
    two posteriors would lie the same shift apart for every k, and a mean over k would not be one over their product.
    """
    if not quasi:
        return [q.rsample((n_samples,)) for q in posteriors]
    return [q.transport(_shifted_points(q, n_samples)) for q in posteriors]


def _shifted_points(q: VonMisesFisher, n_samples: int) -> Tensor:
    """Points [K, *batch, D] of the cube: a Sobol sequence per posterior, shifted and shuffled at random."""
    engine = torch.quasirandom.SobolEngine(q.dim, scramble=False)
    points = engine.draw(n_samples, dtype=torch.float64).to(q.mu.device)
    shift = torch.rand(q.mu.shape, dtype=torch.float64, device=q.mu.device)
    order = torch.rand(n_samples, *q.batch_shape, device=q.mu.device).argsort(0)
    return (points[order] + shift) % 1


def log_mean_exp_over_draws(
    function: Callable[..., Tensor], draws: list[Tensor], pairs_per_draw: int
) -> Tensor:
    """The log of mean_k exp(function(draws_k)), in blocks of draws whose similarities are not all kept in memory."""
    n_samples = draws[0].shape[0]
    block = max(1, _PAIRS_AT_ONCE // max(1, pairs_per_draw))
    if block >= n_samples:
        parts = function(*draws)
    else:

        def reduced(*some: Tensor) -> Tensor:
            return torch.logsumexp(function(*some), 0, keepdim=True)

        pieces = zip(*(d.split(block) for d in draws), strict=True)
        parts = torch.cat([checkpoint(reduced, *piece, use_reentrant=False) for piece in pieces])
    return torch.logsumexp(parts, 0) - math.log(n_samples)


def check_samples(n_samples: int) -> int:
    """The number of draws, if it is a positive integer."""
    if isinstance(n_samples, bool) or not isinstance(n_samples, int) or n_samples < 1:
        raise InvalidInputError(f"n_samples must be a positive integer, but is {n_samples!r}.")
    return n_samples
