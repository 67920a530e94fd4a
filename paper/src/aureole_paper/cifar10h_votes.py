"""CIFAR-10H from votes on frozen features: kappa learned from pairs of images, and from whether annotators agree.

The network is a pretrained classifier and is not trained. A linear map of its features is mu, a small network of them
log kappa. Up to three values are chosen for each fold inside its 6,000 training images: a quarter is held out, and
the values whose kappa ranks the held-out images best are used to train on all. Validation images play no part in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole.data import PairBatch, Votes, label_rates, poisson_pairs
from aureole.distributions import VonMisesFisher
from aureole.evaluation import aurc, r_auroc, spearman
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.losses import ClosedFormInfoNCE
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.sphere import normalize
from aureole.synthetic import deteriorate
from aureole.training import FitOptions, Phase, fit
from aureole.training._fit import Fit, Observer
from aureole_paper.cifar10h import BackboneName, Split, load_backbone
from aureole_paper.cifar10h_baselines import both_views, choose_votes, item_errors, ridge_inputs
from aureole_paper.selective import augrc
from aureole_paper.settings import RunSetting, rounded

# seeds of random draws outside of training, far from the seeds of steps
_AUGMENTED, _HELD_OUT, _INITIALISATION, _VOTES = 80_000_023, 90_000_049, 20_000_003, 70_000_027
_CHOSEN = ("cropped", "neighbours", "lr")  # by held-out training images
_CROPS = 3  # of each training image
_SHARE_HELD_OUT = 0.25
_NEIGHBOURS = 10
_WIDTH = 128


@dataclass(frozen=True)
class VotesSetting(RunSetting):
    """Everything that decides a run, except the fold.

    Batches hold ``items`` images, a share of them cropped, and ``pairs`` positive pairs on average. The loss adds
    ``agreement_weight`` times the likelihood of the agreement of two annotators of an uncropped image, or, with the
    weight ``neighbours``, of an annotator of the image and one of its nearest images. The shares in ``cropped``, the
    weights in ``neighbours`` and the learning rates in ``lr`` are candidates. ``votes`` is the number of votes kept per
    training image (None: all).
    """

    name: str
    backbone: BackboneName = "resnet20"
    also: tuple[BackboneName, ...] = ()
    votes: int | None = None
    dim: int = 16
    kappa_pos: float = 16.0
    agreement_weight: float = 5.0
    cropped: tuple[float, ...] = (0.1, 0.3)
    neighbours: tuple[float, ...] = (0.4, 0.8)
    items: int = 256
    pairs: int = 1500
    steps: int = 600
    lr: tuple[float, ...] = (5e-4, 3e-3)
    preset: str = "fast"


SETTINGS = (
    VotesSetting("votes"),
    VotesSetting("votes-two", votes=2, cropped=(0.3,)),
    VotesSetting("votes-one", votes=1, neighbours=(1.0,)),
    VotesSetting("votes-ensemble", also=("resnet56",), neighbours=(0.4,)),
)


@dataclass(frozen=True)
class Inputs:
    """What a head sees of a fold: training images, crops of each with their sizes, test images and test crops."""

    train: Float[Tensor, "n d"]
    crops: Float[Tensor, "k n d"]
    crop_sizes: Float[Tensor, "k n"]
    test: Float[Tensor, "m d"]
    test_crops: Float[Tensor, "m d"]
    softmax: Float[Tensor, " m"]  # the largest of each test image, by the classifiers' mean logits


@dataclass(frozen=True)
class _Part:
    """Training images to learn from, with their votes."""

    inputs: Inputs
    rows: Int[Tensor, " r"]
    counts: Int[Tensor, "r classes"]


@lru_cache(maxsize=1)
def fold_inputs(backbones: tuple[BackboneName, ...], fold: int, folder: Path) -> Inputs:
    """The inputs of a fold's images by frozen classifiers, in all five roles; cached for the settings of a fold."""
    split = Split.load(folder, fold)
    images = split.data.images
    train, test = images[split.fold.train], images[split.fold.test]
    rng = torch.Generator().manual_seed(_AUGMENTED + fold)
    sizes = 0.25 + 0.75 * torch.rand(_CROPS, len(train), generator=rng)
    crops = [deteriorate(train, size, rng) for size in sizes]
    parts: list[list[Tensor]] = []
    logits: list[Tensor] = []
    for name in backbones:
        backbone, last = load_backbone(name, folder)
        backbone.eval()
        features = [
            both_views(backbone, each).mean(0) for each in (train, *crops, test, split.test_crops)
        ]
        parts.append([ridge_inputs(each, last) for each in features])
        logits.append(last(features[-2]).detach())
    joined = [torch.cat(each, -1) for each in zip(*parts, strict=True)]
    train, *crops, test, test_crops = joined
    softmax = torch.stack(logits).mean(0).softmax(-1).max(-1).values
    return Inputs(train, torch.stack(crops), sizes, test, test_crops, softmax)


