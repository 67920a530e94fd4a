"""Groups: items that belong together (labels, captions of one photo, clicks of one query), and the pairs they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from aureole.errors import InvalidInputError

_LARGE = 20  # items: a typical group of that many, and of more than there are groups, is a class
_PARTNERS = 8  # drawn for each item of a class


@dataclass(frozen=True)
class Groups:
    """Items sorted by group: ``members`` of group g are those from ``starts[g]`` on, ``sizes[g]`` of them.

    Only groups of two items or more are kept: others make no pair. Many small groups (captions of one photo) are drawn
    and held out whole. Few large ones, ``classes``, are not: there items are drawn and held out, whatever their group.

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

    @classmethod
    def of(cls, labels: Sequence[Any] | np.ndarray | Tensor) -> "Groups":
        """The groups of items with these labels: numbers or strings, one per item; none may be missing."""
        given, labels = labels, np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
        if labels.ndim != 1:
            raise InvalidInputError(
                f"groups must be one label per item, but have shape {labels.shape}."
            )
        # numpy writes a NaN among strings as a string: look at what was given
        missing = _missing(given if labels.dtype.kind in "US" else labels)
        if missing.any():
            row = int(missing.argmax())
            raise InvalidInputError(
                f"groups[{row}] is missing ({labels[row]}). Drop such rows, or give each a group of its own."
            )
        try:
            _, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise InvalidInputError(
                f"groups must be all numbers or all strings: {error}. Make strings of them with str()."
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
        return cls(*parts, classes=bool(typical > max(len(sizes), _LARGE)))

    def draw(
        self, n_items: int, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, "p 2"]]:
        """(Items, pairs among them): two items of each of ``n_items / 2`` groups, or of all if there are fewer.

        An item is as likely as any other to be drawn first, and its partner uniform in its group. So large groups come
        more often, as they have more items.

        Of classes that are too few to fill a batch so, ``n_items`` items are drawn, all alike, and for each eight times
        one of the others of its class. Negatives, the other items of the batch, are then of the marginal as they should
        be, with the anchor's own class among them as often as in the data.
        """
        if self.classes and len(self.sizes) < n_items // 2:
            return self._draw_items(n_items, generator)
        wanted = min(n_items // 2, len(self.sizes))
        chosen = torch.multinomial(self.sizes.double(), wanted, generator=generator)
        start, size = self.starts[chosen], self.sizes[chosen]
        first = (torch.rand(wanted, generator=generator, dtype=torch.float64) * size).long()
        step = (torch.rand(wanted, generator=generator, dtype=torch.float64) * (size - 1)).long()
        second = (first + 1 + step) % size
        items = torch.stack([start + first, start + second], 1).flatten()
        even = torch.arange(0, 2 * wanted, 2)
        pairs = torch.stack([even, even + 1, even + 1, even], 1).view(-1, 2)
        return self.members[items], pairs

    def split(
        self, share: float, generator: torch.Generator | None = None
    ) -> tuple["Groups", "Groups"]:
        """(Groups to keep, groups to hold out): whole groups, so that nothing is seen twice. Each has two at least.

        A pair of one group has no negatives; of two or three groups one is held out all the same.

        Of classes both parts have all, and a share of the items of each is held out, two at least; a class of fewer
        than four items stays whole in the first part.
        """
        count = len(self.sizes)
        if count < 2:
            raise InvalidInputError("one group cannot be split: give two or more.")
        if self.classes:
            return self._split_items(share, generator)
        least = 2 if count >= 4 else 1
        held = min(max(least, round(share * count)), count - least)
        order = torch.randperm(count, generator=generator)
        return self._subset(order[held:].sort().values), self._subset(order[:held].sort().values)

    def _draw_items(
        self, n_items: int, generator: torch.Generator | None
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, "p 2"]]:
        """(Items of all groups alike, pairs): each item is an anchor as often, its partners of its group at random."""
        places = torch.randperm(len(self.members), generator=generator)[:n_items].sort().values
        group = torch.searchsorted(self.starts, places, right=True) - 1
        present = torch.bincount(group, minlength=len(self.sizes))
        first = (present.cumsum(0) - present)[group]  # of the item's group in the batch
        others = present[group] - 1
        anchors = torch.arange(len(places))[others > 0].repeat_interleave(_PARTNERS)
        step = torch.rand(len(anchors), generator=generator, dtype=torch.float64) * others[anchors]
        within = (anchors - first[anchors] + 1 + step.long()) % (others[anchors] + 1)
        return self.members[places], torch.stack([anchors, first[anchors] + within], 1)

    def _split_items(
        self, share: float, generator: torch.Generator | None
    ) -> tuple["Groups", "Groups"]:
        """(All groups without the items held out, the items held out of all groups large enough)."""
        held = (share * self.sizes).round().long().clamp(min=2).minimum(self.sizes - 2)
        held = torch.where(self.sizes < 4, 0, held)
        group = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)
        # a random order within each group: sorted by group, and by chance within it
        chance = torch.rand(len(group), generator=generator, dtype=torch.float64)
        order = (group + chance).argsort()
        out = torch.zeros(len(group), dtype=torch.bool)
        out[order] = torch.arange(len(group)) - self.starts[group] < held[group]
        return self._chosen(~out, self.sizes - held), self._chosen(out, held)

    def _chosen(self, items: Tensor, sizes: Tensor) -> "Groups":
        sizes = sizes[sizes > 0]
        return Groups(self.members[items], sizes.cumsum(0) - sizes, sizes, self.classes)

    def _subset(self, chosen: Tensor) -> "Groups":
        sizes = self.sizes[chosen]
        starts = sizes.cumsum(0) - sizes
        within = torch.arange(int(sizes.sum())) - starts.repeat_interleave(sizes)
        members = self.members[self.starts[chosen].repeat_interleave(sizes) + within]
        return Groups(members, starts, sizes, self.classes)


def _missing(labels: Any) -> np.ndarray:
    """Which labels are none: None, NaN, or no time."""
    kind = labels.dtype.kind if isinstance(labels, np.ndarray) else "O"
    if kind in "fc":
        return np.isnan(labels)
    if kind in "mM":
        return np.isnat(labels)
    if kind != "O":
        return np.zeros(len(labels), dtype=bool)
    return np.fromiter(map(_is_missing, labels), dtype=bool, count=len(labels))


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # pandas.NA is neither equal to itself nor not
        return True
