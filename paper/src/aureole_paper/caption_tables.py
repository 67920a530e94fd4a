"""Captions: the tables of a head on sentence vectors, and what they say in sentences. The rows follow the records."""

from collections.abc import Callable, Iterable, Sequence

from aureole.explorer import Gallery, Item, Run, Table, format_number
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    first_with,
    format_percent,
    format_summary,
    numbers,
    summarise,
    summary,
    value_at,
)
from aureole_paper.tables import LABELS, present

PLAIN = "text"  # the setting that others are compared with
KAPPA = "kappa"
_NAMES = {
    KAPPA: "κ",
    "words": "number of words",
    "characters": "number of characters",
    "norm": "norm of the vector",
}
_VIEWS = {
    "captions": "captions",
    "dropped": "captions, and one with half of its words",
    "stsb": "captions, and pairs of STS-B",
}
_SETTINGS = (PLAIN, "text-dropped", "text-stsb", "crops", "whole")  # first, in this order


def settings_with(metric: str) -> Callable[[Groups], list[str]]:
    """The settings that have runs with a metric, those that we know first."""

    def names(groups: Groups) -> list[str]:
        order = [*(name for name in _SETTINGS if name in groups), *groups]
        return [name for name in dict.fromkeys(order) if first_with(groups, name, metric)]

    return names


def named(name: str) -> str:
    """The certainty of a name as tables call it.

    Examples
    --------
    >>> named("kappa"), named("word_count")
    ('κ', 'word count')
    """
    return _NAMES.get(name, name.replace("_", " "))


def entries(runs: Sequence[Run], *keys: str) -> list[str]:
    """The names of what the runs' metrics hold at the keys in dictionaries: κ first, then its peers."""
    tables = [table for run in runs if isinstance(table := value_at(run, *keys), dict)]
    found = [name for table in tables for name in table if isinstance(table[name], dict)]
    known = [name for name in _NAMES if name in found]
    return list(dict.fromkeys([*known, *found]))


def captions_table(groups: Groups, names: Sequence[str]) -> Table:
    """R@1 of all captions, of the surest half and of the least sure fifth, by κ and by each peer."""
    runs = groups[names[0]]
    rows = [
        (named(name), *_gained(runs, ("recall_at_1",), ("gains", name)))
        for name in entries(runs, "gains")
    ]
    own = _gained(runs, ("recall_at_1_of_mu",), ("gains_of_mu",))
    if any(cell != MISSING for cell in own):
        rows.append(("κ, with μ for the vectors", *own))
    caption = (
        "R@1 in percent, and by how many points that of the surest half and of the least sure fifth differ from that "
        "of all. Vectors are the encoder's, untouched, but in the last row. Whether long or short is sure was decided "
        f"on validation photos. Setting {names[0]}; mean ± standard error over seeds, where seeds differ."
    )
    header = ("sure by", "R@1 of all", "R@1", "points", "R@1", "points", "seeds")
    spans = (("", 2), ("surest half", 2), ("least sure fifth", 2), ("", 1))
    return Table(
        "Captions", caption, header, tuple((*row, str(len(runs))) for row in rows), spans
    )  # fmt: skip


def _gained(runs: Sequence[Run], all_: tuple[str, ...], gains: tuple[str, ...]) -> tuple[str, ...]:
    """The cells: R@1 of all, then R@1 and its difference to that of all, of the half and of the fifth."""
    cells = [format_percent(summary(runs, *all_))]
    for part in ("half", "fifth"):
        pairs = [numbers([value_at(run, *all_), value_at(run, *gains, part)]) for run in runs]
        sums = [sum(pair) for pair in pairs if len(pair) == 2]
        cells.append(format_percent(summarise(sums) if sums else None))
        cells.append(format_percent(summary(runs, *gains, part), signed=True))
    return tuple(cells)


