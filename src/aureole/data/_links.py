"""Links: pairs of rows that are known to belong together (a query and a click, a question and its answer)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from aureole.errors import InvalidInputError


@dataclass(frozen=True)
class Links:
    """Pairs of rows; unlike ``Groups``, two partners of one row need not be partners of each other.

    Examples
    --------
    >>> links = Links.of([[0, 1], [0, 2], [3, 4]], n_rows=5)
    >>> rows, pairs = links.draw(6, torch.Generator().manual_seed(0))
    >>> rows.tolist(), pairs.tolist()
    ([0, 1, 2, 3, 4], [[0, 1], [0, 2], [1, 0], [2, 0], [3, 4], [4, 3]])
    """

    pairs: Int[Tensor, "p 2"]

    @classmethod
    def of(cls, pairs: Sequence[Sequence[int]] | np.ndarray | Tensor, n_rows: int) -> "Links":
        """The links of a table with that many rows; each pair once, whichever way round it is given."""
        found = np.asarray(pairs)
        if found.ndim != 2 or found.shape[1] != 2 or not np.issubdtype(found.dtype, np.integer):
            raise InvalidInputError(
                f"pairs must be whole numbers [p, 2], but are {found.dtype} of shape {found.shape}."
            )
        if not len(found):
            raise InvalidInputError("there is no pair to learn from.")
        outside = (found < 0) | (found >= n_rows)
        if outside.any():
            place = int(outside.any(1).argmax())
            raise InvalidInputError(
                f"pairs[{place}] is {found[place].tolist()}, but rows go from 0 to {n_rows - 1}."
            )
        same = found[:, 0] == found[:, 1]
        if same.any():
            raise InvalidInputError(f"pairs[{int(same.argmax())}] links a row with itself.")
        unique = np.unique(np.sort(found.astype(np.int64), axis=1), axis=0)
        return cls(torch.from_numpy(unique))

    @property
    def members(self) -> Int[Tensor, " m"]:
        """The rows that have a partner."""
        return self.pairs.unique()

    def draw(
        self, n_items: int, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, "p 2"]]:
        """(Rows, pairs among them, both ways round): those of ``n_items / 2`` pairs, or of all if there are fewer.

        A row that several of the pairs share comes once, so that nothing is its own negative.
        """
        wanted = min(max(1, n_items // 2), len(self.pairs))
        chosen = torch.randperm(len(self.pairs), generator=generator)[:wanted]
        rows, places = self.pairs[chosen].unique(return_inverse=True)
        both = torch.cat([places, places.flip(1)])
        return rows, both[torch.argsort(both[:, 0] * len(rows) + both[:, 1])]

    def split(
        self, share: float, generator: torch.Generator | None = None
    ) -> tuple["Links", "Links"]:
        """(Links to keep, links to hold out): no row of one is in the other, so that nothing is seen twice.

        Of four pairs or more two at least are held out, and two left unless they hang together: one alone has no
        negatives. Pairs with a foot on both sides are in neither.
        """
        if len(self.pairs) < 2:
            raise InvalidInputError("one pair cannot be split: give two or more.")
        least = 2 if len(self.pairs) >= 4 else 1
        held = min(max(least, round(share * len(self.pairs))), len(self.pairs) - least)
        chosen = torch.randperm(len(self.pairs), generator=generator)[:held].sort().values
        taken = torch.zeros(int(self.pairs.max()) + 1, dtype=torch.bool)
        taken[self.pairs[chosen]] = True
        free = ~taken[self.pairs].any(1)
        if not bool(free.any()):
            raise InvalidInputError(
                f"all pairs hang together by the rows of {held} held-out pairs, so nothing is left to learn from. "
                "Give more pairs, or a smaller held_out."
            )
        return Links(self.pairs[free]), Links(self.pairs[chosen])
