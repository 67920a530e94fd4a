"""Credible retrieval on CIFAR-10H: whether sets hold the partners they promise, and whether both kappas rank better.

The encoder is that of the main CIFAR-10H setting. Of a fold's test images a random half are queries and the other half
is the gallery. Promises are checked for two kinds of partners: drawn by people's votes, as the pairs that the encoder
learned from, and of the same CIFAR-10 label. What is fitted (the map of kappa, kappa_pos, the conformal mass) is fitted
on disjoint pairs of validation images of the same kind; test images only judge.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole.data import disjoint_pairs, label_rates
from aureole.distributions import VonMisesFisher
from aureole.evaluation import (
    average_precision,
    normalised_gain,
    set_class_entropy,
    set_coverage,
    set_share,
    spearman,
    thirds,
)
from aureole.models import MirroredViews
from aureole.retrieval import ConformalMass
from aureole.sphere import mean_resultant_length
from aureole.training import Fit, Observer
from aureole_paper import cifar10h
from aureole_paper.cifar10h import Cifar10HSetting, Split, encode
from aureole_paper.image_search import (
    MASSES,
    PARTNERS,
    Law,
    Search,
    check_index,
    soft_labels,
    split_search,
    take,
)

_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_PAIRS = 61_000_003


@dataclass(frozen=True)
class CredibleRetrievalSetting:
    """All that decides a run, but the fold.

    Caps are made with the encoder's kappa_pos, and beside it with the one of ``kappa_pos_choices`` that is likeliest on
    validation pairs. A share ``ask_back`` of the queries, those with the widest caps, get no results. The sets of
    ``checked`` queries are searched with ``CredibleIndex`` too. ``images`` takes only the first so many validation and
    test images to measure with.
    """

    name: str = "credible-retrieval"
    encoder: Cifar10HSetting = field(default_factory=lambda: Cifar10HSetting("closed-form"))
    kappa_pos_choices: tuple[float, ...] = (16.0, 64.0, 256.0, 1024.0)
    ask_back: float = 0.1
    checked: int = 100
    images: int | None = None

    def shortened(self, max_batches: int | None) -> "CredibleRetrievalSetting":
        """The setting with at most that many steps."""
        encoder = self.encoder.shortened(max_batches)
        return self if encoder is self.encoder else replace(self, encoder=encoder)

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self) | {
            "encoder": self.encoder.as_json(),
            "kappa_pos_choices": list(self.kappa_pos_choices),
        }


SETTINGS = (CredibleRetrievalSetting(),)


def run_fold(
    setting: CredibleRetrievalSetting,
    fold: int,
    *,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None = None,
) -> tuple[Fit, dict[str, Any]]:
    """(The fit, the figures) of a fold."""
    split = Split.load(folder, fold)
    fitted = cifar10h.train(
        setting.encoder, split, fold, folder=folder, checkpoint=checkpoint, observer=observer
    )
    started = time.monotonic()
    model = MirroredViews(fitted.encoder) if setting.encoder.mirrored else fitted.encoder
    metrics = evaluate(model, _shortened(split, setting.images), setting, fold)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return fitted, metrics


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, setting: CredibleRetrievalSetting, fold: int
) -> dict[str, Any]:
    """All figures of a fitted encoder: coverage, set sizes, rankings, abstention and the index's sets."""
    kappa_pos = setting.encoder.kappa_pos
    search = split_search(model, split, fold, kappa_pos)
    known = encode(model, split.data.images[split.fold.validation])
    entropy = vote_entropy(search.votes[0])
    clear, ambiguous = thirds(entropy)
    vague, sure = thirds(search.query.kappa)
    parts = {"clear": clear, "ambiguous": ambiguous, "sure": sure, "vague": vague}
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
        for name in ("coverage", "size", "class_entropy_rank"):
            metrics[name][partners] = {}
        for method, (masses, asked) in caps.items():
            found = _sets(masses, asked, chances, search.labels[1], entropy, parts)
            for name, values in found.items():
                metrics[name][partners][method] = values
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


def vote_entropy(votes: Float[Tensor, "n 10"]) -> Float[Tensor, " n"]:
    """The entropy of votes in nats; sorted first, so that images with the same votes for other classes tie exactly."""
    return torch.special.entr(votes.sort(-1).values).sum(-1)


def _shortened(split: Split, images: int | None) -> Split:
    fold = replace(
        split.fold, validation=split.fold.validation[:images], test=split.fold.test[:images]
    )
    return replace(split, fold=fold)


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
    coverage: dict[str, Any] = {}
    size: dict[str, Any] = {}
    ranks: dict[str, Any] = {}
    for mass, level in levels.items():
        inside = held <= level
        covered = set_coverage(inside, chances)
        coverage[f"{mass:g}"] = {"all": covered.mean().item()}
        if mass not in MASSES:
            continue
        share, mixed = set_share(inside), set_class_entropy(inside, labels)
        coverage[f"{mass:g}"] |= _means(covered, parts)
        size[f"{mass:g}"] = {"all": share.mean().item(), "median": share.median().item()}
        size[f"{mass:g}"] |= _means(share, parts)
        some = ~torch.isnan(mixed)
        ranks[f"{mass:g}"] = spearman(mixed[some], entropy[some]) if some.sum() > 1 else None
        size[f"{mass:g}"]["empty"] = (~some).double().mean().item()
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
        "recall_at_1": lambda score: relevant.gather(1, score.argmax(1, keepdim=True))[
            :, 0
        ].double(),
    }
    ranking: dict[str, Any] = {name: {} for name in scores}
    gain: dict[str, Any] = {name: {} for name in scores if name != "cosine"}
    for measure, function in measures.items():
        found = {name: function(score) for name, score in scores.items()}
        for name, values in found.items():
            ranking[name][measure] = {"all": values.mean().item()} | _means(values, parts)
            if name != "cosine":
                more = values - found["cosine"]
                gain[name][measure] = {"all": more.mean().item()} | _means(more, parts)
    return {"ranking": ranking, "gain": gain}


def _abstention(search: Search, ask_back: float, entropy: Tensor) -> dict[str, float]:
    """Recall@1 of all queries, and of those kept where the widest caps, or people's doubts, or the wrong are left out.

    All caps of a mass are of the same order of width, that of falling kappa.
    """
    correct = search.relevant.gather(1, search.cosine.argmax(1, keepdim=True))[:, 0].double()
    kept = len(correct) - round(ask_back * len(correct))
    orders = {
        "kept": search.query.kappa,
        "kept_by_votes": -entropy,
        "kept_best": correct,
    }
    found = {"recall_at_1": correct.mean().item(), "asked_back": ask_back}
    for name, certainty in orders.items():
        best = torch.sort(certainty, descending=True, stable=True).indices[:kept]
        found[name] = correct[best].mean().item()
    return found


def _means(values: Tensor, parts: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: values[part].mean().item() for name, part in parts.items()}
