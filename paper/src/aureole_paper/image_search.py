"""Search among images: queries and a gallery with labels and votes, exact by a look at every pair."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aureole.data import partner_chances
from aureole.distributions import VonMisesFisher
from aureole.evaluation import Calibration, fit_calibration, partner_angle
from aureole.retrieval import (
    ConformalMass,
    CredibleIndex,
    SearchOptions,
    exact_cosines,
    log_hit_positivity,
    stored_direction,
)
from aureole.sphere import predictive_angle, predictive_log_pdf, predictive_mass
from aureole_paper.cifar10h import Split, encode

PARTNERS = ("votes", "label")
MASSES = (0.5, 0.8, 0.9, 0.95)
_HALVES = 60_000_011
_CLASSES = 10


@dataclass(frozen=True)
class Law:
    """What predictive caps are made with: kappa_pos and a map of kappa."""

    kappa_pos: float
    calibration: Calibration = field(default_factory=Calibration)

    @classmethod
    def fit(cls, query: VonMisesFisher, partner: VonMisesFisher, kappa_pos: float) -> "Law":
        """The law with this kappa_pos whose caps of mass 0.9 hold that share of the pairs."""
        return cls(kappa_pos, fit_calibration(query, partner, kappa_pos=kappa_pos))

    @classmethod
    def refit(
        cls, query: VonMisesFisher, partner: VonMisesFisher, choices: Sequence[float]
    ) -> "Law":
        """The law, of those with each kappa_pos, under which the angles of the pairs are likeliest."""
        laws = [cls.fit(query, partner, kappa_pos) for kappa_pos in choices]
        return max(laws, key=lambda law: law.log_likelihood(query, partner))

    def log_likelihood(self, query: VonMisesFisher, partner: VonMisesFisher) -> float:
        """The mean log density of the angles between partners."""
        own, other = (self.calibration(q.kappa.double()) for q in (query, partner))
        angle = partner_angle(query, partner)
        return predictive_log_pdf(angle, own, other, self.kappa_pos, query.dim).mean().item()


@dataclass(frozen=True)
class Search:
    """Queries and a gallery, with the labels [n] and votes [n, 10] of both."""

    query: VonMisesFisher
    gallery: VonMisesFisher
    labels: tuple[Int[Tensor, " q"], Int[Tensor, " g"]]
    votes: tuple[Float[Tensor, "q 10"], Float[Tensor, "g 10"]]
    kappa_pos: float

    @property
    def kappa_other(self) -> float:
        """The gallery's typical kappa, as an index keeps it, the median."""
        return float(self.gallery.kappa.median())

    @property
    def relevant(self) -> Bool[Tensor, "q g"]:
        """Whether an item has the query's label."""
        return self.labels[0].unsqueeze(1) == self.labels[1]

    @cached_property
    def cosine(self) -> Float[Tensor, "q g"]:
        """The float64 cosines by which an index decides who is in a cap."""
        own, others = stored_direction(self.query.mu), stored_direction(self.gallery.mu)
        return torch.from_numpy(np.stack([exact_cosines(mu, others) for mu in own]))

    def held(self, law: "Law | None" = None) -> Float[Tensor, "q g"]:
        """The mass of the predictive cap that just holds each item: it is in the cap of every mass from there on."""
        law = law or Law(self.kappa_pos)
        own = law.calibration(self.query.kappa.double()).unsqueeze(1)
        other = law.calibration(torch.tensor(self.kappa_other, dtype=torch.float64))
        angle = torch.acos(self.cosine)
        return predictive_mass(angle, own, other, law.kappa_pos, self.query.dim)

    def chances(self, partners: str) -> Float[Tensor, "q g"]:
        """How likely each item is the query's partner, drawn by the votes or of the same label."""
        return partner_chances(
            *(soft_labels(self.labels[i], self.votes[i], partners) for i in (0, 1))
        )

    @cached_property
    def log_positivity(self) -> Float[Tensor, "q g"]:
        """The log expected positivity of each item, with both kappas; P(positive) has the same order."""
        own, others = self.query.kappa.double(), self.gallery.kappa.double()
        wide = torch.broadcast_tensors(self.cosine, own.unsqueeze(1), others)
        cosine, own, others = (part.reshape(-1) for part in wide)
        found = log_hit_positivity(cosine, own, others, self.kappa_pos, self.query.dim)
        return found.reshape(self.cosine.shape)


def check_index(
    search: Search,
    held: Float[Tensor, "q g"],
    conformal: ConformalMass,
    *,
    checked: int,
    ask_back: float,
) -> dict[str, int]:
    """How many items ``CredibleIndex`` returns of some queries' caps, and how many differ from those held.

    All masses are searched, as the model promises them and with the conformal guarantee, and once with a widest angle
    that sends ``ask_back`` of the queries away.
    """
    names = [str(i) for i in range(len(search.gallery.kappa))]
    rows = torch.arange(min(checked, len(search.query.kappa)))
    query, masses = take(search.query, rows), held[rows]
    members = differing = searches = 0
    with CredibleIndex.create("faiss://", search.gallery, names) as index:
        index.conformal = conformal
        guarantees: tuple[Literal["conformal"] | None, ...] = (None, "conformal")
        for mass in MASSES:
            for guarantee in guarantees:
                level = mass if guarantee is None else conformal.level(mass)
                hits = index.search(
                    query,
                    mass,
                    options=SearchOptions(
                        kind="predictive", kappa_pos=search.kappa_pos, guarantee=guarantee
                    ),
                )
                assert isinstance(hits, list)
                for found, row in zip(hits, masses, strict=True):
                    wanted = {names[i] for i in (row <= level).nonzero()[:, 0].tolist()}
                    members += len(wanted)
                    differing += len(wanted ^ set(found.ids))
                    searches += 1
        other = torch.tensor(search.kappa_other)
        angle = predictive_angle(
            MASSES[0], query.kappa.double(), other, search.kappa_pos, query.dim
        )
        widest = angle.sort().values[-1 - round(ask_back * len(rows))].item() + 1e-9
        options = SearchOptions(kind="predictive", kappa_pos=search.kappa_pos, widest=widest)
        hits = index.search(query, MASSES[0], options=options)
        assert isinstance(hits, list)
        asked = sum(found.asks_back for found in hits)
    return {
        "searches": searches,
        "members": members,
        "differing": differing,
        "asked_back": asked,
    }


def split_search(model: nn.Module, split: Split, fold: int, kappa_pos: float) -> Search:
    """Random halves of the test images as queries and gallery."""
    rng = torch.Generator().manual_seed(_HALVES + fold)
    test = split.fold.test[torch.randperm(len(split.fold.test), generator=rng)]
    rows, others = test.chunk(2)
    data = split.data
    return Search(
        encode(model, data.images[rows]),
        encode(model, data.images[others]),
        (data.labels[rows], data.labels[others]),
        (data.probabilities[rows], data.probabilities[others]),
        kappa_pos,
    )


def soft_labels(labels: Tensor, votes: Tensor, partners: str) -> Tensor:
    """The class probabilities that partners are drawn by: the votes, or the label alone."""
    return votes if partners == "votes" else torch.nn.functional.one_hot(labels, _CLASSES).float()


def take(posterior: VonMisesFisher, rows: Tensor) -> VonMisesFisher:
    """The posteriors of some rows."""
    return VonMisesFisher(posterior.mu[rows], posterior.kappa[rows], validate_args=False)
