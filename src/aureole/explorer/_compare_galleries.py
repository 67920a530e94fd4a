"""Two galleries of the same items, by two encoders or two heads: what each is certain about, and what moved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation import average_ranks, spearman
from aureole.explorer._nearest_rows import GalleryRows, Neighbours, nearest_rows
from aureole.explorer._questions import NEAREST, class_codes
from aureole.retrieval import CredibleIndex, cap_cosine

_MASSES = (0.5, 0.9, 0.95)
_PARTNERS = 10  # items of the same class that the caps of an item are compared with
Observer = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GallerySide:
    """One of the compared galleries.

    Attributes
    ----------
    name
        Of the gallery.
    kappa
        Of the common items.
    recall_at_1
        The share of items whose nearest other item has the same label; None without labels.
    coverage
        For masses of 0.5, 0.9 and 0.95, the share of pairs of items with the same label in which the second lies in the
        predictive cap of the first; None without labels or ``kappa_pos``.
    near
        The nearest other common items of each.
    dim, kappa_pos
        Of the gallery.
    """

    name: str
    kappa: Float[np.ndarray, " n"]
    recall_at_1: float | None
    coverage: dict[float, float] | None
    near: Neighbours
    dim: int
    kappa_pos: float | None


@dataclass(frozen=True)
class Comparison:
    """Two galleries, item by item, in the order of kappa in the first gallery (ties by id).

    Attributes
    ----------
    ids
        Of the items that both galleries have.
    first, second
        The galleries.
    only_first, only_second
        How many items only one of them has.
    rank_correlation
        Spearman's, of the two kappas.
    rank_change
        The share of items with a smaller kappa in the second gallery, minus that in the first.
    overlap
        The share of the 10 nearest items that both galleries have in common, for each item.
    label
        The label of each item; None without labels.
    """

    ids: list[Any]
    first: GallerySide
    second: GallerySide
    only_first: int
    only_second: int
    rank_correlation: float
    rank_change: Float[np.ndarray, " n"]
    overlap: Float[np.ndarray, " n"]
    label: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Comparison({len(self)} items, rank correlation {self.rank_correlation:.2f})"

    def movers(self, by: str = "kappa", limit: int = 20, offset: int = 0) -> list[dict[str, Any]]:
        """The items that changed most: "kappa" (its rank), "up" or "down" (only one direction), or "neighbours".

        Ties in the overlap of neighbours are ordered by the change of kappa.
        """
        change = self.rank_change
        keys = {"kappa": -np.abs(change), "up": -change, "down": change, "neighbours": self.overlap}
        if by not in keys:
            raise InvalidInputError(f"movers are by {', '.join(keys)}, not by {by[:40]!r}.")
        order = np.lexsort((np.arange(len(self)), -np.abs(change), keys[by]))
        return [self.entry(int(place)) for place in order[offset : offset + limit]]

    def entry(self, place: int) -> dict[str, Any]:
        """An item with both kappas."""
        return {
            "id": self.ids[place],
            "row": place,
            "label": None if self.label is None else self.label[place],
            "kappa": [float(side.kappa[place]) for side in (self.first, self.second)],
            "rank_change": float(self.rank_change[place]),
            "overlap": float(self.overlap[place]),
        }

    def summary(self) -> dict[str, Any]:
        """The comparison as JSON values, without the items."""
        return {
            "items": len(self),
            "only": [self.only_first, self.only_second],
            "rank_correlation": self.rank_correlation,
            "overlap": float(self.overlap.mean()) if len(self) else None,
            "galleries": [
                {
                    "name": side.name,
                    "dim": side.dim,
                    "kappa_pos": side.kappa_pos,
                    "kappa": [float(q) for q in np.quantile(side.kappa, (0.05, 0.5, 0.95))],
                    "recall_at_1": side.recall_at_1,
                    "coverage": None
                    if side.coverage is None
                    else {f"{mass:g}": share for mass, share in side.coverage.items()},
                }
                for side in (self.first, self.second)
            ],
        }


def compare_galleries(
    first: CredibleIndex,
    second: CredibleIndex,
    *,
    label_column: str | None = None,
    names: tuple[str, str] = ("first", "second"),
    observer: Observer | None = None,
) -> Comparison:
    """Compare two galleries of the same items, such as of two encoders or of two heads.

    Only items whose id is in both galleries are compared, and neighbours are searched among them. Labels are those of
    the first gallery. The kappas of two encoders have no common scale, so changes are those of ranks.

    Cost: n min(n, 100,000) dim products for each gallery.

    Parameters
    ----------
    first, second
        The galleries; their dimensions may differ.
    label_column
        Payload column of labels of the first gallery (default: none; Recall@1 and coverage need it).
    names
        Of the galleries.
    observer
        Called with (the name of the part, rows done, rows in total).

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> mu = torch.nn.functional.normalize(torch.randn(100, 4, generator=rng), dim=1)
    >>> kappa, ids = torch.linspace(10.0, 90.0, 100), [f"{i:02d}" for i in range(100)]
    >>> one = CredibleIndex.create("faiss://", VonMisesFisher(mu, kappa), ids)
    >>> kappa[3] = 200.0
    >>> two = CredibleIndex.create("faiss://", VonMisesFisher(mu, kappa), ids)
    >>> found = compare_galleries(one, two)
    >>> found.movers("up", 1)[0]["id"], found.overlap.mean().item()
    ('03', 1.0)
    """
    columns = [] if label_column is None else [label_column]
    one, two = GalleryRows.read(first, columns), GalleryRows.read(second)
    place = {name: row for row, name in enumerate(two.ids)}
    common = [row for row, name in enumerate(one.ids) if name in place]
    if len(common) < 3:
        raise InvalidInputError(
            f"the galleries have {len(common)} ids in common, but at least 3 are needed to compare them."
        )
    others = [place[one.ids[row]] for row in common]
    label = [one.payload[label_column][row] for row in common] if label_column else None
    sides = []
    for at, (index, rows, chosen) in enumerate(((first, one, common), (second, two, others))):
        taken = np.array(chosen)
        sides.append(_side(index, names[at], rows.mu[taken], rows.kappa[taken], label, observer))
    kappas = [torch.from_numpy(side.kappa.astype(np.float64)) for side in sides]
    ranks = [average_ranks(kappa).numpy() for kappa in kappas]
    return Comparison(
        [one.ids[row] for row in common],
        sides[0],
        sides[1],
        len(one) - len(common),
        len(two) - len(common),
        spearman(kappas[0], kappas[1]),
        (ranks[1] - ranks[0]) / len(common),
        neighbour_overlap(sides[0].near.rows, sides[1].near.rows),
        label,
    )


def _side(
    index: CredibleIndex,
    name: str,
    mu: np.ndarray,
    kappa: np.ndarray,
    label: list[Any] | None,
    observer: Observer | None,
) -> GallerySide:
    """One gallery, measured on the common items."""
    n = len(mu)
    watch = (lambda done: observer(f"comparing {name}", done, n)) if observer else None
    near = nearest_rows(mu, NEAREST, observer=watch)
    kappa_pos, recall, coverage = index.origin.kappa_pos, None, None
    if label is not None:
        _, codes = class_codes(label)
        recall = float((codes[near.rows[:, 0]] == codes).mean())
        if kappa_pos is not None:
            typical = index.schema.typical_kappa
            coverage = class_coverage(mu, kappa, codes, kappa_pos, typical)
    return GallerySide(name, kappa, recall, coverage, near, index.schema.dim, kappa_pos)


def class_coverage(
    mu: Float[np.ndarray, "n dim"],
    kappa: Float[np.ndarray, " n"],
    codes: np.ndarray,
    kappa_pos: float,
    typical_kappa: float,
) -> dict[float, float] | None:
    """How often the predictive cap of an item contains another item of its class, drawn at random, by mass.

    Each item is compared with 10 items of its class, drawn with the seed 0; None if no class has two items.
    """
    rng = np.random.default_rng(0)
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    starts, size = (np.cumsum(sizes) - sizes)[codes], sizes[codes]
    position = np.empty(len(codes), np.int64)
    position[order] = np.arange(len(codes))
    several = np.flatnonzero(size > 1)
    if not len(several):
        return None
    # an offset of 1 to size - 1 from the item itself, around its class
    step = 1 + (rng.random((len(several), _PARTNERS)) * (size[several, None] - 1)).astype(np.int64)
    within = (position[several, None] - starts[several, None] + step) % size[several, None]
    partners = order[starts[several, None] + within]
    cosine = np.einsum("nd,nkd->nk", mu[several], mu[partners])
    own = VonMisesFisher(
        torch.from_numpy(mu[several]), torch.from_numpy(kappa[several]), validate_args=False
    )
    settings = {"kind": "predictive", "kappa_pos": kappa_pos, "kappa_other": typical_kappa}
    found = {}
    for mass in _MASSES:
        threshold = cap_cosine(own, mass, **settings).numpy()
        found[mass] = float((cosine >= threshold[:, None]).mean())
    return found


def neighbour_overlap(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, " n"]:
    """The share of the neighbours of each item that two lists of rows [n, k] have in common.

    Examples
    --------
    >>> neighbour_overlap(np.array([[1, 2], [0, 2]]), np.array([[2, 1], [0, 3]]))
    array([1. , 0.5])
    """
    if not first.shape[1]:
        return np.ones(len(first))
    both = np.sort(np.concatenate([first, second], 1), 1)
    return (both[:, 1:] == both[:, :-1]).sum(1) / first.shape[1]
