"""Readings: κ on sentences that are no captions. Tables of AmbiEnt and ChaosNLI, and what their intervals hold."""

from collections.abc import Sequence

from aureole.explorer import Run, Table
from aureole_paper.caption_tables import KAPPA, entries, named
from aureole_paper.records import (
    MISSING,
    Groups,
    Summary,
    first_with,
    format_percent,
    format_summary,
    numbers,
    summarise,
    value_at,
)

_PAIRS = {"all": "all pairs", "equal_length": "pairs of as many words"}
_PARTS = {"snli": "SNLI", "mnli_m": "MNLI"}
_SIDES = ("premise", "hypothesis")
_WHICH = (
    "The first seed that has it, with the 95 % interval of a bootstrap over sentences; rows of seeds have the mean ± "
    "standard error over all of them, which knows nothing of the choice of sentences."
)


def interval(run: Run, *keys: str) -> tuple[float, float, float] | None:
    """(The value, the ends of its interval) that a run has at the keys, or None where it has not all three."""
    found = value_at(run, *keys)
    values = numbers(found) if isinstance(found, list) else []
    return (values[0], values[1], values[2]) if len(values) == 3 else None


def side_of(found: tuple[float, float, float], value: float) -> str:
    """Where an interval lies of a value: above, below, or around it.

    Examples
    --------
    >>> side_of((0.6, 0.55, 0.65), 0.5), side_of((0.5, 0.45, 0.55), 0.5)
    ('above', 'around')
    """
    return "above" if found[1] > value else "below" if found[2] < value else "around"


def ambient_table(groups: Groups, names: Sequence[str]) -> list[Table]:
    """How often a reading is surer than the ambiguous sentence, by κ and by each peer; nothing without records."""
    run = first_with(groups, names[0], "ambient")
    if run is None:
        return []
    runs, rows = groups[names[0]], []
    for name in entries(runs, "ambient"):
        found = [interval(run, "ambient", name, kind) for kind in _PAIRS]
        rows.append((named(name), *map(_share, found)))
        if name == KAPPA and len(runs) > 1:
            means = [_over_seeds(runs, "ambient", KAPPA, kind) for kind in _PAIRS]
            rows.append((_seeds(runs), *map(format_percent, means)))
    counts = [_count(run, "ambient", key) for key in ("pairs", "pairs_of_equal_length")]
    header = tuple(f"{label} ({n}), %" for label, n in zip(_PAIRS.values(), counts, strict=True))
    caption = (
        "Share of pairs of an ambiguous sentence and one of its readings in which the reading is the surer one; "
        f"ties count half, and 50 % is a coin. {_WHICH}"
    )
    return [Table("AmbiEnt", caption, ("sure by", *header), tuple(rows))]


def chaos_table(groups: Groups, names: Sequence[str]) -> list[Table]:
    """The rank correlations of doubt with the entropy of the votes on pairs of sentences; nothing without records."""
    run = first_with(groups, names[0], "chaos")
    places = _places(run) if run else []
    if run is None or not places:
        return []
    runs, rows = groups[names[0]], []
    ways = {
        (name, way): None
        for place in places
        for name in entries([run], "chaos", *place)
        for way in value_at(run, "chaos", *place, name)
    }
    for name, way in ways:
        cells = [_rank(interval(run, "chaos", *place, name, way)) for place in places]
        taken = ", length taken out" if way == "given_length" else ""
        rows.append((f"{named(name)}{taken}", *cells))
        if name == KAPPA and len(runs) > 1:
            means = [_over_seeds(runs, "chaos", *place, name, way) for place in places]
            rows.append((_seeds(runs) + taken, *map(format_summary, means)))
    parts = list(dict.fromkeys(part for part, _ in places))
    spans = [("", 1)]
    for part in parts:
        label = f"{_PARTS.get(part, part)}, {_count(run, 'chaos', part, 'pairs')} pairs"
        spans.append((label, sum(place[0] == part for place in places)))
    caption = (
        "Rank correlation of doubt (low certainty) about a sentence with the entropy of people's votes on whether the "
        "hypothesis follows from the premise; 0 is no relation. Length is the number of words. "
        f"{_WHICH}"
    )
    header = ("sure by", *(side for _, side in places))
    return [Table("ChaosNLI", caption, header, tuple(rows), tuple(spans))]


