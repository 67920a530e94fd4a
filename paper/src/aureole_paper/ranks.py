"""Ranks against one process: the figures of runs with the same seeds, and whether they differ by more than chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from aureole.errors import InvalidInputError
from aureole.records import Record, read_record

FIGURES = {"mu_rank": "μ rank", "mu_mae": "μ MAE", "kappa_rank": "κ rank", "kappa_mae": "κ MAE"}


@dataclass(frozen=True)
class Comparison:
    """A figure by one process and by several ranks: (mean, standard error) each, over the seeds that both have.

    ``difference`` is that of the same seeds, several minus one, with its own standard error.
    """

    figure: str
    one: tuple[float, float]
    several: tuple[float, float]
    difference: tuple[float, float]
    seeds: tuple[int, ...]
    ranks: int

    @property
    def errors_apart(self) -> float:
        """How many standard errors the two means lie apart, as those of independent samples."""
        return abs(self.several[0] - self.one[0]) / math.hypot(self.one[1], self.several[1])


def compare_ranks(one: Path, several: Path) -> list[Comparison]:
    """The figures of recovery in two folders of records ``seed-<n>.json``, by the seeds that both have."""
    records = [_records(folder) for folder in (one, several)]
    seeds = sorted(records[0].keys() & records[1].keys())
    if len(seeds) < 2:
        raise InvalidInputError(
            f"{one} and {several} have {len(seeds)} seeds in common; two are needed for a standard error."
        )
    found = []
    for name in FIGURES:
        left, right = ([float(r[seed].metrics[name]) for seed in seeds] for r in records)
        pairs = [b - a for a, b in zip(left, right, strict=True)]
        ranks = int(records[1][seeds[0]].settings.get("ranks", 1))
        parts = (_summary(left), _summary(right), _summary(pairs))
        found.append(Comparison(name, *parts, tuple(seeds), ranks))
    return found


def _records(folder: Path) -> dict[int, Record]:
    records = (read_record(path) for path in sorted(folder.glob("seed-*.json")))
    return {record.seed: record for record in records if record.seed is not None}


def _summary(values: Sequence[float]) -> tuple[float, float]:
    return mean(values), stdev(values) / math.sqrt(len(values))
