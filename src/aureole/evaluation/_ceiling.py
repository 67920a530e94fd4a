"""The ceiling that few votes put on any prediction of people's disagreement."""

import torch
from jaxtyping import Int
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.evaluation._ranks import spearman


def split_half_rank(
    counts: Int[Tensor, "n classes"], generator: torch.Generator | None = None
) -> float:
    """The rank correlation of the entropies that two random halves of each item's votes have.

    Examples
    --------
    >>> split_half_rank(torch.tensor([[40, 0], [20, 20], [30, 10]]), torch.Generator().manual_seed(0))
    1.0
    """
    if bool((counts < 0).any()) or bool((counts.sum(-1) < 2).any()):
        raise InvalidInputError(
            "counts must not be negative, and each item needs two votes or more."
        )
    n, classes = counts.shape
    total = counts.sum(-1)
    owner = torch.arange(n).repeat_interleave(total)
    vote = torch.arange(classes).repeat(n).repeat_interleave(counts.flatten())
    # a random order of the votes within each item: the first half of them is one half
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
    r"""The mean split-half correlation r, and the best that a perfect predictor can reach, :math:`\sqrt{2r/(1+r)}`.

    The second is the Spearman-Brown formula for the reliability of all votes, and the attenuation that an
    unreliable measure puts on the correlation with its own truth. Where the halves agree no better than by chance,
    r of 0 or less, nothing is there to be predicted, and the ceiling is 0. NaN where a split has no ranking.
    """
    if splits < 1:
        raise InvalidInputError(f"a ceiling needs one split or more, but got splits={splits}.")
    halves = [split_half_rank(counts, generator) for _ in range(splits)]
    mean = sum(halves) / splits
    ceiling = 0.0 if mean <= 0 else (2 * mean / (1 + mean)) ** 0.5
    return {"split_half_rank": mean, "ceiling_rank": ceiling}


def _entropy(counts: Tensor) -> Tensor:
    shares = (counts / counts.sum(-1, keepdim=True)).sort(-1).values  # so that ties tie exactly
    return torch.special.entr(shares).sum(-1)
