"""Questions people have about their data: suspicious labels, confused classes and outliers.

All answers come from the gallery alone: the predictive cap of each item, the items in it, and how likely they match.
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from aureole._io import atomic_write
from aureole.caps import CredibleIndex, cap_cosine
from aureole.caps._caps import log_hit_positivity
from aureole.distributions import VonMisesFisher
from aureole.engines._addresses import is_local
from aureole.engines._schema import pack_strings, unpack_strings
from aureole.errors import (
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
    MissingPackageError,
)

QUESTIONS = ("labels", "ambiguous", "outliers")
NEIGHBOURS = 20  # of which those inside the predictive cap count
MASS = 0.95  # of the predictive cap
OUTLIER_RANK = 10  # the neighbour whose angle makes an item an outlier
SAMPLE = 100_000  # rows that each row is compared with, at most
_MOST_PAIRS = 10_000  # pairs of classes that are kept
_AMBIGUOUS = 0.25  # share that both classes of an ambiguous item have, at least
_LARGEST_LOG = 500.0  # of a weight
_REMOTE = 20  # items of the answer "outliers", also if fewer are beyond the fence
_FENCE = 3.0  # interquartile ranges of the log angle beyond the third quartile: Tukey's "far out"
_PART = 5_000  # rows that are searched together
_EXACT = 30_000  # pairs whose positivity is computed one by one
_KAPPAS, _COSINES = 40, 41  # of the table that others are interpolated in
_LARGEST = 1e8  # concentrations beyond are points
_FORMAT = "aureole-questions-2"

Observer = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Neighbours:
    """The nearest other rows of each row, nearest first, and their cosines; fewer columns than k in small galleries."""

    rows: Int[np.ndarray, "n k"]
    cosine: Float[np.ndarray, "n k"]


@dataclass(frozen=True)
class LabelAnswers:
    r"""The classes of the items, and those in the cap of each.

    Attributes
    ----------
    classes, code
        The labels, most frequent first, and the class of each item.
    own
        The share of the item's own class among the others in its cap, by their weights; NaN for an empty cap.
    other, other_share
        The other class with the largest share (-1 for none), and its share.
    suspicion
        How suspicious the label is, 0 to 1: :math:`(b + 1) / (a + b + 2)`. a is the sum of the weights :math:`S\,h` of
        the items in the cap with the same label, b that of the other class with the largest sum; 1 is the weight of a
        random item. 0.5 for an empty cap.
    pairs, pair_share
        Pairs of classes (class of an item, class in its cap) and the mean share of the second in the caps of items of
        the first; the most frequent first.
    """

    classes: list[Any]
    code: np.ndarray
    own: Float[np.ndarray, " n"]
    other: np.ndarray
    other_share: Float[np.ndarray, " n"]
    suspicion: Float[np.ndarray, " n"]
    pairs: np.ndarray
    pair_share: np.ndarray


@dataclass(frozen=True)
class Questions:
    """The answers for every item of a gallery, in the order of kappa (ties by id), as ``inspect_gallery`` returns them.

    Attributes
    ----------
    ids
        Of the items.
    angle
        The angle to the 10th nearest other item.
    labels
        The answers about labels; None without a label column.
    version
        Of the gallery, ``CredibleIndex.version()``.
    settings
        How the answers were made.
    """

    ids: list[Any]
    angle: Float[np.ndarray, " n"]
    labels: LabelAnswers | None = None
    version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def p_value(self) -> Float[np.ndarray, " n"]:
        """The share of items whose angle is at least as large: the conformal p-value of each item."""
        return (len(self) - np.searchsorted(np.sort(self.angle), self.angle)) / max(1, len(self))

    @cached_property
    def far(self) -> float:
        """The angle beyond which an item is far from everything; infinite in small galleries."""
        return far_angle(self.angle)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        counts = {each["name"]: each["count"] for each in self.summary() if each["available"]}
        return f"Questions({len(self)} items, {counts})"

    def columns(self) -> dict[str, Float[np.ndarray, " n"]]:
        """Return numbers for each item: ``suspicion`` (with labels) and ``outlier``, -log10 of the p-value."""
        found = {} if self.labels is None else {"suspicion": self.labels.suspicion}
        return found | {"outlier": -np.log10(self.p_value)}

    def summary(self) -> list[dict[str, Any]]:
        """Return for each question whether it is answered, the reason if it is not, and how many items it found."""
        entries = []
        for name in QUESTIONS:
            reason, count = self._reason(name), None
            if reason is None:
                beyond = int((self.angle > self.far).sum())
                count = beyond if name == "outliers" else len(self._found(name))
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
            Only ambiguous items between these two classes, by their place in ``labels.classes``.
        """
        found = self._found(name, classes)
        page = found[offset : offset + limit].tolist()
        return len(found), [self._entry(name, place) for place in page]

    def rows(self, name: str, *, classes: tuple[int, int] | None = None) -> np.ndarray:
        """Return all rows that ``answer`` lists, ascending."""
        return np.sort(self._found(name, classes))

    def confusions(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the pairs of classes that are confused most: the mean share of each in the caps of the other."""
        if self.labels is None:
            return []
        classes, both = self.labels.classes, {}
        pairs = zip(self.labels.pairs.tolist(), self.labels.pair_share.tolist(), strict=True)
        for (own, other), share in pairs:
            if own != other:
                entry = both.setdefault((min(own, other), max(own, other)), [0.0, 0.0])
                entry[0 if own < other else 1] = share
        ranked = sorted(both.items(), key=lambda pair: (-sum(pair[1]), pair[0]))[:limit]
        return [
            {
                "classes": [classes[one], classes[two]],
                "codes": [one, two],
                "shares": shares,
                "count": len(self._found("ambiguous", (one, two))),
            }
            for (one, two), shares in ranked
        ]

    def _reason(self, name: str) -> str | None:
        """Return the reason why a question has no answer; None if it has one."""
        if name != "outliers" and self.labels is None:
            return "the gallery has no label column."
        return None

    def _found(self, name: str, classes: tuple[int, int] | None = None) -> np.ndarray:
        """Return the rows that a question is about, the strongest first; raise if it has no answer."""
        if name not in QUESTIONS:
            raise InvalidInputError(
                f"question {name[:60]!r} does not exist; there are {QUESTIONS}."
            )
        if (reason := self._reason(name)) is not None:
            raise InvalidInputError(reason)
        labels = self.labels
        if name == "outliers" or labels is None:
            score, flagged = self.angle, self.angle > self.far
            if math.isfinite(self.far):
                flagged[np.lexsort((np.arange(len(self)), -score))[:_REMOTE]] = True
        elif name == "labels":
            score, flagged = labels.suspicion, labels.other_share > labels.own
        else:
            score = np.minimum(labels.own, labels.other_share)
            flagged = score >= _AMBIGUOUS
        if classes is not None and labels is not None:
            pair = np.sort(np.stack([labels.code, labels.other]), 0)
            flagged &= (pair == np.array(sorted(classes))[:, None]).all(0)
        rows = np.flatnonzero(flagged)
        return rows[np.lexsort((rows, -score[rows]))]

    def _entry(self, name: str, place: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"row": place, "id": self.ids[place]}
        labels = self.labels
        if name == "outliers" or labels is None:
            angle, p_value = float(self.angle[place]), float(self.p_value[place])
            entry |= {"score": -math.log10(p_value), "angle": angle, "p_value": p_value}
            return entry | {"beyond": angle > self.far}
        own, other = float(labels.own[place]), float(labels.other_share[place])
        return entry | {
            "score": float(labels.suspicion[place]) if name == "labels" else min(own, other),
            "label": labels.classes[labels.code[place]],
            "other": labels.classes[labels.other[place]],
            "own_share": own,
            "other_share": other,
        }


def inspect_gallery(
    index: CredibleIndex,
    *,
    label_column: str | None = None,
    kappa_pos: float | None = None,
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
    version = index.version()
    ids, mu, kappa, values = _read_rows(index, label_column)
    if kappa_pos is None:
        kappa_pos = index.origin.kappa_pos
    n = len(ids)
    near = nearest_rows(mu, NEIGHBOURS, observer=observer)
    labels = None
    if label_column is not None and n:
        classes, code = class_codes(values)
        weights = np.ones(near.rows.shape)
        if kappa_pos is not None and near.rows.size:
            weights = match_weights(near, mu, kappa, kappa_pos, index.schema.typical_kappa)
        labels = replace(cap_shares(near, weights, code), classes=classes)
    settings = {
        "label_column": label_column,
        "kappa_pos": kappa_pos,
        "mass": MASS,
        "neighbours": NEIGHBOURS,
        "outlier_rank": OUTLIER_RANK,
        "compared_with": min(n, SAMPLE),
    }
    return Questions(ids, outlier_angles(near, OUTLIER_RANK), labels, version, settings)


def _read_rows(
    index: CredibleIndex, column: str | None
) -> tuple[list[Any], np.ndarray, np.ndarray, list[Any]]:
    """Return (ids, mu, kappa, labels) of all rows in the order of kappa, ties by id; 4 bytes per dimension and row."""
    ids: list[Any] = []
    labels: list[Any] = []
    mus, kappas = [np.zeros((0, index.schema.dim), np.float32)], [np.zeros(0, np.float32)]
    columns = [] if column is None else [column]
    for names, posterior, values in index.posteriors(columns=columns):
        ids += names
        labels += values[column] if column is not None else []
        mus.append(posterior.mu.numpy())
        kappas.append(posterior.kappa.numpy())
    mu, kappa = np.concatenate(mus), np.concatenate(kappas)
    order = sorted(range(len(ids)), key=lambda row: (kappa[row], ids[row]))
    labels = [labels[row] for row in order] if labels else []
    return [ids[row] for row in order], mu[order], kappa[order], labels


def nearest_rows(
    mu: Float[np.ndarray, "n dim"],
    k: int,
    *,
    sample: int = SAMPLE,
    observer: Observer | None = None,
) -> Neighbours:
    """Return the k nearest other rows of each row by an exact search with FAISS, with cosines in float64.

    Cost: n min(n, sample) dim products. A gallery with more rows than ``sample`` is compared with that many of its
    rows, drawn once.

    Parameters
    ----------
    mu
        Directions of length 1.
    k
        Neighbours of each row; there are at most n - 1.
    sample
        Rows that each row is compared with, at most (default 100,000).
    observer
        Called with ("comparing", rows done, rows in total).

    Examples
    --------
    >>> mu = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], np.float32)
    >>> found = nearest_rows(mu, 1)
    >>> found.rows.tolist(), found.cosine.round(2).tolist()
    ([[1], [0], [1]], [[0.8], [0.8], [0.6]])
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingPackageError(
            "nearest rows need faiss: pip install 'aureole[search]'."
        ) from error
    n = len(mu)
    chosen = np.arange(n)
    if n > sample:
        chosen = np.sort(np.random.default_rng(0).choice(n, sample, replace=False))
    k = max(0, min(k, len(chosen) - 1))
    index: Any = faiss.IndexFlatIP(mu.shape[1])
    index.add(np.ascontiguousarray(mu[chosen], np.float32))
    rows, cosine = np.zeros((n, k), np.int64), np.zeros((n, k))
    for start in range(0, n if k else 0, _PART):
        own = np.arange(start, min(n, start + _PART))
        _, found = index.search(np.ascontiguousarray(mu[own], np.float32), k + 1)
        near = _without_self(chosen[found], own)
        exact = _cosines(mu, own, near)
        order = np.argsort(-exact, axis=1, kind="stable")
        rows[own], cosine[own] = (np.take_along_axis(x, order, 1) for x in (near, exact))
        if observer is not None:
            observer("comparing", int(own[-1]) + 1, n)
    return Neighbours(rows, cosine)


