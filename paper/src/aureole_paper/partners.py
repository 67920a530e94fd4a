"""Partners by soft labels: their probabilities in a gallery, and disjoint pairs of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.errors import InvalidInputError


def partner_chances(
    query: Float[Tensor, "q classes"], gallery: Float[Tensor, "g classes"]
) -> Float[Tensor, "q g"]:
    r"""How likely each item of a gallery is a query's partner, :math:`\sum_c P(c|q) P(c|g) / \sum_{g'} P(c|g')`.

    The partner is sampled as in ``label_rates``: a class of the query, then an item of that class, each by its (soft)
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
            f"no item of the gallery has class {int(missing.nonzero()[0])}, but a query does, so it has no partner."
        )
    seen = total > 0
    query = query / query.sum(-1, keepdim=True)
    return query[:, seen] @ (gallery[:, seen] / total[seen]).T


def disjoint_pairs(
    rate: Float[Tensor, "n n"], n_pairs: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "p 2"]:
    """Up to ``n_pairs`` pairs without a repeated item: items in random order draw a partner among those left.

    A partner is drawn in proportion to its rate; an item with no partner left is skipped. Ask for fewer than n / 2
    pairs, because the last items have few partners to choose from.

    Examples
    --------
    >>> same = torch.eye(2).repeat_interleave(3, 0) @ torch.eye(2).repeat_interleave(3, 1)
    >>> pairs = disjoint_pairs(same, 3, generator=torch.Generator().manual_seed(0))  # three items of each class
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
