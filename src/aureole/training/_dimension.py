"""The choice of a head's dimension by what it tells about held-out partners."""

import math
from collections.abc import Callable
from pathlib import Path

from aureole.errors import InvalidInputError
from aureole.training._fit import Fit

_DIMS = (8, 16, 32, 64)
_WORTH = 0.02  # nats of held-out information for which a larger dim is taken
_SHARE = 5  # each dim is tried for this part of the steps


def try_dims(
    train: Callable[[int, int, Path | None], Fit],
    largest: int,
    steps: int,
    checkpoint: Path | None = None,
) -> dict[int, float]:
    """The held-out information by dim, smallest first, until it no longer grows.

    ``train`` takes a dim, a number of steps and a checkpoint of its own, and returns a fit whose curve has the
    information.
    """
    found: dict[int, float] = {}
    for dim in (d for d in _DIMS if d <= largest):
        path = checkpoint and checkpoint.with_name(f"{checkpoint.stem}-{dim}{checkpoint.suffix}")
        found[dim] = best_information(train(dim, max(1, steps // _SHARE), path))
        if choose_dim(found) != dim:
            break
    if not found:
        raise InvalidInputError(f'dim="auto" needs vectors of {_DIMS[0]} dimensions or more.')
    return found


def choose_dim(dims: dict[int, float]) -> int:
    """The smallest dim after which the information grows by less than 0.02 nats.

    Examples
    --------
    >>> choose_dim({8: 1.0, 16: 1.5, 32: 1.51, 64: 1.9})
    16
    """
    chosen, *larger = sorted(dims)
    for dim in larger:
        if dims[dim] < dims[chosen] + _WORTH:
            break
        chosen = dim
    return chosen


def best_information(found: Fit) -> float:
    """The highest information on the curve of a fit, where it is a number.

    Examples
    --------
    >>> from torch import nn
    >>> best_information(Fit(nn.Identity(), [{"information": v} for v in (math.nan, 1.5, 1.25)]))
    1.5
    """
    values = [point["information"] for point in found.curve]
    return max((v for v in values if not math.isnan(v)), default=math.nan)
