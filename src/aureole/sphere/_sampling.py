r"""Draws of a vMF by rejection (Ulrich 1984, Wood 1994): for samples without a gradient.

A proposal for the cosine to mu is :math:`W = \frac{1 - (1 + b) Z}{1 - (1 - b) Z}` with Z from a symmetric beta law of
parameter (D - 1)/2 and :math:`b = (D - 1) / (2\kappa + \sqrt{4\kappa^2 + (D - 1)^2})`; at least two thirds are accepted
for every D and kappa. Everything is written for the height h = 1 - W, so that no digits are lost at large kappa.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.sphere._bessel import split_infinite

_FEW = 24  # dimensions up to which normals are cheaper than gamma draws
_CANDIDATES = 2  # for each rejected entry at first; twice as many in each round that follows


@torch.no_grad()
def random_height(
    normal: Float[Tensor, "*sample_batch"],
    square: Float[Tensor, "*sample_batch"],
    kappa: Float[Tensor, "*batch"],
    dim: int,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*sample_batch"]:
    """Independent draws of 1 minus the cosine to mu, in float64; 0 for kappa = inf, NaN where kappa is NaN or negative.

    The first proposal takes its beta draw from ``normal``, standard normal numbers, and ``square``, chi-square numbers
    with D - 1 degrees of freedom. The squared norms of D - 1 normals will do: they are independent of the normals'
    direction. Rejected entries are drawn again, in two or three rounds.

    Examples
    --------
    >>> normals = torch.randn(10_000, 5)
    >>> square = normals[:, 1:].square().sum(-1)
    >>> height = random_height(normals[:, 0], square, torch.tensor(20.0), 5)
    >>> (1 - height).mean().sub(0.9026).abs() < 0.01
    tensor(True)
    """
    bad = ~(kappa >= 0)  # would be rejected for ever
    infinite, kappa = split_infinite(torch.where(bad, 1.0, kappa))
    span = torch.full_like(kappa, dim - 1)
    b = span / (2 * kappa + torch.hypot(2 * kappa, span))
    normal = normal.double()
    beta = 0.5 - 0.5 * normal * torch.rsqrt(normal.square() + square.double())
    height, accepted = _propose(beta, b, kappa, dim, generator)
    left = (~accepted).reshape(-1).nonzero()[:, 0]
    flat, count = height.reshape(-1), _CANDIDATES
    wide = [x.expand(height.shape).reshape(-1, 1)[left] for x in (b, kappa)] if len(left) else []
    while len(left):
        beta = _random_beta(len(left), count, dim, flat.device, generator)
        again, accepted = _propose(beta, *wide, dim, generator)
        place = accepted.int().argmax(-1, keepdim=True)  # the first that is accepted
        done = accepted.gather(-1, place).squeeze(-1)
        flat[left[done]] = again.gather(-1, place).squeeze(-1)[done]
        left, wide, count = left[~done], [x[~done] for x in wide], 2 * count
    return flat.reshape(height.shape).masked_fill_(infinite, 0.0).masked_fill_(bad, torch.nan)


def _propose(
    beta: Tensor, b: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(Proposed heights, whether they are accepted)."""
    height = 2 * b * beta / (1 - (1 - b) * beta)
    mode = 2 * b / (1 + b)
    ratio = (mode + (1 - mode) * height) / (mode * (2 - mode))
    log_chance = torch.log(ratio).mul_(dim - 1).add_(kappa * (mode - height))
    level = torch.rand(height.shape, dtype=height.dtype, device=height.device, generator=generator)
    return height, log_chance >= level.log_()


def _random_beta(
    rows: int, columns: int, dim: int, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Draws of the symmetric beta law: a coordinate of uniform unit vectors, or a ratio of gamma draws."""
    if dim <= _FEW:
        normals = torch.randn(rows, columns, dim, device=device, generator=generator)
        return 0.5 + 0.5 * normals[..., 0].double() / torch.linalg.vector_norm(normals, dim=-1)
    shape = torch.full((2, rows, columns), (dim - 1) / 2, dtype=torch.float64, device=device)
    one, two = torch._standard_gamma(  # pyright: ignore[reportPrivateImportUsage]
        shape, generator=generator
    )
    return one / (one + two)
