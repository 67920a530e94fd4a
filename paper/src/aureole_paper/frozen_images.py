"""Frozen images: heads on the features of a photo encoder that nobody trained for it,
compared with baselines.

All learn from CIFAR-10's training images and labels; CIFAR-10H, people's votes on the test images, and crops of the
test images only judge. Settings were chosen on held-out training images, by CIFAR-10N's three raters and by crops.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.data._pairs import Groups
from aureole.distributions import VonMisesFisher
from aureole.evaluation import predictive_coverage, r_auroc, spearman
from aureole.evaluation._rejection import area_under_rejection, oracle_area
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.records import file_hash
from aureole.synthetic import deteriorate
from aureole.training import FrozenHead
from aureole.training._fit import Observer
from aureole.training._frozen_head import pair_rows
from aureole.training._recipes import keyed
from aureole_paper import uncertainty_baselines as baselines
from aureole_paper.cifar import load_cifar10
from aureole_paper.cifar10h import Split, data_hashes
from aureole_paper.class_head import ClassHeadSetting, fit_class_head, shortened
from aureole_paper.features import PhotoFeatures, Progress
from aureole_paper.settings import RunSetting
from aureole_paper.uncertainty_baselines import ProbeSetting

WEIGHTS = Path("weights") / "mobilenetv2_imagenet_bottleneck_fp16.npz"
_CROPS, _FOLDS = 70_000_027, 5
_MEMBERS = 5

Uncertainty = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FrozenImagesSetting(RunSetting):
    """Everything that decides a run, except the seed.

    With ``crops`` a crop of each training image is a further training row, for heads and baselines alike. ``images``
    limits the number of training and test images.
    """

    name: str = "crops"
    crops: bool = True
    side: int = 112
    head: ClassHeadSetting = field(default_factory=ClassHeadSetting)
    plain_dim: int = 8
    plain_steps: int = 300
    plain_items: int = 256
    linear: ProbeSetting = field(default_factory=ProbeSetting)
    probe: ProbeSetting = field(default_factory=lambda: ProbeSetting(hidden=256))
    images: int | None = None

    def shortened(self, max_batches: int | None) -> "FrozenImagesSetting":
        """The setting with at most that many steps of anything."""
        if max_batches is None:
            return self
        linear, probe = (
            replace(p, steps=min(p.steps, max_batches)) for p in (self.linear, self.probe)
        )
        plain = min(self.plain_steps, max_batches)
        head = shortened(self.head, max_batches)
        return replace(self, head=head, plain_steps=plain, linear=linear, probe=probe)


SETTINGS = (FrozenImagesSetting(), FrozenImagesSetting(name="whole", crops=False))


@dataclass(frozen=True, eq=False)
class FrozenImages:
    """Features to learn from (rows of one image share a ``source``), and those of test images and of their crops."""

    train: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    sources: Int[Tensor, " n"]
    test: Float[Tensor, "m d"]
    test_labels: Int[Tensor, " m"]
    entropy: Float[Tensor, " m"]
    crops: Float[Tensor, "m d"]
    crop_sizes: Float[Tensor, " m"]

    @classmethod
    def load(
        cls,
        setting: FrozenImagesSetting,
        folder: Path,
        cache: Path,
        progress: Progress | None = None,
    ) -> "FrozenImages":
        """The features of CIFAR-10, computed unless they are in the cache; crops of test images as in CIFAR-10H."""
        store = PhotoFeatures(folder / WEIGHTS, cache, side=setting.side, progress=progress)

        def features(images: Tensor, name: str) -> Tensor:
            stored = store.features(images[: setting.images], name)
            return torch.from_numpy(stored.astype(np.float32))

        images, labels = load_cifar10(folder, "train")
        rows, n = [features(images, "train")], len(images[: setting.images])
        if setting.crops:
            rng = torch.Generator().manual_seed(_CROPS)
            sizes = 0.25 + 0.75 * torch.rand(len(images), generator=rng)
            rows.append(features(deteriorate(images, sizes, rng), "train-crops"))
        splits = [Split.load(folder, fold) for fold in range(_FOLDS)]
        data = splits[0].data
        crops, sizes = torch.empty_like(data.images), torch.empty(len(data.images))
        for split in splits:
            crops[split.fold.test] = split.test_crops
            sizes[split.fold.test] = split.crop_sizes
        return cls(
            torch.cat(rows),
            labels[:n].repeat(len(rows)),
            torch.arange(n).repeat(len(rows)),
            features(data.images, "test"),
            data.labels[: setting.images],
            data.entropy[: setting.images],
            features(crops, "test-crops"),
            sizes[: setting.images],
        )


_loaded: dict[Any, FrozenImages] = {}  # the last one: seeds follow each other


def load(
    setting: FrozenImagesSetting, folder: Path, cache: Path, progress: Progress | None = None
) -> FrozenImages:
    """``FrozenImages.load``, once for several seeds."""
    key = (setting, folder, cache)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = FrozenImages.load(setting, folder, cache, progress)
    return _loaded[key]


def hashes(folder: Path) -> dict[str, str]:
    """The hashes of the images, the votes and the encoder's weights."""
    return data_hashes(folder) | {str(WEIGHTS): file_hash(folder / WEIGHTS)}


