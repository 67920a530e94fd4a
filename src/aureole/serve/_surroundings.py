"""Surroundings: which items around a query are worth a place on its map."""

import numpy as np

REACH = 1.3  # of the angle of the widest cap that people look at
_NEAREST = 60  # items at least, however narrow the cap


def spread_places(cosine: np.ndarray, widest: float, limit: int) -> np.ndarray:
    """Places among falling cosines: of the items within 1.3 of the angle ``widest``, ``limit`` that stand for them all.

    A quarter of them are the nearest, the others are evenly spread over the rest in the order of the cosine, so that
    the map shows the whole region and not a crowd in its middle. The 60 nearest may be chosen wherever they lie.

    Examples
    --------
    >>> spread_places(np.cos(np.linspace(0, 1, 101)), 0.5, 8)
    array([ 0,  1,  2, 15, 27, 40, 52, 65])
    """
    near = np.arccos(np.clip(cosine, -1, 1)) <= REACH * widest
    candidates = max(int(near.sum()), min(_NEAREST, len(cosine)))
    if candidates <= limit:
        return np.arange(candidates)
    first = limit // 4
    rest = np.linspace(first, candidates - 1, limit - first).round().astype(int)
    return np.concatenate([np.arange(first), rest])
