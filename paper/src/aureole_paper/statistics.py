"""Partial rank correlation, the noise ceiling of a target that is a few votes, and bootstrap intervals."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.evaluation import spearman


def partial_spearman(
    first: Float[Tensor, " n"], second: Float[Tensor, "..."], given: Float[Tensor, "..."]
) -> float:
    r"""The partial rank correlation of two vectors, controlling for a third.

    :math:`(r_{12} - r_{13} r_{23}) / \sqrt{(1 - r_{13}^2)(1 - r_{23}^2)}` of the three rank correlations.

    Examples
    --------
    >>> length = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> a, b = length + torch.tensor([0, 2, 0, 2, 0, 2]), length + torch.tensor([2.5, 0, 2.5, 0, 2.5, 0])
    >>> spearman(a, b) > 0.3, partial_spearman(a, b, length) < -0.3
    (True, True)
    """
    one, two, both = spearman(first, given), spearman(second, given), spearman(first, second)
    rest = (1 - one**2) * (1 - two**2)
    return (both - one * two) / rest**0.5 if rest > 0 else float("nan")


def split_half_rank(
    counts: Int[Tensor, "n classes"], generator: torch.Generator | None = None
) -> float:
    """The rank correlation of the entropies of two random halves of the votes of each item.

    Examples
    --------
    >>> split_half_rank(torch.tensor([[40, 0], [20, 20], [30, 10]]), torch.Generator().manual_seed(0))
    1.0
    """
    if bool((counts < 0).any()) or bool((counts.sum(-1) < 2).any()):
        raise InvalidInputError(
            "counts must not be negative, and each item needs at least two votes."
        )
    n, classes = counts.shape
    total = counts.sum(-1)
    owner = torch.arange(n).repeat_interleave(total)
    vote = torch.arange(classes).repeat(n).repeat_interleave(counts.flatten())
    # shuffle the votes within each item; the first half of them is one half
    order = torch.rand(len(owner), generator=generator, dtype=torch.float64)
    order = (owner + order).argsort()
    rank = torch.arange(len(owner)) - (total.cumsum(0) - total)[owner]
    first = rank < (total // 2)[owner]
    cell = owner * classes + vote[order]
    halves = [torch.bincount(cell[part], minlength=n * classes) for part in (first, ~first)]
    entropies = [_entropy(half.view(n, classes)) for half in halves]
    return spearman(*entropies)


def vote_ceiling(
    counts: Int[Tensor, "n classes"], *, splits: int = 20, generator: torch.Generator | None = None
) -> dict[str, float]:
    r"""The noise ceiling: the mean split-half correlation r, and the best that a perfect predictor can reach.

    That best is :math:`\sqrt{2r/(1+r)}`: the Spearman-Brown formula gives the reliability of all votes, and its root is
    the correlation of an unreliable measure with its own truth. If the halves agree no better than by chance (r at most
    0), the ceiling is 0. NaN if a split has no ranking.
    """
    if splits < 1:
        raise InvalidInputError(f"splits must be at least 1, but is {splits}.")
    halves = [split_half_rank(counts, generator) for _ in range(splits)]
    mean = sum(halves) / splits
    ceiling = 0.0 if mean <= 0 else (2 * mean / (1 + mean)) ** 0.5
    return {"split_half_rank": mean, "ceiling_rank": ceiling}


def _entropy(counts: Tensor) -> Tensor:
    shares = (counts / counts.sum(-1, keepdim=True)).sort(-1).values  # so that ties tie exactly
    return torch.special.entr(shares).sum(-1)


def bootstrap(
    statistic: Callable[[Int[Tensor, " n"]], float],
    clusters: Int[Tensor, " n"],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """A statistic and its percentile bootstrap interval, (value, low, high), resampling whole clusters.

    ``statistic`` is called with the indices of a resample. Items of one cluster (such as readings of one sentence) are
    not independent, so they are drawn together.

    Examples
    --------
    >>> values = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    >>> interval = bootstrap(lambda rows: values[rows].mean().item(), torch.arange(6))
    >>> [round(x, 2) for x in interval]
    [0.67, 0.33, 1.0]
    """
    if not 0 < level < 1:
        raise InvalidInputError(f"level must be between 0 and 1, but is {level}.")
    values = _resampled(statistic, clusters, draws, seed)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.quantile(ends).tolist()
    return statistic(torch.arange(len(clusters))), low, high


def bootstrap_error(
    statistic: Callable[[Int[Tensor, " n"]], float],
    clusters: Int[Tensor, " n"],
    *,
    draws: int = 200,
    seed: int = 0,
) -> float:
    """The standard error of a statistic over the choice of items: its standard deviation over bootstrap resamples.

    Like :func:`bootstrap`, it resamples whole clusters. Resamples whose statistic is not finite are left out (such as
    the R-AUROC of a resample without errors); NaN if fewer than two remain.

    Parameters
    ----------
    statistic
        Called with the indices of the items of a resample; returns the statistic.
    clusters
        The cluster of each item; ``torch.arange(n)`` if items are independent.
    draws
        Number of resamples (default 200; the relative error of the result is about 1 / sqrt(2 draws), 5 %).
    seed
        Seed of the resamples.

    Examples
    --------
    >>> values = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    >>> error = bootstrap_error(lambda rows: values[rows].mean().item(), torch.arange(6), draws=2000)
    >>> round(error, 2), round((2 / 9 / 6) ** 0.5, 2)
    (0.19, 0.19)
    """
    values = _resampled(statistic, clusters, draws, seed)
    values = values[values.isfinite()]
    return values.std().item() if len(values) > 1 else float("nan")


def _resampled(
    statistic: Callable[[Tensor], float], clusters: Tensor, draws: int, seed: int
) -> Tensor:
    """The statistic of each resample of whole clusters."""
    if clusters.dim() != 1 or not len(clusters):
        raise InvalidInputError(
            f"clusters must hold one number per item, but has shape {tuple(clusters.shape)}."
        )
    if draws < 1:
        raise InvalidInputError(f"draws must be at least 1, but is {draws}.")
    _, cluster, sizes = clusters.unique(return_inverse=True, return_counts=True)
    order, starts = cluster.argsort(stable=True), sizes.cumsum(0) - sizes
    rng = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(draws):
        chosen = torch.randint(len(sizes), (len(sizes),), generator=rng)
        size = sizes[chosen]
        within = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
        values.append(statistic(order[starts[chosen].repeat_interleave(size) + within]))
    return torch.tensor(values, dtype=torch.float64)
