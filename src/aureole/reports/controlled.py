"""The report of the controlled experiment: a summary, and a section for all that has records, on one page."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from aureole.reports.page import render
from aureole.reports.paper import format_paper, paper_value
from aureole.reports.runs import (
    Groups,
    Run,
    format_summary,
    group,
    read_runs,
    setting_values,
    summary,
)
from aureole.reports.sections import build_sections
from aureole.reports.tables import coverage_summary, present

__all__ = ["main_results", "write_report"]


def write_report(folder: Path, out: Path) -> Path:
    """Write the report of a folder of records to ``out``, whole or not at all, and return the path."""
    runs = read_runs(folder)
    groups = group(runs)
    html = render(
        "The controlled experiment: the paper's numbers and ours",
        build_sections(groups),
        about=_about(groups),
        results=main_results(groups),
        footer=_origins(runs),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=out.parent, suffix=".tmp", delete=False, encoding="utf-8"
    ) as handle:
        handle.write(html)
    Path(handle.name).replace(out)
    out.chmod(0o644)
    return out


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
        f"This page compares {_counted(count, 'record')} of {_counted(len(groups), 'setting')} with the paper's "
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
    facts = f"preset {presets}, {_counted(len(runs), 'seed')}"
    return f"{title} ({facts}): κ is found with {' and '.join(parts)}." if parts else ""


def _origins(runs: Sequence[Run]) -> list[str]:
    """What made the records: commits, versions and machines, each named once."""
    records = [run.record for run in runs]
    versions = (
        f"{name} {version}" for record in records for name, version in record.versions.items()
    )
    return [
        f"Commits: {_distinct(record.commit for record in records)} (a + marks uncommitted changes).",
        f"Versions: {_distinct(versions)}.",
        f"Machines: {_distinct(record.machine for record in records)}.",
        "Each section lists its records with the command that made them; "
        "the same command with the same seed makes a record again.",
    ]


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
