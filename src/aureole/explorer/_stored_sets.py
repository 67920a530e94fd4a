"""The sets and maps of some items of a gallery, computed once and stored for the report.

The numbers are those of the service: the same caps, the same search, and the same counts without the item itself.
"""

import base64
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from aureole.caps import CredibleIndex, Hits, SearchOptions, positive_probability
from aureole.caps._caps import log_hit_positivity
from aureole.distributions import VonMisesFisher
from aureole.engines._directions import exact_cosines, stored_direction
from aureole.explorer._neighbourhood_map import (
    MASSES,
    MAX_CLASSES,
    MAX_COUNT,
    azimuthal_map,
    map_caps,
    map_reach,
    spread_places,
)

_MEMBERS = 48  # items of the file that are listed for a set
_POINTS = 160  # items of the file on a map
_TURN = 2**16  # steps of a stored direction on a map
_BATCH = 16  # items per search
_LAST_LABEL = 2**16 - 2  # labels beyond share a number
_SPHERE = SearchOptions(kind="credible")  # at mass 1 the cap is the sphere

Progress = Callable[[int, int], None]


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
