"""Metrics of ranked lists, and of credible sets: their coverage, size and class entropy."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from aureole.errors import InvalidInputError


def average_precision(
    score: Float[Tensor, "*batch n"], relevant: Bool[Tensor, "*batch n"]
) -> Float[Tensor, "*batch"]:
    r"""The average precision of each ranking: the mean, over its relevant items, of the precision at their ranks.

    Items are sorted by descending score; ties keep their input order. NaN if no item is relevant. In float64; the mean
    over queries is mAP.

    Examples
    --------
    >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
    tensor(0.8333, dtype=torch.float64)
    """
    ranked = relevant.gather(-1, _by_descending_score(score, relevant)).double()
    rank = torch.arange(1, ranked.shape[-1] + 1, dtype=torch.float64, device=ranked.device)
    return (ranked * ranked.cumsum(-1) / rank).sum(-1) / ranked.sum(-1)


def normalised_gain(
    score: Float[Tensor, "*batch n"], gain: Float[Tensor, "*batch n"], *, depth: int | None = None
) -> Float[Tensor, "*batch"]:
    r"""nDCG: :math:`\sum_r g_r / \log_2(1 + r)` over the first ``depth`` ranks, divided by that of the best ranking.

    Gains must not be negative and are used as they are (no powers of two). Items are sorted by descending score; ties
    keep their input order. NaN if no item has a gain. In float64.

    Examples
    --------
    >>> gain = torch.tensor([1.0, 0.5, 0.0])
    >>> normalised_gain(torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]), gain.expand(2, 3))
    tensor([1.0000, 0.6199], dtype=torch.float64)
    """
    if bool((~(gain >= 0)).any()):
        raise InvalidInputError("gains must be at least 0, but one is negative or NaN.")
    if depth is not None and depth < 1:
        raise InvalidInputError(f"depth must be at least 1, but is {depth}.")
    gain = gain.double()
    ranked = gain.gather(-1, _by_descending_score(score, gain))[..., :depth]
    best = gain.sort(-1, descending=True).values[..., :depth]
    rank = torch.arange(1, ranked.shape[-1] + 1, dtype=torch.float64, device=gain.device)
    discount = 1 / torch.log2(1 + rank)
    return (ranked * discount).sum(-1) / (best * discount).sum(-1)


def _by_descending_score(score: Tensor, other: Tensor) -> Tensor:
    """The indices of items by descending score, if there is one score per item."""
    if score.shape != other.shape or score.dim() == 0:
        raise InvalidInputError(
            f"a ranking needs one score per item, but got shapes {tuple(score.shape)} and {tuple(other.shape)}."
        )
    if bool(torch.isnan(score).any()):
        raise InvalidInputError("a score is NaN, which has no rank. Drop these items first.")
    return torch.sort(score, dim=-1, descending=True, stable=True).indices


def set_coverage(
    inside: Bool[Tensor, "q g"], probability: Float[Tensor, "q g"]
) -> Float[Tensor, " q"]:
    """The probability that the set of each query contains its partner, given the probability of each gallery item.

    Examples
    --------
    >>> inside = torch.tensor([[True, True, False], [True, False, False]])
    >>> set_coverage(inside, torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]))
    tensor([0.7500, 0.5000], dtype=torch.float64)
    """
    total = probability.double().sum(-1)
    if not (bool((probability >= 0).all()) and bool(((total - 1).abs() <= 1e-4).all())):
        raise InvalidInputError("the probabilities of each query must be at least 0 and sum to 1.")
    return torch.where(inside, probability.double(), 0.0).sum(-1)


def set_share(inside: Bool[Tensor, "q g"]) -> Float[Tensor, " q"]:
    """The share of the gallery that is in the set of each query.

    Examples
    --------
    >>> set_share(torch.tensor([[True, True, False, False], [True, False, False, False]]))
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    return inside.double().mean(-1)


def set_class_entropy(
    weight: Bool[Tensor, "q g"] | Float[Tensor, "q g"], labels: Integer[Tensor, " g"]
) -> Float[Tensor, " q"]:
    """The entropy, in nats, of the classes in the set of each query; NaN for an empty set.

    ``weight`` says which items are in the set, or how much each one counts.

    Examples
    --------
    >>> inside = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    >>> set_class_entropy(inside, torch.tensor([4, 4, 7]))
    tensor([0.0000, 0.6365,    nan], dtype=torch.float64)
    """
    places = labels.unique(return_inverse=True)[1]  # labels may be large, such as hashes
    one_hot = torch.nn.functional.one_hot(places).double()
    counts = weight.double() @ one_hot
    share = counts / counts.sum(-1, keepdim=True)
    return torch.special.entr(share).sum(-1)


def thirds(values: Float[Tensor, " n"]) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
    """Masks of the items in the lowest and in the highest third; ties with the last item of a third are included.

    Examples
    --------
    >>> low, high = thirds(torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]))
    >>> low.sum().item(), high.sum().item()
    (3, 2)
    """
    if values.dim() != 1 or len(values) < 3 or bool(torch.isnan(values).any()):
        raise InvalidInputError("thirds need at least three values, none of them NaN.")
    count = len(values) // 3
    ranked = values.sort().values
    return values <= ranked[count - 1], values >= ranked[-count]
