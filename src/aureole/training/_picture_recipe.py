"""The recipe for a folder of labelled pictures: a small network, and which belong together by their labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aureole.data import Groups, PairBatch, list_pictures, read_pictures
from aureole.errors import InvalidInputError
from aureole.evaluation import predictive_coverage
from aureole.losses import ClosedFormInfoNCE, n_ranks, rank
from aureole.models import (
    Card,
    CifarResNet,
    KappaFromNorm,
    PosteriorEncoder,
    ResNet18,
    hold_statistics,
    load_classifier,
    whiten_last_layer,
)
from aureole.training._config import Config
from aureole.training._dimension import best_information
from aureole.training._fit import Observer, fit
from aureole.training._recipe import figures, keyed, make_loss, prepared
from aureole.training._rows import MASSES, Partners, halves, information, pair_rows
from aureole.training._schedule import Phase

_SIDE = 32  # pixels: what the image networks of this library were made for
_SAMPLE, _PROBE, _PAIRS = 1000, 512, 2048


def train_pictures(
    config: Config, out: Path, work: Path, observer: Observer | None
) -> dict[str, Any]:
    """A network of small pictures; labels say which belong together."""
    check_ranks(config, n_ranks())
    paths, labels = list_pictures(Path(config["data.path"]))
    digest = work / "pictures.json"

    def read() -> np.ndarray:
        squares, found = read_pictures(paths, _SIDE)
        digest.write_text(json.dumps({"pictures": found}))
        return squares

    pictures = torch.from_numpy(prepared(work / "pictures.npy", read))
    rng = torch.Generator().manual_seed(config["training.seed"])
    training, held = Groups.of(labels).split(config["training.held_out"], rng)
    selecting, measuring = halves(held, rng)
    loss, items = make_loss(config), config["training.items"]
    probe = _picture_batch(pictures, selecting, _PROBE, rng, mirror=False)
    if min(len(probe.inputs), len(training.draw(items, rng)[0])) < 4:
        raise InvalidInputError(
            f"{config['data.path']} has too few pictures to hold some out: {len(paths)} of {len(set(labels))} labels. "
            "Give more than 20 of each label, or more labels, or another training.held_out."
        )
    judge = ClosedFormInfoNCE(config["loss.kappa_pos"])
    mirror = config["data.mirror"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["training.seed"])
        encoder = _image_encoder(config, pictures[training.members[:_SAMPLE]])
    fitted = fit(
        encoder,
        loss,
        lambda _, rng: _picture_batch(pictures, training, items, rng, mirror=mirror),
        phases=[Phase("joint", config["training.steps"], config["training.lr"])],
        seed=config["training.seed"],
        average=0.99,
        checkpoint=work / "checkpoint.safetensors",
        evaluate=lambda model: {"information": information(model, judge, probe)},
        evaluate_every=max(1, config["training.steps"] // 10),
        select="information",
        observer=observer,
    )
    model = fitted.encoder
    assert isinstance(model, PosteriorEncoder)
    if rank() > 0:
        return {}
    with torch.no_grad():
        query, partner = (model(pictures[rows]) for rows in pair_rows(measuring, _PAIRS, rng))
    coverage = predictive_coverage(
        query, partner, kappa_pos=config["loss.kappa_pos"], masses=MASSES
    )
    model.card = Card(
        name=f"{config['encoder.network']} with posteriors",
        data=Path(config["data.path"]).name,
        kappa_pos=config["loss.kappa_pos"],
        coverage=coverage,
    )
    model.save(out)
    return {
        "rows": len(paths),
        "labels": len(set(labels)),
        "dim": config["encoder.dim"],
        "kappa_pos": config["loss.kappa_pos"],
        "information": best_information(fitted),
        "coverage": keyed(coverage),
        **figures(fitted),
        "data": json.loads(digest.read_text()),
    }


def check_ranks(config: Config, ranks: int) -> None:
    """Refuse to train live batch norms on several ranks, each of which would see a part of a batch alone."""
    if ranks > 1 and config.kind == "images" and config["encoder.weights"] is None:
        raise InvalidInputError(
            "encoder.weights is missing: without pretrained weights this network has live batch norms, which on "
            f"{ranks} ranks would see a part of each batch alone. Give weights, or train on one rank."
        )


def _picture_batch(
    pictures: Tensor, partners: Partners, items: int, rng: torch.Generator, *, mirror: bool
) -> PairBatch:
    rows, pairs = partners.draw(items, rng)
    chosen = pictures[rows]
    if mirror:
        flipped = torch.rand(len(rows), 1, 1, 1, generator=rng) < 0.5
        chosen = torch.where(flipped, chosen.flip(-1), chosen)
    return PairBatch(chosen, pairs, float(len(pairs)))


def _image_encoder(config: Config, sample: Tensor) -> PosteriorEncoder:
    name = config["encoder.network"]
    backbone = ResNet18() if name == "resnet18" else CifarResNet(int(name.removeprefix("resnet")))
    head = KappaFromNorm(backbone.n_out, config["encoder.dim"])
    weights = config["encoder.weights"]
    if weights is not None:
        head.start_from(load_classifier(backbone, weights))
        hold_statistics(backbone)
    with torch.no_grad():
        features = backbone(sample)
        if weights is None:  # features are positive: all directions would start as one
            whiten_last_layer(head.linear, features)
    head.initialise(features, kappa=config["loss.kappa_pos"])
    return PosteriorEncoder(backbone, head, head_rate=1.0 if weights is None else 3.0)