def _without_self(near: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the neighbours without the row itself, or without the last one if it is not among them."""
    itself = near == own[:, None]
    drop = np.where(itself.any(1), itself.argmax(1), near.shape[1] - 1)
    keep = np.arange(near.shape[1]) != drop[:, None]
    return near[keep].reshape(len(near), -1)


def _cosines(mu: np.ndarray, own: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the cosines of rows and their neighbours, in float64."""
    result = np.empty(near.shape)
    for column, rows in enumerate(near.T):
        one, other = mu[own].astype(np.float64), mu[rows].astype(np.float64)
        length = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        result[:, column] = (one * other).sum(1) / np.maximum(length, 1e-12)
    return np.clip(result, -1.0, 1.0)


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
    near: Neighbours,
    mu: Float[np.ndarray, "n dim"],
    kappa: Float[np.ndarray, " n"],
    kappa_pos: float,
    typical_kappa: float,
) -> Float[np.ndarray, "n k"]:
    r"""Return how many times more likely than a random item each neighbour in the predictive cap matches: :math:`S\,h`.

    It takes both kappas into account: 1 is chance. 0 for neighbours outside of the cap. Rows with a log beyond 500 are
    scaled down to it.
    """
    posterior = VonMisesFisher(torch.from_numpy(mu), torch.from_numpy(kappa), validate_args=False)
    settings = {"kind": "predictive", "kappa_pos": kappa_pos, "kappa_other": typical_kappa}
    threshold = cap_cosine(posterior, MASS, **settings).numpy()
    log_ratio = log_match_ratios(near, kappa, kappa_pos, mu.shape[1])
    log_ratio -= np.maximum(log_ratio.max(1, keepdims=True) - _LARGEST_LOG, 0.0)
    return np.exp(log_ratio) * (near.cosine >= threshold[:, None])


