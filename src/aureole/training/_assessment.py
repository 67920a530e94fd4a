"""Evaluation of a fitted head on a table of vectors: the kappa of each row, caps, Recall@1 and rejection."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev

from aureole.errors import InvalidInputError
from aureole.evaluation import r_auroc, rejection_curve
from aureole.evaluation._rejection import area_under_rejection, oracle_area
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.sphere import predictive_angle
from aureole.training._frozen_head import FrozenHead

CHUNK = 65_536  # rows per call of ``predict``
_BINS = 30
_DEGREE = 32  # of the Chebyshev interpolation
_GALLERY = 500_000  # rows among which the nearest neighbour is searched


@dataclass(frozen=True)
class Assessment:
    """The kappa of each row of a table under a head, and metrics of the head.

    Attributes
    ----------
    dim, kappa_pos
        Parameters of the head.
    kappa
        Kappa of each row [n].
    groups
        Number of groups.
    information
        Information of the posteriors about a partner, in nats.
    coverage
        Share of partners inside predictive caps, by mass.
    profile
        Held-out information by kappa_pos, from the fit of the head.
    asked
        Number of rows whose nearest neighbour was searched.
    recall
        Recall@1: the share of these whose nearest neighbour has the same group.
    rejected, kept, best
        The rejection curve: rejected shares, Recall@1 of the rows kept, and the same for the best possible order.
    area, area_best
        The areas under these two curves.
    auroc
        Probability that a row with a wrong neighbour has a lower kappa than one with a right neighbour; None if all
        neighbours are right or all are wrong.
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

    def __repr__(self) -> str:
        return (
            f"Assessment(rows={len(self.kappa)}, groups={self.groups}, information={self.information:.3f}, "
            f"recall={self.recall:.3f}, area={self.area:.3f})"
        )

    def to_dict(self) -> dict[str, Any]:
        """All metrics as JSON values, with quantiles and a histogram in place of the kappa of each row."""
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
    """Evaluate a head on vectors [n, d] with groups [n], which it should not have been fitted on.

    Recall@1 is measured on at most ``items`` random rows, whose nearest neighbour is searched among at most 500,000
    rows, taken in whole groups. Rows that are alone in their group have no right neighbour and are left out.
    ``observer`` is called with the number of rows whose kappa has been computed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(100), 4)
    >>> blur = rng.uniform(0.1, 1.1, size=(400, 1))
    >>> vectors = rng.normal(size=(100, 8))[groups] + blur * rng.normal(size=(400, 8))
    >>> head = FrozenHead(dim=4, steps=20, items=64).fit(vectors, groups)
    >>> assessment = assess(head, vectors, groups)
    >>> assessment.kappa.shape, assessment.asked
    ((400,), 400)
    """
    if len(groups) != len(vectors):
        raise InvalidInputError(
            f"{len(vectors)} vectors need one group each, but got {len(groups)} groups."
        )
    rng = np.random.default_rng(seed)
    gallery = _whole_groups(groups, _GALLERY, rng)
    if not len(gallery):
        raise InvalidInputError(
            f"no two of the {len(groups)} rows share a group. Give at least two groups with two rows each."
        )
    if len(np.unique(groups[gallery])) < 2:
        raise InvalidInputError(
            "only one group has more than one row. Give at least two groups with two rows each."
        )
    kappa = kappas(head, vectors, observer=observer)
    asked = np.sort(rng.permutation(len(gallery))[:items])
    labels = torch.from_numpy(np.unique(groups[gallery], return_inverse=True)[1])
    mu = head.predict(vectors[gallery]).mu.cpu()
    correct = nearest_label_matches(mu, labels, queries=torch.from_numpy(asked))
    uncertainty = -torch.from_numpy(kappa[gallery][asked]).double()
    rejected, kept = rejection_curve(uncertainty, correct)
    _, best = rejection_curve((~correct).double(), correct)
    auroc = r_auroc(uncertainty, correct)
    return Assessment(
        dim=head.dim_,
        kappa_pos=head.kappa_pos_,
        kappa=kappa,
        groups=len(np.unique(groups)),
        information=head.score(vectors, groups),
        coverage=head.coverage(vectors, groups),
        profile=dict(head.profile_),
        asked=len(asked),
        recall=correct.double().mean().item(),
        rejected=rejected.numpy(),
        kept=kept.numpy(),
        best=best.numpy(),
        area=area_under_rejection(uncertainty, correct),
        area_best=oracle_area(correct),
        auroc=None if math.isnan(auroc) else auroc,
    )


def histogram(kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The counts and edges of a histogram of kappa with 30 bins, logarithmic if the range is tenfold or more.

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
    edges[0], edges[-1] = low, high  # so that rounding does not lose the ends
    return np.histogram(kappa, edges)


def _whole_groups(groups: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """The rows in groups of two or more: all of them, or ``most`` rows of random groups, the last of which is cut."""
    _, label, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(sizes[label] > 1)
    if len(rows) <= most:
        return rows
    order = rng.permutation(len(sizes))
    return np.sort(rows[np.argsort(order[label[rows]], kind="stable")[:most]])


def kappas(
    head: FrozenHead, vectors: np.ndarray, *, observer: Callable[[int], None] | None = None
) -> np.ndarray:
    """The kappa of every row [n] as float32, in chunks; ``observer`` is called with the number of rows done."""
    kappa = np.empty(len(vectors), dtype=np.float32)
    for first in range(0, len(vectors), CHUNK):
        part = vectors[first : first + CHUNK]
        kappa[first : first + len(part)] = head.predict(part).kappa.cpu().numpy()
        if observer is not None:
            observer(first + len(part))
    return kappa


def partner_cosines(
    kappa: np.ndarray, mass: float, *, kappa_other: float, kappa_pos: float, dim: int
) -> np.ndarray:
    """The cosine within which the mu of a partner lies with probability ``mass``, for each kappa [n].

    This is ``VonMisesFisher.predictive_cosine`` for a partner with concentration ``kappa_other``. Its angle is a smooth
    function of log kappa, so it is computed at 33 Chebyshev points between the smallest and the largest kappa and
    interpolated: accurate to 1e-4 for kappas up to a thousandfold apart, at a cost that does not depend on n.

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
    if domain[1] - domain[0] < 1e-6:  # equal up to rounding
        return np.full(len(kappa), np.cos(angle(np.array(domain[:1]))[0]))
    curve = Chebyshev.interpolate(angle, _DEGREE, domain=domain)
    return np.cos(curve(np.log(kappa.astype(np.float64))))