def ambient_text(groups: Groups, names: Sequence[str]) -> str:
    """What AmbiEnt's intervals say, in sentences."""
    run = first_with(groups, names[0], "ambient") if names else None
    everything = interval(run, "ambient", KAPPA, "all") if run else None
    if run is None or everything is None:
        return ""
    text = (
        f"AmbiEnt, seed {run.record.seed}: a reading has a higher κ than the ambiguous sentence in {_said(everything)} "
        "of all pairs. "
    )
    words = interval(run, "ambient", "words", "all")
    if words:
        text += f"The number of words says the same in {_said(words)}. "
    same = interval(run, "ambient", KAPPA, "equal_length")
    if same:
        verdicts = {
            "above": "lies above 50 %: κ knows more than the number of words",
            "below": "lies below 50 %: here κ prefers the ambiguous sentence",
            "around": "contains 50 %: that κ knows more than the number of words is not shown",
        }
        text += (
            f"Among pairs of as many words it is {_said(same)}; the interval "
            f"{verdicts[side_of(same, 0.5)]}. "
        )
    return text.strip()


def chaos_text(groups: Groups, names: Sequence[str]) -> str:
    """What ChaosNLI's intervals say of κ, as it is and once length is taken out, in sentences."""
    run = first_with(groups, names[0], "chaos") if names else None
    if run is None:
        return ""
    told = (
        _chaos_sentence(run, "all", f"ChaosNLI, seed {run.record.seed}, κ as it is"),
        _chaos_sentence(run, "given_length", "With the number of words taken out"),
    )
    return " ".join(text for text in told if text)


def _chaos_sentence(run: Run, way: str, start: str) -> str:
    sides: dict[str, list[str]] = {"above": [], "below": [], "around": []}
    for part, side in _places(run):
        found = interval(run, "chaos", part, side, KAPPA, way)
        if found:
            sides[side_of(found, 0.0)].append(f"{_PARTS.get(part, part)}'s {side}")
    said = {
        "above": "doubt goes with disagreement for",
        "below": "doubt goes with agreement for",
        "around": "the interval contains 0 for",
    }
    parts = [f"{said[where]} {_listed(labels)}" for where, labels in sides.items() if labels]
    return f"{start}: {'; '.join(parts)}." if parts else ""


def _places(run: Run) -> list[tuple[str, str]]:
    """(Part, side) of ChaosNLI that a run has."""
    parts = entries([run], "chaos")
    ordered = dict.fromkeys([*(part for part in _PARTS if part in parts), *parts])
    both = [(part, side) for part in ordered for side in _SIDES]
    return [place for place in both if entries([run], "chaos", *place)]


def _over_seeds(runs: Sequence[Run], *keys: str) -> Summary | None:
    found = numbers(value_at(run, *keys, 0) for run in runs)
    return summarise(found) if found else None


def _seeds(runs: Sequence[Run]) -> str:
    return f"κ, {len(runs)} seeds"


def _count(run: Run, *keys: str) -> str:
    found = numbers([value_at(run, *keys)])
    return f"{found[0]:,.0f}" if found else MISSING


def _share(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return MISSING
    value, low, high = (100 * x for x in found)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def _said(found: tuple[float, float, float]) -> str:
    value, low, high = (100 * x for x in found)
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def _rank(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return MISSING
    return "{:.3f} [{:.3f}, {:.3f}]".format(*(round(x, 3) + 0.0 for x in found))  # no -0.000


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
