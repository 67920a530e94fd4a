"""The report of a folder of records: of the experiment that they are of, as one page."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aureole._io import atomic_write
from aureole.errors import InvalidInputError
from aureole.explorer import Report, Run, render
from aureole_paper.cifar10h_report import cifar10h_report
from aureole_paper.controlled_report import controlled_report
from aureole_paper.frozen_report import frozen_report
from aureole_paper.records import read_runs
from aureole_paper.retrieval_report import retrieval_report

# (how an experiment is called, the function that makes its report) by how the names of its records begin
_EXPERIMENTS = {
    "cifar10h/": ("CIFAR-10H", cifar10h_report),
    "frozen/": ("heads on frozen encoders", frozen_report),
    "retrieval/": ("credible retrieval", retrieval_report),
}
_OTHERS = ("the controlled experiment", controlled_report)


def read_report(folder: Path) -> Report:
    """The report of the records in a folder; an error if they are of more than one experiment."""
    return _report(folder, read_runs(folder))


def write_report(folder: Path, out: Path) -> Path:
    """Write the report of a folder of records to ``out``, whole or not at all, and return the path."""
    runs = read_runs(folder)
    report = _report(folder, runs)
    html = render(
        report.title,
        report.sections,
        about=report.about,
        results=report.results,
        footer=_origins(runs),
    )
    return atomic_write(out, html)


def _report(folder: Path, runs: Sequence[Run]) -> Report:
    first = {_experiment(run): run for run in reversed(runs)}
    if len(first) > 1:
        known = [found for found in (*_EXPERIMENTS.values(), _OTHERS) if found in first]
        listed = ", ".join(f"{first[found].path} is of {found[0]}" for found in known)
        raise InvalidInputError(
            f"{folder} holds records of {'two' if len(first) == 2 else 'several'} experiments: {listed}. "
            "A report is of one: move the records of each to a folder of their own."
        )
    ((_, report),) = first
    return report(runs)


def _experiment(run: Run) -> tuple[str, Callable[[Sequence[Run]], Report]]:
    """The name of the experiment that a run is of, and the function that makes its report."""
    starts = (start for start in _EXPERIMENTS if run.record.name.startswith(start))
    start = next(starts, None)
    return _OTHERS if start is None else _EXPERIMENTS[start]


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
