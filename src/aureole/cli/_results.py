"""Results as commands print them: one JSON object, or tables of a few lines."""

import json
import math
from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table


def print_json(results: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; what is not finite is null."""
    typer.echo(json.dumps(finite(dict(results)), allow_nan=False))


def table(title: str, *header: str) -> Table:
    """An empty table under a title, wide enough for it."""
    return Table(*header, title=title, title_justify="left", min_width=len(title))


def coverage_table(coverage: Mapping[float, float]) -> Table:
    """What predictive caps promise, and what they hold."""
    found = table("how often caps hold a partner", "promised", "measured")
    for mass, share in coverage.items():
        found.add_row(f"{100 * mass:g} %", f"{100 * share:.1f} %")
    return found


def finite(value: Any) -> Any:
    """The value with None for what is not finite, as JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list) else value
