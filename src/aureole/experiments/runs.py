"""A run: a setting and a seed, trained, evaluated and recorded; resumable and never repeated."""

import time
from pathlib import Path
from typing import Any

from aureole.experiments import bimodal, controlled
from aureole.experiments.bimodal import BimodalSetting
from aureole.experiments.settings import Setting
from aureole.records import Record, read_record, write_record
from aureole.training.fit import Observer

__all__ = ["AnySetting", "record_path", "run"]

AnySetting = Setting | BimodalSetting


def record_path(out: Path, setting: AnySetting, seed: int) -> Path:
    """Where the record of a run lies."""
    return out / setting.name / f"seed-{seed}.json"


def run(
    setting: AnySetting, seed: int, out: Path, *, command: str, observer: Observer | None = None
) -> Record:
    """Train and evaluate one setting with one seed, and return its record, written below ``out``.

    A finished run with the same setting is read, not repeated; an interrupted one goes on from its checkpoint.
    """
    path = record_path(out, setting, seed)
    if path.exists():
        found = read_record(path)
        wanted = setting.as_json()
        if (
            wanted | found.settings == wanted
        ):  # a field that is newer than the record has its default
            return found
    checkpoint = path.with_suffix(".safetensors")
    metrics: dict[str, Any]
    if isinstance(setting, BimodalSetting):
        fitted, process = bimodal.train(setting, seed, checkpoint=checkpoint, observer=observer)
        started = time.monotonic()
        metrics = bimodal.evaluate(fitted.encoder, process)
    else:
        fitted, process = controlled.train(setting, seed, checkpoint=checkpoint, observer=observer)
        started = time.monotonic()
        metrics = controlled.evaluate(fitted.encoder, process)
    metrics["seconds_training"] = round(fitted.seconds, 1)
    metrics["seconds_evaluation"] = round(time.monotonic() - started, 1)
    metrics["curve"] = fitted.curve
    record = Record(
        f"controlled/{setting.name}",
        metrics,
        command=command,
        seed=seed,
        settings=setting.as_json(),
    )
    write_record(record, path)
    checkpoint.unlink(missing_ok=True)
    return record
