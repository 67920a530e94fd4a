"""The report of a folder of records, of the experiment that they belong to, as one page."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from aureole._io import atomic_write
from aureole.errors import InvalidInputError
from aureole.explorer._page import Report, Run, render
from aureole_paper.adaptive_report import adaptive_report
from aureole_paper.cifar10h_report import cifar10h_report
from aureole_paper.controlled_report import controlled_report
from aureole_paper.frozen_report import frozen_report
from aureole_paper.records import read_runs
from aureole_paper.retrieval_report import retrieval_report

# (the experiment, the function that makes its report) by the first part of the names of its records
_EXPERIMENTS = {
    "cifar10h": ("CIFAR-10H", cifar10h_report),
    "frozen": ("heads on frozen encoders", frozen_report),
    "adaptive": ("adaptive retrieval", adaptive_report),
    "retrieval": ("credible retrieval", retrieval_report),
    "controlled": ("the controlled experiment", controlled_report),
}


def read_report(folder: Path) -> Report:
    """The report of the records in a folder; they must belong to one experiment."""
    return _report(folder, read_runs(folder))


def write_report(folder: Path, out: Path) -> Path:
    """Write the report of a folder of records to ``out`` atomically, and return the path."""
    runs = read_runs(folder)
    report = _report(folder, runs)
    records = [run.record for run in runs]
    versions = (f"{name} {version}" for r in records for name, version in r.versions.items())
    footer = [
        f"Commits: {_distinct(r.commit for r in records)} (a + marks uncommitted changes).",
        f"Versions: {_distinct(versions)}.",
        f"Machines: {_distinct(r.machine for r in records)}.",
        "Each section lists its records with their commands; "
        "the same command with the same seed reproduces a record.",
    ]
    about, results = report.about, report.results
    html = render(report.title, report.sections, about=about, results=results, footer=footer)
    return atomic_write(out, html)


def _report(folder: Path, runs: Sequence[Run]) -> Report:
    first = {_experiment(run): run for run in reversed(runs)}
    if len(first) > 1:
        known = [name for name in _EXPERIMENTS if name in first]
        listed = ", ".join(f"{first[n].path} is of {_EXPERIMENTS[n][0]}" for n in known)
        raise InvalidInputError(
            f"{folder} holds records of {len(first)} experiments: {listed}. "
            "Move the records of each experiment to a separate folder."
        )
    return _EXPERIMENTS[next(iter(first))][1](runs)


def _experiment(run: Run) -> str:
    start = run.record.name.partition("/")[0]
    return start if start in _EXPERIMENTS else "controlled"


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))