def run_fold(
    setting: VotesSetting,
    split: Split,
    fold: int,
    *,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None = None,
) -> tuple[Fit, dict[str, Any]]:
    """(The fitted head, its metrics on the fold's test images), with the values chosen inside the training images."""
    inputs = fold_inputs((setting.backbone, *setting.also), fold, folder)
    counts = split.data.counts[split.fold.train]
    if setting.votes is not None:
        rng = torch.Generator().manual_seed(_VOTES + fold)
        counts = choose_votes(counts, setting.votes, rng)
    everything = _Part(inputs, torch.arange(len(counts)), counts)
    chosen, tried = choose(setting, everything, fold)
    fitted = train(chosen, everything, fold, checkpoint=checkpoint, observer=observer)
    metrics = evaluate(fitted.encoder, inputs, split)
    metrics["chosen"] = {name: getattr(chosen, name)[0] for name in _CHOSEN}
    metrics["tried"] = tried
    return fitted, metrics


def choose(
    setting: VotesSetting, part: _Part, seed: int
) -> tuple[VotesSetting, list[dict[str, float]]]:
    """(The setting with the best of its candidates, the scores of all): by a quarter of the images, held out."""
    rng = torch.Generator().manual_seed(_HELD_OUT + seed)
    order = torch.randperm(len(part.rows), generator=rng)
    held = order[: round(_SHARE_HELD_OUT * len(order))]
    rest = order[len(held) :]
    left, out = (_Part(part.inputs, part.rows[x], part.counts[x]) for x in (rest, held))
    tried = []
    for values in product(*(getattr(setting, name) for name in _CHOSEN)):
        candidate = replace(setting, **{n: (v,) for n, v in zip(_CHOSEN, values, strict=True)})
        encoder = train(candidate, left, seed).encoder
        tried.append(dict(zip(_CHOSEN, values, strict=True)) | _held_out(encoder, out))
    best = max(tried, key=lambda scores: scores["score"])
    return replace(setting, **{name: (best[name],) for name in _CHOSEN}), tried


@torch.no_grad()
def _held_out(encoder: nn.Module, part: _Part) -> dict[str, float]:
    """The mean of what kappa ranks on held-out images, as far as their votes show it."""
    images, crops = part.inputs.train[part.rows], part.inputs.crops[0][part.rows]
    posterior, cropped = encoder(images), encoder(crops)
    labels = part.counts.argmax(-1)
    correct = nearest_label_matches(posterior.mu, labels)
    scores = {
        "crop_rank": spearman(cropped.kappa, part.inputs.crop_sizes[0][part.rows]),
        "r_auroc": r_auroc(-posterior.kappa, correct),
    }
    if bool((part.counts.sum(-1) > 1).all()):
        scores["entropy_rank"] = spearman(-posterior.kappa, 1 - Votes.of(part.counts).agreement)
    return scores | {"score": sum(scores.values()) / len(scores)}


