"""Sets: how often retrieved sets hold a partner, how large they are, and how mixed, for clear and ambiguous queries."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from aureole.errors import InvalidInputError


def set_coverage(inside: Bool[Tensor, "q g"], chance: Float[Tensor, "q g"]) -> Float[Tensor, " q"]:
    """The probability that each query's set holds its partner, drawn from the gallery by the chances of its row.

    Examples
    --------
    >>> inside = torch.tensor([[True, True, False], [True, False, False]])
    >>> set_coverage(inside, torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]))
    tensor([0.7500, 0.5000], dtype=torch.float64)
    """
    total = chance.double().sum(-1)
    if not (bool((chance >= 0).all()) and bool(((total - 1).abs() <= 1e-4).all())):
        raise InvalidInputError(
            "the chances of a query's partners must be at least 0 and sum to 1."
        )
    return torch.where(inside, chance.double(), 0.0).sum(-1)


def set_share(inside: Bool[Tensor, "q g"]) -> Float[Tensor, " q"]:
    """The share of the gallery that each query's set holds.

    Examples
    --------
    >>> set_share(torch.tensor([[True, True, False, False], [True, False, False, False]]))
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    return inside.double().mean(-1)


def set_class_entropy(
    weight: Bool[Tensor, "q g"] | Float[Tensor, "q g"], labels: Integer[Tensor, " g"]
) -> Float[Tensor, " q"]:
    """The entropy, in nats, of the classes in each query's set; NaN for an empty one, since nothing is no certainty.

    ``weight`` is whether an item is in the set, or how much it counts.

    Examples
    --------
    >>> inside = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    >>> set_class_entropy(inside, torch.tensor([4, 4, 7]))
    tensor([0.0000, 0.6365,    nan], dtype=torch.float64)
    """
    one_hot = torch.nn.functional.one_hot(labels.long()).double()
    counts = weight.double() @ one_hot
    share = counts / counts.sum(-1, keepdim=True)
    return torch.special.entr(share).sum(-1)


def thirds(values: Float[Tensor, " n"]) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
    """(Which items are in the lowest third, which in the highest); all that tie with a third's last item are in it.

    Examples
    --------
    >>> low, high = thirds(torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]))
    >>> low.sum().item(), high.sum().item()
    (3, 2)
    """
    if values.dim() != 1 or len(values) < 3 or bool(torch.isnan(values).any()):
        raise InvalidInputError("thirds need three values or more, none of them NaN.")
    count = len(values) // 3
    ranked = values.sort().values
    return values <= ranked[count - 1], values >= ranked[-count]
