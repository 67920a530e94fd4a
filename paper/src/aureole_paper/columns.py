"""Columns: what a table shows of the settings of a row's runs, and the facts of the runs themselves."""

from collections.abc import Callable, Sequence
from typing import Any

from aureole.explorer import Run, format_number
from aureole_paper.records import MISSING, numbers, setting_values, summary

FACTS = ("preset", "batches", "seeds", "time, s")  # the time is that of training
FOLD_FACTS = ("preset", "batches", "folds", "time, s")  # where a seed is a fold of the data
_LOSS_NAMES = {
    "closed-form": "closed form",
    "mcinfonce": "MCInfoNCE",
    "elk": "ELK",
    "hib": "HIB",
    "infonce": "InfoNCE",
}

Cell = Callable[[Sequence[Run]], str]


def run_facts(runs: Sequence[Run]) -> tuple[str, ...]:
    """Preset, batches, seeds and mean seconds of training of the runs of one row."""
    steps = numbers(setting_values(runs, "steps"))
    batches = f"{min(steps):g}" if steps else MISSING
    if steps and max(steps) > min(steps):
        batches += f" to {max(steps):g}"
    seconds = summary(runs, "seconds_training")
    shown = MISSING if seconds is None else format_number(seconds.mean, 0)
    return _joined(runs, "preset"), batches, str(len(runs)), shown


def _joined(runs: Sequence[Run], key: str, show: Callable[[Any], str] = str) -> str:
    return ", ".join(show(value) for value in setting_values(runs, key)) or MISSING


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _range(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return str(value)
    ends = [_plain(end).replace("inf", "∞") for end in value]
    return f"[{', '.join(ends)}]" if len(set(ends)) > 1 else ends[0]


def _loss(runs: Sequence[Run]) -> str:
    settings = runs[0].record.settings
    loss = str(settings.get("loss", MISSING))
    name = _LOSS_NAMES.get(loss, loss)
    if loss in ("mcinfonce", "hib") and settings.get("n_samples"):
        count = settings["n_samples"]
        name += f", {count} sample{'' if count == 1 else 's'}"
    if loss in ("elk", "infonce"):
        scale = settings.get("temperature") or settings.get("kappa_pos")
        name += f", scale {_plain(scale)}" if scale else ""
    return name


def _samples(runs: Sequence[Run]) -> str:
    drawn = setting_values(runs, "loss") != ["closed-form"]
    return _joined(runs, "n_samples") if drawn else "none"


def _centring(runs: Sequence[Run]) -> str:
    closed = setting_values(runs, "loss") == ["closed-form"]
    return _joined(runs, "centring", _plain) if closed else MISSING


def _encoder_dim(runs: Sequence[Run]) -> str:
    found = _joined(runs, "encoder_dim")
    return _joined(runs, "dim") if found == MISSING else found


def _backbone(runs: Sequence[Run]) -> str:
    own = _joined(runs, "backbone", _network_name)
    others = _joined(runs, "also", lambda names: " + ".join(map(_network_name, names or [])))
    return own if others in ("", MISSING) else f"{own} + {others}"


def _network_name(name: Any) -> str:
    return str(name).replace("resnet", "ResNet-")


_YES = {True: "yes", False: "no"}
COLUMNS: dict[str, Cell] = {
    "D": lambda runs: _joined(runs, "dim"),
    "encoder D": _encoder_dim,
    "κ range": lambda runs: _joined(runs, "kappa_range", _range),
    "κ_pos": lambda runs: _joined(runs, "kappa_pos", _plain),
    "posterior": lambda runs: _joined(runs, "family"),
    "loss": _loss,
    "samples": _samples,
    "inputs per batch": lambda runs: _joined(runs, "items"),
    "architecture": lambda runs: _joined(runs, "architecture"),
    "rule": lambda runs: _joined(runs, "rule"),
    "full-rank generator": lambda runs: _joined(
        runs, "generator", lambda kind: _YES[kind == "whitened"]
    ),
    "centring": _centring,
    "negatives": lambda runs: _joined(runs, "negatives"),
    "κ_pos learned": lambda runs: _joined(runs, "learn_kappa_pos", lambda on: _YES[bool(on)]),
    "phases": lambda runs: _joined(runs, "phases"),
    "backbone": _backbone,
}