def evaluate(
    data: FrozenImages,
    setting: FrozenImagesSetting,
    seed: int,
    *,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The metrics of both heads and of every baseline, by name.

    ``r_auroc`` and ``rejection_area`` of all are for one task: whether the nearest other test image, by the cosine of
    the frozen features, has the same label. Of heads, ``own`` is the same with their own mu.
    """
    correct = nearest_label_matches(data.test, data.test_labels)
    metrics: dict[str, Any] = {}
    started = time.monotonic()

    def judge(uncertainty: Uncertainty) -> dict[str, float]:
        on_test, on_crops = uncertainty(data.test), uncertainty(data.crops)
        return {
            "entropy_rank": spearman(on_test, data.entropy),
            "crop_rank": -spearman(on_crops, data.crop_sizes),
            "r_auroc": r_auroc(on_test, correct),
            "rejection_area": area_under_rejection(on_test, correct),
        }

    def keep(name: str, values: dict[str, Any]) -> None:
        nonlocal started
        metrics[name] = values | {"seconds": round(time.monotonic() - started, 1)}
        started = time.monotonic()
        if progress is not None:
            progress(name, len(metrics), len(METHODS))

    for name, posterior, kappa_pos in _heads(data, setting, seed, observer):
        tested = posterior(data.test)
        own = nearest_label_matches(tested.mu, data.test_labels)
        figure = judge(lambda rows, q=posterior: -q(rows).kappa)
        figure |= {
            "recall_at_1": own.double().mean().item(),
            "own_r_auroc": r_auroc(-tested.kappa, own),
            "own_rejection_area": area_under_rejection(-tested.kappa, own),
            "kappa_median": tested.kappa.median().item(),
            "coverage": _coverage(tested, data.test_labels, kappa_pos, seed),
        }
        keep(name, figure)
    for name, uncertainty in _baselines(data, setting, seed):
        keep(name, judge(uncertainty))
    return {
        "methods": metrics,
        "features": {
            "recall_at_1": correct.double().mean().item(),
            "rejection_area_oracle": oracle_area(correct),
        },
    }


METHODS = {  # in the order in which they are judged, with their labels in the report
    "class-head": "class head",
    "frozen-head": "FrozenHead",
    "norm": "norm of the features",
    "nearest": "distance to the nearest",
    "nearest-10": "distance to the nearest ten",
    "softmax": "1 - max softmax",
    "softmax-entropy": "entropy of softmax",
    "mc-dropout": "MC dropout",
    "ensemble": "ensemble of classifiers",
    "loss-squared": "predicted loss (squared)",
    "loss-ranked": "predicted loss (ranked)",
}


@lru_cache(maxsize=1)
def _neighbours(data: FrozenImages) -> tuple[Tensor, Tensor]:
    """The largest ten cosines of test images, and of their crops, with rows to learn from: the same for all seeds."""
    cosines = [baselines.nearest_cosines(data.train, rows, 10) for rows in (data.test, data.crops)]
    return cosines[0], cosines[1]


def _heads(
    data: FrozenImages, setting: FrozenImagesSetting, seed: int, observer: Observer | None
) -> Iterator[tuple[str, Callable[[Tensor], Any], float]]:
    """(Name, posterior of features, kappa_pos) of each head, fitted on demand."""
    options = {"sources": data.sources, "seed": seed, "observer": observer}
    head = fit_class_head(data.train, data.labels, setting.head, **options)
    yield "class-head", head, setting.head.kappa_pos
    plain = FrozenHead(
        setting.plain_dim, steps=setting.plain_steps, items=setting.plain_items, seed=seed
    )
    plain.fit(data.train, data.labels, observer=observer)
    yield "frozen-head", plain.predict, plain.kappa_pos_


def _coverage(
    posterior: VonMisesFisher, labels: Int[Tensor, " n"], kappa_pos: float, seed: int
) -> dict[str, float]:
    """The share of predictive caps of test images that contain the mu of another image of the class, by mass."""
    pairs = pair_rows(Groups.of(labels), 4096, torch.Generator().manual_seed(seed))
    query, partner = (
        VonMisesFisher(posterior.mu[rows], posterior.kappa[rows], validate_args=False)
        for rows in pairs
    )
    return keyed(
        predictive_coverage(query, partner, kappa_pos=kappa_pos, masses=(0.5, 0.8, 0.9, 0.95))
    )


def _baselines(
    data: FrozenImages, setting: FrozenImagesSetting, seed: int
) -> Iterator[tuple[str, Uncertainty]]:
    """(Name, uncertainty of features) of each baseline, fitted on demand."""
    train, labels, linear, probe = data.train, data.labels, setting.linear, setting.probe
    yield "norm", baselines.shortness
    on_test, on_crops = _neighbours(data)
    for name, k in (("nearest", 1), ("nearest-10", 10)):
        yield (
            name,
            lambda rows, k=k: 1 - (on_test if rows is data.test else on_crops)[:, :k].mean(1),
        )
    classifier = baselines.fit_probe(train, labels, linear, seed=seed)
    yield "softmax", lambda rows: baselines.softmax_uncertainty(classifier, rows)
    yield "softmax-entropy", lambda rows: baselines.entropy_of_mean([classifier], rows)
    first = baselines.fit_probe(train, labels, probe, seed=seed)
    yield "mc-dropout", lambda rows: baselines.mc_dropout(first, rows, seed=seed)
    others = [
        baselines.fit_probe(train, labels, probe, seed=seed + 1000 * k) for k in range(1, _MEMBERS)
    ]
    yield "ensemble", lambda rows: baselines.entropy_of_mean([first, *others], rows)
    losses = baselines.losses_on_unseen(train, labels, linear, sources=data.sources, seed=seed)
    for name, ranked in (("loss-squared", False), ("loss-ranked", True)):
        yield name, baselines.predict_loss(train, losses, probe, seed=seed, ranked=ranked)
