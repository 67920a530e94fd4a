"""CIFAR-10H (the paper's section 5.2): whether kappa agrees with people, and drops when an image is cropped.

A run is a setting and a fold of the paper's five. The encoder is trained on pairs by (soft) labels of 6,000 images,
selected by the rank correlation of kappa with the crop size on 2,000 validation images, and tested on 2,000 others.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aureole.data import PairBatch, label_rates, poisson_pairs
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.evaluation import aurc, r_auroc, rejection_curve, spearman
from aureole.evaluation._rejection import area_under_rejection, oracle_area
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.models import (
    CifarResNet,
    KappaFromNorm,
    PosteriorEncoder,
    whiten_last_layer,
)
from aureole.models._networks import bfloat16_in_hardware, hold_statistics
from aureole.records import file_hash
from aureole.synthetic import deteriorate
from aureole.synthetic._image_transforms import augment
from aureole.training import FitOptions, Phase, fit
from aureole.training._fit import Fit, Observer
from aureole_paper.cifar import (
    Cifar10H,
    Fold,
    load_cifar10,
    load_cifar10h,
    load_crop_sizes,
    load_fold,
)
from aureole_paper.classifier import load_classifier
from aureole_paper.names import BackboneName, LabelName
from aureole_paper.networks import KappaFromPrototypes, ResNet18
from aureole_paper.pooled import Ensemble, MirroredViews
from aureole_paper.selective import augrc
from aureole_paper.settings import LossName, RunSetting, objective, rounded
from aureole_paper.statistics import vote_ceiling

# seeds of random draws outside of training, far from the seeds of steps
_INITIALISATION, _CROPS, _FOREIGN, _CEILING = 20_000_003, 30_000_001, 40_000_003, 50_000_017
_FINE_TUNING, _HELD_OUT = 60_000_011, 90_000_049
_SCORES = ("entropy_rank", "crop_rank", "recall_at_1", "r_auroc")  # of held-out training images
_NEIGHBOURS = 10


@dataclass(frozen=True)
class Cifar10HSetting(RunSetting):
    """Everything that decides a run, except the fold. Defaults are our best: the closed form on soft labels.

    ``labels`` are the votes ("soft"), their majority ("hard") or CIFAR-10's own ("cifar10"). Batches hold ``items``
    images, a share ``cropped`` of them cropped, all moved by up to ``shifted`` pixels, and ``pairs`` positive pairs
    among them on average; ``extra`` adds CIFAR-10's 50,000 training images with their labels. After training, the
    posteriors of ``members`` encoders, of others with the backbones ``also``, and, if ``mirrored``, of an image and
    its mirror image are pooled. ``gallery`` saves thumbnails. With ``lrs`` and ``heads``, learning rate and head are
    chosen among these candidates inside each fold's training images.
    """

    name: str
    loss: LossName = "closed-form"
    labels: LabelName = "soft"
    backbone: BackboneName = "resnet20"
    pretrained: bool = True
    head: Literal["prototypes", "norm"] = "prototypes"
    dim: int = 16
    kappa_pos: float = 16.0
    kappa_start: float = 20.0
    n_samples: int = 64
    hib: tuple[float, float] = (2.0, 1.0)
    temperature: float | None = None
    items: int = 128
    pairs: int = 1024
    steps: int = 200
    lr: float = 5e-4
    evaluate_every: int = 25
    cropped: float = 0.0
    shifted: int = 0
    extra: bool = False
    members: int = 1
    also: tuple[BackboneName, ...] = ()
    mirrored: bool = True
    gallery: bool = False
    lrs: tuple[float, ...] = ()
    heads: tuple[Literal["prototypes", "norm"], ...] = ()
    preset: str = "fast"


@dataclass(frozen=True)
class BaselineSetting(RunSetting):
    """A baseline: a classifier's softmax, pretrained or fine-tuned on the votes, or the noise ceiling of the votes."""

    name: Literal["softmax", "softmax-votes", "ceiling"]
    backbone: BackboneName = "resnet20"

    def shortened(self, max_batches: int | None) -> "BaselineSetting":  # noqa: ARG002
        """The setting itself: there is nothing to shorten."""
        return self


