"""Quickstart: an encoder of drawn shapes whose label distributions are known, trained and checked in two minutes.

The encoder sees pictures and votes. What it is checked against, the distributions that the votes were drawn from, it
never sees, and the pictures of the checks are none of those it was trained on.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aureole.data import (
    KINDS,
    DrawnShapes,
    PairBatch,
    augment,
    blur_pictures,
    deteriorate,
    drawn_shapes,
    label_rates,
    poisson_pairs,
)
from aureole.distributions import VonMisesFisher
from aureole.evaluation import nearest_label_matches, rejection_curve, spearman
from aureole.losses import ClosedFormInfoNCE
from aureole.models import Card, CifarResNet, KappaFromNorm, PosteriorEncoder, whiten_last_layer
from aureole.training import FitOptions, Observer, Phase, fit

_BLURS = (0.0, 0.75, 1.5, 2.25, 3.0, 4.0)  # pixels
_CROPS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)  # of the side
_POINTS = 51  # of the rejection curve


@dataclass(frozen=True)
class QuickstartSetting:
    """All that decides a quickstart, but the seed. Chosen on shapes of other seeds than any that is reported.

    ``annotators`` vote on each picture. Batches hold ``items`` pictures and ``pairs`` positive pairs on average.
    ``gallery`` pictures, the first of those held out, can be searched.
    """

    pictures: int = 4000
    held_out: int = 2000
    gallery: int = 240
    annotators: int = 20
    depth: int = 8
    dim: int = 8
    kappa_pos: float = 32.0
    kappa_start: float = 10.0
    items: int = 96
    pairs: int = 1024
    steps: int = 600
    lr: float = 5e-3
    blur: float = 2.25
    mass: float = 0.95

    def shortened(self, max_batches: int | None) -> "QuickstartSetting":
        """The setting with at most that many steps, and with fewer pictures, as fewer are needed."""
        if max_batches is None or max_batches >= self.steps:
            return self
        return replace(
            self,
            steps=max_batches,
            pictures=min(self.pictures, max(800, self.items * max_batches)),
            held_out=min(self.held_out, 800),
        )

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(frozen=True)
class Shapes:
    """The pictures to train on, and those held out, which no step of the training sees."""

    train: DrawnShapes
    held_out: DrawnShapes


def draw(setting: QuickstartSetting, seed: int) -> Shapes:
    """The shapes of a seed.

    Examples
    --------
    >>> shapes = draw(QuickstartSetting(pictures=5, held_out=3), seed=0)
    >>> len(shapes.train), len(shapes.held_out)
    (5, 3)
    """
    return Shapes(
        drawn_shapes(setting.pictures, seed=10 * seed, annotators=setting.annotators),
        drawn_shapes(setting.held_out, seed=10 * seed + 1, annotators=setting.annotators),
    )


def train(
    setting: QuickstartSetting,
    shapes: DrawnShapes,
    seed: int,
    *,
    checkpoint: Path | None = None,
    observer: Observer | None = None,
) -> tuple[PosteriorEncoder, float]:
    """(An encoder trained on pairs by the votes with the closed form, the seconds it took)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = _new_encoder(setting, shapes)
    fitted = fit(
        encoder,
        ClosedFormInfoNCE(kappa_pos=setting.kappa_pos),
        _Batches(setting, shapes),
        phases=[Phase("joint", setting.steps, setting.lr)],
        options=FitOptions(seed=seed, average=0.99, checkpoint_seconds=10.0),
        checkpoint=checkpoint,
        observer=observer,
    )
    assert isinstance(fitted.encoder, PosteriorEncoder)
    return fitted.encoder.eval(), fitted.seconds


