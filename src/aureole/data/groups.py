"""Groups: items that belong together (labels, captions of one photo, clicks of one query), and the pairs they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from aureole.errors import InvalidInputError

__all__ = ["Groups"]


@dataclass(frozen=True)
class Groups:
    """Items sorted by group: ``members`` of group g are those from ``starts[g]`` on, ``sizes[g]`` of them.

    Only groups of two items or more are kept: others make no pair.

    Examples
    --------
    >>> groups = Groups.of(["a", "b", "a", "c", "b", "a"])
    >>> groups.members.tolist(), groups.sizes.tolist()
    ([0, 2, 5, 1, 4], [3, 2])
    >>> items, pairs = groups.draw(4, torch.Generator().manual_seed(0))
    >>> len(items), pairs.tolist()
    (4, [[0, 1], [1, 0], [2, 3], [3, 2]])
    """

    members: Int[Tensor, " m"]
    starts: Int[Tensor, " g"]
    sizes: Int[Tensor, " g"]

    @classmethod
    def of(cls, labels: Sequence[Any] | np.ndarray | Tensor) -> "Groups":
        """The groups of items with these labels: numbers or strings, one per item."""
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise InvalidInputError(
                f"groups must be one label per item, but have shape {labels.shape}."
            )
        _, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        order = np.argsort(label, kind="stable")
        order = order[sizes[label[order]] > 1]
        sizes = sizes[sizes > 1]
        if not len(sizes):
            raise InvalidInputError(
                f"no two of the {len(labels)} items share a group, so there is no pair to learn from."
            )
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return cls(*(torch.from_numpy(a.astype(np.int64)) for a in (order, starts, sizes)))

    def draw(
        self, n_items: int, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, "p 2"]]:
        """(Items, pairs among them): two items of each of ``n_items / 2`` groups, or of all if there are fewer.

        An item is as likely as any other to be drawn first, and its partner uniform in its group. So large groups come
        more often, as they have more items.
        """
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
        """(Groups to keep, groups to hold out): whole groups, so that nothing is seen twice. Each has one at least."""
        count = len(self.sizes)
        if count < 2:
            raise InvalidInputError("one group cannot be split: give two or more.")
        held = min(max(1, round(share * count)), count - 1)
        order = torch.randperm(count, generator=generator)
        return self._subset(order[held:].sort().values), self._subset(order[:held].sort().values)

    def _subset(self, chosen: Tensor) -> "Groups":
        sizes = self.sizes[chosen]
        starts = sizes.cumsum(0) - sizes
        within = torch.arange(int(sizes.sum())) - starts.repeat_interleave(sizes)
        members = self.members[self.starts[chosen].repeat_interleave(sizes) + within]
        return Groups(members, starts, sizes)
