"""Agreement: what kappa has to do with people's votes, lost information and mistakes, on a fold's test images."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aureole.data import deteriorate, write_picture
from aureole.distributions import VonMisesFisher
from aureole.evaluation import (
    area_under_rejection,
    augrc,
    aurc,
    nearest_label_matches,
    oracle_area,
    r_auroc,
    rejection_curve,
    spearman,
    vote_ceiling,
)
from aureole_paper.cifar10h import (
    BaselineSetting,
    Cifar10HSetting,
    Split,
    classify,
    encode,
    load_backbone,
)
from aureole_paper.soft_classifier import fine_tune

_FOREIGN, _CEILING = 40_000_003, 50_000_017
_NEIGHBOURS = 10


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, setting: Cifar10HSetting, *, folder: Path
) -> dict[str, Any]:
    """All figures of a fitted encoder on the fold's test images and on their crops."""
    test = split.fold.test
    images, labels = split.data.images[test], split.data.labels[test]
    entropy, sizes = split.data.entropy[test], split.crop_sizes
    found, cropped = encode(model, images), encode(model, split.test_crops)
    centred = encode(model, deteriorate(images, sizes))
    correct = nearest_label_matches(found.mu, labels)
    uncertainty = -found.kappa
    metrics: dict[str, Any] = {
        "entropy_rank": spearman(uncertainty, entropy),
        "crop_rank": spearman(cropped.kappa, sizes),
        "crop_rank_centre": spearman(centred.kappa, sizes),
        "recall_at_1": correct.double().mean().item(),
        "kappa_median": found.kappa.median().item(),
        "kappa_quantiles": _short(found.kappa.quantile(torch.tensor([0.05, 0.25, 0.75, 0.95]))),
        "r_auroc": r_auroc(uncertainty, correct),
        "aurc": aurc(uncertainty, correct),
        "augrc": augrc(uncertainty, correct),
        "rejection_area": area_under_rejection(uncertainty, correct),
        "rejection_area_oracle": oracle_area(correct),
        "rejection": {"kept": _short(rejection_curve(uncertainty, correct, points=21)[1])},
    }
    if (
        setting.loss == "infonce"
    ):  # an uncertainty without kappa: how far the nearest training images are
        known = encode(model, split.data.images[split.fold.train])
        metrics["neighbour_entropy_rank"] = spearman(_distance(found, known), entropy)
        metrics["neighbour_crop_rank"] = -spearman(_distance(cropped, known), sizes)
    if setting.gallery:
        metrics["foreign"] = {
            name: _short(encode(model, these).kappa.quantile(torch.tensor([0.05, 0.5, 0.95])))
            for name, these in foreign_images(images).items()
        }
    if setting.pretrained:
        classifier = nn.Sequential(*load_backbone(setting.backbone, folder)).eval()
        doubt = 1 - classify(classifier, images).max(-1).values
        metrics["rejection_area_softmax"] = area_under_rejection(doubt, correct)
        metrics["r_auroc_softmax"] = r_auroc(doubt, correct)
        metrics["rejection"]["softmax"] = _short(rejection_curve(doubt, correct, points=21)[1])
    return metrics


def evaluate_baseline(split: Split, setting: BaselineSetting, *, folder: Path) -> dict[str, Any]:
    """The figures of what stands beside encoders."""
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
    doubt, correct = 1 - chances.max(-1).values, chances.argmax(-1) == labels
    spread, crop_spread = (torch.special.entr(p).sum(-1) for p in (chances, on_crops))
    return {
        "entropy_rank": spearman(doubt, entropy),
        "crop_rank": -spearman(1 - on_crops.max(-1).values, split.crop_sizes),
        "softmax_entropy_rank": spearman(spread, entropy),
        "softmax_entropy_crop_rank": -spearman(crop_spread, split.crop_sizes),
        "accuracy": correct.double().mean().item(),
        "r_auroc": r_auroc(doubt, correct),
    }


def foreign_images(images: Tensor) -> dict[str, Tensor]:
    """Images that are none of the data's: the same upside down, negative, blurred, shuffled in tiles, and noise."""
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
    """What figures show: the least and most certain images of each class, and the credible sets of some queries.

    Every image is a tile of the PNG at ``path``, a column of 32 x 32 thumbnails in the order of ``tiles``.
    """
    test = split.fold.test
    images, labels = split.data.images[test], split.data.labels[test]
    found = encode(model, images)
    tiles: list[int] = []

    def shown(indices: Tensor) -> list[int]:
        tiles.extend(indices.tolist())
        return list(range(len(tiles) - len(indices), len(tiles)))

    classes = []
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().squeeze(1)
        members = members[found.kappa[members].argsort()]
        classes.append({"lowest": shown(members[:5]), "highest": shown(members[-5:].flip(0))})
    threshold = found.credible_cosine(0.95)
    cosines = found.mu @ found.mu.T
    order = found.kappa.argsort()
    queries = []
    for quantile in (0.999, 0.9, 0.5, 0.1, 0.02, 0.002):
        query = int(order[int(quantile * (len(order) - 1))])
        inside = (cosines[query] >= threshold[query]).nonzero().squeeze(1)
        inside = inside[inside != query]
        inside = inside[cosines[query, inside].argsort(descending=True)]
        # nearest first, then evenly through the set, so that a wide one shows its width
        some = inside[torch.linspace(0, max(len(inside) - 1, 0), min(len(inside), 12)).long()]
        share = torch.bincount(labels[inside], minlength=10)
        queries.append(
            {
                "query": shown(torch.tensor([query]))[0],
                "kappa": found.kappa[query].item(),
                "cosine": threshold[query].item(),
                "inside": len(inside),
                "classes": share.tolist(),
                "shown": shown(some),
            }
        )
    write_picture(torch.cat(list(images[tiles]), 1), path)
    return {"tiles": len(tiles), "classes": classes, "queries": queries}


def _distance(found: VonMisesFisher, known: VonMisesFisher) -> Tensor:
    """One minus the mean cosine to the ten nearest known images."""
    return 1 - (found.mu @ known.mu.T).topk(_NEIGHBOURS).values.mean(-1)


def _short(values: Tensor) -> list[float]:
    return [float(f"{v:.5g}") for v in values.tolist()]