def masses(runs: Sequence[Run], *keys: str) -> list[str]:
    """The masses that caps promise in the runs' metrics at the keys, as they are written there, in order."""
    tables = (value_at(run, *keys) for run in runs)
    return sorted({m for t in tables if isinstance(t, dict) for m in t if _is_share(m)}, key=float)


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def taken_coverage(groups: Groups, names: Iterable[str]) -> dict[str, dict[float, Summary]]:
    """{Row: {promised mass: the share that was measured}} of all heads that have coverage, text and images."""
    found: dict[str, dict[float, Summary]] = {}
    for name in present(groups, names):
        runs = groups[name]
        kinds = {name: ("coverage",), f"{name}, held-out pairs": ("held_out_coverage",)}
        methods = entries(runs, "methods")
        kinds |= {f"{name}, {m.replace('-', ' ')}": ("methods", m, "coverage") for m in methods}
        for label, keys in kinds.items():
            shares = {float(mass): summary(runs, *keys, mass) for mass in masses(runs, *keys)}
            known = {mass: share for mass, share in shares.items() if share}
            if known:
                found[label] = known
    return found


_CHANGES: dict[str, tuple[tuple[str, ...], bool]] = {
    # what a column shows: where records have it, and whether it is a difference of shares
    "R@1 of μ, %": (("recall_at_1_of_mu",), False),
    "surest half, points": (("gains", KAPPA, "half"), True),
    "least sure fifth, points": (("gains", KAPPA, "fifth"), True),
    "90 % caps hold, %": (("coverage", "0.9"), False),
}


def change_table(groups: Groups, names: Sequence[str]) -> Table:
    """The settings that differ in what a group holds, side by side."""
    rows = []
    for name in present(groups, names):
        runs = groups[name]
        views = {str(run.record.settings.get("views", MISSING)) for run in runs}
        shown = ", ".join(_VIEWS.get(view, view) for view in sorted(views))
        cells = [format_percent(summary(runs, *keys), signed=s) for keys, s in _CHANGES.values()]
        seconds = summary(runs, "seconds_training")
        rows.append(
            (
                *(name, shown, format_summary(summary(runs, "information")), *cells),
                *(format_percent(_first(runs, kind)) for kind in ("all", "equal_length")),
                str(len(runs)),
                MISSING if seconds is None else format_number(seconds.mean, 0),
            )
        )
    header = (
        *("setting", "a group holds", LABELS["information"], *_CHANGES),
        *("all pairs, %", "of equal length, %", "seeds", "time, s"),
    )
    spans = (("", 2), ("captions", 1 + len(_CHANGES)), ("AmbiEnt: reading surer", 2), ("", 2))
    caption = (
        "The same test photos and sentences for all. Mean ± standard error over seeds; settings may have different "
        "numbers of them. Time is that of training."
    )
    return Table("What further pairs changed", caption, header, tuple(rows), spans)


def _first(runs: Sequence[Run], kind: str) -> Summary | None:
    """The summary over seeds of the share of AmbiEnt's pairs whose reading has the higher κ."""
    found = numbers(value_at(run, "ambient", KAPPA, kind, 0) for run in runs)
    return summarise(found) if found else None


def changes(groups: Groups, name: str, *keys: str | int) -> Summary | None:
    """How a metric of a setting differs from that of captions alone, over the seeds that both have."""
    plain = {run.record.seed: run for run in groups.get(PLAIN, ())}
    pairs = [
        numbers([value_at(run, *keys), value_at(plain[run.record.seed], *keys)])
        for run in groups.get(name, ())
        if run.record.seed in plain
    ]
    found = [pair[0] - pair[1] for pair in pairs if len(pair) == 2]
    return summarise(found) if found else None


def extreme_galleries(groups: Groups) -> list[Gallery]:
    """The sentences with the lowest and the highest κ, of the first seed."""
    run = first_with(groups, PLAIN, "extremes")
    if run is None:
        return []
    galleries = []
    for title, name in (("Least sure", "lowest"), ("Surest", "highest")):
        pairs = value_at(run, "extremes", name) or []
        items = [
            Item(" ".join(str(pair[0]).split()), f"κ {format_number(kappa)}")
            for pair in pairs
            if isinstance(pair, list) and len(pair) == 2
            for kappa in numbers(pair[1:])
        ]
        if items:
            galleries.append(Gallery(title, tuple(items)))
    return galleries
