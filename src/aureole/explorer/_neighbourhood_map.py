"""The neighbourhood of a query as the service and the report show it: its caps, its set, and the map around it.

The projection is azimuthal: angles to the query are exact, so its cap is a circle. For a file the sets and maps of some
items are computed once, by the same caps, the same search and the same counts as those of the service.
"""

import base64
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aureole.caps import CredibleIndex, Hits, SearchOptions, positive_probability
from aureole.caps._cap_tables import credible_cosines
from aureole.caps._caps import log_hit_positivity
from aureole.distributions import VonMisesFisher
from aureole.engines._schema import POINT, exact_cosines, stored_direction
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
_MEMBERS = 48  # items of the file that are listed for a set
_POINTS = 160  # items of the file on a map
_TURN = 2**16  # steps of a stored direction on a map
_BATCH = 16  # items per search
_LAST_LABEL = 2**16 - 2  # labels beyond share a number
_SPHERE = SearchOptions(kind="credible")  # at mass 1 the cap is the sphere

Progress = Callable[[int, int], None]


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


def stored_sets(
    index: CredibleIndex,
    names: list[str],
    posterior: VonMisesFisher,
    label_column: str | None,
    *,
    prior: float,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The sets and maps of items, by the place of each in ``names``; arrays are compressed and in base64.

    ``kinds`` lists the caps (predictive first, if kappa_pos is known). ``caps`` are angles [n, kinds, masses] and
    ``counts`` the items of the whole gallery inside, at most 10,001. ``classes`` are their most frequent ``labels``,
    and how many have each, in turn, as differences from the previous mass;
    ``near`` the nearest items of the file, ``reach`` the angle at the rim of each map and ``point`` its items.
    Cost: a search per item.
    """
    own, kappa = stored_direction(posterior.mu), posterior.kappa.double().numpy()
    laws: dict[str, dict[str, float]] = {"credible": {}}
    if (kappa_pos := index.origin.kappa_pos) is not None:
        partner = {"kappa_pos": kappa_pos, "kappa_other": index.schema.typical_kappa}
        laws = {"predictive": partner, **laws}
    caps = [map_caps(kappa, MASSES, posterior.dim, **law) for law in laws.values()]
    thresholds = np.stack(caps, 1) if names else np.zeros((0, len(laws), len(MASSES)))
    n = len(names)
    counts = np.zeros(thresholds.shape, np.uint16)
    reach = np.zeros((n, len(laws)), np.float32)
    labels = _Labels()
    classes = np.zeros((n, len(laws), len(MASSES), 2 * MAX_CLASSES), np.uint16)
    for start in range(0, n, _BATCH):
        found = _neighbours(index, names[start : start + _BATCH], posterior, start, label_column)
        for i, (cosine, classified) in enumerate(found, start):
            below = np.searchsorted(-cosine, -thresholds[i], side="right")
            counts[i] = np.minimum(below, MAX_COUNT + 1)
            for k, cap in enumerate(thresholds[i]):
                widest = float(np.arccos(np.clip(cap[-1], -1, 1)))
                reach[i, k] = map_reach(cosine[:MAX_COUNT], widest)
            if classified is not None:
                classes[i] = labels.most_frequent(classified, below)
            if progress is not None:
                progress(i + 1, n)
    return {
        "kinds": list(laws),
        "caps": pack(np.arccos(np.clip(thresholds, -1, 1)), np.float32),
        "counts": pack(counts, np.uint16),
        "labels": labels.values,
        # differences from one mass to the next are small, so that they compress well
        "classes": pack(np.diff(classes, axis=2, prepend=np.uint16(0)), np.uint16),
        "reach": pack(reach, np.float32),
        **_points(own, thresholds),
        **_near(own, posterior, kappa_pos, prior),
    }


def pack(values: np.ndarray, dtype: Any) -> str:
    """The values in little endian, compressed (zlib), in base64."""
    little = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 9)).decode()


def _neighbours(
    index: CredibleIndex,
    names: list[str],
    posterior: VonMisesFisher,
    start: int,
    label_column: str | None,
) -> list[tuple[np.ndarray, list[Any] | None]]:
    """(Descending cosines, labels) of the nearest items of each, without itself: one more than are counted."""
    part = slice(start, start + len(names))
    query = VonMisesFisher(posterior.mu[part], posterior.kappa[part], validate_args=False)
    columns = [] if label_column is None else [label_column]
    # the whole sphere even of a point mass
    wide = VonMisesFisher(query.mu, torch.zeros_like(query.kappa), validate_args=False)
    results = index.search(wide, 1.0, limit=MAX_COUNT + 2, columns=columns, options=_SPHERE)
    assert isinstance(results, list)
    found = []
    for name, hits in zip(names, results, strict=True):
        assert isinstance(hits, Hits)
        kept = np.array([other != name for other in hits.ids], bool)
        labels = None
        if label_column is not None:
            pairs = zip(hits.payload[label_column], kept, strict=True)
            labels = [label for label, keep in pairs if keep]
        found.append((hits.cosine.numpy()[kept], labels))
    return found


class _Labels:
    """The labels of a gallery by number, in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}

    def most_frequent(self, labels: list[Any], below: np.ndarray) -> np.ndarray:
        """(Code + 1, count) of the most frequent of the first ``below`` labels, [*below.shape, 20]; 0 for none.

        As ``class_counts``: ties in the order of the first item.
        """
        codes = np.array([self._code(label) for label in labels[:MAX_COUNT]], np.int64)
        used, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        found = np.zeros((*below.shape, 2 * MAX_CLASSES), np.uint16)
        counts, last = np.zeros(len(used), np.int64), 0
        sizes, places = np.unique(np.minimum(below, MAX_COUNT), return_inverse=True)
        tops = np.zeros((len(sizes), 2 * MAX_CLASSES), np.uint16)
        for row, size in enumerate(sizes.tolist()):
            counts += np.bincount(codes[last:size], minlength=len(used))
            last = size
            top = np.lexsort((first, -counts))[:MAX_CLASSES]
            top = top[counts[top] > 0]
            tops[row, 0 : 2 * len(top) : 2] = used[top] + 1
            tops[row, 1 : 2 * len(top) : 2] = counts[top]
        found[:] = tops[places.reshape(below.shape)]
        return found

    def _code(self, label: Any) -> int:
        code = self._codes.setdefault(label, len(self._codes))
        if code == len(self.values):
            self.values.append(label)
        return min(code, _LAST_LABEL)


