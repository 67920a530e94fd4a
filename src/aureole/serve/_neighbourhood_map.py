"""The map around a query: which items it shows, where they lie, and the angles of the caps.

The projection is azimuthal: angles to the query are exact, so its cap is a circle.
"""

import numpy as np
import torch
from torch import Tensor

from aureole.sphere import cap_angle, predictive_angle

SUMMARY_MASSES = (0.5, 0.9, 0.95)  # masses of the caps that every embedding reports
_DEGREE = 192  # of the interpolant: an error of 1e-9 in D = 2, and of rounding from D = 4 on
_MAX_KAPPA = 1e8  # larger kappas are computed without the table
_NEARLY_ALL = 1 - 1e-9  # replaces mass 1, whose angle would be pi
_REACH = 1.3  # the map extends this much beyond the angle of the largest cap
_MIN_ITEMS = 60  # shown however small the cap is
_ROUNDING = 1e-6  # of stored float32: below this, the sine of an angle to the centre is noise


def credible_cosines(kappa: Tensor, masses: tuple[float, ...], dim: int) -> list[list[float]]:
    """The smallest cosine inside each credible cap, one row per kappa [n]. All are computed in one call."""
    levels = torch.tensor(masses, dtype=torch.float64)
    with torch.no_grad():
        return torch.cos(cap_angle(levels, kappa.double().unsqueeze(-1), dim)).tolist()


def predictive_cosines(
    kappa: float, masses: tuple[float, ...], kappa_other: float, kappa_pos: float, dim: int
) -> list[float]:
    """The smallest cosine inside each predictive cap, the region of a matching item with concentration kappa_other.

    Examples
    --------
    >>> [round(c, 4) for c in predictive_cosines(24.0, (0.5, 0.9), 24.0, 20.0, 10)]
    [0.5665, 0.2817]
    """
    own, other = (torch.tensor(k, dtype=torch.float64) for k in (kappa, kappa_other))
    levels = torch.tensor(masses, dtype=torch.float64).clamp(max=_NEARLY_ALL)
    with torch.no_grad():
        return torch.cos(predictive_angle(levels, own, other, kappa_pos, dim)).tolist()


class CapTable:
    r"""Interpolates the smallest cosines of the credible caps of ``SUMMARY_MASSES``, 100x faster than solving for them.

    $\log \theta_m(\kappa)$ is interpolated by a polynomial in $\log(\kappa + D/2)$, in which it is nearly linear at
    both ends, at Chebyshev points, for kappa from 0 to 1e8.

    Examples
    --------
    >>> table = CapTable(10)
    >>> [[round(c, 4) for c in row] for row in table(torch.tensor([24.0]))]
    [[0.8391, 0.7176, 0.675]]
    """

    def __init__(self, dim: int) -> None:
        self._dim, self._shift = dim, dim / 2
        self._low, high = np.log(self._shift), np.log(_MAX_KAPPA + self._shift)
        self._half = (high - self._low) / 2
        count = _DEGREE + 1
        nodes = (np.arange(count) + 0.5) * np.pi / count
        kappa = np.exp(self._low + self._half * (np.cos(nodes) + 1)) - self._shift
        with torch.no_grad():
            levels = torch.tensor(SUMMARY_MASSES, dtype=torch.float64)
            angle = cap_angle(levels, torch.from_numpy(kappa).clamp_min(0).unsqueeze(-1), dim)
        self._orders = np.arange(count)
        basis = np.cos(np.outer(self._orders, nodes))  # the discrete cosine transform
        self._weights = 2 / count * basis @ torch.log(angle).numpy()
        self._weights[0] /= 2

    def __call__(self, kappa: Tensor) -> list[list[float]]:
        """A row of smallest cosines for each kappa [n]."""
        values = kappa.double().numpy()
        clipped = np.minimum(values, _MAX_KAPPA)
        position = (np.log(clipped + self._shift) - self._low) / self._half - 1
        basis = np.cos(np.outer(np.arccos(np.clip(position, -1, 1)), self._orders))
        cosines = np.cos(np.exp(basis @ self._weights)).tolist()
        for row in np.flatnonzero(~(values <= _MAX_KAPPA)).tolist():
            cosines[row] = credible_cosines(kappa[row : row + 1], SUMMARY_MASSES, self._dim)[0]
        return cosines


def spread_places(cosine: np.ndarray, largest_angle: float, limit: int) -> np.ndarray:
    """Which items to draw: positions among descending cosines, at most ``limit``, that represent the neighbourhood.

    Candidates lie within 1.3 times ``largest_angle``, or are among the 60 nearest. A quarter of the result are the
    nearest; the others are evenly spaced by rank, so that the map shows the whole region instead of its crowded centre.

    Examples
    --------
    >>> spread_places(np.cos(np.linspace(0, 1, 101)), 0.5, 8)
    array([ 0,  1,  2, 15, 27, 40, 52, 65])
    """
    near = np.arccos(np.clip(cosine, -1, 1)) <= _REACH * largest_angle
    candidates = max(int(near.sum()), min(_MIN_ITEMS, len(cosine)))
    if candidates <= limit:
        return np.arange(candidates)
    first = limit // 4
    rest = np.linspace(first, candidates - 1, limit - first).round().astype(int)
    return np.concatenate([np.arange(first), rest])


def azimuthal_map(centre: np.ndarray, mu: np.ndarray, dims: int = 2) -> np.ndarray:
    r"""Coordinates [n, dims] of directions mu [n, D] on a map around ``centre`` [D].

    The distance of a point from the origin is its exact angle to the centre, :math:`\theta_i = \arccos(c^T\mu_i)`. Its
    direction is that of the tangent vector :math:`\theta_i (\mu_i - \cos\theta_i\,c) / \sin\theta_i`, projected onto
    the first principal axes of all tangent vectors, uncentred. The signs of the axes make their largest entry positive.
    Angles between points are therefore only as accurate as this projection.

    Examples
    --------
    >>> mu = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6, 0.0, -0.8]])
    >>> np.abs(azimuthal_map(mu[0], mu)).round(4)
    array([[0.    , 0.    ],
           [1.5708, 0.    ],
           [0.    , 0.9273]])
    """
    centre = centre.astype(np.float64) / np.linalg.norm(centre)
    mu = mu.astype(np.float64)
    mu = mu / np.linalg.norm(mu, axis=-1, keepdims=True)
    along = mu @ centre
    across = mu - along[:, None] * centre
    sine = np.linalg.norm(across, axis=-1)
    theta = np.arctan2(sine, along)
    defined = sine[:, None] > _ROUNDING
    tangent = np.divide(across, sine[:, None], out=np.zeros_like(across), where=defined)
    tangent *= theta[:, None]
    flat = tangent @ _principal_axes(tangent, dims).T
    length = np.linalg.norm(flat, axis=-1)
    # a point orthogonal to all axes, or opposite the centre, has no direction: it is put on the first axis
    first = np.eye(dims)[0]
    unit = np.where(length[:, None] > 0, flat / np.where(length > 0, length, 1.0)[:, None], first)
    return unit * theta[:, None]


def _principal_axes(tangent: np.ndarray, dims: int) -> np.ndarray:
    """The first principal axes [dims, D]; zeros if the points span fewer dimensions."""
    _, _, components = np.linalg.svd(tangent, full_matrices=False)
    axes = np.zeros((dims, tangent.shape[1]))
    axes[: min(dims, len(components))] = components[:dims]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(-1)[:, None], -1)
    return axes * np.where(largest < 0, -1.0, 1.0)
