"""Baselines of CIFAR-10H that see what encoders see: mirror images, the votes of the training images, two networks.

Each is run on the five folds, with frozen classifiers and without training on pairs:

- ``softmax-mirrored``, ``softmax-two``: the entropy of the softmax of one or two classifiers, of the mean logits of an
  image and its mirror image, at temperature 1, 2, and fitted on the votes of the fold's training images.
- ``softmax-votes-mirrored``: the same for the classifier fine-tuned on those votes.
- ``step-0``: the encoder as it is before it has seen a pair.
- ``ridge``, ``ridge-two-votes``: ridge regression of the square root of the disagreement of those votes, from the
  features of the frozen classifier and simple functions of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole.data import Votes
from aureole.errors import InvalidInputError
from aureole.evaluation import r_auroc, spearman
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.models._networks import bfloat16_in_hardware
from aureole.sphere import normalize
from aureole_paper.cifar10h import (
    BackboneName,
    Cifar10HSetting,
    Split,
    encode,
    fine_tune,
    load_backbone,
    new_encoder,
)
from aureole_paper.settings import RunSetting
from aureole_paper.statistics import bootstrap_error

PENALTIES = tuple(10.0**power for power in range(-2, 6))
_VOTES = 70_000_027  # seed of the choice of votes, far from the seeds of steps
_INNER_FOLDS = 5
_TEMPERATURE_IMAGES = 1000  # training images on which the temperature of two networks is fitted


@dataclass(frozen=True)
class VoteBaseline(RunSetting):
    """A baseline by name; ``also`` are further backbones, ``votes`` the number of votes kept per training image."""

    name: Literal[
        "softmax-mirrored",
        "softmax-two",
        "softmax-votes-mirrored",
        "step-0",
        "ridge",
        "ridge-two-votes",
    ]
    backbone: BackboneName = "resnet20"
    also: tuple[BackboneName, ...] = ()
    votes: int | None = None

    def shortened(self, max_batches: int | None) -> "VoteBaseline":  # noqa: ARG002
        """The setting itself: there is nothing to shorten."""
        return self


SETTINGS = (
    VoteBaseline("softmax-mirrored"),
    VoteBaseline("softmax-two", also=("resnet56",)),
    VoteBaseline("softmax-votes-mirrored"),
    VoteBaseline("step-0"),
    VoteBaseline("ridge"),
    VoteBaseline("ridge-two-votes", votes=2),
)


@dataclass(frozen=True)
class FoldFeatures:
    """Features of a fold's images by a network: of each image, [0], and of its mirror image, [1]."""

    train: Float[Tensor, "2 m d"]
    test: Float[Tensor, "2 n d"]
    crops: Float[Tensor, "2 n d"]

    @classmethod
    def of(cls, network: nn.Module, split: Split, n_train: int | None = None) -> "FoldFeatures":
        """The features of the training images (the first ``n_train``), the test images and the test crops."""
        images, fold = split.data.images, split.fold
        return cls(
            both_views(network, images[fold.train[:n_train]]),
            both_views(network, images[fold.test]),
            both_views(network, split.test_crops),
        )

    def apply(self, function: Callable[[Tensor], Tensor]) -> "FoldFeatures":
        """The same with a function applied to each part."""
        return FoldFeatures(function(self.train), function(self.test), function(self.crops))

    def means(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mean over both views of each part."""
        return self.train.mean(0), self.test.mean(0), self.crops.mean(0)


def evaluate_vote_baseline(
    setting: VoteBaseline, split: Split, number: int, *, folder: Path
) -> dict[str, Any]:
    """The metrics of a baseline on the fold of this number.

    ``recall_at_1`` and ``r_auroc`` are those of the nearest neighbours by the features of the classifier, as for an
    encoder; classifiers also have their ``accuracy``.
    """
    if setting.name == "step-0":
        return _before_training(setting, split, number, folder)
    if setting.name in ("ridge", "ridge-two-votes"):
        return _ridge(setting, split, number, folder)
    return _softmax(setting, split, number, folder)


def encoder_errors(model: nn.Module, split: Split) -> dict[str, float]:
    """The bootstrap standard errors of an encoder's metrics over the test images."""
    test = split.fold.test
    posterior = encode(model, split.data.images[test])
    correct = nearest_label_matches(posterior.mu, split.data.labels[test])
    return item_errors(split, -posterior.kappa, -encode(model, split.test_crops).kappa, correct)


def item_errors(
    split: Split, uncertainty: Tensor, crop_uncertainty: Tensor, correct: Tensor
) -> dict[str, float]:
    """The standard error of each metric by bootstrap over the test images, with the neighbours held fixed."""
    entropy, sizes = split.data.entropy[split.fold.test], split.crop_sizes
    statistics: dict[str, Callable[[Tensor], float]] = {
        "entropy_rank": lambda rows: spearman(uncertainty[rows], entropy[rows]),
        "crop_rank": lambda rows: spearman(crop_uncertainty[rows], sizes[rows]),
        "recall_at_1": lambda rows: correct[rows].double().mean().item(),
        "r_auroc": lambda rows: r_auroc(uncertainty[rows], correct[rows]),
    }
    items = torch.arange(len(entropy))
    return {name: bootstrap_error(value, items) for name, value in statistics.items()}


@torch.no_grad()
def both_views(network: nn.Module, images: Tensor, *, batch: int = 500) -> Float[Tensor, "2 n d"]:
    """The outputs of a network for images and for their mirror images; in bfloat16 where that is fast."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16_in_hardware()):
        views = [[network(x).float() for x in v.split(batch)] for v in (images, images.flip(-1))]
    return torch.stack([torch.cat(view) for view in views])


def fit_temperature(logits: Float[Tensor, "n c"], votes: Float[Tensor, "n c"]) -> float:
    """The temperature T that minimises the cross-entropy of softmax(logits / T) with the shares of the votes.

    By bisection of the derivative in 1/T, in which the cross-entropy is convex; T is between 0.01 and 100.

    Examples
    --------
    >>> logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
    >>> round(fit_temperature(logits, (logits / 2).softmax(-1)), 4)
    2.0
    """
    logits, votes = logits.double(), votes.double()
    target = (votes * logits).sum(-1).mean()
    low, high = 0.01, 100.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        expected = ((middle * logits).softmax(-1) * logits).sum(-1).mean()
        low, high = (low, middle) if expected > target else (middle, high)
    return 1 / (low * high) ** 0.5


def choose_votes(
    counts: Int[Tensor, "n c"], votes: int, generator: torch.Generator
) -> Int[Tensor, "n c"]:
    """The counts of as many votes per item, chosen without replacement.

    Examples
    --------
    >>> counts = torch.tensor([[50, 0, 0], [1, 1, 0]])
    >>> choose_votes(counts, 2, torch.Generator().manual_seed(0))
    tensor([[2, 0, 0],
            [1, 1, 0]])
    """
    if bool((counts.sum(-1) < votes).any()):
        raise InvalidInputError(f"each item needs at least {votes} votes.")
    left, chosen = counts.clone(), torch.zeros_like(counts)
    for _ in range(votes):
        vote = torch.multinomial(left.double(), 1, generator=generator)
        left.scatter_add_(1, vote, torch.full_like(vote, -1))
        chosen.scatter_add_(1, vote, torch.ones_like(vote))
    return chosen


def ridge_inputs(features: Float[Tensor, "n d"], last: nn.Linear) -> Float[Tensor, "n inputs"]:
    """The features, their direction, the sorted logits, and softmax and its entropy at the temperatures 1, 2 and 4."""
    logits = _linear(last)(features)
    parts = [features, normalize(features), logits.sort(-1).values]
    for temperature in (1.0, 2.0, 4.0):
        parts.append((logits / temperature).softmax(-1))
        parts.append(_entropy(logits, temperature)[:, None].to(features))
    return torch.cat(parts, -1)


@dataclass(frozen=True)
class Ridge:
    """A linear function of standardised features, and the penalty that was chosen for it."""

    centre: Tensor
    scale: Tensor
    weight: Tensor
    offset: Tensor
    penalty: float

    def __call__(self, features: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The predictions."""
        return (features.double() - self.centre) / self.scale @ self.weight + self.offset


def fit_ridge(
    features: Float[Tensor, "n d"],
    target: Float[Tensor, " n"],
    penalties: Sequence[float] = PENALTIES,
    *,
    seed: int = 0,
) -> Ridge:
    """Ridge regression with the penalty that has the smallest squared error in cross-validation over five parts.

    Minimises |y - X w|^2 + penalty |w|^2 with standardised features and a free offset.
    """
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    parts = order.chunk(_INNER_FOLDS)
    errors = torch.zeros(len(penalties), dtype=torch.float64)
    for at, held in enumerate(parts):
        rest = torch.cat([part for other, part in enumerate(parts) if other != at])
        for which, penalty in enumerate(penalties):
            fitted = _solve(features[rest], target[rest], penalty)
            errors[which] += (fitted(features[held]) - target[held]).square().sum()
    return _solve(features, target, penalties[int(errors.argmin())])


def _solve(features: Tensor, target: Tensor, penalty: float) -> Ridge:
    x, y = features.double(), target.double()
    centre, scale = x.mean(0), x.std(0)
    scale = torch.where(scale > 0, scale, 1.0)
    x, offset = (x - centre) / scale, y.mean()
    gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype)
    return Ridge(centre, scale, torch.linalg.solve(gram, x.T @ (y - offset)), offset, penalty)


