"""Positive pairs: batches of them, how to sample them by rates, and the pairs of groups or of explicit row pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError

Rng = torch.Generator | None
ItemsAndPairs = tuple[Int[Tensor, " n"], Int[Tensor, "p 2"]]
# a typical group larger than this, and larger than the number of groups, is a class
_CLASS_SIZE = 20
_PARTNERS = 8  # sampled for each item of a class


@dataclass(frozen=True)
class PairBatch:
    """N inputs of the data's marginal and P positive pairs (anchor, partner) among them, as indices [P, 2].

    ``expected_pairs`` is the mean of P over batches: a sum over pairs divided by it is unbiased, while a sum divided by
    P is not. Compute a loss of the batch with ``loss.among(posterior, pairs)``.

    ``weights`` [P], ``self_weight`` and ``agreement`` [N] are those of ``among``; the mean of the sum of the weights is
    then ``expected_pairs``.
    """

    inputs: Tensor
    pairs: Int[Tensor, "p 2"]
    expected_pairs: float
    weights: Float[Tensor, " p"] | None = None
    self_weight: float = 0.0
    agreement: Float[Tensor, " n"] | None = None

    def __repr__(self) -> str:
        shape, pairs = tuple(self.inputs.shape), len(self.pairs)
        return f"PairBatch(inputs={shape}, pairs={pairs}, expected_pairs={self.expected_pairs:g})"


@dataclass(frozen=True)
class Triplets:
    """Anchors [B, ...], their partners [B, ...] and fresh negatives [M, ...] or [B, M, ...]; None for in-batch ones."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None = None

    def __repr__(self) -> str:
        negative = "in-batch" if self.negative is None else tuple(self.negative.shape)
        return f"Triplets(anchor={tuple(self.anchor.shape)}, negative={negative})"


def poisson_pairs(
    rate: Float[Tensor, "n n"], n_pairs: float | int, *, generator: Rng = None
) -> Int[Tensor, "p 2"]:
    """Ordered pairs of different items, each repeated a Poisson number of times with a mean proportional to its rate.

    ``n_pairs`` is the expected number of pairs if the rates are 1 on average over the n (n - 1) pairs.

    Examples
    --------
    >>> poisson_pairs(torch.ones(3, 3), 600.0, generator=torch.Generator().manual_seed(0)).unique(dim=0)
    tensor([[0, 1],
            [0, 2],
            [1, 0],
            [1, 2],
            [2, 0],
            [2, 1]])
    """
    n = len(rate)
    mean = (rate * (n_pairs / (n * (n - 1)))).fill_diagonal_(0)
    counts = torch.poisson(mean, generator=generator).long()
    return counts.nonzero().repeat_interleave(counts[counts > 0], 0)


def label_rates(
    probabilities: Float[Tensor, "n classes"], prior: Float[Tensor, " classes"]
) -> Float[Tensor, "n n"]:
    r"""Return the rate of two items as a positive pair, relative to chance: :math:`\sum_c P(c|x_i) P(c|x_j) / P(c)`.

    A pair is sampled by drawing a class of the first item and then an item of that class, each by its soft labels (the
    paper's supplement C.1). ``prior`` is the mean of the soft labels over the data; the rates are then 1 on average.
    Hard labels are soft labels of 0 and 1.

    Examples
    --------
    >>> label_rates(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0.75, 0.25]))
    tensor([[1.3333, 0.6667],
            [0.6667, 1.3333]])
    """
    unseen = (prior <= 0) & (probabilities > 0).any(0)
    if bool(unseen.any()):
        raise InvalidInputError(
            f"prior must be positive for every class that occurs, but prior{first_index(unseen)} is "
            f"{prior[unseen][0]:g}. Use the mean of the soft labels over all items."
        )
    seen = prior > 0
    return (probabilities[:, seen] / prior[seen]) @ probabilities[:, seen].T


