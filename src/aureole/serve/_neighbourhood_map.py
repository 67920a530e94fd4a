"""The map around a query: which items it shows, where they lie, and the angles of the caps.

The projection is azimuthal: angles to the query are exact, so its cap is a circle.
"""

import numpy as np
import torch

from aureole.sphere import predictive_angle

SUMMARY_MASSES = (0.5, 0.9, 0.95)  # masses of the caps that every embedding reports
_NEARLY_ALL = 1 - 1e-9  # replaces mass 1, whose angle would be pi
_REACH = 1.3  # the map extends this much beyond the angle of the largest cap
_MIN_ITEMS = 60  # shown however small the cap is
_ROUNDING = 1e-6  # of stored float32: below this, the sine of an angle to the centre is noise


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