@lru_cache(maxsize=2)
def _frozen(
    name: BackboneName, number: int, folder: Path, n_train: int | None = None
) -> tuple[FoldFeatures, nn.Linear]:
    """The features of a fold by a pretrained classifier and its last layer; cached for the baselines of a fold."""
    backbone, last = load_backbone(name, folder)
    return FoldFeatures.of(backbone.eval(), Split.load(folder, number), n_train), last


def _softmax(setting: VoteBaseline, split: Split, number: int, folder: Path) -> dict[str, Any]:
    """The entropy of the softmax of mean logits, at three temperatures."""
    if setting.name == "softmax-votes-mirrored":
        network = fine_tune(setting.backbone, split, folder)
        features = FoldFeatures.of(network.get_submodule("0"), split)
        members = [features.apply(_linear(network.get_submodule("1")))]
    else:
        fits = [_frozen(setting.backbone, number, folder)]
        fits += [_frozen(name, number, folder, _TEMPERATURE_IMAGES) for name in setting.also]
        features, members = fits[0][0], [each.apply(_linear(last)) for each, last in fits]
    logits = [m.means() for m in members]
    fewest = min(len(train) for train, _, _ in logits)
    known = torch.stack([train[:fewest] for train, _, _ in logits]).mean(0)
    images, crops = (torch.stack([m[at] for m in logits]).mean(0) for at in (1, 2))
    fitted = fit_temperature(known, split.data.probabilities[split.fold.train[:fewest]])
    metrics = _neighbour_metrics(split, features, _entropy(images, 1.0), _entropy(crops, 1.0))
    labels = split.data.labels[split.fold.test]
    metrics["accuracy"] = (images.argmax(-1) == labels).double().mean().item()
    metrics["temperature_fitted"] = fitted
    for suffix, temperature in (("_at_2", 2.0), ("_fitted", fitted)):
        spread, on_crops = (_entropy(x, temperature) for x in (images, crops))
        metrics |= _ranks(split, spread, on_crops, suffix)
    return metrics