@dataclass(frozen=True)
class Groups:
    """Items that match each other: labels, captions of one photo, clicks of one query.

    ``members`` are the items sorted by group; group g has ``sizes[g]`` of them from ``starts[g]`` on. Groups of one
    item are dropped, since they have no pair. Many small groups, such as captions of one photo, are sampled and held
    out as a whole. Of a few large ones (``classes`` is true) single items are sampled and held out.

    Examples
    --------
    >>> groups = Groups.of(["a", "b", "a", "c", "b", "a"])
    >>> groups.members.tolist(), groups.sizes.tolist()
    ([0, 2, 5, 1, 4], [3, 2])
    >>> items, pairs = groups.draw(4, torch.Generator().manual_seed(0))
    >>> len(items), pairs.tolist()
    (4, [[0, 1], [1, 0], [2, 3], [3, 2]])
    >>> classes = Groups.of(500 * ["cat", "dog"])
    >>> items, pairs = classes.draw(64, torch.Generator().manual_seed(0))
    >>> classes.classes, len(items), len(pairs)
    (True, 64, 512)
    """

    members: Int[Tensor, " m"]
    starts: Int[Tensor, " g"]
    sizes: Int[Tensor, " g"]
    classes: bool = False

    def __repr__(self) -> str:
        groups, items = len(self.sizes), len(self.members)
        return f"Groups({groups} groups of {items} items, classes={self.classes})"

    @classmethod
    def of(cls, labels: Sequence[Any] | np.ndarray | Tensor) -> "Groups":
        """The groups of items with these labels: numbers or strings, one per item, without missing ones."""
        given, labels = labels, np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
        if labels.ndim != 1:
            raise InvalidInputError(f"groups must be one label per item, not shape {labels.shape}.")
        # numpy converts a NaN among strings to a string, so check the original labels
        missing = missing_values(given if labels.dtype.kind in "US" else labels)
        if missing.any():
            row = int(missing.argmax())
            raise InvalidInputError(
                f"groups[{row}] is missing ({labels[row]}). Drop such rows, or give each its own group."
            )
        try:
            _, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise InvalidInputError(
                f"groups must be all numbers or all strings: {error}. Convert them with str()."
            ) from error
        order = np.argsort(label, kind="stable")
        order = order[sizes[label[order]] > 1]
        sizes = sizes[sizes > 1]
        if not len(sizes):
            raise InvalidInputError(
                f"no two of the {len(labels)} items share a group, so there is no pair to learn from."
            )
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        typical = np.square(sizes, dtype=np.float64).sum() / sizes.sum()  # of the group of an item
        parts = (torch.from_numpy(a.astype(np.int64)) for a in (order, starts, sizes))
        return cls(*parts, classes=bool(typical > max(len(sizes), _CLASS_SIZE)))

    def draw(self, n_items: int, generator: Rng = None) -> ItemsAndPairs:
        """(Items, pairs among them): two items of each of ``n_items / 2`` groups, or of all if there are fewer.

        The first item is uniform over all items, so large groups occur more often; its partner is uniform in its group.

        If there are too few classes to fill a batch this way, ``n_items`` items are drawn uniformly, and for each of
        them eight partners among the drawn items of its class. The negatives, the other items of the batch, then follow
        the marginal, with the anchor's own class among them as often as in the data.
        """
        if self.classes and len(self.sizes) < n_items // 2:
            return self._draw_items(n_items, generator)
        count = min(n_items // 2, len(self.sizes))
        # as torch.multinomial, which takes at most 2^24 groups
        waits = torch.empty(len(self.sizes), dtype=torch.float64).exponential_(generator=generator)
        chosen = (self.sizes / waits).topk(count).indices
        items = self.pair_of_each(chosen, generator).flatten()
        even = torch.arange(0, 2 * count, 2)
        pairs = torch.stack([even, even + 1, even + 1, even], 1).view(-1, 2)
        return items, pairs

    def pair_of_each(self, groups: Int[Tensor, " g"], generator: Rng = None) -> Int[Tensor, "g 2"]:
        """Two different items of each of these groups, uniformly."""
        start, size = self.starts[groups], self.sizes[groups]
        first = (torch.rand(len(groups), generator=generator, dtype=torch.float64) * size).long()
        step = torch.rand(len(groups), generator=generator, dtype=torch.float64) * (size - 1)
        second = (first + 1 + step.long()) % size
        return self.members[torch.stack([start + first, start + second], 1)]

    def split(self, share: float, generator: Rng = None) -> tuple["Groups", "Groups"]:
        """(Groups to keep, groups to hold out). The two parts share no group, and each has at least two groups.

        Pairs of a single group would have no negatives. Of only two or three groups, one is held out nevertheless.

        Of classes, both parts have all, and a share of the items of each class is held out, at least two; a class with
        fewer than four items stays in the first part.
        """
        count = len(self.sizes)
        if count < 2:
            raise InvalidInputError("one group cannot be split: at least two are needed.")
        if self.classes:
            return self._split_items(share, generator)
        least = 2 if count >= 4 else 1
        held = min(max(least, round(share * count)), count - least)
        order = torch.randperm(count, generator=generator)
        return self._subset(order[held:].sort().values), self._subset(order[:held].sort().values)

    def _draw_items(self, n_items: int, generator: Rng) -> ItemsAndPairs:
        """(Items drawn uniformly, pairs): each item is an anchor equally often, with random partners of its group."""
        places = torch.randperm(len(self.members), generator=generator)[:n_items].sort().values
        group = torch.searchsorted(self.starts, places, right=True) - 1
        present = torch.bincount(group, minlength=len(self.sizes))
        first = (present.cumsum(0) - present)[group]  # of the item's group in the batch
        others = present[group] - 1
        anchors = torch.arange(len(places))[others > 0].repeat_interleave(_PARTNERS)
        step = torch.rand(len(anchors), generator=generator, dtype=torch.float64) * others[anchors]
        within = (anchors - first[anchors] + 1 + step.long()) % (others[anchors] + 1)
        return self.members[places], torch.stack([anchors, first[anchors] + within], 1)

    def _split_items(self, share: float, rng: Rng) -> tuple["Groups", "Groups"]:
        """(All groups without the held-out items, the held-out items of all groups that are large enough)."""
        held = (share * self.sizes).round().long().clamp(min=2).minimum(self.sizes - 2)
        held = torch.where(self.sizes < 4, 0, held)
        group = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)
        # a random order within each group: sorted by group, then by a random number
        order = (group + torch.rand(len(group), generator=rng, dtype=torch.float64)).argsort()
        out = torch.zeros(len(group), dtype=torch.bool)
        out[order] = torch.arange(len(group)) - self.starts[group] < held[group]
        return self._with_items(~out, self.sizes - held), self._with_items(out, held)

    def _with_items(self, items: Tensor, sizes: Tensor) -> "Groups":
        sizes = sizes[sizes > 0]
        return Groups(self.members[items], sizes.cumsum(0) - sizes, sizes, self.classes)

    def _subset(self, chosen: Tensor) -> "Groups":
        sizes = self.sizes[chosen]
        starts = sizes.cumsum(0) - sizes
        within = torch.arange(int(sizes.sum())) - starts.repeat_interleave(sizes)
        members = self.members[self.starts[chosen].repeat_interleave(sizes) + within]
        return Groups(members, starts, sizes, self.classes)