def train(
    setting: VotesSetting,
    part: _Part,
    seed: int,
    *,
    checkpoint: Path | None = None,
    observer: Observer | None = None,
) -> Fit:
    """A head trained with the first of the setting's candidates."""
    n_in = part.inputs.train.shape[-1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIALISATION + seed)
        networks = nn.Linear(n_in, setting.dim), ResidualMLP(n_in, 1, width=_WIDTH)
        encoder = IndependentEncoder(*networks, n_in=n_in, kappa=20.0)
    encoder.initialise(part.inputs.train[part.rows])
    return fit(
        encoder,
        ClosedFormInfoNCE(setting.kappa_pos, agreement_weight=setting.agreement_weight),
        _batches(setting, part),
        phases=[Phase("joint", setting.steps, setting.lr[0])],
        options=FitOptions(seed=seed, average=0.99, diagnose=False, precision="32-true"),
        checkpoint=checkpoint,
        observer=observer,
    )


def _batches(setting: VotesSetting, part: _Part) -> Callable[[int, torch.Generator], PairBatch]:
    votes = Votes.of(part.counts)
    shares, prior = votes.probabilities, votes.prior
    images, crops = part.inputs.train[part.rows], part.inputs.crops[:, part.rows]
    agreement = _agreement(images, votes, setting.neighbours[0])
    n_cropped = round(setting.cropped[0] * setting.items)

    def draw(_: int, rng: torch.Generator) -> PairBatch:
        chosen = torch.randperm(len(images), generator=rng)[: setting.items]
        inputs, seen = images[chosen], agreement[chosen]
        which = torch.randint(len(crops), (n_cropped,), generator=rng)
        inputs[:n_cropped] = crops[which, chosen[:n_cropped]]
        seen[:n_cropped] = torch.nan  # nobody has voted on a crop
        rates = label_rates(shares[chosen], prior).float()
        pairs = poisson_pairs(rates, setting.pairs, generator=rng)
        return PairBatch(inputs, pairs, float(setting.pairs), agreement=seen)

    return draw


def _agreement(images: Float[Tensor, "n d"], votes: Votes, weight: float) -> Float[Tensor, " n"]:
    """How often two annotators agree: both of an image, and, with a weight, one of it and one of its nearest images."""
    if not weight:
        return votes.agreement
    direction = normalize((images - images.mean(0)) / images.std(0).clamp(min=1e-6))
    cosine = (direction @ direction.T).fill_diagonal_(-1)
    nearest = cosine.topk(_NEIGHBOURS).indices
    near = torch.einsum("nc,nkc->n", votes.probabilities, votes.probabilities[nearest])
    near = near / _NEIGHBOURS
    return near if weight == 1 else (1 - weight) * votes.agreement + weight * near


@torch.no_grad()
def evaluate(encoder: nn.Module, inputs: Inputs, split: Split) -> dict[str, Any]:
    """All metrics on the fold's test images and on their crops."""
    labels = split.data.labels[split.fold.test]
    posterior: VonMisesFisher = encoder(inputs.test)
    cropped: VonMisesFisher = encoder(inputs.test_crops)
    uncertainty = -posterior.kappa
    correct = nearest_label_matches(posterior.mu, labels)
    quantiles = posterior.kappa.quantile(torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]))
    return {
        "entropy_rank": spearman(uncertainty, split.data.entropy[split.fold.test]),
        "crop_rank": spearman(cropped.kappa, split.crop_sizes),
        "recall_at_1": correct.double().mean().item(),
        "r_auroc": r_auroc(uncertainty, correct),
        "r_auroc_softmax": r_auroc(1 - inputs.softmax, correct),
        "aurc": aurc(uncertainty, correct),
        "augrc": augrc(uncertainty, correct),
        "kappa_quantiles": rounded(quantiles),
        "bootstrap_errors": item_errors(split, uncertainty, -cropped.kappa, correct),
    }
