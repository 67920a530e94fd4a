"""Credible retrieval on CIFAR-10H: whether sets hold the partners they promise, and whether both kappas rank better.

The encoder is that of the main CIFAR-10H setting. Of a fold's test images a random half are queries and the other half
is the gallery. Promises are checked for two kinds of partners: drawn by people's votes, as the pairs that the encoder
learned from, and of the same CIFAR-10 label. What is fitted (the map of kappa, kappa_pos, the conformal mass) is fitted
on disjoint pairs of validation images of the same kind; test images only judge.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aureole.caps import ConformalMass, CredibleIndex, SearchOptions
from aureole.caps._caps import log_hit_positivity
from aureole.data import label_rates
from aureole.distributions import VonMisesFisher
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.evaluation import Calibration, fit_calibration, spearman
from aureole.evaluation._calibration import partner_angle
from aureole.sphere import mean_resultant_length, predictive_angle, predictive_mass
from aureole.sphere._predictive import predictive_log_pdf
from aureole.training._fit import Fit, Observer
from aureole_paper import cifar10h
from aureole_paper.cifar import vote_entropy
from aureole_paper.cifar10h import Cifar10HSetting, Split, encode
from aureole_paper.partners import disjoint_pairs, partner_chances
from aureole_paper.pooled import MirroredViews
from aureole_paper.set_metrics import (
    average_precision,
    normalised_gain,
    set_class_entropy,
    set_coverage,
    set_share,
    thirds,
)
from aureole_paper.settings import RunSetting

PARTNERS = ("votes", "label")
MASSES = (0.5, 0.8, 0.9, 0.95)
_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_CLASSES = 10
_HALVES, _PAIRS = 60_000_011, 61_000_003  # seeds


@dataclass(frozen=True)
class CredibleRetrievalSetting(RunSetting):
    """Everything that decides a run, except the fold.

    Caps use the encoder's kappa_pos, and for comparison the one of ``kappa_pos_choices`` that is likeliest on
    validation pairs. A share ``ask_back`` of the queries, those with the widest caps, get no results. The sets of
    ``checked`` queries are searched with ``CredibleIndex`` as well. ``images`` limits the number of validation and
    test images.
    """

    name: str = "credible-retrieval"
    encoder: Cifar10HSetting = field(default_factory=lambda: Cifar10HSetting("closed-form"))
    kappa_pos_choices: tuple[float, ...] = (16.0, 64.0, 256.0, 1024.0)
    ask_back: float = 0.1
    checked: int = 100
    images: int | None = None

    def shortened(self, max_batches: int | None) -> "CredibleRetrievalSetting":
        """The setting with at most that many steps."""
        return replace(self, encoder=self.encoder.shortened(max_batches))


SETTINGS = (CredibleRetrievalSetting(),)


@dataclass(frozen=True)
class Law:
    """The parameters of predictive caps: kappa_pos and a map of kappa."""

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
        """The law, of those with each kappa_pos, that makes the angles of the pairs likeliest."""
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

    def correct(self, score: Float[Tensor, "q g"]) -> Float[Tensor, " q"]:
        """1 where the item with the highest score has the query's label, otherwise 0."""
        return self.relevant.gather(1, score.argmax(1, keepdim=True))[:, 0].double()

    @cached_property
    def cosine(self) -> Float[Tensor, "q g"]:
        """The float64 cosines by which an index decides which items are in a cap."""
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
        scores = log_hit_positivity(cosine, own, others, self.kappa_pos, self.query.dim)
        return scores.reshape(self.cosine.shape)


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
                options = SearchOptions(
                    kind="predictive", kappa_pos=search.kappa_pos, guarantee=guarantee
                )
                hits = index.search(query, mass, options=options)
                assert isinstance(hits, list)
                for hit, row in zip(hits, masses, strict=True):
                    wanted = {names[i] for i in (row <= level).nonzero()[:, 0].tolist()}
                    members += len(wanted)
                    differing += len(wanted ^ set(hit.ids))
                    searches += 1
        other = torch.tensor(search.kappa_other)
        angle = predictive_angle(
            MASSES[0], query.kappa.double(), other, search.kappa_pos, query.dim
        )
        widest = angle.sort().values[-1 - round(ask_back * len(rows))].item() * (1 + 1e-6)
        options = SearchOptions(kind="predictive", kappa_pos=search.kappa_pos, widest=widest)
        hits = index.search(query, MASSES[0], options=options)
        assert isinstance(hits, list)
        asked = sum(hit.asks_back for hit in hits)
    counts = {"searches": searches, "members": members, "differing": differing}
    return counts | {"asked_back": asked}


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


