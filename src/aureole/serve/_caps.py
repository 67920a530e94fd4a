"""The caps that every answer tells: their least cosines by kappa, for masses that are always the same."""

import numpy as np
import torch
from torch import Tensor

from aureole.sphere import cap_angle, predictive_angle

MASSES = (0.5, 0.9, 0.95)
_DEGREE = 192  # an error of 1e-9 in D = 2, of rounding from D = 4 on
_NEARLY = 1 - 1e-9  # a whole mass is drawn as this one: its angle is where the law fades, not pi
_LARGEST = 1e8  # a kappa beyond it is looked up by itself


def credible_cosines(kappa: Tensor, masses: tuple[float, ...], dim: int) -> list[list[float]]:
    """The least cosines of credible caps, a row for each kappa [n]: one call for all, since a call is dear.

    Examples
    --------
    >>> [[round(c, 4) for c in row] for row in credible_cosines(torch.tensor([24.0]), (0.5, 0.9), 10)]
    [[0.8391, 0.7176]]
    """
    levels = torch.tensor(masses, dtype=torch.float64)
    with torch.no_grad():
        return torch.cos(cap_angle(levels, kappa.double().unsqueeze(-1), dim)).tolist()


def predictive_cosines(
    kappa: float, masses: tuple[float, ...], kappa_other: float, kappa_pos: float, dim: int
) -> list[float]:
    """The least cosines of predictive caps, where a partner of kappa_other lies: one call for all masses.

    Examples
    --------
    >>> [round(c, 4) for c in predictive_cosines(24.0, (0.5, 0.9), 24.0, 20.0, 10)]
    [0.5665, 0.2817]
    """
    own, other = (torch.tensor(k, dtype=torch.float64) for k in (kappa, kappa_other))
    levels = torch.tensor(masses, dtype=torch.float64).clamp(max=_NEARLY)
    with torch.no_grad():
        return torch.cos(predictive_angle(levels, own, other, kappa_pos, dim)).tolist()


class CapTable:
    r"""The least cosines of credible caps of ``MASSES`` in one dimension, a hundred times cheaper than one by one.

    $\log \theta_m(\kappa)$ is a polynomial in $\log(\kappa + D/2)$, in which it is nearly straight at both ends:
    the interpolant at Chebyshev's points, for kappa from 0 to 1e8.

    Examples
    --------
    >>> table = CapTable(10)
    >>> [[round(c, 4) for c in row] for row in table(torch.tensor([24.0]))]
    [[0.8391, 0.7176, 0.675]]
    """

    def __init__(self, dim: int) -> None:
        self._dim, self._shift = dim, dim / 2
        self._low, high = np.log(self._shift), np.log(_LARGEST + self._shift)
        self._half = (high - self._low) / 2
        count = _DEGREE + 1
        place = (np.arange(count) + 0.5) * np.pi / count
        kappa = np.exp(self._low + self._half * (np.cos(place) + 1)) - self._shift
        with torch.no_grad():
            levels = torch.tensor(MASSES, dtype=torch.float64)
            angle = cap_angle(levels, torch.from_numpy(kappa).clamp_min(0).unsqueeze(-1), dim)
        orders = np.arange(count)
        waves = np.cos(np.outer(orders, place))  # the discrete cosine transform
        self._orders = orders
        self._weights = 2 / count * waves @ torch.log(angle).numpy()
        self._weights[0] /= 2

    def __call__(self, kappa: Tensor) -> list[list[float]]:
        """A row of least cosines for each kappa [n]."""
        given = kappa.double().numpy()
        inside = np.minimum(given, _LARGEST)
        place = (np.log(inside + self._shift) - self._low) / self._half - 1
        waves = np.cos(np.outer(np.arccos(np.clip(place, -1, 1)), self._orders))
        found = np.cos(np.exp(waves @ self._weights)).tolist()
        for row in np.flatnonzero(~(given <= _LARGEST)).tolist():
            found[row] = credible_cosines(kappa[row : row + 1], MASSES, self._dim)[0]
        return found