def missing_values(labels: Any) -> np.ndarray:
    """Mask of the missing labels: None, NaN or NaT."""
    kind = labels.dtype.kind if isinstance(labels, np.ndarray) else "O"
    if kind != "O":
        return labels != labels  # true for NaN and NaT only
    return np.fromiter(map(_is_missing, labels), dtype=bool, count=len(labels))


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # a comparison with pandas.NA has no truth value
        return True


@dataclass(frozen=True)
class PairIndex:
    """Matching pairs of rows: a query and a click, a question and its answer.

    Unlike in ``Groups``, two partners of one row need not be partners of each other.

    Examples
    --------
    >>> index = PairIndex.of([[0, 1], [0, 2], [3, 4]], n_rows=5)
    >>> rows, pairs = index.draw(6, torch.Generator().manual_seed(0))
    >>> rows.tolist(), pairs.tolist()
    ([0, 1, 2, 3, 4], [[0, 1], [0, 2], [1, 0], [2, 0], [3, 4], [4, 3]])
    """

    pairs: Int[Tensor, "p 2"]

    def __repr__(self) -> str:
        return f"PairIndex({len(self.pairs)} pairs)"

    @classmethod
    def of(cls, pairs: Sequence[Sequence[int]] | np.ndarray | Tensor, n_rows: int) -> "PairIndex":
        """The pairs of a table with ``n_rows`` rows; duplicates, also in reverse order, are dropped."""
        rows = np.asarray(pairs)
        if rows.ndim != 2 or rows.shape[1] != 2 or not np.issubdtype(rows.dtype, np.integer):
            raise InvalidInputError(
                f"pairs must be whole numbers [p, 2], but are {rows.dtype} of shape {rows.shape}."
            )
        if not len(rows):
            raise InvalidInputError("pairs is empty, so there is nothing to learn from.")
        outside = (rows < 0) | (rows >= n_rows)
        if outside.any():
            place = int(outside.any(1).argmax())
            wrong = f"pairs[{place}] is {rows[place].tolist()}"
            raise InvalidInputError(f"{wrong}, but rows go from 0 to {n_rows - 1}.")
        same = rows[:, 0] == rows[:, 1]
        if same.any():
            raise InvalidInputError(
                f"pairs[{int(same.argmax())}] pairs a row with itself. Drop such pairs, or pass what was observed "
                "about one row several times as votes."
            )
        unique = np.unique(np.sort(rows.astype(np.int64), axis=1), axis=0)
        return cls(torch.from_numpy(unique))

    @property
    def members(self) -> Int[Tensor, " m"]:
        """The rows that have a partner."""
        return self.pairs.unique()

    def draw(self, n_items: int, generator: Rng = None) -> ItemsAndPairs:
        """(Rows, pairs among them in both orders): those of ``n_items / 2`` pairs, or of all if there are fewer.

        A row that several pairs share occurs once, so that it is never its own negative.
        """
        count = min(max(1, n_items // 2), len(self.pairs))
        chosen = torch.randperm(len(self.pairs), generator=generator)[:count]
        rows, places = self.pairs[chosen].unique(return_inverse=True)
        both = torch.cat([places, places.flip(1)])
        return rows, both[torch.argsort(both[:, 0] * len(rows) + both[:, 1])]

    def split(self, share: float, generator: Rng = None) -> tuple["PairIndex", "PairIndex"]:
        """(Pairs to keep, pairs to hold out). The two parts share no row; pairs across them are dropped.

        Of four pairs or more, at least two are held out, and two kept unless they share rows with those: a single pair
        has no negatives.
        """
        if len(self.pairs) < 2:
            raise InvalidInputError("one pair cannot be split: at least two are needed.")
        least = 2 if len(self.pairs) >= 4 else 1
        held = min(max(least, round(share * len(self.pairs))), len(self.pairs) - least)
        chosen = torch.randperm(len(self.pairs), generator=generator)[:held].sort().values
        taken = torch.zeros(int(self.pairs.max()) + 1, dtype=torch.bool)
        taken[self.pairs[chosen]] = True
        free = ~taken[self.pairs].any(1)
        if not bool(free.any()):
            raise InvalidInputError(
                f"every pair shares a row with one of the {held} held-out pairs, so nothing is left to learn from. "
                "Pass more pairs, or a smaller held_out."
            )
        return PairIndex(self.pairs[free]), PairIndex(self.pairs[chosen])
