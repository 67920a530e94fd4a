"""The measures of adaptive retrieval: pooled precision and recall, sets that hold a share of matches, calibration."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

DEPTH = 300  # nearest items whose pairs are pooled
_SHARE = 0.9  # of the matches that sets should hold
_ROWS = 128  # queries whose ranks are computed at a time


class Judged:
    """Questions with known matches, and the cosines of all pairs with a gallery."""

    def __init__(
        self, queries: np.ndarray, gallery: np.ndarray, matches: Sequence[Sequence[int]]
    ) -> None:
        self.cosines = np.clip(queries @ gallery.T, -1.0, 1.0)
        self.counts = np.array([len(group) for group in matches])
        self._owners = np.repeat(np.arange(len(matches)), self.counts)
        self._matches = np.array([row for group in matches for row in group], dtype=np.int64)
        depth = min(DEPTH, self.cosines.shape[1])
        near = np.argpartition(-self.cosines, depth - 1, axis=1)[:, :depth]
        order = np.argsort(-np.take_along_axis(self.cosines, near, 1), axis=1, kind="stable")
        self.rows = np.take_along_axis(near, order, 1)
        self.top_cosines = np.take_along_axis(self.cosines, self.rows, 1)
        self.level = self.top_cosines[:, :10].mean(1, keepdims=True)
        right = np.zeros(self.cosines.shape, dtype=bool)
        right[self._owners, self._matches] = True
        self.labels = np.take_along_axis(right, self.rows, 1)

    @cached_property
    def ranks(self) -> Float[np.ndarray, "n m"]:
        """The place of each item in a question's order by cosine, from 0."""
        ranks = np.empty(self.cosines.shape, dtype=np.float32)
        places = np.arange(self.cosines.shape[1], dtype=np.float32)
        for start in range(0, len(ranks), _ROWS):
            part = slice(start, start + _ROWS)
            order = np.argsort(-self.cosines[part], axis=1, kind="stable")
            np.put_along_axis(ranks[part], order, np.broadcast_to(places, order.shape), axis=1)
        return ranks

    @cached_property
    def spread(self) -> Float[np.ndarray, "n 1"]:
        """The standard deviation of each question's cosines."""
        return self.cosines.std(1, keepdims=True)

    def own(self, scores: np.ndarray) -> np.ndarray:
        """The scores of the matches."""
        return scores[self._owners, self._matches]

    def shares(self, scores: np.ndarray, cut: float) -> np.ndarray:
        """The share of each question's matches with at least this score."""
        hits = np.bincount(self._owners[self.own(scores) >= cut], minlength=len(self.counts))
        return hits / self.counts

    def curve(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Precision, recall) over the pooled pairs, at each of them, from the best down."""
        near = np.take_along_axis(scores, self.rows, 1).ravel()
        right = np.cumsum(self.labels.ravel()[np.argsort(-near, kind="stable")])
        return right / np.arange(1, right.size + 1), right / self.counts.sum()

    def average_precision(self, scores: np.ndarray) -> float:
        """Of the pooled pairs."""
        precision, recall = self.curve(scores)
        return float(precision @ np.diff(recall, prepend=0))

    def best_cut(self, scores: np.ndarray) -> float:
        """The score with the highest F1 over the pooled pairs."""
        near = np.sort(np.take_along_axis(scores, self.rows, 1).ravel())[::-1]
        precision, recall = self.curve(scores)
        total = np.maximum(precision + recall, np.finfo(float).tiny)
        return float(near[int(np.argmax(2 * precision * recall / total))])

    def safe_cut(self, scores: np.ndarray) -> float:
        """The highest score that holds 90 % of matches, by conformal risk control (Angelopoulos et al., 2022)."""
        own = np.sort(self.own(scores))
        n, low, high = len(self.counts), 0, len(own) - 1
        while low < high:  # the risk increases with the cut
            middle = (low + high + 1) // 2
            risk = 1 - self.shares(scores, own[middle]).mean()
            if (n * risk + 1) / (n + 1) <= 1 - _SHARE:
                low = middle
            else:
                high = middle - 1
        return float(own[low])

    def at(self, scores: np.ndarray, cut: float) -> dict[str, Any]:
        """Precision, recall, F1 and number of results at a cut."""
        results = int((scores >= cut).sum())
        right = int((self.own(scores) >= cut).sum())
        precision, recall = right / max(results, 1), right / len(self._owners)
        f1 = 2 * right / (results + len(self._owners))
        per_query = results / len(self.counts)
        return {"precision": precision, "recall": recall, "f1": f1, "results": per_query}

    def coverage(self, scores: np.ndarray, cut: float) -> dict[str, float]:
        """The mean share of matches in the sets of a cut, and the sizes of these."""
        sizes = (scores >= cut).sum(1)
        held = float(self.shares(scores, cut).mean())
        return {"held": held, "size": float(sizes.mean()), "median_size": float(np.median(sizes))}

    def calibration_error(self, p: np.ndarray) -> float:
        """Of ten bins of the candidates above 0.05."""
        shown = p > 0.05
        part = np.minimum((p[shown] * 10).astype(int), 9)
        sums = [np.bincount(part, x, minlength=10) for x in (p[shown], self.labels[shown])]
        return float(np.abs(sums[0] - sums[1]).sum() / max(shown.sum(), 1))


Score = Callable[[Judged], np.ndarray]


def measured(score: Score, held: Judged, test: Judged) -> dict[str, Any]:
    """Pooled AP and R@1 on test, F1 and sets at 90 % with the cuts of held-out questions."""
    calibration, scores = score(held), score(test)
    best = np.argmax(scores, axis=1)
    first = (best[:, None] == np.where(test.labels, test.rows, -1)).any(1)
    return {
        "pooled_ap": test.average_precision(scores),
        "recall_at_1": float(first.mean()),
        **test.at(scores, held.best_cut(calibration)),
        "at 90 %": test.coverage(scores, held.safe_cut(calibration)),
    }


def conditional(score: Score, held: Judged, test: Judged) -> dict[str, float]:
    """The share of matches in sets at 90 %, by fifth of their size and by the number of matches."""
    scores, cut = score(test), held.safe_cut(score(held))
    shares, sizes = test.shares(scores, cut), (scores >= cut).sum(1)
    order = np.argsort(sizes, kind="stable")
    fifths = {
        f"fifth {i + 1} of sizes": float(shares[part].mean())
        for i, part in enumerate(np.array_split(order, 5))
    }
    groups = {"one": test.counts == 1, "two": test.counts == 2, "more": test.counts > 2}
    by_count = {
        f"{name} matches": float(shares[part].mean()) for name, part in groups.items() if part.any()
    }
    return fifths | by_count


def auroc(unanswerable: np.ndarray, answerable: np.ndarray) -> float:
    """How often an answerable question scores higher than an unanswerable one."""
    order = np.sort(unanswerable)
    low, high = (np.searchsorted(order, answerable, side=side) for side in ("left", "right"))
    return float((low + high).mean() / 2 / len(order))


def bm25_scores(texts: Sequence[str], queries: Sequence[str]) -> Float[np.ndarray, "n m"]:
    """BM25 of every pair, minus the mean of the question's ten best, as with cosines."""
    import bm25s

    def tokens(values: Sequence[str]) -> Any:
        return bm25s.tokenize(list(values), stopwords="en", return_ids=False, show_progress=False)

    model = bm25s.BM25()
    model.index(tokens(texts), show_progress=False)
    scores = np.zeros((len(queries), len(texts)), dtype=np.float32)
    for row, words in zip(scores, tokens(queries), strict=True):
        known = [word for word in words if word in model.vocab_dict]
        if known:
            row[:] = model.get_scores(known)
    return scores - np.partition(scores, -10, axis=1)[:, -10:].mean(1, keepdims=True)
