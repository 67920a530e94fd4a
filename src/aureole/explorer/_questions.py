"""Questions people have about their data: suspicious labels, confused classes and outliers.

All answers come from the gallery alone: the predictive cap of each item, the items in it, and how likely they match.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aureole.caps import CredibleIndex, cap_cosine
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.explorer._nearest_rows import (
    SAMPLE,
    GalleryRows,
    Neighbours,
    log_match_ratios,
    nearest_rows,
)

QUESTIONS = ("labels", "ambiguous", "outliers")
NEIGHBOURS = 20  # of which those inside the predictive cap count
MASS = 0.95  # of the predictive cap
OUTLIER_RANK = 10  # the neighbour whose angle makes an item an outlier
_MOST_PAIRS = 10_000  # pairs of classes that are kept
_AMBIGUOUS = 0.25  # share that both classes of an ambiguous item have, at least
_LARGEST_LOG = 500.0  # of a weight
_REMOTE = 20  # items of the answer "outliers", also if fewer are beyond the fence
_FENCE = 3.0  # interquartile ranges of the log angle beyond the third quartile: Tukey's "far out"

Observer = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CapShares:
    """The classes in the cap of each item.

    Attributes
    ----------
    own
        The share of the item's own class among the others in its cap, by their weights; NaN for an empty cap.
    other, other_share
        The other class with the largest share (-1 for none), and its share.
    weight
        The sum of the weights: how many items at the level of chance the cap amounts to.
    pairs, pair_share
        Pairs of classes (class of an item, class in its cap) and the mean share of the second in the caps of items of
        the first; the most frequent first.
    """

    own: Float[np.ndarray, " n"]
    other: np.ndarray
    other_share: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]
    pairs: np.ndarray
    pair_share: np.ndarray


@dataclass(frozen=True)
class Questions:
    """The answers for every item of a gallery, in the order of kappa (ties by id), as ``inspect_gallery`` returns them.

    Attributes
    ----------
    ids, kappa
        Of the items.
    classes, label
        The labels, most frequent first, and the class of each item; None without labels.
    shares
        The classes in the cap of each item; None without labels.
    suspicion
        How suspicious the label of each item is, 0 to 1; None without labels.
    angle, p_value
        The angle to the 10th nearest other item, and the share of items for which it is at least as large.
    far
        The angle beyond which an item is far from everything; infinite in small galleries.
    version
        Of the gallery, ``CredibleIndex.version()``.
    settings
        How the answers were made.
    """

    ids: list[Any]
    kappa: Float[np.ndarray, " n"]
    classes: list[Any] | None
    label: np.ndarray | None
    shares: CapShares | None
    suspicion: Float[np.ndarray, " n"] | None
    angle: Float[np.ndarray, " n"]
    p_value: Float[np.ndarray, " n"]
    far: float
    version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        counts = {each["name"]: each["count"] for each in self.summary() if each["available"]}
        return f"Questions({len(self)} items, {counts})"

    def columns(self) -> dict[str, Float[np.ndarray, " n"]]:
        """Return numbers for each item: ``suspicion`` (with labels) and ``outlier``, -log10 of the p-value."""
        found = {} if self.suspicion is None else {"suspicion": self.suspicion}
        return found | {"outlier": -np.log10(np.maximum(self.p_value, 1e-30))}

    def summary(self) -> list[dict[str, Any]]:
        """Return for each question whether it is answered, the reason if it is not, and how many items it found."""
        entries = []
        for name in QUESTIONS:
            reason = self._reason(name)
            count = None if reason else self._count(name)
            entry = {"name": name, "available": reason is None, "reason": reason, "count": count}
            entries.append(entry)
        return entries

    def answer(
        self,
        name: str,
        offset: int = 0,
        limit: int = 20,
        *,
        classes: tuple[int, int] | None = None,
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return how many there are, and a page of them: rows with their scores, the strongest first.

        Outliers are followed by the next most remote items, so that there are at least 20: see ``beyond`` of each.

        Parameters
        ----------
        name
            "labels", "ambiguous" or "outliers".
        offset, limit
            The page.
        classes
            Only ambiguous items between these two classes, by their place in ``classes``.
        """
        self._check_answered(name)
        found = self._found(name, classes)
        return len(found), [
            self._entry(name, int(place)) for place in found[offset : offset + limit]
        ]

    def rows(self, name: str, *, classes: tuple[int, int] | None = None) -> np.ndarray:
        """Return all rows that ``answer`` lists, ascending."""
        self._check_answered(name)
        return np.sort(self._found(name, classes))

    def confusions(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the pairs of classes that are confused most: the mean share of each in the caps of the other."""
        shares, label = self.shares, self.label
        if shares is None or label is None or self.classes is None:
            return []
        both: dict[tuple[int, int], list[float]] = {}
        for (own, other), share in zip(
            shares.pairs.tolist(), shares.pair_share.tolist(), strict=True
        ):
            if own != other:
                entry = both.setdefault((min(own, other), max(own, other)), [0.0, 0.0])
                entry[0 if own < other else 1] = share
        ranked = sorted(both.items(), key=lambda pair: (-sum(pair[1]), pair[0]))[:limit]
        return [
            {
                "classes": [self.classes[one], self.classes[two]],
                "codes": [one, two],
                "shares": shares_,
                "count": len(self._found("ambiguous", (one, two))),
            }
            for (one, two), shares_ in ranked
        ]

    def _check_answered(self, name: str) -> None:
        """Raise if a question does not exist or has no answer."""
        if name not in QUESTIONS:
            raise InvalidInputError(
                f"question {name[:60]!r} does not exist; there are {QUESTIONS}."
            )
        reason = self._reason(name)
        if reason is not None:
            raise InvalidInputError(reason)

    def _reason(self, name: str) -> str | None:
        """Return the reason why a question has no answer; None if it has one."""
        if name in ("labels", "ambiguous") and self.shares is None:
            return "the gallery has no label column."
        return None

    def _count(self, name: str) -> int:
        """Return the number of items that a question found; of outliers, those beyond the fence."""
        return int((self.angle > self.far).sum()) if name == "outliers" else len(self._found(name))

    def _found(self, name: str, classes: tuple[int, int] | None = None) -> np.ndarray:
        """Return the rows that a question is about, the strongest first."""
        if name == "outliers":
            score, flagged = self.angle, self.angle > self.far
            if math.isfinite(self.far):
                flagged[np.lexsort((np.arange(len(self)), -score))[:_REMOTE]] = True
        else:
            assert self.shares is not None
            assert self.suspicion is not None
            assert self.label is not None
            own, other = self.shares.own, self.shares.other_share
            with np.errstate(invalid="ignore"):
                if name == "labels":
                    score, flagged = self.suspicion, other > own
                else:
                    score = np.minimum(own, other)
                    flagged = score >= _AMBIGUOUS
                if classes is not None:
                    pair = np.stack([self.label, self.shares.other])
                    wanted = np.array(sorted(classes))[:, None]
                    flagged &= (np.sort(pair, 0) == wanted).all(0)
        rows = np.flatnonzero(flagged)
        return rows[np.lexsort((rows, -score[rows]))]

    def _entry(self, name: str, place: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"row": place, "id": self.ids[place]}
        if name == "outliers":
            angle, p_value = float(self.angle[place]), float(self.p_value[place])
            entry |= {"score": -math.log10(p_value), "angle": angle, "p_value": p_value}
            return entry | {"beyond": angle > self.far}
        shares = self.shares
        assert shares is not None
        assert self.suspicion is not None
        assert self.label is not None
        assert self.classes is not None
        own, other = float(shares.own[place]), float(shares.other_share[place])
        return entry | {
            "score": float(self.suspicion[place]) if name == "labels" else min(own, other),
            "label": self.classes[self.label[place]],
            "other": self.classes[shares.other[place]],
            "own_share": own,
            "other_share": other,
        }


def inspect_gallery(
    index: CredibleIndex,
    *,
    label_column: str | None = None,
    kappa_pos: float | None = None,
    rows: GalleryRows | None = None,
    observer: Observer | None = None,
) -> Questions:
    """Answer the questions that people have about a gallery, for every item.

    Suspicious labels and confused classes compare the label of an item with those of the nearest other items in its
    predictive cap, each weighted by how many times more likely than a random item it matches. Outliers compare the
    angle to the 10th nearest other item with the same angle of all items.

    Cost: n min(n, 100,000) dim products and 20 n positivities, which are interpolated. Memory: all directions, and
    about 1 kB per item.

    Parameters
    ----------
    index
        The gallery.
    label_column
        Payload column of labels (default: none, and only outliers are searched for).
    kappa_pos
        How close the latents of two partners are (default: that of the gallery's ``origin``). If it is unknown, the
        nearest items count equally.
    rows
        All rows of the index, if they have been read already.
    observer
        Called with (the name of the part, rows done, rows in total).

    Examples
    --------
    >>> import torch
    >>> mu = torch.nn.functional.normalize(torch.randn(200, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    >>> labels = ["left" if x < 0 else "right" for x in mu[:, 0].tolist()]
    >>> labels[7] = "left" if labels[7] == "right" else "right"
    >>> index = CredibleIndex.create(
    ...     "faiss://", VonMisesFisher(mu, 50.0), [f"item {i:03d}" for i in range(200)], {"side": labels}
    ... )
    >>> found = inspect_gallery(index, label_column="side", kappa_pos=50.0)
    >>> [entry["id"] for entry in found.answer("labels", limit=1)[1]]
    ['item 007']
    """
    rows = rows or GalleryRows.read(index, [label_column] if label_column else [])
    if kappa_pos is None:
        kappa_pos = index.origin.kappa_pos
    n = len(rows)
    watch = (lambda done: observer("comparing", done, n)) if observer else None
    near = nearest_rows(rows.mu, NEIGHBOURS, observer=watch)
    typical = index.schema.typical_kappa
    shares = classes = label = suspicion = None
    if label_column is not None and n:
        classes, label = class_codes(rows.payload[label_column])
        if observer is not None:
            observer("weighing", 0, n)
        weights = match_weights(rows, near, kappa_pos, typical)
        shares = cap_shares(near, weights, label)
        suspicion = label_suspicion(shares)
    angle = outlier_angles(near, OUTLIER_RANK)
    return Questions(
        rows.ids,
        rows.kappa,
        classes,
        label,
        shares,
        suspicion,
        angle,
        outlier_p_values(angle),
        far_angle(angle),
        rows.version,
        {
            "label_column": label_column,
            "kappa_pos": kappa_pos,
            "mass": MASS,
            "neighbours": NEIGHBOURS,
            "outlier_rank": OUTLIER_RANK,
            "compared_with": min(n, SAMPLE),
        },
    )


def class_codes(labels: list[Any]) -> tuple[list[Any], np.ndarray]:
    """Return the labels, most frequent first and then as text, and the place of each item's label among them.

    Examples
    --------
    >>> class_codes(["cat", "dog", "ant", "dog"])
    (['dog', 'ant', 'cat'], array([2, 0, 1, 0], dtype=int32))
    """
    counts = Counter(labels)
    values = sorted(counts, key=lambda value: (-counts[value], str(value)))
    code = {value: place for place, value in enumerate(values)}
    return values, np.array([code[value] for value in labels], np.int32)


def match_weights(
    rows: GalleryRows,
    near: Neighbours,
    kappa_pos: float | None,
    typical_kappa: float,
) -> Float[np.ndarray, "n k"]:
    r"""Return how many times more likely than a random item each neighbour in the predictive cap matches: :math:`S\,h`.

    It takes both kappas into account: 1 is chance. 0 for neighbours outside of the cap. Without ``kappa_pos`` the
    nearest neighbours all have the weight 1. Rows with a log beyond 500 are scaled down to it.
    """
    weights = np.ones(near.rows.shape)
    if kappa_pos is None or not near.rows.size:
        return weights
    posterior = VonMisesFisher(
        torch.from_numpy(rows.mu), torch.from_numpy(rows.kappa), validate_args=False
    )
    settings = {"kind": "predictive", "kappa_pos": kappa_pos, "kappa_other": typical_kappa}
    threshold = cap_cosine(posterior, MASS, **settings).numpy()
    log_ratio = log_match_ratios(near, rows.kappa, kappa_pos, rows.mu.shape[1])
    log_ratio -= np.maximum(log_ratio.max(1, keepdims=True) - _LARGEST_LOG, 0.0)
    return np.exp(log_ratio) * (near.cosine >= threshold[:, None])


def cap_shares(near: Neighbours, weights: Float[np.ndarray, "n k"], label: np.ndarray) -> CapShares:
    """Return the share of each class among the weights of an item's neighbours; the item itself does not count.

    Cost: one sort of n k numbers.

    Examples
    --------
    >>> near = Neighbours(np.array([[1, 2], [0, 2], [1, 0]]), np.ones((3, 2)))
    >>> found = cap_shares(near, np.array([[1.0, 3.0], [1.0, 1.0], [0.0, 0.0]]), np.array([0, 0, 1]))
    >>> found.own.round(2), found.other, found.other_share.round(2)
    (array([0.25, 0.5 ,  nan]), array([ 1,  1, -1], dtype=int32), array([0.75, 0.5 ,  nan]))
    """
    n, classes = len(label), int(label.max()) + 1 if len(label) else 0
    weight = weights.sum(1)
    filled = weight > 0
    share = weights / np.where(filled, weight, 1.0)[:, None]
    row, column = np.nonzero(share)
    # the share of each class in each cap: classes of one row are next to each other
    key, place = np.unique(row * classes + label[near.rows[row, column]], return_inverse=True)
    mean = np.bincount(place, share[row, column], minlength=len(key))
    row, code = np.divmod(key, max(1, classes))
    own, best = (np.where(filled, 0.0, np.nan) for _ in range(2))
    other = np.full(n, -1, np.int32)
    is_own = code == label[row]
    own[row[is_own]] = mean[is_own]
    order = np.lexsort((-code[~is_own], mean[~is_own]))  # the largest share comes last and stays
    rows, codes = row[~is_own][order], code[~is_own][order]
    other[rows], best[rows] = codes, mean[~is_own][order]
    pair, place = np.unique(label[row].astype(np.int64) * classes + code, return_inverse=True)
    first, second = np.divmod(pair, max(1, classes))
    sizes = np.bincount(label[filled], minlength=classes)
    total = np.bincount(place, mean, minlength=len(pair)) / np.maximum(sizes[first], 1)
    order = np.lexsort((pair, -total))[:_MOST_PAIRS]
    pairs = np.stack([first, second], 1)[order].astype(np.int32)
    return CapShares(own, other, best, weight, pairs, total[order])


def label_suspicion(shares: CapShares) -> Float[np.ndarray, " n"]:
    r"""Return how suspicious each label is: :math:`(b + 1) / (a + b + 2)`.

    a is the sum of the weights :math:`S\,h` of the items in the cap with the same label, b that of the other class with
    the largest sum; 1 is the weight of a random item. 0.5 for an empty cap.

    Examples
    --------
    >>> near = Neighbours(np.array([[1, 2], [0, 2], [1, 0]]), np.ones((3, 2)))
    >>> shares = cap_shares(near, np.array([[1.0, 8.0], [1.0, 1.0], [0.0, 0.0]]), np.array([0, 0, 1]))
    >>> label_suspicion(shares).round(3)
    array([0.818, 0.5  , 0.5  ])
    """
    own, other = (np.nan_to_num(each) * shares.weight for each in (shares.own, shares.other_share))
    return (other + 1) / (own + other + 2)


def outlier_angles(near: Neighbours, rank: int) -> Float[np.ndarray, " n"]:
    """Return the angle in radians to the neighbour of this rank, or to the farthest; NaN without any."""
    k = near.cosine.shape[1]
    if k == 0:
        return np.full(len(near.cosine), np.nan)
    return np.arccos(np.clip(near.cosine[:, min(rank, k) - 1], -1.0, 1.0))


def outlier_p_values(
    angles: Float[np.ndarray, " n"], new: Float[np.ndarray, " m"] | None = None
) -> Float[np.ndarray, "..."]:
    r"""Return conformal p-values: how common such an angle is among the items of the gallery.

    Of a new item with the angle a it is :math:`(1 + \#\{i : a_i \ge a\}) / (n + 1)`: if the item is drawn like those of
    the gallery, it is at most p with probability p. Of an item of the gallery, which is one of the n, it is
    :math:`\#\{i : a_i \ge a\} / n`.

    Parameters
    ----------
    angles
        Of the items of the gallery, to their k-th nearest other item.
    new
        Of new items to their k-th nearest item (default: the p-values of the gallery's own items).

    Examples
    --------
    >>> angles = np.array([0.1, 0.2, 0.3, 0.4])
    >>> outlier_p_values(angles), outlier_p_values(angles, np.array([0.25, 0.5]))
    (array([1.  , 0.75, 0.5 , 0.25]), array([0.6, 0.2]))
    """
    ordered = np.sort(angles)
    n = len(ordered)
    if new is None:
        return (n - np.searchsorted(ordered, angles)) / max(1, n)
    return (1 + n - np.searchsorted(ordered, new)) / (n + 1)


def far_angle(angles: Float[np.ndarray, " n"]) -> float:
    """Return the angle beyond which an item is far from everything: Tukey's outer fence of the log angles.

    Three interquartile ranges of the log angle beyond its third quartile. A gallery without outliers has hardly any
    item beyond. Infinite below 20 items.

    Examples
    --------
    >>> round(far_angle(np.linspace(0.1, 0.2, 101)), 3)
    0.48
    """
    positive = angles[angles > 0]
    if len(positive) < 20:
        return math.inf
    low, high = np.quantile(np.log(positive), (0.25, 0.75))
    return float(np.exp(high + _FENCE * (high - low)))
