"""The neighbourhood of a query as the service and the report show it: its caps, its set, and the map around it.

The projection is azimuthal: angles to the query are exact, so its cap is a circle.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aureole.caps._cap_tables import credible_cosines
from aureole.engines._directions import POINT
from aureole.sphere import predictive_angle

MASSES = tuple(round(0.01 * percent, 2) for percent in range(50, 100))
SUMMARY_MASSES = (0.5, 0.9, 0.95)  # masses of the caps that every embedding reports
MAX_COUNT = 10_000  # items of a set that are counted
MAX_CLASSES = 10  # classes that are listed for a set
_NEARLY_ALL = 1 - 1e-9  # replaces mass 1, whose angle would be pi
_MARGIN = 1e-8  # relative widening of a predictive cap, as in a search
_KAPPAS = 64  # predictive caps that are solved for at once
_REACH = 1.3  # items within this times the angle of the largest cap are shown
_RIM = 1.06  # the map extends at least this far beyond the largest cap,
_FARTHEST = 2.5  # and at most this far
_MIN_ITEMS = 60  # shown however small the cap is
_ROUNDING = 1e-6  # of stored float32: below this, the sine of an angle to the centre is noise


def map_caps(
    kappa: Float[np.ndarray, " n"],
    masses: tuple[float, ...],
    dim: int,
    *,
    kappa_pos: float | None = None,
    kappa_other: float = math.inf,
) -> Float[np.ndarray, "n m"]:
    """The smallest cosine inside the caps of some masses, a row per kappa: predictive ones if ``kappa_pos`` is given.

    A predictive cap is the region of a matching item with concentration ``kappa_other``. Cost: 5 ms per kappa for 50
    predictive caps.

    Examples
    --------
    >>> map_caps(np.array([24.0]), (0.5, 0.9), 10).round(4)
    array([[0.8391, 0.7176]])
    >>> map_caps(np.array([24.0]), (0.5, 0.9), 10, kappa_pos=20.0, kappa_other=24.0).round(4)
    array([[0.5665, 0.2817]])
    """
    kappa = np.asarray(kappa, np.float64)
    if kappa_pos is None:
        return credible_cosines(kappa, masses, dim)
    level = torch.tensor(masses, dtype=torch.float64).clamp(max=_NEARLY_ALL)
    partner = math.inf if kappa_other >= POINT else kappa_other
    other = torch.tensor(partner, dtype=torch.float64)
    distinct, rows = np.unique(kappa, return_inverse=True)
    with torch.no_grad():
        parts = [
            predictive_angle(level, own[:, None], other, kappa_pos, dim)
            for own in torch.from_numpy(distinct).split(_KAPPAS)
        ]
    if not parts:
        return np.empty((0, len(masses)))
    angles = torch.cat(parts) * (1 + _MARGIN)
    return torch.cos(angles.clamp(max=math.pi)).numpy()[rows.reshape(-1)]


def class_counts(labels: Sequence[Any]) -> list[dict[str, Any]]:
    """How many items have each label, the most frequent first, at most ten labels."""
    return [{"label": label, "count": n} for label, n in Counter(labels).most_common(MAX_CLASSES)]


def match_prior(labels: Sequence[Any] | None, rows: int) -> float:
    """The prior probability that two items match: that of the same class, or one match per item without labels.

    Examples
    --------
    >>> match_prior(["a", "a", "b", "b"], 4), match_prior(None, 1000)
    (0.5, 0.001)
    """
    counts = Counter(labels or ())
    if len(counts) < 2 or None in counts:
        return min(0.5, 1 / max(2, rows))
    return sum((n / rows) ** 2 for n in counts.values())


def map_reach(cosine: Float[np.ndarray, " n"], widest: float) -> float:
    """The angle at the rim of a map: beyond the widest cap, and as far as the items shown go, within limits.

    Parameters
    ----------
    cosine
        The cosines of all neighbours, descending.
    widest
        The angle of the widest cap.

    Examples
    --------
    >>> round(map_reach(np.cos(np.linspace(0, 1, 101)), 0.5), 4), round(map_reach(np.cos(np.array([0.0])), 0.5), 4)
    (0.65, 0.53)
    """
    shown = spread_places(cosine, widest, _MIN_ITEMS)
    farthest = math.acos(min(1.0, max(-1.0, float(cosine[shown[-1]])))) if len(shown) else 0.0
    return min(math.pi, max(0.02, _RIM * widest, min(farthest, _FARTHEST * widest)))


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
