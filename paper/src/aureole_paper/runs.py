"""A run: a setting and a seed, trained, evaluated and recorded. Runs resume after an interruption."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from aureole.errors import InvalidInputError
from aureole.losses._negatives import n_ranks, rank
from aureole.models._networks import bfloat16_in_hardware
from aureole.records import Record, read_record, write_record
from aureole.training._fit import Fit, Observer
from aureole_paper import (
    adaptive_retrieval,
    bimodal,
    cifar10h,
    cifar10h_baselines,
    cifar10h_votes,
    controlled,
    credible_retrieval,
    frozen_images,
    frozen_text,
)
from aureole_paper.adaptive_retrieval import AdaptiveSetting
from aureole_paper.bimodal import BimodalSetting
from aureole_paper.catalogue import AnySetting
from aureole_paper.cifar import files_read
from aureole_paper.cifar10h import BackboneName, BaselineSetting, Cifar10HSetting
from aureole_paper.cifar10h_baselines import VoteBaseline
from aureole_paper.cifar10h_votes import VotesSetting
from aureole_paper.credible_retrieval import CredibleRetrievalSetting
from aureole_paper.data_folder import data_folder
from aureole_paper.features import Progress, SentenceFeatures, cache_folder
from aureole_paper.frozen_images import FrozenImagesSetting
from aureole_paper.frozen_text import FrozenTextSetting
from aureole_paper.pooled import MirroredViews
from aureole_paper.settings import Setting

ImageSetting = (
    Cifar10HSetting | BaselineSetting | VoteBaseline | VotesSetting | CredibleRetrievalSetting
)


@dataclass(frozen=True)
class _Result:
    """What a run has to record."""

    family: str
    fitted: Fit
    metrics: dict[str, Any]
    data: dict[str, str]


def record_path(out: Path, setting: AnySetting, seed: int) -> Path:
    """The path of the record of a run."""
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
    """Train and evaluate one setting with one seed, write the record below ``out`` and return it.

    A finished run with the same setting is read, not repeated; an interrupted run resumes from its checkpoint. With
    several ranks, all train and rank 0 evaluates and writes; the record that the other ranks return is empty. The seed
    of CIFAR-10H is the fold. ``data_dir`` defaults to $AUREOLE_DATA, and ``cache``, the folder for features of frozen
    encoders, to $AUREOLE_CACHE. ``observer`` is called during training, ``progress`` while features are computed.
    """
    path = record_path(out, setting, seed)
    wanted = setting.as_json()
    if n_ranks() > 1:
        if not isinstance(setting, Setting | BimodalSetting):
            raise InvalidInputError(
                f"{setting.name!r} does not train on several ranks; only the controlled experiments do."
            )
        wanted["ranks"] = n_ranks()
    if path.exists():
        record = read_record(path)
        known = {"ranks": 1} | wanted  # a field that is newer than the record has its default
        if known | {"ranks": 1} | record.settings == known:
            return record
    checkpoint = path.with_suffix(".safetensors")
    if isinstance(setting, Setting | BimodalSetting):
        result = _controlled(setting, seed, checkpoint, observer)
    elif isinstance(setting, FrozenTextSetting | FrozenImagesSetting):
        place = data_folder(data_dir), cache_folder(cache)
        result = _frozen(setting, seed, place, checkpoint, observer=observer, progress=progress)
    elif isinstance(setting, AdaptiveSetting):
        data = adaptive_retrieval.load(
            setting, data_folder(data_dir), cache_folder(cache), progress
        )
        metrics = adaptive_retrieval.evaluate(data, seed, progress)
        result = _Result("adaptive", Fit(nn.Identity()), metrics, data.hashes)
    else:
        result = _images(setting, seed, data_folder(data_dir), checkpoint, observer)
    name = f"{result.family}/{setting.name}"
    if rank() > 0:
        return Record(name, {}, command=command, seed=seed, settings=wanted)
    metrics = result.metrics | {
        "seconds_training": round(result.fitted.seconds, 1),
        "curve": result.fitted.curve,
    }
    if result.family != "adaptive":  # adaptive retrieval runs no network
        metrics["bfloat16"] = bfloat16_in_hardware()  # of hidden layers
    record = Record(name, metrics, command=command, seed=seed, settings=wanted, data=result.data)
    write_record(record, path)
    for leftover in path.parent.glob(f"{path.stem}*.safetensors"):
        leftover.unlink()
    return record


def _controlled(
    setting: Setting | BimodalSetting, seed: int, checkpoint: Path, observer: Observer | None
) -> _Result:
    """A run on a process whose posteriors are known."""
    experiment: Any = bimodal if isinstance(setting, BimodalSetting) else controlled
    fitted, process = experiment.train(setting, seed, checkpoint=checkpoint, observer=observer)
    if rank() > 0:
        return _Result("controlled", fitted, {}, {})
    started = time.monotonic()
    metrics = experiment.evaluate(fitted.encoder, process)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return _Result("controlled", fitted, metrics, {})


def _images(
    setting: ImageSetting,
    fold: int,
    folder: Path,
    checkpoint: Path,
    observer: Observer | None,
) -> _Result:
    """A run on a fold of CIFAR-10H; the thumbnails of pictures are written next to the record."""
    extra = isinstance(setting, Cifar10HSetting) and setting.extra
    parts = ("test", "train") if extra else ("test",)
    hashes = files_read(folder, fold, _pretrained(setting), parts=parts)
    if isinstance(setting, CredibleRetrievalSetting):
        fitted, metrics = credible_retrieval.run_fold(
            setting, fold, folder=folder, checkpoint=checkpoint, observer=observer
        )
        return _Result("retrieval", fitted, metrics, hashes)
    split = cifar10h.Split.load(folder, fold)
    if isinstance(setting, VotesSetting):
        fitted, metrics = cifar10h_votes.run_fold(
            setting, split, fold, folder=folder, checkpoint=checkpoint, observer=observer
        )
        return _Result("cifar10h", fitted, metrics, hashes)
    if isinstance(setting, BaselineSetting | VoteBaseline):
        metrics = (
            cifar10h.evaluate_baseline(split, setting, folder=folder)
            if isinstance(setting, BaselineSetting)
            else cifar10h_baselines.evaluate_vote_baseline(setting, split, fold, folder=folder)
        )
        return _Result("cifar10h", Fit(nn.Identity()), metrics, hashes)
    place: dict[str, Any] = {"folder": folder, "checkpoint": checkpoint, "observer": observer}
    chosen, tried = cifar10h.choose(setting, split, fold, **place)
    fitted = cifar10h.train(chosen, split, fold, **place)
    started = time.monotonic()
    model = MirroredViews(fitted.encoder) if setting.mirrored else fitted.encoder
    metrics = cifar10h.evaluate(model, split, setting, folder=folder)
    metrics["bootstrap_errors"] = cifar10h_baselines.encoder_errors(model, split)
    if tried:
        metrics["chosen"], metrics["tried"] = {"lr": chosen.lr, "head": chosen.head}, tried
    if setting.gallery and fold == 0:
        metrics["pictures"] = cifar10h.pictures(model, split, checkpoint.with_suffix(".png"))
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return _Result("cifar10h", fitted, metrics, hashes)


def _pretrained(
    setting: ImageSetting,
) -> tuple[BackboneName, ...]:
    """The backbones whose pretrained classifiers a run reads."""
    if isinstance(setting, CredibleRetrievalSetting):
        return _pretrained(setting.encoder)
    if isinstance(setting, BaselineSetting):
        return () if setting.name == "ceiling" else (setting.backbone,)
    if isinstance(setting, Cifar10HSetting) and not setting.pretrained:
        return ()
    return (setting.backbone, *setting.also)


def _frozen(
    setting: FrozenTextSetting | FrozenImagesSetting,
    seed: int,
    place: tuple[Path, Path],
    checkpoint: Path,
    *,
    observer: Observer | None,
    progress: Progress | None,
) -> _Result:
    """A run of heads on the features of a frozen encoder; ``place`` is the data folder and the cache."""
    folder, cache = place
    if isinstance(setting, FrozenImagesSetting):
        features = frozen_images.load(setting, folder, cache, progress)
        metrics = frozen_images.evaluate(
            features, setting, seed, observer=observer, progress=progress
        )
        return _Result("frozen", Fit(nn.Identity()), metrics, frozen_images.hashes(folder))
    embed = SentenceFeatures(cache, progress=progress)
    head = frozen_text.train(
        setting, seed, embed, folder=folder, checkpoint=checkpoint, observer=observer
    )
    started = time.monotonic()
    metrics = frozen_text.evaluate(head, embed, folder=folder)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    return _Result("frozen", head.fit_, metrics, frozen_text.data_hashes(folder))
