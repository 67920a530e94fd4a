"""The report of the controlled experiment: a summary, and a section for all that has records."""

from collections.abc import Sequence

from aureole.explorer import Report, Run
from aureole_paper.paper_values import format_paper, paper_value
from aureole_paper.records import Groups, counted, format_summary, group, setting_values, summary
from aureole_paper.sections import build_sections
from aureole_paper.tables import coverage_summary, present


def controlled_report(runs: Sequence[Run]) -> Report:
    """The report of runs of the controlled experiment."""
    groups = group(runs)
    return Report(
        "The controlled experiment: the paper's numbers and ours",
        _about(groups),
        tuple(main_results(groups)),
        tuple(build_sections(groups)),
    )


def main_results(groups: Groups) -> list[str]:
    """Plain sentences on the main results of the runs that are there, the paper's numbers beside ours."""
    names = present(groups, ("ambiguous", "clear", "two-dim"))
    results = [_result(name, groups[name]) for name in names]
    found = coverage_summary(groups.get("ambiguous", ()), "latent_coverage", 0.9)
    if found:
        results.append(
            f"Credible caps that promise to hold 90 % of the latents hold {format_summary(found)} % of them in the "
            "ambiguous setting."
        )
    return [result for result in results if result]


def _about(groups: Groups) -> str:
    count = sum(map(len, groups.values()))
    return (
        f"This page compares {counted(count, 'record')} of {counted(len(groups), 'setting')} with the paper's "
        "controlled experiment: an encoder learns posteriors vMF(μ, κ) from contrastive pairs of a process whose true "
        "posteriors are known. Preset fast is our loss, process, networks and schedule on a CPU; preset paper is the "
        "paper's own configuration. Fast differs from the paper in several ways at once, so its rows show what our "
        "whole configuration reaches, not what one change does."
    )


def _result(name: str, runs: Sequence[Run]) -> str:
    """A sentence on κ in a setting; nothing if the runs have no such metrics."""
    parts = []
    for metric, words in (("kappa_rank", "rank correlation"), ("kappa_mae", "mean absolute error")):
        found, theirs = summary(runs, metric), paper_value(name, metric)
        if found and theirs:
            parts.append(f"{words} {format_summary(found)} (paper: {format_paper(theirs)})")
    presets = ", ".join(map(str, setting_values(runs, "preset"))) or "unknown"
    title = name.removesuffix("-paper").capitalize()
    facts = f"preset {presets}, {counted(len(runs), 'seed')}"
    return f"{title} ({facts}): κ is found with {' and '.join(parts)}." if parts else ""
