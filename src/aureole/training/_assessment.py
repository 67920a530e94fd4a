"""Assessment: what a fitted head is worth on vectors whose groups are known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aureole.errors import InvalidInputError
from aureole.evaluation import (
    area_under_rejection,
    nearest_label_matches,
    oracle_area,
    r_auroc,
    rejection_curve,
)
from aureole.training._frozen import FrozenHead
from aureole.training._rows import MASSES
from aureole.training._scoring import kappas

_BINS = 30
_GALLERY = 500_000  # rows among which the nearest is looked for


@dataclass(frozen=True)
class Assessment:
    """What was found: one kappa a row, and figures about them.

    Attributes
    ----------
    dim, kappa_pos
        Of the head.
    kappa
        Of each row [n].
    groups
        How many there are.
    information
        What a posterior tells of a partner, in nats.
    coverage
        For each mass, how often the predictive cap that promises it holds a partner.
    profile
        For each kappa_pos, the held-out information when the head was fitted.
    asked
        For how many rows the nearest other row was looked up.
    recall
        Recall@1: the share of these whose nearest other row is of their group.
    rejected, kept, best
        The rejection curve: shares rejected, Recall@1 of the others, and what it is in the best order.
    area, area_best
        The areas under these curves.
    auroc
        The chance that an item whose nearest other is wrong has the lower kappa of two; None where none or all are.
    """

    dim: int
    kappa_pos: float
    kappa: np.ndarray
    groups: int
    information: float
    coverage: dict[float, float]
    profile: dict[float, float]
    asked: int
    recall: float
    rejected: np.ndarray
    kept: np.ndarray
    best: np.ndarray
    area: float
    area_best: float
    auroc: float | None

    def figures(self) -> dict[str, Any]:
        """All of it as JSON can hold it; of kappa, quantiles and a histogram."""
        counts, edges = histogram(self.kappa)
        low, median, high = np.quantile(self.kappa.astype(np.float64), (0.05, 0.5, 0.95))
        return {
            "rows": len(self.kappa),
            "groups": self.groups,
            "dim": self.dim,
            "kappa_pos": self.kappa_pos,
            "information": self.information,
            "coverage": [{"mass": m, "measured": share} for m, share in self.coverage.items()],
            "profile": [{"kappa_pos": k, "information": v} for k, v in self.profile.items()],
            "recall_at_1": self.recall,
            "asked": self.asked,
            "rejection": {
                "rejected": self.rejected.tolist(),
                "recall_at_1": self.kept.tolist(),
                "best": self.best.tolist(),
                "area": self.area,
                "area_random": self.recall,
                "area_best": self.area_best,
                "auroc": self.auroc,
            },
            "kappa": {
                "quantiles": {"0.05": float(low), "0.5": float(median), "0.95": float(high)},
                "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
            },
        }


def assess(
    head: FrozenHead,
    vectors: np.ndarray,
    groups: np.ndarray,
    *,
    items: int = 10_000,
    seed: int = 0,
    observer: Callable[[int], None] | None = None,
) -> Assessment:
    """What a head is worth on vectors [n, d] and groups [n], which should be others than it was fitted on.

    Recall@1 asks for at most ``items`` random rows which of 500,000 others is the nearest, in whole groups as far as
    they fit. Rows that are alone in their group have no right neighbour and are left out there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(100), 4)
    >>> blur = rng.uniform(0.1, 1.1, size=(400, 1))
    >>> vectors = rng.normal(size=(100, 8))[groups] + blur * rng.normal(size=(400, 8))
    >>> head = FrozenHead(dim=4, steps=20, items=64).fit(vectors, groups)
    >>> found = assess(head, vectors, groups)
    >>> found.kappa.shape, found.asked
    ((400,), 400)
    """
    if len(groups) != len(vectors):
        raise InvalidInputError(f"{len(vectors)} vectors need as many groups, not {len(groups)}.")
    rng = np.random.default_rng(seed)
    gallery = _whole_groups(groups, _GALLERY, rng)
    if not len(gallery):
        raise InvalidInputError(
            f"no two of the {len(groups)} rows share a group, so there is nothing to compare."
        )
    if len(np.unique(groups[gallery])) < 2:
        raise InvalidInputError(
            "only one group has two rows or more, so that partners cannot be told from others: give two or more."
        )
    kappa = kappas(head, vectors, observer=observer)
    asked = np.sort(rng.permutation(len(gallery))[:items])
    labels = torch.from_numpy(np.unique(groups[gallery], return_inverse=True)[1])
    mu = head.predict(vectors[gallery]).mu.cpu()
    correct = nearest_label_matches(mu, labels, queries=torch.from_numpy(asked))
    doubt = -torch.from_numpy(kappa[gallery][asked]).double()
    rejected, kept = rejection_curve(doubt, correct)
    _, best = rejection_curve((~correct).double(), correct)
    auroc = r_auroc(doubt, correct)
    return Assessment(
        dim=head.dim_,
        kappa_pos=head.kappa_pos_,
        kappa=kappa,
        groups=len(np.unique(groups)),
        information=head.score(vectors, groups),
        coverage=head.coverage(vectors, groups, masses=MASSES),
        profile=dict(head.profile_),
        asked=len(asked),
        recall=correct.double().mean().item(),
        rejected=rejected.numpy(),
        kept=kept.numpy(),
        best=best.numpy(),
        area=area_under_rejection(doubt, correct),
        area_best=oracle_area(correct),
        auroc=None if math.isnan(auroc) else auroc,
    )


def histogram(kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Counts, edges) of kappa: 30 bins, of equal ratio where the largest kappa is ten times the least or more.

    Examples
    --------
    >>> counts, edges = histogram(np.array([1.0, 10.0, 100.0]))
    >>> int(counts.sum()), float(edges[1] / edges[0]).__round__(2)
    (3, 1.17)
    """
    low, high = float(kappa.min()), float(kappa.max())
    if high < 10 * low:
        return np.histogram(kappa, _BINS)
    edges = np.geomspace(low, high, _BINS + 1)
    edges[0], edges[-1] = low, high  # rounding must not lose the ends
    return np.histogram(kappa, edges)


def _whole_groups(groups: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """The rows, in their order, of groups of two or more: all, or ``most`` of random groups, of which one is cut."""
    _, label, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(sizes[label] > 1)
    if len(rows) <= most:
        return rows
    place = rng.permutation(len(sizes))
    return np.sort(rows[np.argsort(place[label[rows]], kind="stable")[:most]])
