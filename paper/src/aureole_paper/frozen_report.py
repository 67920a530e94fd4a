"""The report of heads on frozen encoders, of text and of images: a summary, and a section for all that has records."""

from collections.abc import Mapping, Sequence
from typing import Any

from aureole.explorer import Report, Run, Table
from aureole_paper import frozen_figures
from aureole_paper.caption_tables import (
    KAPPA,
    PLAIN,
    captions_table,
    change_table,
    changes,
    extreme_galleries,
    settings_with,
    taken_coverage,
)
from aureole_paper.method_tables import images_result, images_text, methods_table
from aureole_paper.plans import Plan, build_sections
from aureole_paper.reading_tables import ambient_table, ambient_text, chaos_table, chaos_text
from aureole_paper.records import (
    MISSING,
    Groups,
    counted,
    format_percent,
    format_summary,
    group,
    summary,
)
from aureole_paper.tables import generic_table, present

_TEXT, _IMAGES = settings_with("gains"), settings_with("methods")


def frozen_report(runs: Sequence[Run]) -> Report:
    """The report of runs of heads on frozen encoders."""
    groups = group(runs)
    return Report(
        "Heads on frozen encoders",
        _about(groups),
        tuple(main_results(groups)),
        tuple(build_sections(_PLANS, groups, _rest)),
    )


def main_results(groups: Groups) -> list[str]:
    """Plain sentences on the main results of the runs that are there."""
    results = [_gained(groups), _kept(groups), ambient_text(groups, _plain(groups))]
    results.append(images_result(groups, _IMAGES(groups)))
    return [result for result in results if result]


def _about(groups: Groups) -> str:
    count = sum(map(len, groups.values()))
    return (
        f"This page shows {counted(count, 'record')} of {counted(len(groups), 'setting')}. An encoder is left as it "
        "is; a head learns posteriors vMF(μ, κ) from its vectors and from what belongs together: captions of one "
        "photo, images of one class. Nobody knows the true κ, so it is judged by what it is good for, beside things "
        "that one could use instead."
    )


def _plain(groups: Groups) -> list[str]:
    """The text setting that tables show: captions alone, or else the first that there is."""
    return _TEXT(groups)[:1]


def _gained(groups: Groups) -> str:
    """A sentence on what κ gains on captions."""
    runs = [run for name in _plain(groups) for run in groups[name]]
    recall = summary(runs, "recall_at_1")
    half, fifth = (summary(runs, "gains", KAPPA, part) for part in ("half", "fifth"))
    if not (recall and half and fifth):
        return ""
    return (
        f"Captions, {counted(len(runs), 'seed')}: R@1 is {format_percent(recall)} %; that of the half that κ is surest "
        f"of differs from it by {format_percent(half, signed=True)} points, that of the fifth that it is least sure of "
        f"by {format_percent(fifth, signed=True)} points."
    )


def _kept(groups: Groups) -> str:
    """A sentence on the promises of caps."""
    found = taken_coverage(groups, _plain(groups))
    shares = next(iter(found.values()), {})
    if not shares:
        return ""
    promised = ", ".join(f"{100 * mass:g}" for mass in shares)
    measured = ", ".join(f"{100 * share.mean:.1f}" for share in shares.values())
    return f"Caps that promise to hold another caption of the photo in {promised} % of cases hold it in {measured} %."


def _captions_text(groups: Groups) -> str:
    text = (
        "A caption is right if its vector is nearest to the mean of the other four captions of its own photo; R@1 is "
        "the share that is. Does it rise where captions of low κ are set aside, and by more than where short ones are?"
    )
    runs = [run for name in _plain(groups) for run in groups[name]]
    words = summary(runs, "words_rank")
    if words:
        text += f" The rank correlation of κ with the number of words is {format_summary(words)}."
    return text


def _coverage(groups: Groups, names: Sequence[str]) -> list[Table]:
    found = taken_coverage(groups, names)
    masses = sorted({mass for shares in found.values() for mass in shares})
    rows = tuple(
        (label, *(format_percent(shares.get(mass)) for mass in masses))
        for label, shares in found.items()
    )
    caption = (
        "How often the cap around an input's μ that promises the mass in the header holds the μ of a partner, in "
        "percent. Held-out pairs are those of the training data that were not learned from; all else is of test data. "
        "Mean ± standard error over seeds."
    )
    header = ("head", *(f"{100 * mass:g} %" for mass in masses))
    return [Table("Coverage", caption, header, rows)]


def _coverage_figure(groups: Groups) -> str | None:
    """The figure of one text setting, as others would lie on it, and of the heads on images."""
    shown = taken_coverage(groups, [*_plain(groups), *_IMAGES(groups)])
    return frozen_figures.coverage_figure(shown)


def _coverage_text(groups: Groups) -> str:
    gaps = {
        (label, mass): share.mean - mass
        for label, shares in taken_coverage(groups, _known(groups)).items()
        for mass, share in shares.items()
    }
    if not gaps:
        return ""
    label, mass = max(gaps, key=lambda place: abs(gaps[place]))
    return (
        "Do caps that promise a mass hold it? The largest difference is "
        f"{100 * gaps[label, mass]:+.1f} points: {label}, at {100 * mass:g} %."
    )