@dataclass(frozen=True)
class Split:
    """A fold of the data: the indices, and the deteriorated validation and test images with their crop sizes."""

    data: Cifar10H
    fold: Fold
    crop_sizes: Tensor
    validation_crops: Tensor
    test_crops: Tensor

    @classmethod
    def load(cls, folder: Path, number: int) -> "Split":
        """The fold of this number; its crops are the same in every run."""
        data, fold, sizes = _load(folder), load_fold(folder, number), load_crop_sizes(folder)
        rng = torch.Generator().manual_seed(_CROPS + number)
        crops = [deteriorate(data.images[i], sizes, rng) for i in (fold.validation, fold.test)]
        return cls(data, fold, sizes, *crops)

    def soft_labels(self, kind: LabelName) -> Tensor:
        """Class probabilities [n, 10] of the images to train on."""
        votes = self.data.probabilities[self.fold.train]
        if kind == "soft":
            return votes
        hard = votes.argmax(-1) if kind == "hard" else self.data.labels[self.fold.train]
        return torch.nn.functional.one_hot(hard, votes.shape[-1]).to(votes)


_load = lru_cache(maxsize=1)(load_cifar10h)


def choose(
    setting: Cifar10HSetting,
    split: Split,
    seed: int,
    *,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None = None,
) -> tuple[Cifar10HSetting, list[dict[str, Any]]]:
    """(The setting with the best of its candidates, the scores of all), inside the fold's training images.

    A third of the training images is held out. Each candidate is trained on the rest and scored by the mean of four
    metrics of the held-out images: both rank correlations, Recall@1 and R-AUROC. As in every run, the validation images
    select the step by their crops; the test images play no part.
    """
    if not (setting.lrs or setting.heads):
        return setting, []
    train_images, held = split.fold.train, len(split.crop_sizes)
    rng = torch.Generator().manual_seed(_HELD_OUT + seed)
    order = train_images[torch.randperm(len(train_images), generator=rng)]
    inner = replace(
        split,
        fold=replace(split.fold, train=order[held:], test=order[:held]),
        test_crops=deteriorate(split.data.images[order[:held]], split.crop_sizes, rng),
    )
    tried: list[dict[str, Any]] = []
    for lr, head in product(setting.lrs or (setting.lr,), setting.heads or (setting.head,)):
        candidate = replace(setting, lr=lr, head=head, lrs=(), heads=(), gallery=False)
        place = checkpoint.with_suffix(f".choice{len(tried)}{checkpoint.suffix}")
        fitted = train(candidate, inner, seed, folder=folder, checkpoint=place, observer=observer)
        model = MirroredViews(fitted.encoder) if setting.mirrored else fitted.encoder
        metrics = evaluate(model, inner, candidate, folder=folder)
        scores = {name: metrics[name] for name in _SCORES}
        score = sum(scores.values()) / len(scores)
        tried.append({"lr": lr, "head": head, **scores, "score": score})
    best = max(tried, key=lambda scores: scores["score"])
    return replace(setting, lr=best["lr"], head=best["head"], lrs=(), heads=()), tried


def train(
    setting: Cifar10HSetting,
    split: Split,
    seed: int,
    *,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None = None,
) -> Fit:
    """The encoder that was best on the validation crops, with its learning curve; several members are pooled."""
    batches = _Batches(split, setting, folder)

    def member(number: int, backbone: BackboneName) -> Fit:
        own_seed = seed + 1000 * number
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_INITIALISATION + own_seed)
            encoder = new_encoder(replace(setting, backbone=backbone), split, folder)
        loss = objective(
            setting.loss,
            setting.kappa_pos,
            n_samples=setting.n_samples,
            hib=setting.hib,
            temperature=setting.temperature,
        )
        every, suffix = setting.evaluate_every, checkpoint.suffix
        return fit(
            encoder,
            loss,
            batches,
            phases=[Phase("joint", setting.steps, setting.lr)],
            options=FitOptions(
                seed=own_seed, average=0.99, evaluate_every=every, select="crop_rank"
            ),
            checkpoint=checkpoint.with_suffix(f".{number}{suffix}" if number else suffix),
            evaluate=lambda model: validate(model, split),
            observer=observer,
        )

    backbones = (setting.backbone,) * setting.members + setting.also
    fits = [member(number, backbone) for number, backbone in enumerate(backbones)]
    if len(fits) == 1:
        return fits[0]
    encoder = Ensemble([f.encoder for f in fits], split.data.images[split.fold.train[:1000]])
    return Fit(encoder, fits[0].curve, sum(f.seconds for f in fits))


