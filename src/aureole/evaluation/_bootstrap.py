"""Bootstrap: how far a figure could be from itself on another sample of the same size."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from aureole.errors import InvalidInputError


def bootstrap(
    statistic: Callable[[Int[Tensor, " n"]], float],
    clusters: Int[Tensor, " n"],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """(The statistic, the ends of its percentile interval) under drawing whole clusters with replacement.

    ``statistic`` takes the places of items, some several times. Items of one cluster (readings of one sentence) are not
    independent, so they come together or not at all.

    Examples
    --------
    >>> values = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    >>> found = bootstrap(lambda rows: values[rows].mean().item(), torch.arange(6))
    >>> [round(x, 2) for x in found]
    [0.67, 0.33, 1.0]
    """
    if clusters.dim() != 1 or not len(clusters):
        raise InvalidInputError(
            f"clusters must be one number per item, but have shape {tuple(clusters.shape)}."
        )
    if draws < 1 or not 0 < level < 1:
        raise InvalidInputError(
            f"an interval needs one draw or more and a level between 0 and 1, but got draws={draws} and level={level}."
        )
    _, cluster, sizes = clusters.unique(return_inverse=True, return_counts=True)
    order, starts = cluster.argsort(stable=True), sizes.cumsum(0) - sizes
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws):
        chosen = torch.randint(len(sizes), (len(sizes),), generator=rng)
        size = sizes[chosen]
        within = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
        found.append(statistic(order[starts[chosen].repeat_interleave(size) + within]))
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.tensor(found, dtype=torch.float64).quantile(ends).tolist()
    return statistic(torch.arange(len(clusters))), low, high
