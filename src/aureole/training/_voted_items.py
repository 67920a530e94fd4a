"""Items with votes as training data of a head: batches with pairs by votes, held-out items, and sampled pairs."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.data import PairBatch, Votes
from aureole.errors import InvalidInputError
from aureole.losses._self_pairs import log_self_match
from aureole.models import IndependentEncoder
from aureole.sphere import log_normalizer
from aureole.training._head_network import CHUNK, Vectors, take

AGREEMENT_WEIGHT = 5.0  # of the likelihood of agreement and disagreement, against that of pairs
NEIGHBOUR_SHARE = 0.4  # of an item's target that is the agreement with its neighbours
_NEIGHBOURS = 10
_GALLERY = 8192  # items among which neighbours are searched, at most
_PER_ITEM = 6  # expected partners of an item in a batch
_ROUNDS = 4  # sampled pairs per item at most
_LOG_KAPPAS = (0.0, math.log(1e6))  # of which the initial one is chosen
_TRIES = 100  # batches drawn until one has a pair


class NeighbourAgreement:
    """How often the votes on an item agree with those on its ten nearest neighbours, by the cosine of centred vectors.

    Neighbours are searched among at most 8,192 random items, which stay in memory. Values are computed when an item is
    first asked for, and cached.
    """

    def __init__(self, vectors: Vectors, votes: Votes, members: Int[Tensor, " m"]) -> None:
        rng = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(members), generator=rng)[:_GALLERY]
        self._vectors, self._votes = vectors, votes
        self._rows = members[chosen].sort().values
        gallery = take(vectors, self._rows)
        self._centre = gallery.mean(0)
        self._gallery = torch.nn.functional.normalize(gallery - self._centre)
        self._values = torch.full((len(votes),), torch.nan, dtype=torch.float64)

    def __repr__(self) -> str:
        return f"NeighbourAgreement({len(self._rows)} items)"

    def __call__(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The mean over the neighbours j of an item i of the chance that two votes agree, sum_k p_ik p_jk."""
        for new in rows[self._values[rows].isnan()].split(CHUNK):
            self._values[new] = self._agreement(new)
        return self._values[rows]

    def _agreement(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        cosine = (
            take(self._vectors, rows) - self._centre
        ) @ self._gallery.T  # the length does not matter
        cosine[rows[:, None] == self._rows] = -torch.inf
        count = min(_NEIGHBOURS, len(self._rows) - 1)
        near = self._rows[cosine.topk(count).indices]
        shares = self._votes.probabilities
        return (shares[near] @ shares[rows][..., None]).squeeze(-1).mean(-1)


@dataclass(frozen=True, eq=False)
class VotedItems:
    """Some of the items of a table, with the votes of all: two items match as often as the votes on them do.

    A pair is sampled by drawing a class of the first item and then an item of that class, each by its votes.

    Examples
    --------
    >>> items = VotedItems.of(Votes.of([[3, 0], [2, 1], [0, 3], [1, 0], [0, 0]]))
    >>> items
    VotedItems(4 items)
    >>> items.members.tolist()
    [0, 1, 2, 3]
    """

    votes: Votes
    members: Int[Tensor, " m"]
    neighbours: NeighbourAgreement | None = None

    def __repr__(self) -> str:
        return f"VotedItems({len(self.members)} items)"

    @classmethod
    def of(cls, votes: Votes, vectors: Vectors | None = None) -> "VotedItems":
        """All items that have a vote; raise if nothing can be learned from them.

        With vectors, batches have the agreement of annotators, too.
        """
        seen = votes.prior > 0
        if int(seen.sum()) < 2:
            name = votes.classes.tolist()[int(seen.int().argmax())]
            raise InvalidInputError(
                f"all votes are for {name!r}: votes for at least two classes are needed."
            )
        members = (votes.totals > 0).nonzero().flatten()
        items = cls(votes, members)
        if not items.has_pairs:
            raise InvalidInputError(
                f"no two of the {len(items.members)} items have a vote for the same class, so there is no pair to "
                "learn from."
            )
        near = None if vectors is None else NeighbourAgreement(vectors, votes, members)
        return cls(votes, members, near)

    @cached_property
    def has_pairs(self) -> bool:
        """Whether two different items have a vote for the same class."""
        return bool(((self.votes.counts[self.members] > 0).sum(0) > 1).any())

    def split(
        self, share: float, generator: torch.Generator | None = None
    ) -> tuple["VotedItems", "VotedItems"]:
        """(Items to keep, items to hold out); each part has at least two, and a pair among them."""
        count = len(self.members)
        held = min(max(2, round(share * count)), count - 2)
        if held < 2:
            raise InvalidInputError(f"{count} items cannot be split: at least four are needed.")
        order = self.members[torch.randperm(count, generator=generator)]
        kept, out = (
            replace(self, members=part.sort().values) for part in (order[held:], order[:held])
        )
        if not (kept.has_pairs and out.has_pairs):
            raise InvalidInputError(
                f"no two of {held} held-out items, or of the {count - held} others, have a vote for the same class. "
                "Pass more items, or merge rare classes."
            )
        return kept, out

    def batch(
        self, vectors: Vectors, n_items: int, generator: torch.Generator | None = None
    ) -> PairBatch:
        """A training batch: random items, pairs by their votes, and the agreement of annotators.

        The number of each ordered pair of items is Poisson, six pairs per item in the mean. There are no self-pairs:
        the agreement says the same and includes the pairs of annotators who disagree.
        """
        rows, pairs, weights = self._draw(n_items, generator)
        expected = float(_PER_ITEM * len(rows))
        return PairBatch(take(vectors, rows), pairs, expected, weights, 0.0, self.agreement(rows))

    def draw(
        self, n_items: int, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, "p 2"]]:
        """(Random items, pairs of different items among them), a pair listed as often as it was drawn."""
        rows, pairs, counts = self._draw(n_items, generator)
        return rows, pairs.repeat_interleave(counts.long(), 0)

    def sample_pairs(
        self, most: int, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
        """Rows and the rows of their partners: up to four pairs per item, at most ``most``."""
        count = len(self.members)
        shares = self.votes.probabilities[self.members]
        rounds = [torch.randperm(count, generator=generator) for _ in range(_ROUNDS)]
        left = torch.cat(rounds)[:most]
        label = torch.multinomial(shares[left], 1, generator=generator).flatten()
        right = torch.empty_like(left)
        for name in label.unique().tolist():
            chosen = label == name
            right[chosen] = torch.multinomial(
                shares[:, name], int(chosen.sum()), replacement=True, generator=generator
            )
        other = left != right
        return self.members[left[other]], self.members[right[other]]

    def agreement(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"] | None:
        """What the chance that two draws of an item match is fitted to: how often its annotators agree.

        A share of 0.4 is the agreement with the votes on the nearest neighbours, which makes kappa also predict errors
        of a nearest-neighbour search. It is all there is for an item with one vote. None without vectors.
        """
        if self.neighbours is None:
            return None
        own, near = self.votes.agreement[rows], self.neighbours(rows)
        return torch.where(own.isnan(), near, torch.lerp(own, near, NEIGHBOUR_SHARE))

    def kappa_pos(self, dim: int) -> float:
        """The kappa_pos at which points that coincide match as often, against random ones, as items of one class do.

        That is 1 / sum_k P(k)^2, the effective number of classes.
        """
        wanted = -math.log(float(self.votes.prior.square().sum()))
        uniform = float(log_normalizer(torch.zeros(1, dtype=torch.float64), dim))
        low, high = -3.0, math.log(1e6)
        for _ in range(50):
            middle = math.exp((low + high) / 2)
            log_c = float(log_normalizer(torch.tensor([middle], dtype=torch.float64), dim))
            below = log_c - uniform + middle < wanted
            low, high = (math.log(middle), high) if below else (low, math.log(middle))
        return math.exp((low + high) / 2)

    def initialise(self, encoder: IndependentEncoder, kappa_pos: float, dim: int) -> None:
        """Set the initial kappa: that at which two draws of an item match as often as annotators agree on average.

        From a kappa far from it, the first steps overshoot, and the best held-out step may be one of them.
        """
        target = self.agreement(self.members[:CHUNK])
        if target is None:
            return
        wanted = math.log(min(max(float(target.mean()), 0.01), 0.999))
        low, high = _LOG_KAPPAS
        for _ in range(40):
            middle = torch.tensor((low + high) / 2, dtype=torch.float64)
            below = float(log_self_match(middle.exp(), kappa_pos, dim)) < wanted
            low, high = (float(middle), high) if below else (low, float(middle))
        with torch.no_grad():
            encoder.log_kappa.fill_((low + high) / 2)

    def _draw(
        self, n_items: int, generator: torch.Generator | None
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, "p 2"], Float[Tensor, " p"]]:
        """(Random items, distinct pairs of different items among them, how often each was drawn)."""
        for _ in range(_TRIES):
            order = torch.randperm(len(self.members), generator=generator)[:n_items]
            rows = self.members[order.sort().values]
            mean = (_PER_ITEM / (len(rows) - 1)) * self.votes.rates(rows).fill_diagonal_(0)
            counts = torch.poisson(mean, generator=generator)
            pairs = counts.nonzero()
            if len(pairs):
                return rows, pairs, counts[pairs[:, 0], pairs[:, 1]]
        raise InvalidInputError(
            f"batches of {n_items} items hardly ever have two with a vote for the same class. Use larger batches "
            "(items), or merge rare classes."
        )