def run_fold(
    setting: CredibleRetrievalSetting,
    fold: int,
    *,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None = None,
) -> tuple[Fit, dict[str, Any]]:
    """(The fit, the metrics) of a fold."""
    split = Split.load(folder, fold)
    fitted = cifar10h.train(
        setting.encoder, split, fold, folder=folder, checkpoint=checkpoint, observer=observer
    )
    started = time.monotonic()
    model = MirroredViews(fitted.encoder) if setting.encoder.mirrored else fitted.encoder
    rows, n = split.fold, setting.images
    rows = replace(rows, validation=rows.validation[:n], test=rows.test[:n])
    metrics = evaluate(model, replace(split, fold=rows), setting, fold)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return fitted, metrics


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, setting: CredibleRetrievalSetting, fold: int
) -> dict[str, Any]:
    """All metrics of a fitted encoder: coverage, set sizes, rankings, abstention and the index's sets."""
    kappa_pos = setting.encoder.kappa_pos
    search = split_search(model, split, fold, kappa_pos)
    known = encode(model, split.data.images[split.fold.validation])
    entropy = vote_entropy(search.votes[0])
    clear, ambiguous = thirds(entropy)
    low_kappa, high_kappa = thirds(search.query.kappa)
    parts = {"clear": clear, "ambiguous": ambiguous, "sure": high_kappa, "vague": low_kappa}
    metrics: dict[str, Any] = {
        "queries": len(clear),
        "gallery": len(search.gallery.kappa),
        "part_sizes": {name: int(part.sum()) for name, part in parts.items()},
        "kappa_other": search.kappa_other,
        "coverage": {},
        "size": {},
        "class_entropy_rank": {},
        "fitted": {},
    }
    held = search.held()
    for partners in PARTNERS:
        pairs = _validation_pairs(split, partners, fold)
        query, partner = (take(known, side) for side in pairs.T)
        # a query has one cap for all partners, so it is fitted with one kappa for all of them
        typical = VonMisesFisher(partner.mu, search.kappa_other, validate_args=False)
        laws = {
            "calibrated": Law.fit(query, typical, kappa_pos),
            "refitted": Law.refit(query, typical, setting.kappa_pos_choices),
        }
        conformal = ConformalMass.fit(
            query, partner, kappa_pos, kappa_other=search.kappa_other, groups=pairs[:, 0].tolist()
        )
        levels = {mass: conformal.level(mass) for mass in _CURVE}
        same = dict(zip(_CURVE, _CURVE, strict=True))
        caps = {"model": (held, same)}
        caps |= {method: (search.held(law), same) for method, law in laws.items()}
        caps["conformal"] = (held, levels)
        chances = search.chances(partners)
        for method, (masses, asked) in caps.items():
            by_name = _sets(masses, asked, chances, search.labels[1], entropy, parts)
            for name, values in by_name.items():
                metrics[name].setdefault(partners, {})[method] = values
        metrics["fitted"][partners] = {
            "pairs": len(pairs),
            "laws": {method: asdict(law) for method, law in laws.items()},
            "conformal_level": {f"{mass:g}": level for mass, level in levels.items()},
        }
        if partners == PARTNERS[0]:
            metrics["index"] = check_index(
                search, held, conformal, checked=setting.checked, ask_back=setting.ask_back
            )
    mixed = set_class_entropy(torch.softmax(search.log_positivity, -1), search.labels[1])
    metrics["class_entropy_rank"]["positivity"] = spearman(mixed, entropy)
    metrics["class_entropy_rank"]["kappa"] = spearman(-search.query.kappa, entropy)
    metrics |= _rankings(search, parts)
    metrics["abstention"] = _abstention(search, setting.ask_back, entropy)
    metrics["recall_at_1"] = metrics["abstention"]["recall_at_1"]
    return metrics


