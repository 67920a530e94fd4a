"""Scores of a table of vectors under a fitted head: how sure each row is, and how far its partners may be."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.polynomial import Chebyshev

from aureole.sphere import predictive_angle
from aureole.training._frozen import FrozenHead

CHUNK = 65_536  # rows at a time
_DEGREE = 32


def kappas(
    head: FrozenHead, vectors: np.ndarray, *, observer: Callable[[int], None] | None = None
) -> np.ndarray:
    """The kappa of every row [n] as float32, in chunks; the observer is told the rows done."""
    found = np.empty(len(vectors), dtype=np.float32)
    for first in range(0, len(vectors), CHUNK):
        part = vectors[first : first + CHUNK]
        found[first : first + len(part)] = head.predict(part).kappa.cpu().numpy()
        if observer is not None:
            observer(first + len(part))
    return found


def partner_cosines(
    kappa: np.ndarray,
    mass: float,
    *,
    kappa_other: float,
    kappa_pos: float,
    dim: int,
) -> np.ndarray:
    """The cosine within which a partner's mu lies with probability ``mass``, for each kappa [n].

    It is ``VonMisesFisher.predictive_cosine`` of a partner with concentration ``kappa_other``, whose angle is a smooth
    function of log kappa: it is computed at 33 Chebyshev points between the least and the largest kappa and
    interpolated, to 1e-4 for kappas up to a thousandfold apart, at the same cost for a row and for a billion.

    Examples
    --------
    >>> cosines = partner_cosines(np.array([4.0, 24.0]), 0.9, kappa_other=24.0, kappa_pos=20.0, dim=10)
    >>> [round(float(c), 3) for c in cosines]
    [-0.159, 0.282]
    """

    def angle(log_kappa: np.ndarray) -> np.ndarray:
        at = torch.from_numpy(np.exp(log_kappa))
        other = torch.tensor(kappa_other, dtype=torch.float64)
        return predictive_angle(mass, at, other, kappa_pos, dim).numpy()

    domain = [math.log(kappa.min()), math.log(kappa.max())]
    if domain[1] - domain[0] < 1e-6:  # all the same, but for rounding
        return np.full(len(kappa), np.cos(angle(np.array(domain[:1]))[0]))
    curve = Chebyshev.interpolate(angle, _DEGREE, domain=domain)
    return np.cos(curve(np.log(kappa.astype(np.float64))))