def _new_encoder(setting: QuickstartSetting, shapes: DrawnShapes) -> PosteriorEncoder:
    backbone = CifarResNet(setting.depth)
    head = KappaFromNorm(backbone.n_out, setting.dim)
    with torch.no_grad():
        features = backbone(shapes.pictures[:500])
        whiten_last_layer(head.linear, features)  # else all directions would start as one
    head.initialise(features, kappa=setting.kappa_start)
    card = Card(
        name="Drawn shapes",
        data=f"{len(shapes):,} pictures of data.drawn_shapes with the votes of {setting.annotators} annotators each",
        kappa_pos=setting.kappa_pos,
        licence="apache-2.0",
        notes="Made by aureole quickstart. It knows eight shapes of 32 pixels and nothing else.",
    )
    return PosteriorEncoder(backbone, head, card=card)


class _Batches:
    """Batches of pictures, mirrored at random, with pairs by their votes."""

    def __init__(self, setting: QuickstartSetting, shapes: DrawnShapes) -> None:
        self.pictures = shapes.pictures
        self.labels = (shapes.votes / setting.annotators).float()
        self.prior = self.labels.mean(0)
        self.items, self.pairs = setting.items, setting.pairs

    def __call__(self, _: int, rng: torch.Generator) -> PairBatch:
        chosen = torch.randperm(len(self.pictures), generator=rng)[: self.items]
        pictures = augment(self.pictures[chosen], 0.0, rng)
        rates = label_rates(self.labels[chosen], self.prior)
        return PairBatch(
            pictures, poisson_pairs(rates, self.pairs, generator=rng), float(self.pairs)
        )


@torch.inference_mode()
def embed(encoder: PosteriorEncoder, pictures: Tensor) -> VonMisesFisher:
    """The posteriors of pictures in float32, as ``aureole search`` and ``aureole serve`` make them."""
    parts = [encoder(chunk) for chunk in pictures.split(250)]
    mu, kappa = (torch.cat([getattr(q, name) for q in parts]).clone() for name in ("mu", "kappa"))
    return VonMisesFisher(mu, kappa, validate_args=False)


def measure(
    encoder: PosteriorEncoder, shapes: DrawnShapes
) -> tuple[VonMisesFisher, dict[str, Any]]:
    """(The posteriors of held-out pictures, what kappa is worth on them).

    ``entropy_rank`` is the rank correlation of kappa with minus the known entropy; half of the entropies are 0, so that
    no kappa could reach more than ``entropy_rank_best``. Recall@1 asks for the label with most votes, which is itself
    open where votes are divided.
    """
    posterior = embed(encoder, shapes.pictures)
    kappa, entropy = posterior.kappa.double(), shapes.entropy
    matches = nearest_label_matches(posterior.mu, shapes.labels)
    rejected, kept = rejection_curve(-kappa, matches, points=_POINTS)
    order = torch.empty(len(kappa), dtype=torch.float64)
    order[entropy.argsort(stable=True)] = torch.arange(len(kappa)).double()
    found: dict[str, Any] = {
        "entropy_rank": spearman(-kappa, entropy),
        "entropy_rank_best": spearman(order, entropy),
        "recall_at_1": float(matches.double().mean()),
        "recall_at_1_sure_half": float(kept[_POINTS // 2]),
        "rejection": {"rejected": rejected.tolist(), "kept": kept.tolist()},
    }
    for number, kind in enumerate(KINDS):
        found[f"kappa_{kind}"] = float(kappa[shapes.kinds == number].median())
    return posterior, found | _deteriorated(encoder, shapes)


def _deteriorated(encoder: PosteriorEncoder, shapes: DrawnShapes) -> dict[str, Any]:
    """The median kappa of clear pictures under a growing blur and a tighter crop of their middle."""
    clear = shapes.pictures[shapes.kinds == 0][:300]

    def of(pictures: Tensor) -> float:
        return float(embed(encoder, pictures).kappa.median())

    def every(value: float) -> Tensor:
        return torch.full((len(clear),), value)

    return {
        "blur": {
            "width": list(_BLURS),
            "kappa": [of(blur_pictures(clear, every(w))) for w in _BLURS],
        },
        "crop": {"size": list(_CROPS), "kappa": [of(deteriorate(clear, every(s))) for s in _CROPS]},
    }
