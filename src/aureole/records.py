"""Records: a result with its provenance (command, commit, seed, versions, data), as JSON.

Every number in README, docs or a report is read from a record.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from aureole._io import atomic_write
from aureole.errors import InvalidInputError

__all__ = ["Record", "file_hash", "read_record", "write_record"]

_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A named result: metrics, and everything needed to reproduce them.

    Examples
    --------
    >>> record = Record("demo", {"error": 0.25}, command="python -m demo", seed=4)
    >>> record.metrics["error"]
    0.25
    """

    name: str
    metrics: dict[str, Any]
    command: str
    seed: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    commit: str = field(default_factory=lambda: _commit())
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    machine: str = field(default_factory=lambda: f"{platform.machine()}, {os.cpu_count()} cores")
    format: int = _FORMAT


def write_record(record: Record, path: Path | str) -> Path:
    """Write the record as JSON, atomically, and return the path.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_record(Record("demo", {"error": 0.25}, command="demo"), folder + "/demo.json")
    ...     read_record(path).metrics
    {'error': 0.25}
    """
    text = json.dumps(asdict(record), indent=1, sort_keys=True, allow_nan=False) + "\n"
    return atomic_write(Path(path), text)


def read_record(path: Path | str) -> Record:
    """Read a record from a JSON file; errors name the file and the problem."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if values["format"] != _FORMAT:
            raise InvalidInputError(
                f"{path} has record format {values['format']}, but this version reads {_FORMAT}."
            )
        return Record(**values)
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInputError(f"{path} is not a record: {error!r}.") from error


def file_hash(path: Path | str) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _commit() -> str:
    """The commit this package runs from, with '+' if there are uncommitted changes; or 'unknown'.

    A repository that only contains the folder, such as one around a virtual environment, does not count.
    """

    def git(*arguments: str) -> str:
        command, folder = ["git", *arguments], Path(__file__).parent
        return subprocess.check_output(
            command, cwd=folder, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # fails unless it is tracked
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in ("aureole", "torch", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
