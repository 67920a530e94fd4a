"""Records by setting, and the mean and standard error of a metric over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aureole.errors import InvalidInputError, MissingInputError
from aureole.explorer._page import Run, format_number
from aureole.records import read_record

RECOVERY = {"mu_rank": "μ rank", "mu_mae": "μ MAE", "kappa_rank": "κ rank", "kappa_mae": "κ MAE"}
MISSING = "\N{EN DASH}"  # what a table cell shows for a missing value
Groups = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Summary:
    """The mean of a metric over ``n`` seeds and its standard error, which needs two or more."""

    mean: float
    error: float | None
    n: int


def read_runs(folder: Path) -> list[Run]:
    """All runs below a folder, read from ``<setting>/seed-<n>.json``."""
    paths = sorted(folder.glob("*/seed-*.json"))
    if not paths:
        raise MissingInputError(
            f"no records in {folder} (looked for {folder}/<setting>/seed-<n>.json). Create some with "
            f"`aureole reproduce ambiguous --out {folder}`, or pass the folder that was its --out."
        )
    return [Run(p.parent.name, p.relative_to(folder), read_record(p), folder) for p in paths]


def group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each setting, settings by name and runs by seed."""
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: -1 if run.record.seed is None else run.record.seed):
        groups.setdefault(run.setting, []).append(run)
    return dict(sorted(groups.items()))


def numbers(values: Iterable[Any]) -> list[float]:
    """The values that are numbers, as floats; "inf" is infinity, and everything else is dropped."""
    return [number for value in values if (number := _number(value)) is not None]


def summarise(values: Sequence[float]) -> Summary:
    r"""The mean and its standard error :math:`s / \sqrt n`, where s is the sample standard deviation."""
    n = len(values)
    if n == 0:
        raise InvalidInputError("values must hold one number or more, but is empty.")
    mean = math.fsum(values) / n if all(map(math.isfinite, values)) else math.inf
    if n == 1 or math.isinf(mean):
        return Summary(mean, None, n)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Summary(mean, math.sqrt(variance / n), n)


def summary(runs: Sequence[Run], *keys: str | int) -> Summary | None:
    """The summary of a metric over the runs that have it, or None; further keys and positions go into nested ones."""
    values = numbers(value_at(run, *keys) for run in runs)
    return summarise(values) if values else None


def value_at(run: Run, *keys: str | int) -> Any:
    """The value in a run's metrics at a path of keys and positions, or None if it is missing.

    Examples
    --------
    >>> from aureole.records import Record
    >>> run = Run("a", Path("a"), Record("a", {"gains": {"half": [0.5, 0.25]}}, ""))
    >>> value_at(run, "gains", "half", 1), value_at(run, "gains", "half", 2), value_at(run, "gains", "fifth", 1)
    (0.25, None, None)
    """
    value: Any = run.record.metrics
    for key in keys:
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and key < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def first_with(groups: Groups, setting: str, metric: str) -> Run | None:
    """The first run of a setting that has a metric."""
    return next((run for run in groups.get(setting, ()) if run.record.metrics.get(metric)), None)


def setting_values(runs: Sequence[Run], key: str) -> list[Any]:
    """The distinct values of a setting among the runs, in order; mostly one."""
    values: list[Any] = []
    for run in runs:
        value = run.record.settings.get(key)
        if value is not None and value not in values:
            values.append(value)
    return values


def format_summary(value: Summary | None) -> str:
    """The mean ± standard error, with enough decimals to show the error; the mean alone for one seed or equal ones."""
    if value is None:
        return MISSING
    if value.error is None or value.error < 1e-9:
        return format_number(value.mean)
    size = abs(value.mean)
    if size >= 1e4 or 0 < size < 1e-3:
        power = math.floor(math.log10(size))
        mean, error = (x / 10.0**power for x in (value.mean, value.error))
        digits = 1 if error >= 0.05 else 2
        return f"{mean:.{digits}f}e{power} ± {error:.{digits}f}e{power}"
    decimals = 3 if size < 1 else 2 if size < 10 else 1
    if value.error < 0.5 * 10**-decimals:
        decimals = min(decimals + 1, 4)
    return f"{format_number(value.mean, decimals)} ± {format_number(value.error, decimals)}"


def format_percent(value: Summary | None, *, signed: bool = False) -> str:
    """The mean ± standard error of a share in percent; of a difference of shares, ``signed``, in points.

    Examples
    --------
    >>> format_percent(Summary(0.8768, 0.0023, 5)), format_percent(Summary(-0.052, 0.0001, 5), signed=True)
    ('87.7 ± 0.2', '-5.20 ± 0.01')
    >>> format_percent(Summary(0.5, 1e-17, 5))
    '50.0'
    """
    if value is None:
        return MISSING
    mean, sign = 100 * value.mean, "+" if signed else ""
    if value.error is None or value.error < 1e-9:
        return f"{mean:{sign}.1f}"
    error = 100 * value.error
    decimals = 1 if error >= 0.05 else 2
    return f"{mean:{sign}.{decimals}f} ± {error:.{decimals}f}"


def counted(count: int, noun: str) -> str:
    """The count with its noun, in the plural unless it is one.

    Examples
    --------
    >>> counted(1, "seed"), counted(5, "fold")
    ('1 seed', '5 folds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return math.inf if value == "inf" else None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)