class _Batches:
    """Batches of images, flipped at random, with pairs by their labels. Images stay uint8 until they are used."""

    def __init__(self, split: Split, setting: Cifar10HSetting, folder: Path) -> None:
        self.images = split.data.images[split.fold.train]
        self.labels = split.soft_labels(setting.labels)
        if setting.extra:
            images, labels = load_cifar10(folder, "train")
            hard = torch.nn.functional.one_hot(labels, self.labels.shape[-1]).to(self.labels)
            self.images, self.labels = (
                torch.cat(both) for both in ((self.images, images), (self.labels, hard))
            )
        self.prior = self.labels.mean(0)
        self.setting = setting

    def __call__(self, _: int, rng: torch.Generator) -> PairBatch:
        setting = self.setting
        chosen = torch.randperm(len(self.images), generator=rng)[: setting.items]
        images = augment(self.images[chosen], setting.cropped, rng, shifted=setting.shifted)
        rates = label_rates(self.labels[chosen], self.prior)
        pairs = poisson_pairs(rates, setting.pairs, generator=rng)
        return PairBatch(images, pairs, float(setting.pairs))


def new_encoder(setting: Cifar10HSetting, split: Split, folder: Path) -> PosteriorEncoder:
    """An encoder to train: a classifier's backbone if pretrained, and a head with a sensible initial kappa."""
    backbone = _backbone(setting.backbone)
    head_type = KappaFromNorm if setting.head == "norm" else KappaFromPrototypes
    head = head_type(backbone.n_out, setting.dim)
    if setting.pretrained:
        head.start_from(load_classifier(backbone, weights_path(folder, setting.backbone)))
        hold_statistics(backbone)
    encoder = PosteriorEncoder(backbone, head, head_rate=3.0 if setting.pretrained else 1.0)
    with torch.no_grad():
        features = backbone(split.data.images[split.fold.train[:1000]])
        if not setting.pretrained:  # features are positive: all directions would start equal
            whiten_last_layer(head.linear, features)
    head.initialise(features, kappa=setting.kappa_start)
    return encoder


def load_backbone(name: BackboneName, folder: Path) -> tuple[nn.Module, nn.Linear]:
    """(A pretrained classifier's backbone, its last layer)."""
    backbone = _backbone(name)
    return backbone, load_classifier(backbone, weights_path(folder, name))


@torch.no_grad()
def classify(classifier: nn.Module, images: Tensor) -> Tensor:
    """A classifier's probabilities of the ten classes."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16_in_hardware()):
        logits = torch.cat([classifier(chunk) for chunk in images.split(500)])
    return logits.float().softmax(-1)


def data_hashes(folder: Path) -> dict[str, str]:
    """The hashes of the files that the images and votes were read from."""
    names = ("cifar10/test_batch.webp", "cifar10_human/cifar10h-counts.npy")
    return {name: file_hash(folder / name) for name in names if (folder / name).is_file()}


def weights_path(folder: Path, backbone: BackboneName) -> Path:
    """The path of a pretrained classifier in the data folder."""
    return folder / "weights" / f"cifar10_{backbone}.safetensors"


def _backbone(name: BackboneName) -> CifarResNet | ResNet18:
    return ResNet18() if name == "resnet18" else CifarResNet(int(name.removeprefix("resnet")))


@torch.no_grad()
def encode(model: nn.Module, images: Tensor, *, batch: int = 500) -> VonMisesFisher:
    """The posteriors of images, in batches; hidden layers in bfloat16 where that is fast."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16_in_hardware()):
        parts = [model(chunk) for chunk in images.split(batch)]
    return VonMisesFisher(
        torch.cat([q.mu for q in parts]), torch.cat([q.kappa for q in parts]), validate_args=False
    )


