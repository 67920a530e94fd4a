"""The recall of caps: which share of their members an approximate index finds, for small and large caps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

_SIZES = (1, 10, 100, 1000)  # caps belong to the largest of these that they reach


@dataclass(frozen=True)
class Recall:
    """Counts the ``members`` of the caps of ``queries``, and those that an approximate index ``found``.

    ``by_size`` has the same for the caps with 1 to 9, 10 to 99, 100 to 999, and 1,000 or more members, by the smallest
    size; sizes without caps are left out.
    """

    queries: int
    members: int
    found: int
    by_size: dict[int, "Recall"] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of members found; 1 for empty caps."""
        return self.found / self.members if self.members else 1.0


def recall_of(caps: Sequence[tuple[int, int]]) -> Recall:
    """The recall of caps, given as (members, found).

    Examples
    --------
    >>> recall = recall_of([(0, 0), (2, 2), (40, 39), (60, 60)])
    >>> recall.share, {size: part.share for size, part in recall.by_size.items()}
    (0.9901960784313726, {1: 1.0, 10: 0.99})
    """
    by_size = {}
    for size, end in zip(_SIZES, [*_SIZES[1:], float("inf")], strict=True):
        own = [cap for cap in caps if size <= cap[0] < end]
        if own:
            by_size[size] = _sum(own)
    whole = _sum(caps)
    return Recall(whole.queries, whole.members, whole.found, by_size)


def _sum(caps: Sequence[tuple[int, int]]) -> Recall:
    return Recall(len(caps), sum(members for members, _ in caps), sum(found for _, found in caps))