def _ridge(setting: VoteBaseline, split: Split, number: int, folder: Path) -> dict[str, Any]:
    """Ridge regression of the square root of the disagreement of the training images' votes."""
    features, last = _frozen(setting.backbone, number, folder)
    counts = split.data.counts[split.fold.train]
    if setting.votes is not None:
        rng = torch.Generator().manual_seed(_VOTES + number)
        counts = choose_votes(counts, setting.votes, rng)
    target = (1 - Votes.of(counts).agreement).sqrt()
    plain = features.means()
    inputs = [ridge_inputs(part, last) for part in plain]
    fitted, linear = (fit_ridge(x[0], target, seed=number) for x in (inputs, plain))
    metrics = _neighbour_metrics(split, features, fitted(inputs[1]), fitted(inputs[2]))
    metrics |= _ranks(split, linear(plain[1]), linear(plain[2]), "_linear")
    return metrics | {"penalty": fitted.penalty, "penalty_linear": linear.penalty}


def _before_training(
    setting: VoteBaseline, split: Split, number: int, folder: Path
) -> dict[str, Any]:
    """The metrics of the encoder before its first step, whose features are those of the classifier."""
    features, _ = _frozen(setting.backbone, number, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        start = Cifar10HSetting("closed-form", backbone=setting.backbone)
        head = new_encoder(start, split, folder).eval().head
    with torch.no_grad():
        # views are pooled as in MirroredViews: by the mean of their natural parameters kappa mu
        views = [[head(view) for view in x] for x in (features.test, features.crops)]
        images, crops = (torch.stack([q.kappa[:, None] * q.mu for q in x]).mean(0) for x in views)
    correct = nearest_label_matches(normalize(images), split.data.labels[split.fold.test])
    return _metrics(split, -images.norm(dim=-1), -crops.norm(dim=-1), correct)


def _neighbour_metrics(
    split: Split, features: FoldFeatures, uncertainty: Tensor, on_crops: Tensor
) -> dict[str, Any]:
    """The metrics of an uncertainty, with the nearest neighbours by the features."""
    mu = normalize(features.test.mean(0))
    correct = nearest_label_matches(mu, split.data.labels[split.fold.test])
    return _metrics(split, uncertainty, on_crops, correct)


def _metrics(
    split: Split, uncertainty: Tensor, on_crops: Tensor, correct: Tensor
) -> dict[str, Any]:
    return {
        **_ranks(split, uncertainty, on_crops),
        "recall_at_1": correct.double().mean().item(),
        "r_auroc": r_auroc(uncertainty, correct),
        "bootstrap_errors": item_errors(split, uncertainty, on_crops, correct),
    }


def _ranks(
    split: Split, uncertainty: Tensor, on_crops: Tensor, suffix: str = ""
) -> dict[str, float]:
    """The rank correlations with people's disagreement and with what a crop has lost."""
    return {
        f"entropy_rank{suffix}": spearman(uncertainty, split.data.entropy[split.fold.test]),
        f"crop_rank{suffix}": -spearman(on_crops, split.crop_sizes),
    }


def _linear(last: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda features: last(features).detach()


def _entropy(logits: Tensor, temperature: float) -> Tensor:
    return torch.special.entr((logits.double() / temperature).softmax(-1)).sum(-1)