def validate(model: nn.Module, split: Split) -> dict[str, float]:
    """The metric that selects a model: the rank correlation of kappa with the crop size on validation crops."""
    return {"crop_rank": spearman(encode(model, split.validation_crops).kappa, split.crop_sizes)}


def fine_tune(
    name: BackboneName, split: Split, folder: Path, *, steps: int = 200, lr: float = 5e-4
) -> nn.Module:
    """The pretrained classifier, fine-tuned on the votes by cross-entropy for as many batches as encoders."""
    backbone, last = load_backbone(name, folder)
    network = nn.Sequential(hold_statistics(backbone), last).train()
    images, votes = split.data.images[split.fold.train], split.soft_labels("soft")
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.9, 0.99), fused=True)
    phase, rng = Phase("joint", steps, lr), torch.Generator().manual_seed(_FINE_TUNING)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * phase.rate(step)
        chosen = torch.randperm(len(images), generator=rng)[:128]
        batch = augment(images[chosen], 0.0, rng)
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=bfloat16_in_hardware()):
            logits: Tensor = network(batch)
        loss = nn.functional.cross_entropy(logits.float(), votes[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, setting: Cifar10HSetting, *, folder: Path
) -> dict[str, Any]:
    """All metrics of a fitted encoder on the fold's test images and on their crops."""
    test = split.fold.test
    images, labels = split.data.images[test], split.data.labels[test]
    entropy, sizes = split.data.entropy[test], split.crop_sizes
    posterior, cropped = encode(model, images), encode(model, split.test_crops)
    centred = encode(model, deteriorate(images, sizes))
    correct = nearest_label_matches(posterior.mu, labels)
    uncertainty = -posterior.kappa
    metrics: dict[str, Any] = {
        "entropy_rank": spearman(uncertainty, entropy),
        "crop_rank": spearman(cropped.kappa, sizes),
        "crop_rank_centre": spearman(centred.kappa, sizes),
        "recall_at_1": correct.double().mean().item(),
        "kappa_median": posterior.kappa.median().item(),
        "kappa_quantiles": rounded(
            posterior.kappa.quantile(torch.tensor([0.05, 0.25, 0.75, 0.95]))
        ),
        "r_auroc": r_auroc(uncertainty, correct),
        "aurc": aurc(uncertainty, correct),
        "augrc": augrc(uncertainty, correct),
        "rejection_area": area_under_rejection(uncertainty, correct),
        "rejection_area_oracle": oracle_area(correct),
        "rejection": {"kept": rounded(rejection_curve(uncertainty, correct, points=21)[1])},
    }
    if setting.loss == "infonce":
        # an uncertainty without kappa: the distance to the nearest training images
        known = encode(model, split.data.images[split.fold.train])
        metrics["neighbour_entropy_rank"] = spearman(_distance(posterior, known), entropy)
        metrics["neighbour_crop_rank"] = -spearman(_distance(cropped, known), sizes)
    if setting.gallery:
        metrics["foreign"] = {
            name: rounded(encode(model, these).kappa.quantile(torch.tensor([0.05, 0.5, 0.95])))
            for name, these in foreign_images(images).items()
        }
    if setting.pretrained:
        classifier = nn.Sequential(*load_backbone(setting.backbone, folder)).eval()
        uncertainty = 1 - classify(classifier, images).max(-1).values
        metrics["rejection_area_softmax"] = area_under_rejection(uncertainty, correct)
        metrics["r_auroc_softmax"] = r_auroc(uncertainty, correct)
        kept = rejection_curve(uncertainty, correct, points=21)[1]
        metrics["rejection"]["softmax"] = rounded(kept)
    return metrics


def evaluate_baseline(split: Split, setting: BaselineSetting, *, folder: Path) -> dict[str, Any]:
    """The metrics of a baseline."""
    test = split.fold.test
    if setting.name == "ceiling":
        rng = torch.Generator().manual_seed(_CEILING)
        return dict(vote_ceiling(split.data.counts[test], generator=rng))
    labels, entropy = split.data.labels[test], split.data.entropy[test]
    if setting.name == "softmax-votes":
        classifier = fine_tune(setting.backbone, split, folder)
    else:
        classifier = nn.Sequential(*load_backbone(setting.backbone, folder)).eval()
    chances, on_crops = (
        classify(classifier, images) for images in (split.data.images[test], split.test_crops)
    )
    uncertainty, correct = 1 - chances.max(-1).values, chances.argmax(-1) == labels
    spread, crop_spread = (torch.special.entr(p).sum(-1) for p in (chances, on_crops))
    return {
        "entropy_rank": spearman(uncertainty, entropy),
        "crop_rank": -spearman(1 - on_crops.max(-1).values, split.crop_sizes),
        "softmax_entropy_rank": spearman(spread, entropy),
        "softmax_entropy_crop_rank": -spearman(crop_spread, split.crop_sizes),
        "accuracy": correct.double().mean().item(),
        "r_auroc": r_auroc(uncertainty, correct),
    }


def foreign_images(images: Tensor) -> dict[str, Tensor]:
    """Out-of-distribution images: the same images upside down, negative, blurred, shuffled in tiles, and noise."""
    rng = torch.Generator().manual_seed(_FOREIGN)
    chosen = images[:1000]
    n, side = len(chosen), chosen.shape[-1]
    tiles = chosen.unfold(2, 8, 8).unfold(3, 8, 8).reshape(n, 3, -1, 8, 8)
    order = torch.randperm(tiles.shape[2], generator=rng)
    rows = tiles[:, :, order].reshape(n, 3, side // 8, side // 8, 8, 8)
    blurred = torch.nn.functional.avg_pool2d(chosen.float(), 8)
    return {
        "test images": chosen,
        "upside down": chosen.flip(-2),
        "negative": 255 - chosen,
        "blurred": blurred.repeat_interleave(8, -1).repeat_interleave(8, -2).round().byte(),
        "tiles shuffled": rows.permute(0, 1, 2, 4, 3, 5).reshape(n, 3, side, side),
        "noise": torch.randint(0, 256, chosen.shape, generator=rng, dtype=torch.uint8),
        "one grey": torch.full_like(chosen, 128),
    }


@torch.no_grad()
def pictures(model: nn.Module, split: Split, path: Path) -> dict[str, Any]:
    """The content of figures: the least and most certain images of each class, and the credible sets of some queries.

    Every image is a tile of the PNG at ``path``, a column of 32 x 32 thumbnails in the order of ``tiles``.
    """
    test = split.fold.test
    images, labels = split.data.images[test], split.data.labels[test]
    posterior = encode(model, images)
    tiles: list[int] = []

    def shown(indices: Tensor) -> list[int]:
        tiles.extend(indices.tolist())
        return list(range(len(tiles) - len(indices), len(tiles)))

    classes = []
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().squeeze(1)
        members = members[posterior.kappa[members].argsort()]
        classes.append({"lowest": shown(members[:5]), "highest": shown(members[-5:].flip(0))})
    threshold = posterior.credible_cosine(0.95)
    cosines = posterior.mu @ posterior.mu.T
    order = posterior.kappa.argsort()
    queries = []
    for quantile in (0.999, 0.9, 0.5, 0.1, 0.02, 0.002):
        query = int(order[int(quantile * (len(order) - 1))])
        inside = (cosines[query] >= threshold[query]).nonzero().squeeze(1)
        inside = inside[inside != query]
        inside = inside[cosines[query, inside].argsort(descending=True)]
        # evenly spaced from the nearest to the farthest, to show the width of the set
        some = inside[torch.linspace(0, max(len(inside) - 1, 0), min(len(inside), 12)).long()]
        share = torch.bincount(labels[inside], minlength=10)
        queries.append(
            {
                "query": shown(torch.tensor([query]))[0],
                "kappa": posterior.kappa[query].item(),
                "cosine": threshold[query].item(),
                "inside": len(inside),
                "classes": share.tolist(),
                "shown": shown(some),
            }
        )
    write_picture(torch.cat(list(images[tiles]), 1), path)
    return {"tiles": len(tiles), "classes": classes, "queries": queries}


def _distance(posterior: VonMisesFisher, known: VonMisesFisher) -> Tensor:
    """One minus the mean cosine to the ten nearest known images."""
    return 1 - (posterior.mu @ known.mu.T).topk(_NEIGHBOURS).values.mean(-1)
