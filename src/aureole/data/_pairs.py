"""Batches for contrastive learning: inputs with the positive pairs among them, or anchors, partners and negatives."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError


@dataclass(frozen=True)
class PairBatch:
    """N inputs of the data's marginal and P positive pairs (anchor, partner) among them, as indices [P, 2].

    ``expected_pairs`` is the mean of P over batches: a sum over pairs divided by it is unbiased, where dividing by P
    itself would not be. A loss takes it as ``loss.among(posterior, pairs)``.
    """

    inputs: Tensor
    pairs: Int[Tensor, "p 2"]
    expected_pairs: float


@dataclass(frozen=True)
class Triplets:
    """Anchors [B, ...], their partners [B, ...] and fresh negatives [M, ...] or [B, M, ...]; None for in-batch ones."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None = None


def poisson_pairs(
    rate: Float[Tensor, "n n"], n_pairs: float | int, generator: torch.Generator | None = None
) -> Int[Tensor, "p 2"]:
    """Ordered pairs of different items, each seen a Poisson number of times, ``n_pairs`` times its rate in all.

    The rates should be 1 on average over n (n - 1) pairs for ``n_pairs`` to be the expected number.

    Examples
    --------
    >>> poisson_pairs(torch.ones(3, 3), 600.0, torch.Generator().manual_seed(0)).unique(dim=0)
    tensor([[0, 1],
            [0, 2],
            [1, 0],
            [1, 2],
            [2, 0],
            [2, 1]])
    """
    n = len(rate)
    mean = (rate * (n_pairs / (n * (n - 1)))).fill_diagonal_(0)
    counts = torch.poisson(mean, generator=generator).long()
    return counts.nonzero().repeat_interleave(counts[counts > 0], 0)


def label_rates(
    probabilities: Float[Tensor, "n classes"], prior: Float[Tensor, " classes"]
) -> Float[Tensor, "n n"]:
    r"""How much more often than by chance two items are a positive pair: :math:`\sum_c P(c|x_i) P(c|x_j) / P(c)`.

    The pair is made by drawing a class of the first item and then an item of that class, each by their soft labels
    (the paper's supplement C.1). ``prior`` is the mean of the soft labels over the data; the rates are then 1 on
    average. Hard labels are soft labels of 0 and 1.

    Examples
    --------
    >>> label_rates(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0.75, 0.25]))
    tensor([[1.3333, 0.6667],
            [0.6667, 1.3333]])
    """
    unseen = (prior <= 0) & (probabilities > 0).any(0)
    if bool(unseen.any()):
        raise InvalidInputError(
            f"prior must be positive where a label is, but prior{first_index(unseen)} is "
            f"{prior[unseen][0]:g}. Take the mean of the soft labels over all items."
        )
    seen = prior > 0
    return (probabilities[:, seen] / prior[seen]) @ probabilities[:, seen].T


def partner_chances(
    query: Float[Tensor, "q classes"], gallery: Float[Tensor, "g classes"]
) -> Float[Tensor, "q g"]:
    r"""How likely each item of a gallery is a query's partner, :math:`\sum_c P(c|q) P(c|g) / \sum_{g'} P(c|g')`.

    The partner is made as in ``label_rates``: a class of the query, then an item of that class, each by their (soft)
    labels. Rows sum to 1, in float64.

    Examples
    --------
    >>> partner_chances(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.2500, 0.2500, 0.5000]], dtype=torch.float64)
    """
    query, gallery = query.double(), gallery.double()
    total = gallery.sum(0)
    missing = (total <= 0) & (query > 0).any(0)
    if bool(missing.any()):
        raise InvalidInputError(
            f"no item of the gallery has class {int(missing.nonzero()[0])}, but a query does: it has no partner."
        )
    seen = total > 0
    query = query / query.sum(-1, keepdim=True)
    return query[:, seen] @ (gallery[:, seen] / total[seen]).T


def disjoint_pairs(
    rate: Float[Tensor, "n n"], n_pairs: int, generator: torch.Generator | None = None
) -> Int[Tensor, "p 2"]:
    """Up to ``n_pairs`` pairs in which no item is twice: items in random order draw a partner among those left.

    A partner is drawn in proportion to its rate; an item with no partner left is passed over. Leave some items over:
    the last to draw has little to draw from.

    Examples
    --------
    >>> same = torch.eye(2).repeat_interleave(3, 0) @ torch.eye(2).repeat_interleave(3, 1)
    >>> pairs = disjoint_pairs(same, 3, torch.Generator().manual_seed(0))  # three items of each class
    >>> len(pairs), (pairs < 3).all(1).sum().item()
    (2, 1)
    """
    n = len(rate)
    free = torch.ones(n, dtype=torch.bool)
    pairs: list[tuple[int, int]] = []
    for item in torch.randperm(n, generator=generator).tolist():
        if len(pairs) == n_pairs:
            break
        if not free[item]:
            continue
        free[item] = False
        left = torch.where(free, rate[item], 0.0)
        if bool((left > 0).any()):
            partner = int(torch.multinomial(left, 1, generator=generator))
            free[partner] = False
            pairs.append((item, partner))
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