def _points(own: np.ndarray, thresholds: np.ndarray) -> dict[str, str]:
    """The items of the file on the map of each: places, angles to the centre, and directions around it."""
    n = len(own)
    count = min(_POINTS, max(0, n - 1))
    places = np.zeros((n, count), np.uint16)
    angles = np.full((n, count), -1.0, np.float32)  # negative: no point
    around = np.zeros((n, count), np.uint16)
    for i in range(n):
        cosine = exact_cosines(own[i], own)
        order = np.argsort(-cosine, kind="stable")
        order = order[order != i]
        widest = float(np.arccos(np.clip(thresholds[i].min(), -1, 1)))
        chosen = order[spread_places(cosine[order], widest, count)]
        flat = azimuthal_map(own[i], own[chosen])
        direction = np.arctan2(flat[:, 1], flat[:, 0]) % (2 * np.pi)
        places[i, : len(chosen)] = chosen
        angles[i, : len(chosen)] = np.arccos(np.clip(cosine[chosen], -1, 1))
        around[i, : len(chosen)] = np.round(direction / (2 * np.pi) * _TURN).astype(int) % _TURN
    return {
        "point_places": pack(places, np.uint16),
        "point_angles": pack(angles, np.float32),
        "point_turns": pack(around, np.uint16),
    }


def _near(
    own: np.ndarray, posterior: VonMisesFisher, kappa_pos: float | None, prior: float
) -> dict[str, str]:
    """The nearest items of the file: places, angles, and the probability that each matches (NaN if unknown)."""
    n = len(own)
    count = min(_MEMBERS, max(0, n - 1))
    places = np.zeros((n, count), np.uint16)
    cosines = np.ones((n, count))
    for i in range(n):
        cosine = exact_cosines(own[i], own)
        order = np.argsort(-cosine, kind="stable")
        places[i] = order[order != i][:count]
        cosines[i] = cosine[places[i]]
    positive = np.full((n, count), np.nan)
    if kappa_pos is not None and cosines.size:
        kappa = posterior.kappa.double()
        score = log_hit_positivity(
            torch.from_numpy(cosines.reshape(-1)),
            kappa.repeat_interleave(count),
            kappa[torch.from_numpy(places.reshape(-1).astype(np.int64))],
            kappa_pos,
            posterior.dim,
        )
        positive = positive_probability(score, prior).numpy().reshape(places.shape)
    return {
        "near_places": pack(places, np.uint16),
        "near_angles": pack(np.arccos(np.clip(cosines, -1, 1)), np.float32),
        "near_positive": pack(positive, np.float32),
    }
