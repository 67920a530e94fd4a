"""What reports share: sections and their texts, columns of settings, and tables of the paper's numbers and ours."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aureole.explorer._page import Gallery, Picture, Report, Run, Section, Table, format_number
from aureole_paper.records import (
    MISSING,
    Groups,
    counted,
    format_summary,
    group,
    numbers,
    setting_values,
    summary,
)

_TEXTS = tomllib.loads((Path(__file__).parent / "texts.toml").read_text(encoding="utf-8"))
LABELS = {
    "mu_rank": "μ rank corr. ↑",
    "mu_mae": "μ MAE ↓",
    "kappa_rank": "κ rank corr. ↑",
    "kappa_mae": "κ MAE ↓",
    "spread_rank": "spread rank corr. ↑",
    "spread_mae": "spread MAE ↓",
    "information": "nats per pair",
    "mean_length": "length of the mean of μ",
    "entropy_rank": "entropy rank corr. ↑",
    "crop_rank": "crop rank corr. ↑",
    "recall_at_1": "Recall@1 ↑",
}
FACTS = ("preset", "batches", "seeds", "time, s")  # the time is that of training
FOLD_FACTS = ("preset", "batches", "folds", "time, s")  # where a seed is a fold of the data
RECOVERY_METRICS = ("kappa_rank", "kappa_mae", "mu_rank", "mu_mae")  # the hardest first
_LOSS_NAMES = {
    "closed-form": "closed form",
    "mcinfonce": "MCInfoNCE",
    "elk": "ELK",
    "hib": "HIB",
    "infonce": "InfoNCE",
}


class Texts:
    """The titles, texts and captions of a report, from ``texts.toml``."""

    def __init__(self, report: str) -> None:
        self.sections = _TEXTS[report]

    def __call__(self, anchor: str, key: str = "caption", **values: str) -> str:
        """A text of a section, with values filled in."""
        return self.fill(self.sections[anchor].get(key, ""), values)

    def fill(self, text: str, values: Mapping[str, str]) -> str:
        """The text with values and notes filled in, one line per paragraph."""
        filled = text.format(**self.sections["notes"], **values)
        paragraphs = (" ".join(part.split()) for part in filled.split("\n\n"))
        return "\n\n".join(part for part in paragraphs if part)


@dataclass(frozen=True)
class Plan:
    """How a section of a report is made; its title, text and captions of figures are in ``texts.toml``.

    The section is shown if a setting of ``names`` that is not in ``context`` has runs. ``owns`` is False for a section
    about runs that belong to another one. ``values`` are filled into the text and into the captions of figures.
    """

    anchor: str
    names: Callable[[Groups], Sequence[str]]
    tables: Callable[[Groups, Sequence[str]], Sequence[Table]] = lambda *_: ()
    figures: tuple[Callable[[Groups], str | None], ...] = ()
    context: tuple[str, ...] = ()
    values: Callable[[Groups], dict[str, str]] = lambda _: {}
    galleries: Callable[[Groups], Sequence[Gallery]] = lambda _: ()
    owns: bool = True


def build_report(
    texts: Texts,
    plans: Sequence[Plan],
    runs: Sequence[Run],
    *,
    results: Callable[[Groups], Iterable[str]],
    metrics: Sequence[str] = (),
    about: Callable[[Groups], dict[str, str]] = lambda _: {},
) -> Report:
    """A report: its sections that have runs, and a last one of all other runs with these ``metrics``.

    ``about`` are values for the text of the report.
    """
    groups = group(runs)
    values = {"records": counted(len(runs), "record"), "settings": counted(len(groups), "setting")}
    text = texts("report", "text", **values, **about(groups))
    sections = build_sections(texts, plans, groups, metrics)
    return Report(texts("report", "title"), text, tuple(results(groups)), tuple(sections))


def build_sections(
    texts: Texts, plans: Sequence[Plan], groups: Groups, metrics: Sequence[str] = ()
) -> list[Section]:
    """The sections that have runs of their own, in order; the last is a table of the ``metrics`` of all other runs."""
    sections: list[Section] = []
    used: set[str] = set()
    for plan in plans:
        names = plan.names(groups)
        if not present(groups, [name for name in names if name not in plan.context]):
            continue
        shown = present(groups, names)
        tables = tuple(table for table in plan.tables(groups, names) if table.rows)
        values = plan.values(groups)
        captions = texts.sections[plan.anchor].get("figures", ())
        pictures = []
        for draw, caption in zip(plan.figures, captions, strict=True):
            text, svg = texts.fill(caption, values), draw(groups)
            pictures += [Picture(svg, text, text.split(". ")[0])] if svg else []
        galleries = tuple(plan.galleries(groups))
        if not tables and not pictures and not galleries:
            continue
        runs = tuple(run for name in shown for run in groups[name])
        title, text = texts(plan.anchor, "title"), texts(plan.anchor, "text", **values)
        content = (tables, tuple(pictures), runs, galleries)
        sections.append(Section(plan.anchor, title, text, *content))
        used.update(shown if plan.owns else ())
    left = [name for name in groups if name not in used]
    if left:
        runs = tuple(run for name in left for run in groups[name])
        title = texts("other", "title")
        table = generic_table(title, texts("other"), groups, left, metrics)
        sections.append(Section("other", title, texts("other", "text"), (table,), (), runs))
    return sections


def fixed(*names: str) -> Callable[[Groups], list[str]]:
    """A function that returns these settings for any runs."""
    return lambda _: list(names)


def present(groups: Groups, names: Iterable[str]) -> list[str]:
    """The names that have runs, each once and followed by its run of the paper's preset, if any."""
    both = (known for name in names for known in (name, f"{name}-paper") if known in groups)
    return list(dict.fromkeys(both))