def _far_text(groups: Groups) -> str:
    names = _plain(groups)
    text = (
        "The head has seen captions alone. Does its κ know of ambiguity elsewhere? AmbiEnt has ambiguous sentences, "
        "and for each the sentences that say one of its meanings alone; pairs of as many words stand beside all, as "
        "their number cannot help there. ChaosNLI has a hundred people's votes on pairs of sentences."
    )
    found = (ambient_text(groups, names), chaos_text(groups, names))
    return "\n\n".join((text, *(said for said in found if said)))


def _change_text(groups: Groups) -> str:
    """How each further kind of pairs changed what κ is good for, on the seeds that both settings have."""
    parts = []
    for name in _TEXT(groups):
        half = changes(groups, name, "gains", KAPPA, "half")
        same = changes(groups, name, "ambient", KAPPA, "equal_length", 0)
        if name == PLAIN or not (half and same):
            continue
        parts.append(
            f"{name}, {counted(half.n, 'seed')}: the gain of the surest half changed by "
            f"{format_percent(half, signed=True)} points, the share of AmbiEnt's pairs of as many words whose reading "
            f"is surer by {format_percent(same, signed=True)} points."
        )
    told = f"\n\nAgainst captions alone, on the same seeds. {' '.join(parts)}" if parts else ""
    return (
        "The same head, with more to learn from than captions: a caption of each photo with half of its words dropped, "
        f"or pairs of sentences that people find alike (STS-B), which are no captions.{told}"
    )


def _extremes_text(groups: Groups) -> str:
    run = next(run for run in groups[PLAIN] if run.record.metrics.get("extremes"))
    return f"The captions of test photos with the lowest and the highest κ. Setting {PLAIN}, seed {run.record.seed}."


def _images_about(groups: Groups) -> str:
    text = (
        "Heads on the features of a photo encoder that nobody trained for CIFAR-10, beside what else says how "
        "uncertain an image is. All learn from CIFAR-10's training images and labels; people's votes (CIFAR-10H) "
        "and crops of the test images only judge."
    )
    return f"{text}\n\n{images_text(groups, _IMAGES(groups))}".strip()


def _settings_tables(groups: Groups, _: Sequence[str]) -> list[Table]:
    tables = []
    for title, names in (("Text", _TEXT(groups)), ("Images", _IMAGES(groups))):
        columns = [_flat(groups[name][0].record.settings) for name in names]
        fields = [key for key in dict.fromkeys(k for c in columns for k in c) if key != "name"]
        rows = tuple((key, *(column.get(key, MISSING) for column in columns)) for key in fields)
        caption = "All fields of the settings, as the records have them."
        tables.append(Table(title, caption, ("field", *names), rows))
    return [*tables, _commands(groups)]


def _commands(groups: Groups) -> Table:
    rows = []
    for name in present(groups, _known(groups)):
        by: dict[str, list[str]] = {}
        for run in groups[name]:
            by.setdefault(run.record.command, []).append(str(run.record.seed))
        rows += [(name, ", ".join(seeds), command) for command, seeds in by.items()]
    caption = "What made the records. The same command with the same seed makes a record again."
    return Table("Commands", caption, ("setting", "seeds", "command"), tuple(rows))


def _flat(settings: Mapping[str, Any], lead: str = "") -> dict[str, str]:
    """The settings with nested ones under names with dots, as text."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{lead}{key}.")
        else:
            found[lead + key] = _plain_text(value)
    return found


def _plain_text(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _known(groups: Groups) -> list[str]:
    return [*_TEXT(groups), *_IMAGES(groups)]


def _covered(groups: Groups) -> list[str]:
    return [name for name in _known(groups) if taken_coverage(groups, [name])]


def _rest(groups: Groups, names: Sequence[str]) -> Table:
    caption = "Mean ± standard error over seeds."
    return generic_table("Other runs", caption, groups, names)


_PLANS = (
    Plan(
        "captions",
        "Captions",
        _captions_text,
        _plain,
        lambda groups, names: [captions_table(groups, names)],
        figures=(
            (
                frozen_figures.rejection_figure,
                "R@1 of the captions that are left when those of the lowest κ are set aside. Mean over seeds; the band "
                "is a standard error wide on each side.",
            ),
            (
                frozen_figures.caption_figure,
                "Median κ of the first to the last caption of a photo. The first is the longest on average. Mean over "
                "seeds; bars are standard errors.",
            ),
        ),
    ),
    Plan(
        "coverage",
        "Coverage",
        _coverage_text,
        _covered,
        _coverage,
        figures=(
            (
                _coverage_figure,
                "Measured minus promised coverage in points. Grey: within two points. Above 0 caps are too wide, below "
                "0 too narrow. Bars are standard errors over seeds.",
            ),
        ),
        owns=False,
    ),
    Plan(
        "far",
        "Far from captions",
        _far_text,
        _plain,
        lambda groups, names: [*ambient_table(groups, names), *chaos_table(groups, names)],
        owns=False,
    ),
    Plan(
        "pairs",
        "What further training pairs changed",
        _change_text,
        _TEXT,
        lambda groups, names: [change_table(groups, names)],
        beside=(PLAIN,),
    ),
    Plan(
        "extremes",
        "The surest and the least sure captions",
        _extremes_text,
        lambda groups: [PLAIN] if extreme_galleries(groups) else [],
        galleries=extreme_galleries,
        owns=False,
    ),
    Plan(
        "images",
        "Images",
        _images_about,
        _IMAGES,
        lambda groups, names: [methods_table(groups, name) for name in present(groups, names)],
    ),
    Plan("settings", "Settings and commands", "", _known, _settings_tables, owns=False),
)