def _validation_pairs(split: Split, partners: str, fold: int) -> Int[Tensor, "p 2"]:
    """Pairs of the validation images in which no image is twice; a quarter of them is left over to draw from."""
    rows = split.fold.validation
    soft = soft_labels(split.data.labels[rows], split.data.probabilities[rows], partners)
    rng = torch.Generator().manual_seed(_PAIRS + fold)
    return disjoint_pairs(label_rates(soft, soft.mean(0)), 3 * len(rows) // 8, generator=rng)


def _sets(
    held: Tensor,
    levels: Mapping[float, float],
    chances: Tensor,
    labels: Tensor,
    entropy: Tensor,
    parts: Mapping[str, Tensor],
) -> dict[str, dict[str, Any]]:
    """Coverage and size by mass, of all queries and of parts of them, and how mixed sets go with people's votes."""
    coverage, size, ranks = {}, {}, {}
    for mass, level in levels.items():
        key, inside = f"{mass:g}", held <= level
        covered = set_coverage(inside, chances)
        coverage[key] = {"all": covered.mean().item()}
        if mass not in MASSES:
            continue
        coverage[key] |= _means(covered, parts)
        share, mixed = set_share(inside), set_class_entropy(inside, labels)
        some = ~torch.isnan(mixed)
        ranks[key] = spearman(mixed[some], entropy[some]) if some.sum() > 1 else None
        size[key] = {"all": share.mean().item(), "median": share.median().item()}
        size[key] |= _means(share, parts) | {"empty": (~some).double().mean().item()}
    return {"coverage": coverage, "size": size, "class_entropy_rank": ranks}


def _rankings(search: Search, parts: Mapping[str, Tensor]) -> dict[str, Any]:
    """The mAP by label and nDCG by votes of each ranking, and what is gained over the cosine, query by query."""
    length = mean_resultant_length(search.gallery.kappa.double(), search.gallery.dim)
    scores = {
        "cosine": search.cosine,
        "expected_cosine": search.cosine * length,
        "positivity": search.log_positivity,
    }
    relevant = search.relevant
    agreement = (search.votes[0].double() @ search.votes[1].double().T).clamp(min=0)
    measures = {
        "map": lambda score: average_precision(score, relevant),
        "ndcg": lambda score: normalised_gain(score, agreement),
        "ndcg_10": lambda score: normalised_gain(score, agreement, depth=10),
        "recall_at_1": search.correct,
    }
    ranking: dict[str, Any] = {name: {} for name in scores}
    gain: dict[str, Any] = {name: {} for name in scores if name != "cosine"}
    for measure, function in measures.items():
        by_score = {name: function(score) for name, score in scores.items()}
        for name, values in by_score.items():
            ranking[name][measure] = {"all": values.mean().item()} | _means(values, parts)
            if name != "cosine":
                more = values - by_score["cosine"]
                gain[name][measure] = {"all": more.mean().item()} | _means(more, parts)
    return {"ranking": ranking, "gain": gain}


def _abstention(search: Search, ask_back: float, entropy: Tensor) -> dict[str, float]:
    """Recall@1 of all queries, and without a share of them: the widest caps, the most disputed, or the wrong ones.

    All caps of a mass have the same order of width, that of falling kappa.
    """
    correct = search.correct(search.cosine)
    kept = len(correct) - round(ask_back * len(correct))
    orders = {"kept": search.query.kappa, "kept_by_votes": -entropy, "kept_best": correct}
    metrics = {"recall_at_1": correct.mean().item(), "asked_back": ask_back}
    for name, certainty in orders.items():
        best = torch.sort(certainty, descending=True, stable=True).indices[:kept]
        metrics[name] = correct[best].mean().item()
    return metrics


def _means(values: Tensor, parts: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: values[part].mean().item() for name, part in parts.items()}