def numbered(groups: Groups, prefix: str) -> list[tuple[int, str]]:
    """(Number, name) of the settings whose name is the prefix and a number, sorted, without "-paper"."""
    names = {name.removesuffix("-paper") for name in groups}
    matches = (re.fullmatch(re.escape(prefix) + "([0-9]+)", name) for name in names)
    return sorted((int(match[1]), match[0]) for match in matches if match)


def paired_table(
    title: str,
    caption: str,
    rows: Iterable[tuple[str, ...]],
    *,
    lead: Sequence[str],
    metrics: Sequence[str],
    facts: Sequence[str] = FACTS,
) -> Table:
    """The table of rows that hold the cells of ``lead``, the paper's number and ours for each metric, and ``facts``."""
    spans = (("", len(lead)), *((LABELS[metric], 2) for metric in metrics), ("", len(facts)))
    header = (*lead, *(("paper", "ours") * len(metrics)), *facts)
    return Table(title, caption, header, tuple(rows), spans)


def settings_table(
    title: str,
    caption: str,
    groups: Groups,
    *,
    names: Iterable[str],
    header: Sequence[str],
    cells: Callable[[Sequence[Run]], Iterable[str]],
) -> Table:
    """The table of our own runs: the ``cells`` of each setting's runs below their ``header``, and its facts."""
    rows = tuple((name, *cells(groups[name]), *run_facts(groups[name])) for name in names)
    return Table(title, caption, ("setting", *header, *FACTS), rows)


def generic_table(
    title: str, caption: str, groups: Groups, names: Iterable[str], metrics: Sequence[str] = ()
) -> Table:
    """The table of the metrics (default: all that are numbers) of settings that have no table of their own."""
    names = present(groups, names)
    if not metrics:
        runs = [run for name in names for run in groups[name]]
        keys = dict.fromkeys(key for run in runs for key in run.record.metrics)
        metrics = [key for key in keys if summary(runs, key) and not key.startswith("seconds_")]

    def cells(runs: Sequence[Run]) -> list[str]:
        return [format_summary(summary(runs, metric)) for metric in metrics]

    header = [LABELS.get(metric, metric.replace("_", " ")) for metric in metrics]
    return settings_table(title, caption, groups, names=names, header=header, cells=cells)


def ours(runs: Sequence[Run], metric: str) -> str:
    """Our number as a cell; the median of kappa where its true value is infinite."""
    if metric.startswith("kappa") and setting_values(runs, "loss") == ["infonce"]:
        return "not learned"
    value = summary(runs, metric)
    if value is None and metric == "kappa_mae":
        median = summary(runs, "kappa_median")
        return MISSING if median is None else f"median κ {format_summary(median)}"
    return format_summary(value)


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


def _if_closed_form(runs: Sequence[Run], closed: str, other: str) -> str:
    return closed if setting_values(runs, "loss") == ["closed-form"] else other


def _encoder_dim(runs: Sequence[Run]) -> str:
    own = _joined(runs, "encoder_dim")
    return _joined(runs, "dim") if own == MISSING else own


def _backbone(runs: Sequence[Run]) -> str:
    own = _joined(runs, "backbone", _network_name)
    others = _joined(runs, "also", lambda names: " + ".join(map(_network_name, names or [])))
    return own if others in ("", MISSING) else f"{own} + {others}"


def _network_name(name: Any) -> str:
    return str(name).replace("resnet", "ResNet-")


def _self_pairs(runs: Sequence[Run]) -> str:
    """The weights of self-pairs; records from before there were any have none."""
    weights = [
        f"weight {_plain(weight)}" for weight in setting_values(runs, "self_weight") if weight
    ]
    return ", ".join(weights) or "none"


def _batches(runs: Sequence[Run]) -> str:
    separate = setting_values(runs, "negatives")
    return f"separate pairs, {_plain(separate[0])} negatives" if separate else "pairs among items"


def _averaged(runs: Sequence[Run]) -> str:
    return "no" if setting_values(runs, "averaging") == [False] else "yes"


def _full_rank(kind: Any) -> str:
    return "yes" if kind == "whitened" else "no"


# what a table shows of the settings of a row's runs
COLUMNS: dict[str, Callable[[Sequence[Run]], str]] = {
    "D": lambda runs: _joined(runs, "dim"),
    "encoder D": _encoder_dim,
    "κ range": lambda runs: _joined(runs, "kappa_range", _range),
    "κ_pos": lambda runs: _joined(runs, "kappa_pos", _plain),
    "posterior": lambda runs: _joined(runs, "family"),
    "loss": _loss,
    "samples": lambda runs: _if_closed_form(runs, "none", _joined(runs, "n_samples")),
    "inputs per batch": lambda runs: _joined(runs, "items"),
    "architecture": lambda runs: _joined(runs, "architecture"),
    "rule": lambda runs: _joined(runs, "rule"),
    "full-rank generator": lambda runs: _joined(runs, "generator", _full_rank),
    "centring": lambda runs: _if_closed_form(runs, _joined(runs, "centring", _plain), MISSING),
    "backbone": _backbone,
    "self-pairs": _self_pairs,
    "pairs": _batches,
    "phases": lambda runs: _joined(runs, "phases"),
    "average of weights": _averaged,
}
