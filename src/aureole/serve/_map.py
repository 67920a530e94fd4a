"""An azimuthal map of the sphere around a query: angles to it are true, so its cap is a circle."""

import numpy as np

_ROUNDING = (
    1e-6  # of stored float32: what is left across of the centre or of its opposite is no direction
)


def azimuthal_map(centre: np.ndarray, mu: np.ndarray, dims: int = 2) -> np.ndarray:
    r"""Where directions mu [n, D] lie on a map [n, dims] around ``centre`` [D].

    The distance of a point from the middle is its true angle to the centre, :math:`\theta_i = \arccos(c^T\mu_i)`. Its
    direction is that of the tangent vector :math:`\theta_i (\mu_i - \cos\theta_i\,c) / \sin\theta_i` in the plane (or
    space) of the first principal axes of all of them, through the middle. The signs of the axes are such that their
    largest entry is positive. Angles between points are therefore only true as far as the plane holds them.

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
    known = sine[:, None] > _ROUNDING
    tangent = np.divide(across, sine[:, None], out=np.zeros_like(across), where=known)
    tangent *= theta[:, None]
    axes = _principal_axes(tangent, dims)
    flat = tangent @ axes.T
    length = np.linalg.norm(flat, axis=-1)
    # a point across all of the axes, or opposite to the centre, has no direction: it goes along the first
    first = np.eye(dims)[0]
    unit = np.where(length[:, None] > 0, flat / np.where(length > 0, length, 1.0)[:, None], first)
    return unit * theta[:, None]


def _principal_axes(tangent: np.ndarray, dims: int) -> np.ndarray:
    """The first principal axes [dims, D]; zeros where the points span fewer."""
    _, _, axes = np.linalg.svd(tangent, full_matrices=False)
    found = np.zeros((dims, tangent.shape[1]))
    found[: min(dims, len(axes))] = axes[:dims]
    largest = np.take_along_axis(found, np.abs(found).argmax(-1)[:, None], -1)
    return found * np.where(largest < 0, -1.0, 1.0)
