"""A run: a setting and a seed, trained, evaluated and recorded; resumable and never repeated."""

import time
from pathlib import Path
from typing import Any

from torch import nn

from aureole.errors import InvalidInputError
from aureole.losses import n_ranks, rank
from aureole.models import MirroredViews
from aureole.records import Record, read_record, write_record
from aureole.training import Fit, Observer
from aureole_paper import (
    agreement,
    bimodal,
    cifar10h,
    controlled,
    credible_retrieval,
    frozen_images,
    frozen_text,
)
from aureole_paper.bimodal import BimodalSetting
from aureole_paper.catalogue import AnySetting
from aureole_paper.cifar10h import BaselineSetting, Cifar10HSetting
from aureole_paper.credible_retrieval import CredibleRetrievalSetting
from aureole_paper.data_folder import data_folder
from aureole_paper.feature_cache import Progress, cache_folder
from aureole_paper.frozen_images import FrozenImagesSetting
from aureole_paper.frozen_text import FrozenTextSetting
from aureole_paper.sentence_features import SentenceFeatures
from aureole_paper.settings import Setting


def record_path(out: Path, setting: AnySetting, seed: int) -> Path:
    """Where the record of a run lies."""
    return out / setting.name / f"seed-{seed}.json"


def run(
    setting: AnySetting,
    seed: int,
    out: Path,
    *,
    command: str,
    data_dir: Path | None = None,
    cache: Path | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Record:
    """Train and evaluate one setting with one seed, and return its record, written below ``out``.

    A finished run with the same setting is read, not repeated; an interrupted one goes on from its checkpoint. Of
    CIFAR-10H the seed is the fold, and ``data_dir`` the folder with the images. Features of frozen encoders are kept in
    ``cache``; ``progress`` is told how far they are.

    On several ranks they train together, and the first evaluates and writes; the record that others return is empty.
    """
    path = record_path(out, setting, seed)
    wanted = setting.as_json()
    if n_ranks() > 1:
        if not isinstance(setting, Setting | BimodalSetting):
            raise InvalidInputError(
                f"{setting.name!r} does not train on several ranks; experiments on a process with known posteriors do."
            )
        wanted["ranks"] = n_ranks()
    if path.exists():
        found = read_record(path)
        # a field that is newer than the record has its default
        known = {"ranks": 1} | wanted
        if known | {"ranks": 1} | found.settings == known:
            return found
    checkpoint = path.with_suffix(".safetensors")
    data: dict[str, str] = {}
    if isinstance(setting, Cifar10HSetting | BaselineSetting):
        family, folder = "cifar10h", data_folder(data_dir)
        fitted, metrics = _images(setting, seed, folder, path, checkpoint, observer)
        data = cifar10h.data_hashes(folder)
    elif isinstance(setting, CredibleRetrievalSetting):
        family, folder = "retrieval", data_folder(data_dir)
        fitted, metrics = credible_retrieval.run_fold(
            setting, seed, folder=folder, checkpoint=checkpoint, observer=observer
        )
        data = cifar10h.data_hashes(folder)
    elif isinstance(setting, FrozenTextSetting | FrozenImagesSetting):
        family, folder = "frozen", data_folder(data_dir)
        where = cache_folder(cache)
        if isinstance(setting, FrozenTextSetting):
            embed = SentenceFeatures(where, progress=progress)
            fitted, metrics = _text(setting, seed, folder, embed, checkpoint, observer)
            data = frozen_text.data_hashes(folder)
        else:
            features = frozen_images.load(setting, folder, where, progress)
            metrics = frozen_images.evaluate(
                features, setting, seed, observer=observer, progress=progress
            )
            fitted, data = Fit(nn.Identity()), frozen_images.hashes(folder)
    else:
        family = "controlled"
        fitted, metrics = _process(setting, seed, checkpoint, observer)
    if rank() > 0:
        return Record(f"{family}/{setting.name}", {}, command=command, seed=seed, settings=wanted)
    metrics["seconds_training"] = round(fitted.seconds, 1)
    metrics["curve"] = fitted.curve
    record = Record(
        f"{family}/{setting.name}",
        metrics,
        command=command,
        seed=seed,
        settings=wanted,
        data=data,
    )
    write_record(record, path)
    for leftover in path.parent.glob(f"{path.stem}*.safetensors"):
        leftover.unlink()
    return record


def _text(
    setting: FrozenTextSetting,
    seed: int,
    folder: Path,
    embed: SentenceFeatures,
    checkpoint: Path,
    observer: Observer | None,
) -> tuple[Fit, dict[str, Any]]:
    """(The fit, the figures) of a head on sentence vectors."""
    head = frozen_text.train(
        setting, seed, embed, folder=folder, checkpoint=checkpoint, observer=observer
    )
    started = time.monotonic()
    metrics = frozen_text.evaluate(head, embed, folder=folder)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return head.fit_, metrics


def _process(
    setting: Setting | BimodalSetting, seed: int, checkpoint: Path, observer: Observer | None
) -> tuple[Fit, dict[str, Any]]:
    """(The fit, the figures) of a process whose posteriors are known."""
    experiment: Any = bimodal if isinstance(setting, BimodalSetting) else controlled
    fitted, process = experiment.train(setting, seed, checkpoint=checkpoint, observer=observer)
    if rank() > 0:
        return fitted, {}
    started = time.monotonic()
    metrics = experiment.evaluate(fitted.encoder, process)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return fitted, metrics


def _images(
    setting: Cifar10HSetting | BaselineSetting,
    fold: int,
    folder: Path,
    path: Path,
    checkpoint: Path,
    observer: Observer | None,
) -> tuple[Fit, dict[str, Any]]:
    """(The fit, the figures) of a fold of CIFAR-10H; thumbnails for pictures are written beside the record."""
    split = cifar10h.Split.load(folder, fold)
    if isinstance(setting, BaselineSetting):
        return Fit(nn.Identity()), agreement.evaluate_baseline(split, setting, folder=folder)
    fitted = cifar10h.train(
        setting, split, fold, folder=folder, checkpoint=checkpoint, observer=observer
    )
    started = time.monotonic()
    model = MirroredViews(fitted.encoder) if setting.mirrored else fitted.encoder
    metrics = agreement.evaluate(model, split, setting, folder=folder)
    if setting.gallery and fold == 0:
        metrics["pictures"] = agreement.pictures(model, split, path.with_suffix(".png"))
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return fitted, metrics
