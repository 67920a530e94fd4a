"""CIFAR-10H (the paper's section 5.2): whether kappa agrees with people, and knows what a crop has lost.

A run is a setting and a fold of the paper's five. The encoder is trained on pairs by (soft) labels of 6,000 images,
selected by the rank correlation of kappa with the crop size on 2,000 validation images, and measured on 2,000 others.
"""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aureole.data import PairBatch, augment, deteriorate, label_rates, poisson_pairs
from aureole.distributions import VonMisesFisher
from aureole.evaluation import spearman
from aureole.models import (
    CifarResNet,
    Ensemble,
    KappaFromNorm,
    KappaFromPrototypes,
    PosteriorEncoder,
    ResNet18,
    bfloat16_in_hardware,
    hold_statistics,
    load_classifier,
    whiten_last_layer,
)
from aureole.records import file_hash
from aureole.training import Fit, FitOptions, Observer, Phase, fit
from aureole_paper.cifar10h_data import Cifar10H, Fold, load_cifar10h, load_crop_sizes, load_fold
from aureole_paper.objectives import LossName, objective

BackboneName = Literal["resnet20", "resnet56", "resnet18"]
LabelName = Literal["soft", "hard", "cifar10"]
_INITIALISATION, _CROPS = 20_000_003, 30_000_001


@dataclass(frozen=True)
class Cifar10HSetting:
    """All that decides a run, but the fold. Defaults are our best: the closed form on soft labels.

    ``labels`` are the votes ("soft"), their majority ("hard") or CIFAR-10's own ("cifar10"). Batches hold ``items``
    images, a share ``cropped`` of them cropped, and ``pairs`` positive pairs among them on average. After training,
    the posteriors of ``members`` encoders, of others with the backbones ``also``, and, if ``mirrored``, of an image and
    its mirror image are pooled. ``gallery`` keeps thumbnails.
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
    members: int = 1
    also: tuple[BackboneName, ...] = ()
    mirrored: bool = True
    gallery: bool = False
    preset: str = "fast"

    def shortened(self, max_batches: int | None) -> "Cifar10HSetting":
        """The setting with at most that many steps."""
        if max_batches is None or max_batches >= self.steps:
            return self
        return replace(self, steps=max_batches)

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self) | {"hib": list(self.hib), "also": list(self.also)}


@dataclass(frozen=True)
class BaselineSetting:
    """What stands beside encoders: a classifier's softmax, untouched or tuned on the votes, and the votes' ceiling."""

    name: Literal["softmax", "softmax-votes", "ceiling"]
    backbone: BackboneName = "resnet20"

    def shortened(self, _: int | None) -> "BaselineSetting":
        """The setting itself: there is nothing to shorten."""
        return self

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


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


@lru_cache(maxsize=1)
def _load(folder: Path) -> Cifar10H:
    return load_cifar10h(folder)


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
    backbones = (*[setting.backbone] * setting.members, *setting.also)
    fits = [
        _train_one(
            replace(setting, backbone=backbone),
            split,
            seed + 1000 * k,
            folder,
            _member_path(checkpoint, k),
            observer,
        )
        for k, backbone in enumerate(backbones)
    ]
    if len(fits) == 1:
        return fits[0]
    members = [member.encoder for member in fits]
    encoder = Ensemble(members, split.data.images[split.fold.train[:1000]])
    return Fit(encoder, fits[0].curve, sum(member.seconds for member in fits))


def _member_path(checkpoint: Path, number: int) -> Path:
    return checkpoint.with_suffix(f".{number}{checkpoint.suffix}") if number else checkpoint


def _train_one(
    setting: Cifar10HSetting,
    split: Split,
    seed: int,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None,
) -> Fit:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIALISATION + seed)
        encoder = new_encoder(setting, split, folder)
    loss = objective(
        setting.loss,
        setting.kappa_pos,
        n_samples=setting.n_samples,
        hib=setting.hib,
        temperature=setting.temperature,
    )
    batches = _Batches(split, setting)
    return fit(
        encoder,
        loss,
        batches,
        phases=[Phase("joint", setting.steps, setting.lr)],
        options=FitOptions(
            seed=seed, average=0.99, evaluate_every=setting.evaluate_every, select="crop_rank"
        ),
        checkpoint=checkpoint,
        evaluate=lambda model: validate(model, split),
        observer=observer,
    )


class _Batches:
    """Batches of images, flipped at random, with pairs by their labels. Images stay bytes until they are used."""

    def __init__(self, split: Split, setting: Cifar10HSetting) -> None:
        self.images = split.data.images[split.fold.train]
        self.labels = split.soft_labels(setting.labels)
        self.prior = self.labels.mean(0)
        self.items, self.pairs, self.cropped = setting.items, setting.pairs, setting.cropped

    def __call__(self, _: int, rng: torch.Generator) -> PairBatch:
        chosen = torch.randperm(len(self.images), generator=rng)[: self.items]
        images = augment(self.images[chosen], self.cropped, rng)
        rates = label_rates(self.labels[chosen], self.prior)
        return PairBatch(images, poisson_pairs(rates, self.pairs, generator=rng), float(self.pairs))


def new_encoder(setting: Cifar10HSetting, split: Split, folder: Path) -> PosteriorEncoder:
    """An encoder to train: a classifier's backbone if pretrained, and a head whose kappa starts in a sensible range."""
    backbone = _backbone(setting.backbone)
    head_type = KappaFromNorm if setting.head == "norm" else KappaFromPrototypes
    head = head_type(backbone.n_out, setting.dim)
    if setting.pretrained:
        head.start_from(load_classifier(backbone, weights_path(folder, setting.backbone)))
        hold_statistics(backbone)
    encoder = PosteriorEncoder(backbone, head, head_rate=3.0 if setting.pretrained else 1.0)
    with torch.no_grad():
        features = backbone(split.data.images[split.fold.train[:1000]])
        if not setting.pretrained:  # features are positive: all directions would start as one
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
    """Where a pretrained classifier lies in the data folder."""
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
    """The figure that selects a model: the rank correlation of kappa with the crop size on validation crops."""
    return {"crop_rank": spearman(encode(model, split.validation_crops).kappa, split.crop_sizes)}
