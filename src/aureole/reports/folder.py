"""The report of a folder of records: of the experiment that they are of, as one page."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from aureole.errors import InvalidInputError
from aureole.reports.cifar10h import cifar10h_report
from aureole.reports.controlled import controlled_report
from aureole.reports.page import Report, render
from aureole.reports.runs import Run, read_runs

__all__ = ["read_report", "write_report"]

_CIFAR10H = (
    "cifar10h/"  # how the names of its records begin; those of the controlled experiment do not
)


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
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=out.parent, suffix=".tmp", delete=False, encoding="utf-8"
    ) as handle:
        handle.write(html)
    Path(handle.name).replace(out)
    out.chmod(0o644)
    return out


def _report(folder: Path, runs: Sequence[Run]) -> Report:
    pictures = [run for run in runs if run.record.name.startswith(_CIFAR10H)]
    if not pictures:
        return controlled_report(runs)
    if len(pictures) < len(runs):
        other = next(run for run in runs if run not in pictures)
        raise InvalidInputError(
            f"{folder} holds records of two experiments: {pictures[0].path} is of CIFAR-10H, {other.path} is of the "
            "controlled experiment. A report is of one: move the records of each to a folder of their own."
        )
    return cifar10h_report(runs)


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