def cap_shares(
    near: Neighbours, weights: Float[np.ndarray, "n k"], label: np.ndarray
) -> LabelAnswers:
    """Return the share of each class among the weights of an item's neighbours; the item itself does not count.

    Cost: one sort of n k numbers.

    Examples
    --------
    >>> near = Neighbours(np.array([[1, 2], [0, 2], [1, 0]]), np.ones((3, 2)))
    >>> found = cap_shares(near, np.array([[1.0, 8.0], [1.0, 1.0], [0.0, 0.0]]), np.array([0, 0, 1]))
    >>> found.own.round(2), found.other, found.suspicion.round(3)
    (array([0.11, 0.5 ,  nan]), array([ 1,  1, -1], dtype=int32), array([0.818, 0.5  , 0.5  ]))
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
    a, b = (np.nan_to_num(each) * weight for each in (own, best))
    names = list(range(classes))
    return LabelAnswers(names, label, own, other, best, (b + 1) / (a + b + 2), pairs, total[order])


def log_match_ratios(
    near: Neighbours, kappa: Float[np.ndarray, " n"], kappa_pos: float, dim: int
) -> Float[np.ndarray, "n k"]:
    r"""Return the log of the expected positivity :math:`S\,h` of each row and its neighbours.

    Of more than 30,000 pairs it is interpolated linearly in a table over both concentrations (40 levels of log kappa)
    and the cosine (41 levels). The table costs 34,000 positivities, about a second, whatever the number of
    pairs; the error of the log is about 0.01 where kappa spans a factor of 100.

    Examples
    --------
    >>> near = Neighbours(np.array([[1], [0]]), np.array([[0.9], [0.9]]))
    >>> log_match_ratios(near, np.array([24.0, 24.0]), 20.0, 10).round(3)
    array([[4.174],
           [4.174]])
    """
    kappa = np.clip(kappa.astype(np.float64), 1e-3, _LARGEST)
    pairs = near.rows.size
    if pairs <= _EXACT:
        own = np.repeat(kappa, near.rows.shape[1])
        flat = [torch.from_numpy(x) for x in (near.cosine.ravel(), own, kappa[near.rows].ravel())]
        found = log_hit_positivity(flat[0], flat[1], flat[2], kappa_pos, dim)
        return found.numpy().reshape(near.rows.shape)
    levels = np.exp(np.linspace(math.log(kappa.min()), math.log(kappa.max() * 1.001), _KAPPAS))
    cosines = np.linspace(min(near.cosine.min(), 0.99), 1.0, _COSINES)
    table = _positivity_table(levels, cosines, kappa_pos, dim)
    scale = 2 / math.log(levels[-1] / levels[0])
    place = (np.log(kappa / levels[0]) * scale - 1).astype(np.float64)
    across = 2 * (near.cosine - cosines[0]) / (cosines[-1] - cosines[0]) - 1
    result = np.empty(near.rows.shape)
    for start in range(0, len(kappa), _PART):
        part = slice(start, start + _PART)
        own = np.broadcast_to(place[part, None], across[part].shape)
        # grid_sample expects the last dimension of the table first
        at = np.stack([across[part], place[near.rows[part]], own], -1)
        values = torch.nn.functional.grid_sample(
            table[None, None],
            torch.from_numpy(at)[None, None],
            padding_mode="border",
            align_corners=True,
        )
        result[part] = values[0, 0, 0].numpy()
    return result


def _positivity_table(
    levels: np.ndarray, cosines: np.ndarray, kappa_pos: float, dim: int
) -> torch.Tensor:
    """Return the log positivity of both concentrations and the cosine, [kappas, kappas, cosines]."""
    one, two = np.triu_indices(len(levels))
    shape = (len(one), len(cosines))
    flat = [
        torch.from_numpy(np.broadcast_to(x, shape).ravel().copy())
        for x in (cosines, levels[one, None], levels[two, None])
    ]
    values = log_hit_positivity(flat[0], flat[1], flat[2], kappa_pos, dim).reshape(shape)
    table = torch.empty(len(levels), len(levels), len(cosines), dtype=torch.float64)
    table[one, two] = values
    table[two, one] = values
    return table


def outlier_angles(near: Neighbours, rank: int) -> Float[np.ndarray, " n"]:
    """Return the angle in radians to the neighbour of this rank, or to the farthest; NaN without any."""
    k = near.cosine.shape[1]
    if k == 0:
        return np.full(len(near.cosine), np.nan)
    return np.arccos(np.clip(near.cosine[:, min(rank, k) - 1], -1.0, 1.0))


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


def questions_path(gallery: str) -> Path:
    """Return the file of a gallery's answers, next to it; raise for a gallery that is not local.

    Examples
    --------
    >>> questions_path("shop/gallery.lance/").name
    'gallery.lance.questions.safetensors'
    """
    if not is_local(gallery):
        raise InvalidInputError(
            "the gallery is not local: choose the file for its answers (--out, and --questions to serve it)."
        )
    path = Path(gallery)
    return path.with_name(f"{path.name}.questions.safetensors")


def save_questions(questions: Questions, path: Path) -> Path:
    """Write the answers atomically, and return the path."""
    from safetensors.numpy import save

    text, ends = pack_strings([json.dumps(name) for name in questions.ids])
    labels = {} if questions.labels is None else asdict(questions.labels)
    about = {
        "format": _FORMAT,
        "version": questions.version,
        "classes": labels.pop("classes", None),
        "settings": questions.settings,
    }
    arrays = {"ids": text, "ends": ends, "angle": questions.angle, **labels}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return atomic_write(path, save(arrays, {"aureole": json.dumps(about)}))


def load_questions(path: Path) -> Questions:
    """Return the answers in a file of ``save_questions``; raise if it is not such a file.

    Examples
    --------
    >>> import tempfile
    >>> found = Questions(["a", "b"], np.array([0.1, 0.4]))
    >>> load_questions(save_questions(found, Path(tempfile.mkdtemp()) / "questions.safetensors"))
    Questions(2 items, {'outliers': 0})
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise MissingInputError(f"{path} does not exist. Write it with: aureole inspect GALLERY.")
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {}).get("aureole", ""))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != _FORMAT:
            raise ValueError(f"the format is {str(about['format'])[:40]!r}")
        texts = unpack_strings(arrays.pop("ids"), arrays.pop("ends"))
        angle, ids = arrays.pop("angle"), [json.loads(text) for text in texts]
        labels = LabelAnswers(classes=about["classes"], **arrays) if arrays else None
        return Questions(ids, angle, labels, about["version"], about["settings"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedGalleryError(
            f"{path} does not hold answers of this version of aureole ({error}). Run aureole inspect again."
        ) from error
