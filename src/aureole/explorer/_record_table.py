"""All records below a folder as one table: a row per record, a column per metric and setting."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import write_columns
from aureole.errors import InvalidInputError, MissingInputError
from aureole.records import Record, read_record

_LARGEST = 100_000_000  # bytes of a record
_PARTS = ("metrics", "settings")


def record_rows(folder: Path) -> list[dict[str, Any]]:
    """A flat dict per record below a folder, sorted by path; all have the same keys, in the same order.

    Metrics are named ``metrics.…`` and settings ``settings.…``, with dots between levels. Lists (curves, scatters) and
    files that are not records are skipped. A value that a record lacks is None.

    Examples
    --------
    >>> import tempfile
    >>> from aureole.records import write_record
    >>> folder = Path(tempfile.mkdtemp())
    >>> for seed in (4, 5):
    ...     record = Record("demo", {"error": 0.5 / seed, "curve": [1]}, command="demo", seed=seed)
    ...     _ = write_record(record, folder / "a" / f"seed-{seed}.json")
    >>> [(row["record"], row["seed"], row["metrics.error"]) for row in record_rows(folder)]
    [('a/seed-4.json', 4, 0.125), ('a/seed-5.json', 5, 0.1)]
    """
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is not a folder of records. Commands such as reproduce and train write them."
        )
    rows = []
    for path in sorted(folder.rglob("*.json")):
        if not path.is_file() or path.stat().st_size > _LARGEST:
            continue
        try:
            record = read_record(path)
        except InvalidInputError:
            continue
        rows.append(_row(path.relative_to(folder), record))
    if not rows:
        raise MissingInputError(
            f"no records below {folder}. Commands such as reproduce and train write them."
        )
    names = dict.fromkeys(name for row in rows for name in row)
    order = sorted(names, key=lambda name: name.partition(".")[0] in _PARTS)
    return [{name: row.get(name) for name in order} for row in rows]


def write_record_table(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Write rows of ``record_rows`` to a .csv, .parquet or .jsonl file, and return its path."""
    return write_columns(out, {name: _column([row[name] for row in rows]) for name in rows[0]})


def _row(path: Path, record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"record": path.as_posix()}
    row |= {name: getattr(record, name) for name in ("name", "seed", "commit", "command")}
    for part in _PARTS:
        row |= _flat(getattr(record, part), part)
    return row


def _flat(values: Any, prefix: str) -> dict[str, Any]:
    if isinstance(values, dict):
        return {
            name: value
            for key, inner in values.items()
            for name, value in _flat(inner, f"{prefix}.{key}").items()
        }
    return {} if isinstance(values, list) else {prefix: values}


def _column(values: list[Any]) -> np.ndarray:
    """Numbers if all values are numbers, with NaN for missing ones; otherwise texts, with None."""
    seen = [value for value in values if value is not None]
    if seen and all(type(value) in (int, float) for value in seen):
        if len(seen) == len(values) and all(type(value) is int for value in seen):
            return np.array(values, dtype=np.int64)
        return np.array([math.nan if value is None else value for value in values], np.float64)
    return np.array([None if value is None else str(value) for value in values], dtype=object)
