"""Draws of posteriors inside Monte Carlo losses: random or quasi-random, and sums over them in bounded memory."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError

__all__ = ["check_samples", "draw", "log_mean_exp_over_draws"]

_PAIRS_AT_ONCE = 2**22  # similarities kept at a time; more are computed again in the backward pass


def draw(
    posterior: VonMisesFisher, n_samples: int, *, quasi: bool = False
) -> Float[Tensor, "k *batch dim"]:
    """Draws [K, *batch, D] with their gradient.

    With ``quasi`` each posterior gets the same K Sobol points, shifted by a random vector of its own (modulo 1): still
    uniform, so unbiased, and independent between posteriors.
    """
    if not quasi:
        return posterior.rsample((n_samples,))
    engine = torch.quasirandom.SobolEngine(posterior.dim, scramble=False)
    points = engine.draw(n_samples, dtype=torch.float64).to(posterior.mu.device)
    points = points.reshape(n_samples, *(1 for _ in posterior.batch_shape), posterior.dim)
    shift = torch.rand(posterior.mu.shape, dtype=torch.float64, device=posterior.mu.device)
    return posterior.transport((points + shift) % 1)


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
    return torch.logsumexp(parts, 0) - torch.log(torch.tensor(float(n_samples)))


def check_samples(n_samples: int) -> int:
    """The number of draws, if it is a positive integer."""
    if isinstance(n_samples, bool) or not isinstance(n_samples, int) or n_samples < 1:
        raise InvalidInputError(f"n_samples must be a positive integer, but is {n_samples!r}.")
    return n_samples
